"""`harness.model`'s arithmetic on int64 tensors: unsigned 64-bit words in two's complement, and in floats.

vLLM's runner carries hidden states, embeddings and KV caches in the model's dtype, float32 here. A word travels as
four limbs of 16 bits, which a float32 holds exactly.
"""

import torch

from harness.model import FIRST, SEED, VOCABULARY

LIMBS = 4


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


_SEED = _signed(SEED)
_FIRST_FACTOR = _signed(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = _signed(0x94D049BB133111EB)


def signed(word: int) -> int:
    """The int64 with the bits of an unsigned word."""
    return _signed(word)


def _shifted(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift to the right; torch's is arithmetic."""
    return (words >> bits) & ((1 << (64 - bits)) - 1)


def mix(state: torch.Tensor, value: torch.Tensor | int) -> torch.Tensor:
    """`harness.model.mix`, element by element."""
    z = state * _FIRST_FACTOR + value + _SEED
    z = (z ^ _shifted(z, 30)) * _FIRST_FACTOR
    z = (z ^ _shifted(z, 27)) * _SECOND_FACTOR
    return z ^ _shifted(z, 31)


def keys(positions: torch.Tensor, tokens: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
    """`harness.model.key`, element by element."""
    return mix(mix(mix(torch.full_like(positions, _SEED), positions), tokens), items)


def drawn(fingerprints: torch.Tensor) -> torch.Tensor:
    """`harness.model.drawn`, element by element."""
    return FIRST + _shifted(mix(fingerprints, 0), 33) % (VOCABULARY - FIRST)


def to_limbs(words: torch.Tensor) -> torch.Tensor:
    """Shape [...] int64 to [..., LIMBS] float32."""
    shifts = torch.arange(0, 16 * LIMBS, 16, device=words.device)
    return ((words.unsqueeze(-1) >> shifts) & 0xFFFF).to(torch.float32)


def from_limbs(limbs: torch.Tensor) -> torch.Tensor:
    """The inverse; limbs that no word has (a poisoned cache) give some word."""
    shifts = torch.arange(0, 16 * LIMBS, 16, device=limbs.device)
    return (limbs.to(torch.int64) << shifts).sum(-1)

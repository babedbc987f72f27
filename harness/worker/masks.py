"""Grammar bitmasks as a model runner reads them: 32 tokens a word, one row for each token that a step may sample.

A request that verifies `k` drafts has one row for each draft's position and one for the token after them; what more it
may have, where all requests have the same number (`Traits.masks_are_strided`), is left out. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

WORD = 32
"""Tokens in a word of the mask; a set bit allows a token."""

Rows: TypeAlias = NDArray[np.int32]
"""[positions, words]"""
_EVERYTHING = -1


def words(vocabulary: int) -> int:
    """Words in a row."""
    return -(-vocabulary // WORD)


def rows_of(
    requests: Sequence[str], bitmask: Rows, drafts: Mapping[str, Sequence[int]], *, strided: bool
) -> dict[str, Rows]:
    """The rows that each request's tokens are sampled under, `1 + k` of them.

    They lie in the bitmask one after another; `strided`: at equal distances, as if all requests had as many drafts.
    """
    found: dict[str, Rows] = {}
    stride = len(bitmask) // len(requests) if requests else 0
    at = 0
    for request in requests:
        count = 1 + len(drafts.get(request, ()))
        found[request] = bitmask[at : at + count].copy()
        at += stride if strided else count
    return found


def allows_everything(row: NDArray[np.int32]) -> bool:
    """Whether a row is what one without a grammar has; it also allows what is no token."""
    return bool((row == _EVERYTHING).all())


def allowed(row: NDArray[np.int32]) -> NDArray[np.int64]:
    """Token ids that a row allows, ascending."""
    bits = np.unpackbits(np.ascontiguousarray(row).view(np.uint8), bitorder="little")
    return np.flatnonzero(bits)


def sampled(row: NDArray[np.int32], token: int) -> int:
    """What a greedy sampler takes of logits with all weight on `token`, under a row; 0 if it allows none."""
    if int(row[token // WORD]) >> token % WORD & 1:
        return token
    others = allowed(row)
    return int(others[0]) if len(others) else 0

"""The network: `harness.model`'s reference model and a drafter for it, as model classes of vLLM.

Not trained but exact: a hidden state is the fingerprint of a prefix, and the target's next token is the
reference's. Its weights are tables that belong to the scenario (`harness.worker.device.answers`): prefixes after
which it says EOS or STOP, and prefixes after which the drafter is wrong.

An embedding's row is [token, item]; an encoder output is such rows, so a multimodal item that is missing, or another
one's, gives another fingerprint.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import nn
from vllm.model_executor.models.interfaces import SupportsMultiModal
from vllm.model_executor.models.utils import _merge_multimodal_embeddings

from harness import compat
from harness.model import FIRST, PLACEHOLDER, SEED, VOCABULARY
from harness.scenario import Full, Group, Mamba
from harness.worker.device import config, integers
from harness.worker.device.adapters import ADAPTERS
from harness.worker.device.config import WIDTH
from harness.worker.device.features import FIELD
from harness.worker.device.memory import Memory
from harness.worker.device.state import State
from harness.worker.observation import DeviceAssertion

_SCRAMBLE = integers.signed(SEED | 1)
"""Odd, so that multiplying by it loses nothing."""


class Tables:
    """The weights: what the network says against its rule."""

    def __init__(self) -> None:
        self.fill({}, frozenset(), torch.device("cpu"))

    def fill(self, answers: Mapping[int, int], mistakes: frozenset[int], device: torch.device) -> None:
        """`answers` maps fingerprints (unsigned words) to tokens; after `mistakes` the drafter errs."""
        known = sorted((integers.signed(word), token) for word, token in answers.items())
        wrong = sorted(integers.signed(word) for word in mistakes)
        self.words = torch.tensor([word for word, _ in known], dtype=torch.int64, device=device)
        self.tokens = torch.tensor([token for _, token in known], dtype=torch.int64, device=device)
        self.mistakes = torch.tensor(wrong, dtype=torch.int64, device=device)

    def next_tokens(self, fingerprints: torch.Tensor) -> torch.Tensor:
        """The target's answer to each prefix."""
        tokens = integers.drawn(fingerprints)
        if len(self.words):
            at = torch.searchsorted(self.words, fingerprints).clamp(max=len(self.words) - 1)
            tokens = torch.where(self.words[at] == fingerprints, self.tokens[at], tokens)
        return tokens

    def drafts(self, fingerprints: torch.Tensor) -> torch.Tensor:
        """The drafter's guess after each prefix (`harness.model.wrong_token` where it errs)."""
        tokens = self.next_tokens(fingerprints)
        wrong = torch.where(tokens >= FIRST, FIRST + (tokens - FIRST + 1) % (VOCABULARY - FIRST), FIRST)
        return torch.where(torch.isin(fingerprints, self.mistakes), wrong, tokens)


TABLES = Tables()
"""One network a process, as vLLM's runner holds one model."""


def _logits(tokens: torch.Tensor) -> torch.Tensor:
    logits = torch.zeros(len(tokens), VOCABULARY, dtype=torch.float32, device=tokens.device)
    return logits.scatter_(1, tokens.unsqueeze(1), 1.0)


def _hidden(fingerprints: torch.Tensor) -> torch.Tensor:
    return nn.functional.pad(integers.to_limbs(fingerprints), (0, WIDTH - integers.LIMBS))


def _fingerprints(hidden_states: torch.Tensor) -> torch.Tensor:
    return integers.from_limbs(hidden_states[:, : integers.LIMBS])


class Body(nn.Module):  # type: ignore[misc]
    """Embedding and memories, under the names where vLLM looks for an embedding that target and drafter might
    share.
    """

    def __init__(self, vllm_config: Any, groups: Mapping[int, Group]) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.embed_tokens.weight.requires_grad_(False).zero_()[:, 0] = torch.arange(VOCABULARY)
        self.memories = nn.ModuleList(
            (State if isinstance(group, Mamba) else Memory)(vllm_config, number, group)
            for number, group in groups.items()
        )


class _Network(nn.Module):  # type: ignore[misc]
    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        self.config = vllm_config.model_config.hf_config
        self.config.image_token_index = PLACEHOLDER
        self.model = Body(vllm_config, self.groups(vllm_config))
        self.adapts = vllm_config.lora_config is not None

    @staticmethod
    def groups(vllm_config: Any) -> Mapping[int, Group]:
        """The group of each memory, by the memory's number."""
        return dict(enumerate(config.groups_in(vllm_config)))

    def embed_input_ids(
        self, input_ids: Any, multimodal_embeddings: Any = None, is_multimodal: Any = None, **_: Any
    ) -> torch.Tensor:
        """vLLM's hook: token rows, with encoder outputs in the place of an item's tokens. Merged as vLLM's models do:
        what is too little raises there, or is repeated.
        """
        rows = self._rows(input_ids)
        if multimodal_embeddings is not None and len(multimodal_embeddings):
            rows = _merge_multimodal_embeddings(
                rows, list(multimodal_embeddings), is_multimodal.to(rows.device)
            )
        return rows

    def _rows(self, input_ids: torch.Tensor) -> torch.Tensor:
        """CUDA's embedding asserts by itself, without the synchronization that a check would take."""
        if input_ids.device.type == "cpu" and len(input_ids) and int(input_ids.min()) < 0:
            raise DeviceAssertion(f"token {int(input_ids.min())} has no embedding")
        return self.model.embed_tokens(input_ids)

    def _keys(self, input_ids: Any, inputs_embeds: Any, positions: torch.Tensor) -> torch.Tensor:
        rows = self._rows(input_ids) if inputs_embeds is None else inputs_embeds
        tokens, items = rows[:, 0].to(torch.int64), rows[:, 1].to(torch.int64)
        return integers.keys(positions.to(torch.int64), tokens, items)

    def load_weights(self, weights: Any) -> set[str]:
        """Nothing to load."""
        return {name for name, _ in self.named_parameters()}


class Target(_Network):
    """The reference model. The first full-attention memory gives the fingerprint; all others, which hold the same
    keys over as many positions or fewer, or their sum, must agree with it, else the fingerprint is scrambled.
    """

    supports_lora: ClassVar[bool] = True
    embedding_modules: ClassVar[dict[str, str]] = {}
    packed_modules_mapping: ClassVar[dict[str, list[str]]] = {}

    def forward(
        self,
        input_ids: Any,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Any = None,
        **_: Any,
    ) -> torch.Tensor:
        """vLLM's hook. [tokens, WIDTH]; padding rows hold nothing of use."""
        keys = self._keys(input_ids, inputs_embeds, positions)
        values = ADAPTERS.values(len(keys), keys.device) if self.adapts else torch.zeros_like(keys)
        keys = keys + torch.where(positions == 0, values, 0)
        memories: Any = list(self.model.memories)
        whole = memories.pop(next(at for at, memory in enumerate(memories) if isinstance(memory.group, Full)))
        found = whole(keys)
        if found is None:
            return _hidden(keys)
        sums, row, position = found
        true = sums[row, position + 1]
        wrong = torch.zeros_like(true)
        for number, memory in enumerate(memories):
            wrong = wrong + memory.difference(keys, sums, row, position) * (_SCRAMBLE + 2 * number)
        if memories:
            # As a next layer would hand it on: what a token has read wrongly is part of the key that it leaves.
            sums, _, _ = whole(keys + nn.functional.pad(wrong, (0, len(keys) - len(wrong))))
        fingerprints = sums[row, position + 1] + values[: len(true)]
        return _hidden(nn.functional.pad(fingerprints, (0, len(keys) - len(fingerprints))))

    def compute_logits(self, hidden_states: torch.Tensor, *_: Any) -> torch.Tensor:
        """vLLM's hook: all weight on one token."""
        return _logits(TABLES.next_tokens(_fingerprints(hidden_states)))

    def get_mamba_state_copy_func(self) -> tuple[Any, ...]:
        """vLLM's hook, up to 0.28: how each part of a state is copied; ours has one, copied as a whole."""
        from vllm.model_executor.layers.mamba.mamba_utils import get_temporal_copy_spec

        return (get_temporal_copy_spec,)

    def get_mamba_state_copy_funcs(self, types: Iterable[Any]) -> dict[Any, tuple[Any, ...]]:
        """vLLM's hook from then on: for each type of layer."""
        return dict.fromkeys(types, self.get_mamba_state_copy_func())


class _MultiModal(SupportsMultiModal):  # type: ignore[misc]
    """The encoder: precomputed features pass through it."""

    supports_multimodal_embeddings = True

    def embed_multimodal(self, **features: Any) -> list[torch.Tensor]:
        """vLLM's hook: one [length, WIDTH] for each item."""
        return [item.reshape(-1, WIDTH).to(torch.float32) for item in features[FIELD]]

    def get_language_model(self) -> Any:
        return self


class ImageTarget(Target, _MultiModal):
    """Accepts images."""


class Pooler(nn.Module):  # type: ignore[misc]
    """What a pooling model makes of each request: the fingerprint of the last token that the step computes."""

    def get_supported_tasks(self) -> set[str]:
        """vLLM's hook."""
        return {"embed"}

    def get_pooling_updates(self, task: str) -> Any:
        """vLLM's hook."""
        updates = compat.optional("vllm.model_executor.layers.pooler", "PoolingParamsUpdate")
        updates = updates or compat.optional(
            "vllm.model_executor.layers.pooler.common", "PoolingParamsUpdate"
        )
        return updates()

    def forward(self, hidden_states: torch.Tensor, pooling_metadata: Any) -> list[torch.Tensor]:
        """vLLM's hook: one word a request."""
        cursor = pooling_metadata.pooling_cursor
        return list(_fingerprints(hidden_states[cursor.last_token_indices_gpu]))


class PoolingTarget(Target):
    """Answers a prompt with its fingerprint."""

    is_pooling_model: ClassVar[bool] = True

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.pooler = Pooler()


class ImagePoolingTarget(PoolingTarget, _MultiModal):
    """Accepts images."""


class Drafter(_Network):
    """EAGLE: from the target's hidden state at a position and the token after it to the token after that.

    Its memory is written and read like any layer's, and decides nothing: the scheduler's promises about a drafter's KV
    (ledger 41838) concern acceptance, never outputs.
    """

    has_own_embed_tokens = has_own_lm_head = True
    supports_multimodal_embeddings = True
    returns_pair: ClassVar[bool] = True

    @staticmethod
    def groups(vllm_config: Any) -> Mapping[int, Group]:
        """One memory of its own, in the last group with full attention."""
        return {
            config.DRAFTER: config.groups_in(vllm_config)[config.last_full(config.groups_in(vllm_config))]
        }

    def forward(
        self,
        input_ids: Any = None,
        positions: Any = None,
        hidden_states: Any = None,
        inputs_embeds: Any = None,
        **_: Any,
    ) -> Any:
        """vLLM's hook. Hidden states to draw tokens from, and those for the next draft step: the same here."""
        keys = self._keys(input_ids, inputs_embeds, positions + 1)
        self.model.memories[0](keys)
        hidden = _hidden(_fingerprints(hidden_states) + keys)
        return (hidden, hidden) if self.returns_pair else hidden

    def compute_logits(self, hidden_states: torch.Tensor, *_: Any) -> torch.Tensor:
        """vLLM's hook: all weight on one token."""
        return _logits(TABLES.drafts(_fingerprints(hidden_states)))


class MtpDrafter(Drafter):
    """One MTP module: as EAGLE, but vLLM takes one hidden state from it, not a pair."""

    returns_pair = False


NETWORKS = (Target, ImageTarget, PoolingTarget, ImagePoolingTarget, Drafter, MtpDrafter)
"""All of them, registered as `Schedfuzz` and the class's name."""

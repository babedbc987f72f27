"""A proposer in the place of vLLM's n-gram search.

The search is no part of what is tested, needs a compiler (numba), and would find nothing: the reference model's outputs
never repeat. The runner's side of it, which feeds, verifies and counts the drafts, stays vLLM's own.
"""

import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

from harness.model import Reference

_MODULE = "vllm.v1.spec_decode.ngram_proposer"


class Proposer:
    """Proposes what the scenario scripts; `runner` and `references` are set when the runner is made."""

    runner: Any = None
    references: Mapping[str, Reference] = {}

    def __init__(self, vllm_config: Any) -> None:
        self.num_speculative_tokens = vllm_config.speculative_config.num_speculative_tokens

    def load_model(self, *_: Any, **__: Any) -> None:
        """Nothing to load."""

    def propose(self, *arguments: Any, **named: Any) -> list[list[int]]:
        """vLLM's hook. One list a row, empty for a row that sampled nothing."""
        sampled = next(a for a in [named.get("sampled_token_ids"), *arguments] if isinstance(a, Sequence))
        # From 0.24 on it is told how many.
        count = next((a for a in arguments if isinstance(a, int)), self.num_speculative_tokens)
        batch = self.runner.input_batch
        return [
            self.references[request].matched(int(batch.num_tokens_no_spec[row]), self.num_speculative_tokens)[
                :count
            ]
            if sampled[row]
            else []
            for row, request in enumerate(batch.req_ids)
        ]


def install() -> None:
    """Before anything imports vLLM's own, which would import numba."""
    module = types.ModuleType(_MODULE)
    module.NgramProposer = Proposer  # type: ignore[attr-defined]
    sys.modules[_MODULE] = module


class DeviceProposer(Proposer):
    """The V2 runner's kind, which proposes a full row for every request, from what the device knows of it."""

    supports_mm_inputs = False
    draft_logits = None

    def __init__(self, vllm_config: Any, device: Any, req_states: Any) -> None:
        super().__init__(vllm_config)
        self._states = req_states

    def propose(self, input_batch: Any, *_: Any, **__: Any) -> Any:
        """vLLM's hook, after the step's tokens were added to the requests. Where nothing matches it repeats the last
        token, as vLLM's own search does; the reference model never does, so that is rejected."""
        drafts = self._states.last_sampled_tokens.view(-1, 1)[input_batch.idx_mapping]
        drafts = drafts.repeat(1, self.num_speculative_tokens)
        lengths = self._states.total_len.gpu[input_batch.idx_mapping].tolist()
        for row, request in enumerate(input_batch.req_ids):
            found = self.references[request].matched(lengths[row], self.num_speculative_tokens)
            for at, token in enumerate(found):
                drafts[row, at] = token
        return drafts

    def init_cudagraph_manager(self, *_: Any, **__: Any) -> None:
        """No graphs."""


def install_v2() -> None:
    """Before the V2 runner makes its speculator. The search is a Triton kernel there."""
    try:
        from vllm.v1.worker.gpu.spec_decode.ngram import speculator
    except ModuleNotFoundError:  # before 0.32 the V2 runner has no n-gram search
        return
    speculator.NgramGPUSpeculator = DeviceProposer

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
        batch = self.runner.input_batch
        return [
            self.references[request].matched(int(batch.num_tokens_no_spec[row]), self.num_speculative_tokens)
            if sampled[row]
            else []
            for row, request in enumerate(batch.req_ids)
        ]


def install() -> None:
    """Before anything imports vLLM's own, which would import numba."""
    module = types.ModuleType(_MODULE)
    module.NgramProposer = Proposer  # type: ignore[attr-defined]
    sys.modules[_MODULE] = module

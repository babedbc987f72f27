"""What a release's model runners do differently, read off their sources, since importing them needs compiled kernels.

A part of `compat`, which passes it on."""

import ast
import functools
import importlib
import importlib.util
from pathlib import Path
from typing import Literal

from harness.verdict import HarnessError
from harness.worker.traits import Traits, TraitsV2


@functools.cache
def runner_traits() -> Traits:
    """What this release's GPUModelRunner does, read off its syntax tree."""
    return Traits(
        drafter_falls_back=_falls_back(_runner_function("_gather_mm_embeddings")),
        drafts_without_room=_drafts_without_room(),
        drops_drafts="self._draft_token_ids is None" in ast.unparse(_runner_function("_update_states")),
        # Counted where drafts are written into a row; up to 0.13 `_update_states` does it, for rows that stay only.
        returning_drafts_are_counted="prev_num_draft_len = num_spec_tokens"
        not in ast.unparse(_runner_function("_update_states")),
        counts_are_optimistic="optimistic_num_accepted" in ast.unparse(_runner_function("_update_states")),
        placeholders_are_clamped="clamp_(min=0)" in ast.unparse(_runner_function("_preprocess")),
        resumed_states_are_forgotten=_resumed_states_are_forgotten(),
        masks_are_strided=_masks_are_strided(),
        one_embedding_spreads=_one_embedding_spreads(),
        rows_keep_prompt_logprobs="in_progress_prompt_logprobs_cpu.pop("
        not in ast.unparse(_worker_tree("gpu_input_batch.py")),
    )


@functools.cache
def runner_traits_v2() -> TraitsV2:
    """What this release's V2 model runner does, read off its syntax trees."""
    append = _function("gpu/block_table.py", "append_block_ids")
    return TraitsV2(
        drafter_falls_back=_falls_back(_function("gpu/mm/encoder_runner.py", "gather_mm_embeddings")),
        tables_are_bounded=any(isinstance(node, ast.Raise) for node in ast.walk(append)),
        drafts_are_bounded="num_scheduled_tokens_np >= num_logits"
        in ast.unparse(_function("gpu/model_runner.py", "prepare_inputs")),
        masks_are_strided="range(self.mask_stride)" in ast.unparse(_worker_tree("gpu/structured_outputs.py")),
        one_embedding_spreads=_one_embedding_spreads(),
    )


def _falls_back(gather: ast.FunctionDef) -> bool:
    """Up to 0.23 a runner's gather asserts on every miss; from 0.24 it uses the token embedding for an image that
    starts at or after the end of the processed range, and raises for all others.
    """
    return not any(
        isinstance(node, ast.Assert) and "Encoder cache miss" in ast.unparse(node)
        for node in ast.walk(gather)
    )


def _resumed_states_are_forgotten() -> bool:
    """True also where states are not cached, so that it does not matter."""
    source = worker_source("mamba_utils.py")
    return not source.is_file() or "resumed_req_ids" in source.read_text(encoding="utf-8")


def _masks_are_strided() -> bool:
    from vllm.v1.structured_output.utils import apply_grammar_bitmask

    return "mask_stride" in apply_grammar_bitmask.__code__.co_varnames


def _one_embedding_spreads() -> bool:
    """An assignment to an index does so, `masked_scatter_` does not."""
    merge = _function("../../model_executor/models/utils.py", "_merge_multimodal_embeddings")
    return "masked_scatter_" not in ast.unparse(merge)


def _drafts_without_room() -> Literal["zeros", "zeros if async", "none"]:
    """Up to 0.13 nothing; up to 0.20 zeros, if scheduling is asynchronous and the drafter has a model; then zeros
    always.
    """
    function = _runner_function("sample_tokens")
    zeros = "self._draft_token_ids = torch.zeros(1"
    for node in ast.walk(function):
        if not isinstance(node, ast.If) or ast.unparse(node.test) != "not input_fits_in_drafter":
            continue
        if any(ast.unparse(statement).startswith(zeros) for statement in node.body):
            return "zeros"
    return "zeros if async" if zeros in ast.unparse(function) else "none"


def _runner_function(name: str) -> ast.FunctionDef:
    return _function("gpu_model_runner.py", name)


def _function(file: str, name: str) -> ast.FunctionDef:
    """A function of a file of `vllm.v1.worker`."""
    for node in ast.walk(_worker_tree(file)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    raise HarnessError(
        f"vLLM's worker/{file} has no {name}: the stub's contract must be read again for this release"
    )


@functools.cache
def _worker_tree(file: str) -> ast.Module:
    # Read, not imported: runners need compiled kernels.
    source = worker_source(file)
    if not source.is_file():
        raise HarnessError(f"this vLLM has no worker/{file}")
    return ast.parse(source.read_text(encoding="utf-8"))


def worker_source(file: str) -> Path:
    """Where a file of `vllm.v1.worker` is, or would be. HarnessError if this vLLM has no such package."""
    spec = importlib.util.find_spec("vllm.v1.worker")
    if spec is None or not spec.submodule_search_locations:
        raise HarnessError("this vLLM has no vllm.v1.worker package")
    return Path(spec.submodule_search_locations[0]) / file

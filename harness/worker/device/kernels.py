"""Stand-ins for the Triton kernels that a greedy step of the V1 runner launches, for CPUs without compiled kernels.

vLLM's Triton kernels do not run on a plain CPU; its CPU build replaces them by compiled functions, and a tree of
Python sources has neither. Each function here does on tensors what the kernel of that name does for each request,
in the kernel's own parameter names (without `_ptr`). `tests/worker/device/test_kernels.py` compares them with the
kernels themselves, run by Triton's interpreter.
"""

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

Arguments = Mapping[str, Any]


def compute_slot_mapping(grid: int, a: Arguments) -> None:
    """block_table.py: token to slot, through its request's block table; the rest of the buffer is padding."""
    requests = grid - 1
    size = a.get("KV_CACHE_BLOCK_SIZE", a.get("block_size"))
    starts = a["query_start_loc"][: requests + 1].to(torch.int64)
    tokens = torch.arange(int(starts[-1]))
    row = torch.searchsorted(starts[1:], tokens, right=True)
    positions = a["positions"][: len(tokens)].to(torch.int64)
    blocks = a["block_table"].flatten()[row * a["block_table_stride"] + positions // size]
    out = a["slot_mapping"]
    out[: len(tokens)] = blocks.to(torch.int64) * size + positions % size
    out[a["num_tokens"] : a["max_num_tokens"]] = a["PAD_ID"]


def rejection_greedy_sample(grid: int, a: Arguments) -> None:
    """rejection_sampler.py: the target's tokens up to the first draft that differs; a bonus token if none does."""
    output, ends = a["output_token_ids"], a["cu_num_draft_tokens"].tolist()
    drafts, targets, bonus = a["draft_token_ids"].tolist(), a["target_argmax"].tolist(), a["bonus_token_ids"]
    greedy = a["is_greedy"]
    for request in range(grid):
        if greedy is not None and not greedy[request]:
            continue
        start, end = (ends[request - 1] if request else 0), ends[request]
        row = output.view(-1, a["max_spec_len"] + 1)[request]
        for at in range(start, end):
            row[at - start] = targets[at]
            if targets[at] != drafts[at]:
                break
        else:
            row[end - start] = bonus.flatten()[request]


def eagle_prepare_inputs_padded(grid: int, a: Arguments) -> None:
    """spec_decode/utils.py: how many drafts were rejected, and the last token that counts, per request."""
    requests = a["num_reqs"]
    ends = a["cu_num_draft_tokens"][:requests].to(torch.int64)
    drafts = torch.diff(ends, prepend=ends.new_zeros(1))
    valid = a["valid_sampled_tokens_count"][:requests].to(torch.int64)
    rejected = torch.where(drafts > 0, drafts + 1 - valid, 0)
    last = a["query_start_loc_gpu"][1 : requests + 1].to(torch.int64) - 1
    a["token_indices_to_sample"][:requests] = (last - rejected).to(a["token_indices_to_sample"].dtype)
    if "num_rejected_tokens_gpu" in a:
        a["num_rejected_tokens_gpu"][:requests] = rejected.to(a["num_rejected_tokens_gpu"].dtype)


def eagle_prepare_next_token_padded(grid: int, a: Arguments) -> None:
    """spec_decode/utils.py: the last token that was really sampled, or the known next one of an unfinished prefill."""
    width, stride = a["num_sampled_tokens_per_req"], a["stride_sampled_token_ids"]
    for request in range(a["num_reqs"]):
        row = a["sampled_token_ids"].flatten()[request * stride : request * stride + width].tolist()
        valid = [token for token in row if token != -1 and token < a["vocab_size"]]
        if a["discard_request_mask"][request]:
            valid = []
        token = valid[-1] if valid else a["backup_next_token_ids"][request]
        a["next_token_ids"][request] = token
        a["valid_sampled_tokens_count"][request] = len(valid)


def eagle_step_slot_mapping_metadata(grid: int, a: Arguments) -> None:
    """spec_decode/utils.py: the next draft step's positions, slots and lengths; past the model length it goes
    nowhere.
    """
    requests = a["positions"].shape[0] if a.get("batch_size") is None else a["batch_size"]
    following = a["positions"][:requests].to(torch.int64) + 1
    beyond = following >= a["max_model_len"]
    clamped = torch.where(beyond, 0, following)
    size = a["block_size"]
    column = (clamped // size).clamp(max=a["n_blocks_per_req"] - 1)
    blocks = a["block_table"].flatten()[torch.arange(requests) * a["block_table_stride"] + column]
    slots = torch.where(beyond, a["PAD_ID"], blocks.to(torch.int64) * size + clamped % size)
    a["out_clamped_positions"][:requests] = clamped.to(a["out_clamped_positions"].dtype)
    a["out_slot_mapping"][:requests] = slots
    a["out_slot_mapping"][requests:grid] = a["PAD_ID"]
    lengths = a["seq_lens"][:requests]
    lengths.copy_(torch.where(beyond, 1, (lengths + 1).clamp(max=a["max_model_len"])))


_STAND_INS: dict[str, Callable[[int, Arguments], None]] = {
    "_compute_slot_mapping_kernel": compute_slot_mapping,
    "ComputeSlotMappingKernel.kernel": compute_slot_mapping,
    "rejection_greedy_sample_kernel": rejection_greedy_sample,
    "eagle_prepare_inputs_padded_kernel": eagle_prepare_inputs_padded,
    "eagle_prepare_next_token_padded_kernel": eagle_prepare_next_token_padded,
    "eagle_step_slot_mapping_metadata_kernel": eagle_step_slot_mapping_metadata,
}
_HOMES = (
    "vllm.v1.worker.block_table",
    "vllm.v1.sample.rejection_sampler",
    "vllm.v1.spec_decode.utils",
)


class StandIn:
    """Looks like a Triton kernel to those who launch it, `kernel[grid](...)`."""

    def __init__(self, kernel: Any, function: Callable[[int, Arguments], None]) -> None:
        names = getattr(kernel, "arg_names", None)
        if names is None:
            code = getattr(kernel, "fn", kernel).__code__
            names = code.co_varnames[: code.co_argcount]
        self.arg_names = tuple(names)
        self.constexprs = getattr(kernel, "constexprs", None)
        self._function = function

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*positional: Any, **named: Any) -> None:
            arguments = dict(zip(self.arg_names, positional, strict=False)) | named
            self._function(grid[0], {name.removesuffix("_ptr"): value for name, value in arguments.items()})

        return launch


def install() -> None:
    """Puts the stand-ins where the loaded vLLM keeps or has imported the kernels. Safe to call again."""
    import importlib

    from vllm.triton_utils import triton

    if not hasattr(triton, "next_power_of_2"):  # vLLM's placeholder for a missing Triton, up to 0.24
        triton.next_power_of_2 = lambda n: 1 << max(n - 1, 0).bit_length()
    for home in _HOMES:
        module = importlib.import_module(home)
        for name, function in _STAND_INS.items():
            owner_name, _, attribute = name.rpartition(".")
            owner = getattr(module, owner_name, None) if owner_name else module
            kernel = vars(owner).get(attribute) if owner is not None else None
            if isinstance(kernel, staticmethod):
                kernel = kernel.__func__
            if kernel is None or isinstance(kernel, StandIn):
                continue
            _rebind(kernel, StandIn(kernel, function))
            setattr(owner, attribute, StandIn(kernel, function))


def _rebind(kernel: Any, stand_in: StandIn) -> None:
    """Other modules have imported the kernel by name, and launchers of newer releases hold it as an attribute."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("vllm.") or module is None:
            continue
        for attribute, value in list(vars(module).items()):
            if value is kernel:
                setattr(module, attribute, stand_in)
            elif hasattr(value, "__dict__") and vars(value).get("kernel") is kernel:
                value.kernel = stand_in
                if not isinstance(value, type):
                    vars(value).pop("_kernel_arg_names", None)


def greedy_argmax(logits: torch.Tensor) -> torch.Tensor:
    """The CPU build's compiled op of 0.32 and later."""
    return logits.argmax(dim=-1)


@functools.cache
def define_missing_ops() -> torch.library.Library:
    """Defines, in `torch.ops._C`, the compiled functions that a greedy step calls and that nobody has loaded."""
    library = torch.library.Library("_C", "FRAGMENT")
    if not hasattr(torch.ops._C, "greedy_argmax"):
        library.define("greedy_argmax(Tensor logits) -> Tensor")
        library.impl("greedy_argmax", greedy_argmax, "CompositeExplicitAutograd")
    return library

"""Stand-ins for the V2 runner's kernels that prepare a batch and carry its results on.

The V2 runner keeps its request state on the device and has no code for CPUs: these kernels are most of what a step
does.
"""

import ctypes
from collections.abc import Iterator
from typing import Any

import torch

from harness.worker.device.kernels.launch import Arguments, StandIns


def _memory(address: Any, start: int, count: int) -> torch.Tensor:
    """`count` int32 of a tensor that a kernel is handed as a number."""
    if not count:
        return torch.empty(0, dtype=torch.int32)
    return torch.frombuffer(
        (ctypes.c_int32 * count).from_address(int(address) + 4 * start), dtype=torch.int32
    )


def rows(a: Arguments, count: int) -> Iterator[tuple[int, int, int, int]]:
    """Per row of the batch: row, slot of its request, first token, end."""
    slots, starts = a["idx_mapping"].tolist(), a["query_start_loc"].tolist()
    for row in range(count):
        yield row, slots[row], starts[row], starts[row + 1]


# -- state ------------------------------------------------------------------------------------------------------


def apply_write(a: Arguments) -> None:
    """buffer_utils.py: writes that were staged on the host, into one tensor or (by address) into several."""
    ends, contents = a["write_cu_lens"].tolist(), a["write_contents"]
    for write in range(a["grid"][0]):
        row, start = int(a["write_indices"][write]), int(a["write_starts"][write])
        content = contents[ends[write - 1] if write else 0 : ends[write]]
        if a.get("MULTI_GROUP"):
            group = int(a["write_group_ids"][write])
            at = row * int(a["output_stride"][group]) + start
            _memory(a["output"][group], at, len(content)).copy_(content)
        else:
            at = row * a["output_stride"] + start
            a["output"].view(-1)[at : at + len(content)] = content


def gather_block_tables(a: Arguments) -> None:
    """block_table.py: the block tables of a batch, from those of all requests.

    Entries past a request's blocks stay as they were; those that its window has left are the null block, from 0.33.
    """
    groups, rows = a["grid"]
    for group in range(groups):
        width = int(a["block_table_strides"][group])
        for row in range(rows):
            to = _memory(a["dst_block_table_ptrs"][group], row * width, width)
            if row >= a["num_reqs"]:
                to.zero_()
                continue
            request = int(a["batch_idx_to_req_idx"][row])
            count = int(a["num_blocks"][group, request])
            to[:count] = _memory(a["src_block_table_ptrs"][group], request * width, count)
            if a.get("MASK_SLIDING_WINDOW") and (reach := int(a["sliding_window_reach"][group])) > 0:
                gone = max(int(a["num_computed_tokens"][request]) - reach, 0)
                to[: min(gone // int(a["block_sizes"][group]), count)] = 0


def compute_slot_mappings(a: Arguments) -> None:
    """block_table.py: token to slot, per group; rows that own no blocks, and the rest of the buffer, are padding."""
    if a.get("CP_SIZE", 1) != 1:
        raise NotImplementedError("no context parallelism")
    groups, requests = a["grid"][0], a["grid"][1] - 1
    starts = a["query_start_loc"][: requests + 1].to(torch.int64)
    tokens = torch.arange(int(starts[-1]))
    row = torch.searchsorted(starts[1:], tokens, right=True)
    positions, request = a["pos"][: len(tokens)], a["idx_mapping"][row]
    real = request >= 0
    for group in range(groups):
        out = a["slot_mappings"][group]
        out[len(tokens) : a["max_num_tokens"]] = a["PAD_ID"]
        if "slot_mapping_enabled" in a and not a["slot_mapping_enabled"][group]:
            out[: len(tokens)] = a["PAD_ID"]
            continue
        size, width = int(a["block_sizes"][group]), int(a["block_table_strides"][group])
        table = _memory(a["block_table_ptrs"][group], 0, (int(request.max()) + 1) * width)
        at = torch.where(real, request * width + positions // size, 0)
        blocks = table[at] if len(table) else torch.zeros_like(at)
        slots = blocks.to(torch.int64) * size + positions % size
        out[: len(tokens)] = torch.where(real, slots, a["PAD_ID"])


# -- inputs -----------------------------------------------------------------------------------------------------


def prepare_prefill_inputs(a: Arguments) -> None:
    """input_batch.py: tokens of unfinished prefills, and those that follow them."""
    for _, slot, start, end in rows(a, a["grid"][0]):
        computed, total = int(a["num_computed_tokens"][slot]), int(a["prefill_lens"][slot])
        if computed >= total:
            continue
        known, after = a["all_token_ids"][slot], computed + end - start
        a["input_ids"][start:end] = known[computed:after]
        if "num_lookahead" not in a:  # up to 0.26 one token, and the last one stays
            if after < total:
                a["next_prefill_tokens"][slot] = known[after]
            continue
        for ahead, following in enumerate(a["next_prefill_tokens"]):
            following[slot] = known[after + ahead] if after + ahead < total else 0


def prepare_pos_seq_lens(a: Arguments) -> None:
    """input_batch.py: positions and lengths, from what the device knows to be computed."""
    requests = a["grid"][0] - 1
    a["seq_lens"][requests : a["max_num_reqs"]] = 0
    for row, slot, start, end in rows(a, requests):
        computed = int(a["num_computed_tokens"][slot])
        a["seq_lens"][row] = computed + end - start
        a["pos"][start:end] = torch.arange(computed, computed + end - start)


def combine_sampled_and_draft_tokens(a: Arguments) -> None:
    """input_batch.py: the tokens that only the device knows; where logits are needed."""
    ends, fresh = a["cu_num_logits"].tolist(), a.get("NUM_NEW_SAMPLED_TOKENS", 1)
    for row, slot, _, end in rows(a, a["grid"][0]):
        logits = ends[row + 1] - ends[row]
        drafts = logits - fresh
        a["logits_indices"][ends[row] : ends[row + 1]] = torch.arange(end - logits, end)
        length, prefill = int(a["seq_lens"][row]), int(a["prefill_len"][slot])
        if length <= prefill:
            continue
        if fresh and length - logits >= prefill:
            a["input_ids"][end - logits] = a["last_sampled_tokens"].flatten()[slot]
        if drafts > 0:
            a["input_ids"][end - drafts : end] = a["draft_tokens"][slot, :drafts]


def expand_idx_mapping(a: Arguments) -> None:
    """input_batch.py: per logit its request's slot, and which of the request's logits it is."""
    ends = a["cu_num_logits"].tolist()
    for row in range(a["grid"][0]):
        logits = slice(ends[row], ends[row + 1])
        a["expanded_idx_mapping"][logits] = a["idx_mapping"][row]
        a["expanded_local_pos"][logits] = torch.arange(ends[row + 1] - ends[row])


# -- results ----------------------------------------------------------------------------------------------------


def get_num_sampled_and_rejected(a: Arguments) -> None:
    """input_batch.py: an unfinished prefill samples nothing, and nothing of it is rejected."""
    ends = a["cu_num_logits"].tolist()
    for row, slot in enumerate(a["idx_mapping"].tolist()[: a["grid"][0]]):
        if a["seq_lens"][row] < a["prefill_len"][slot]:
            a["num_sampled"][row] = a["num_rejected"][row] = 0
        else:
            a["num_rejected"][row] = ends[row + 1] - ends[row] - a["num_sampled"][row]


def post_update(a: Arguments) -> None:
    """input_batch.py: what was sampled becomes part of the request, and what was rejected is no longer computed."""
    sampled, starts = a["sampled_tokens"], a["query_start_loc"]
    for row, slot in enumerate(a["idx_mapping"].tolist()[: a["grid"][0]]):
        if slot < 0:
            continue
        if a.get("draft_tokens") is not None:
            a["draft_tokens_out"][slot] = a["draft_tokens"][row]
        count, total = int(a["num_sampled"][row]), int(a["total_len"][slot])
        if count:
            a["last_sampled_tokens"].view(-1)[slot] = sampled[row, count - 1]
            a["total_len"][slot] = total + count
            a["all_token_ids"][slot, total : total + count] = sampled[row, :count].to(torch.int32)
            if a["output_bin_counts"] is not None:
                a["output_bin_counts"][slot].index_put_(
                    (sampled[row, :count],), a["output_bin_counts"].new_ones(()), accumulate=True
                )
        fed = 0 if starts is None else int(starts[row + 1] - starts[row])
        a["num_computed_tokens"][slot] += fed - int(a["num_rejected"][row])


_GPU = "vllm.v1.worker.gpu"
STAND_INS: StandIns = {
    f"{_GPU}.buffer_utils": {"_apply_write_kernel": apply_write},
    f"{_GPU}.block_table": {
        "_gather_block_tables_kernel": gather_block_tables,
        "_compute_slot_mappings_kernel": compute_slot_mappings,
    },
    f"{_GPU}.input_batch": {
        "_prepare_prefill_inputs_kernel": prepare_prefill_inputs,
        "_prepare_pos_seq_lens_kernel": prepare_pos_seq_lens,
        "_combine_sampled_and_draft_tokens_kernel": combine_sampled_and_draft_tokens,
        "_expand_idx_mapping_kernel": expand_idx_mapping,
        "_get_num_sampled_and_rejected_kernel": get_num_sampled_and_rejected,
        "_post_update_kernel": post_update,
    },
}

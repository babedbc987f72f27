"""Stand-ins for the kernels of the V1 runner."""

import ctypes

import torch

from harness.worker.device.kernels.launch import Arguments, StandIns


def compute_slot_mapping(a: Arguments) -> None:
    """block_table.py: token to slot, through its request's block table; the rest of the buffer is padding."""
    requests = a["grid"][0] - 1
    size = a.get("KV_CACHE_BLOCK_SIZE", a.get("block_size"))
    starts = a["query_start_loc"][: requests + 1].to(torch.int64)
    tokens = torch.arange(int(starts[-1]))
    row = torch.searchsorted(starts[1:], tokens, right=True)
    positions = a["positions"][: len(tokens)].to(torch.int64)
    blocks = a["block_table"].flatten()[row * a["block_table_stride"] + positions // size]
    out = a["slot_mapping"]
    out[: len(tokens)] = blocks.to(torch.int64) * size + positions % size
    out[a["num_tokens"] : a["max_num_tokens"]] = a["PAD_ID"]


def rejection_greedy_sample(a: Arguments) -> None:
    """rejection_sampler.py: the target's tokens up to the first draft that differs; a bonus token if none does."""
    output, ends = a["output_token_ids"], a["cu_num_draft_tokens"].tolist()
    drafts, targets, bonus = a["draft_token_ids"].tolist(), a["target_argmax"].tolist(), a["bonus_token_ids"]
    greedy = a["is_greedy"]
    for request in range(a["grid"][0]):
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


def eagle_prepare_inputs_padded(a: Arguments) -> None:
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


def eagle_prepare_next_token_padded(a: Arguments) -> None:
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


def eagle_step_slot_mapping_metadata(a: Arguments) -> None:
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
    a["out_slot_mapping"][requests : a["grid"][0]] = a["PAD_ID"]
    lengths = a["seq_lens"][:requests]
    lengths.copy_(torch.where(beyond, 1, (lengths + 1).clamp(max=a["max_model_len"])))


def zero_kv_blocks(a: Arguments) -> None:
    """worker/utils.py: blocks of every segment (a layer's cache) become zero, by address; sizes are in 4 bytes, one for
    all segments in older releases.
    """
    segments = a["seg_addrs"].tolist()
    size = a.get("PAGE_SIZE_EL", 0)
    strides = a["seg_block_strides"].tolist() if "seg_block_strides" in a else [size] * len(segments)
    sizes = a["seg_page_sizes"].tolist() if "seg_page_sizes" in a else strides
    blocks = a["block_ids"].tolist()
    for address, stride, page in zip(segments, strides, sizes, strict=True):
        for block in blocks[: a.get("n_blocks", len(blocks))]:
            ctypes.memset(address + 4 * stride * block, 0, 4 * page)


def batch_memcpy(a: Arguments) -> None:
    """mamba_utils.py: copies of Mamba states, by address; none is written that another one reads."""
    copies = zip(a["src_ptrs"].tolist(), a["dst_ptrs"].tolist(), a["sizes"].tolist(), strict=True)
    for source, target, size in copies:
        ctypes.memmove(target, source, size)


STAND_INS: StandIns = {
    "vllm.v1.worker.block_table": {
        "_compute_slot_mapping_kernel": compute_slot_mapping,
        "ComputeSlotMappingKernel.kernel": compute_slot_mapping,
    },
    "vllm.v1.sample.rejection_sampler": {"rejection_greedy_sample_kernel": rejection_greedy_sample},
    "vllm.v1.worker.utils": {"_zero_kv_blocks_kernel": zero_kv_blocks},
    "vllm.v1.worker.mamba_utils": {"batch_memcpy_kernel": batch_memcpy},
    "vllm.v1.spec_decode.utils": {
        "eagle_prepare_inputs_padded_kernel": eagle_prepare_inputs_padded,
        "eagle_prepare_next_token_padded_kernel": eagle_prepare_next_token_padded,
        "eagle_step_slot_mapping_metadata_kernel": eagle_step_slot_mapping_metadata,
    },
}

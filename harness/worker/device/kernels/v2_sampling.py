"""Stand-ins for the V2 runner's kernels that sample, verify drafts and draft."""

from collections.abc import Iterator

import torch

from harness.worker.device.kernels.launch import Arguments, StandIns
from harness.worker.device.kernels.v2_batch import rows


def _greedy(temperatures: torch.Tensor, slots: torch.Tensor) -> None:
    if bool(temperatures[slots].any()):
        raise NotImplementedError("only greedy requests are sampled here")


def _block_argmax(logits: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Maximum and its token, per row and block of `size` tokens."""
    found = [part.max(dim=-1) for part in logits.to(torch.float32).split(size, dim=-1)]
    values = torch.stack([part.values for part in found], dim=-1)
    tokens = torch.stack([part.indices + at * size for at, part in enumerate(found)], dim=-1)
    return values, tokens


# -- sampling ---------------------------------------------------------------------------------------------------


def gumbel_sample(a: Arguments) -> None:
    """sample/gumbel.py: at temperature 0, the largest logit of each block."""
    _greedy(a["temp"], a["expanded_idx_mapping"])
    a["local_max"][:], a["local_argmax"][:] = _block_argmax(
        a["logits"][:, : a["vocab_size"]], a["BLOCK_SIZE"]
    )


def apply_grammar_bitmask(a: Arguments) -> None:
    """structured_outputs.py: logits of what a mask forbids become minus infinity, row by row."""
    vocabulary, bits = a["vocab_size"], torch.arange(32, dtype=torch.int32)
    for row, at in enumerate(a["logits_indices"][: a["grid"][0]].tolist()):
        if "MASK_STRIDE" in a:  # where rows are numbered by request and position
            request, position = divmod(at, a["MASK_STRIDE"])
            at = int(a["cu_num_logits"][request]) + position
            if at >= int(a["cu_num_logits"][request + 1]):
                continue
        allowed = (a["bitmask"][row].unsqueeze(1) >> bits) & 1
        a["logits"][at, :vocabulary][allowed.flatten()[:vocabulary] == 0] = -torch.inf


def mask_stop_tokens(a: Arguments) -> None:
    """sample/logit_bias.py, of which requests here have `min_tokens` only: no stop token before so many outputs."""
    slots = a["expanded_idx_mapping"].tolist()
    for row, (slot, position) in enumerate(zip(slots, a["pos"].tolist(), strict=False)):
        if a["num_allowed_token_ids"][slot] or a["num_logit_bias"][slot]:
            raise NotImplementedError("requests here have neither allowed tokens nor biases")
        count = int(a["num_stop_token_ids"][slot])
        if count and position + 1 < a["min_lens"][slot]:
            a["logits"][row, a["stop_token_ids"][slot, :count].to(torch.int64)] = -torch.inf


def gather_draft_sampled(a: Arguments) -> None:
    """spec_decode/rejection_sampler.py: the fed token of each logit; -1 for a draft before the end of a prefill."""
    at = a["logits_indices"][: a["num_logits"]]
    positions, local = a["positions"][at], a["expanded_local_pos"]
    early = (local > 0) & (positions - local < a["prefill_len"][a["expanded_idx_mapping"]])
    a["draft_sampled"][:] = torch.where(early, -1, a["input_ids"][at])
    a["pos"][:] = positions


def compute_local_logits_stats(a: Arguments) -> None:
    """spec_decode/rejection_sampler_utils.py: as `gumbel_sample`, for all logits but those of bonus tokens."""
    _greedy(a["temp"], a["expanded_idx_mapping"])
    local = a["expanded_local_pos"]
    if "num_speculative_steps" in a:  # up to 0.32: also the logits behind a short row's drafts
        verified = local < a["num_speculative_steps"]
    else:
        verified = torch.cat([local[1:], local.new_zeros(1)]) != 0
    found = _block_argmax(a["target_logits"][verified, : a["vocab_size"]], a["BLOCK_SIZE"])
    a["target_local_max"][verified], a["target_local_argmax"][verified] = found


def reject(a: Arguments) -> None:
    """spec_decode/rejection_sampler_utils.py: drafts up to the first that differs, and there the target's token."""
    ends, drafts = a["cu_num_logits"].tolist(), a["draft_sampled"].tolist()
    blocks = a["target_local_max"].argmax(dim=-1, keepdim=True)
    targets = a["target_local_argmax"].gather(-1, blocks).flatten().tolist()
    for row in range(a["grid"][0]):
        accepted = 0
        for at in range(ends[row], ends[row + 1] - 1):
            a["sampled"][row, at - ends[row]] = targets[at]
            if drafts[at + 1] != targets[at]:
                break
            accepted += 1
        a["rejected_steps"][row] = accepted
        a["target_rejected_logsumexp"][row] = a["draft_rejected_logsumexp"][row] = 0  # for sampling by chance


def resample(a: Arguments) -> None:
    """spec_decode/rejection_sampler_utils.py: at temperature 0, the bonus token where all drafts were right."""
    for row, end, logit in _bonus(a, a["rejected_step"]):
        if logit == end - 1:
            logits = a["target_logits"][logit : logit + 1, : a["vocab_size"]]
            values, tokens = _block_argmax(logits, a["BLOCK_SIZE"])
            a["resampled_local_max"][row], a["resampled_local_argmax"][row] = values[0], tokens[0]


def insert_resampled(a: Arguments) -> None:
    """spec_decode/rejection_sampler_utils.py: one more token, the bonus or the one already there."""
    for row, end, logit in _bonus(a, a["num_sampled"]):
        if logit == end - 1:
            block = a["resampled_local_max"][row].argmax()
            a["sampled"][row, int(a["num_sampled"][row])] = a["resampled_local_argmax"][row, block]
        a["num_sampled"][row] += 1


def _bonus(a: Arguments, accepted: torch.Tensor) -> Iterator[tuple[int, int, int]]:
    """Per row: row, end of its logits, and the logit after those of the accepted drafts."""
    ends = a["cu_num_logits"].tolist()
    for row in range(a["grid"][0]):
        yield row, ends[row + 1], ends[row] + int(accepted[row])


# -- drafts -----------------------------------------------------------------------------------------------------


def prepare_draft_prefill(a: Arguments) -> None:
    """spec_decode: the target's batch, one token further; rejected positions stay in it."""
    requests = a["grid"][0]
    end = 0
    for row, slot, start, end in rows(a, requests):
        count = end - start - int(a["num_rejected"][row])
        if a["num_sampled"][row] > 0:
            token = a["last_sampled"].flatten()[slot]
        else:
            token = a["next_prefill_tokens"].flatten()[slot]
        a["draft_input_ids"][start : start + count - 1] = a["target_input_ids"][start + 1 : start + count]
        a["draft_input_ids"][start + count - 1] = token
        a["draft_positions"][start : start + count] = a["target_positions"][start : start + count]
        a["last_token_indices"][row] = start + count - 1
    a["draft_current_step"].fill_(0)
    a["draft_query_start_loc"][:requests] = a["query_start_loc"][:requests]
    a["draft_query_start_loc"][requests : a["max_num_reqs"] + 1] = end
    a["draft_seq_lens"][:requests] = a["seq_lens"][:requests]
    a["draft_seq_lens"][requests : a["max_num_reqs"]] = 0
    a["last_token_indices"][requests : a["max_num_reqs"]] = 0


def prepare_draft_decode(a: Arguments) -> None:
    """spec_decode: one token a request, the first draft, after what was accepted."""
    requests = a["grid"][0] - 1
    a["query_start_loc"][: a["max_num_reqs"] + 1] = torch.arange(a["max_num_reqs"] + 1).clamp(max=requests)
    a["seq_lens"][requests : a["max_num_reqs"]] = 0
    a["input_ids"][:requests] = a["draft_tokens"][:requests].to(a["input_ids"].dtype)
    lengths = a["target_seq_lens"][:requests] - a["num_rejected"][:requests]
    if a.get("ADVANCE_DRAFT_POSITIONS", True):
        _advance(a["positions"][:requests], a["max_model_len"] - 1)
        lengths = (lengths + 1).clamp(max=a["max_model_len"])
    a["seq_lens"][:requests] = lengths
    _count(a, requests)


def update_draft_inputs(a: Arguments) -> None:
    """spec_decode: stores a draft, and makes it the next step's input unless it is the last."""
    requests, step = a["grid"][0], int(a["current_draft_step"])
    a["output_draft_tokens"][:requests, step] = a["draft_tokens"][:requests]
    if step >= a["num_speculative_steps"] - 1:
        return
    _count(a, requests)
    a["input_ids"][:requests] = a["draft_tokens"][:requests].to(a["input_ids"].dtype)
    a["next_input_hidden_states"][:requests] = a["hidden_states"][:requests]
    if a.get("ADVANCE_DRAFT_POSITIONS", True):
        _advance(a["positions"][:requests], a["max_model_len"] - 1)
        _advance(a["seq_lens"][:requests], a["max_model_len"])


def _count(a: Arguments, requests: int) -> None:
    if "sample_src_positions" in a:  # from 0.29; sampling by chance depends on it
        a["sample_src_positions"][:requests] += 1


def _advance(values: torch.Tensor, limit: int) -> None:
    values.copy_((values + 1).clamp(max=limit))


_GPU = "vllm.v1.worker.gpu"
_DRAFTS = {
    "_prepare_prefill_inputs_kernel": prepare_draft_prefill,
    "_prepare_decode_inputs_kernel": prepare_draft_decode,
    "_update_draft_inputs_kernel": update_draft_inputs,
}
STAND_INS: StandIns = {
    f"{_GPU}.structured_outputs": {"_apply_grammar_bitmask_kernel": apply_grammar_bitmask},
    f"{_GPU}.sample.logit_bias": {"_bias_kernel": mask_stop_tokens},
    f"{_GPU}.sample.gumbel": {"_gumbel_sample_kernel": gumbel_sample},
    f"{_GPU}.spec_decode.rejection_sampler": {"_gather_draft_sampled_kernel": gather_draft_sampled},
    f"{_GPU}.spec_decode.rejection_sampler_utils": {
        "_compute_local_logits_stats_kernel": compute_local_logits_stats,
        "_compute_block_stats_kernel": compute_local_logits_stats,  # its name up to 0.24
        "_rejection_kernel": reject,
        "_resample_kernel": resample,
        "_insert_resampled_kernel": insert_resampled,
    },
    f"{_GPU}.spec_decode.target_dependent_ar.speculator": _DRAFTS,
    f"{_GPU}.spec_decode.autoregressive.speculator": _DRAFTS,  # its name up to 0.31
}

"""Random arguments for the V1 runner's kernels, as its launchers could make them."""

from collections.abc import Callable
from random import Random
from typing import Any

import torch

PAD = -1
VOCABULARY = 50

Launch = tuple[int, dict[str, Any]]
"""Grid and arguments, these by the kernel's parameter names without `_ptr`."""


def int32(values: list[Any]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def int64(values: list[Any]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def ends(counts: list[int]) -> list[int]:
    """Running sums."""
    return [sum(counts[: i + 1]) for i in range(len(counts))]


def tables(rng: Random, requests: int, width: int) -> torch.Tensor:
    return int32([[rng.randrange(60) for _ in range(width)] for _ in range(requests)])


def slots_of_a_step(rng: Random) -> Launch:
    """Every request's next tokens, and padding behind them."""
    requests, width, size = rng.randint(1, 5), rng.randint(1, 6), rng.choice((4, 16))
    counts, positions = [], []
    for _ in range(requests):
        start = rng.randrange(width * size)
        counts.append(rng.randint(0, min(5, width * size - start)))
        positions += range(start, start + counts[-1])
    room = len(positions) + rng.randint(0, 4)
    return requests + 1, {
        "num_tokens": len(positions),
        "max_num_tokens": room,
        "query_start_loc": int32([0, *ends(counts)]),
        "positions": int64([*positions, 0]),
        "block_table": tables(rng, requests, width),
        "block_table_stride": width,
        "slot_mapping": torch.full((room,), 777, dtype=torch.int64),
        "KV_CACHE_BLOCK_SIZE": size,
        "block_size": size,
        "BLOCKS_PER_KV_BLOCK": 1,
        "TOTAL_CP_WORLD_SIZE": 1,
        "TOTAL_CP_RANK": 0,
        "CP_KV_CACHE_INTERLEAVE_SIZE": 1,
        "PAD_ID": PAD,
        "BLOCK_SIZE": 8,
    }


def verified_drafts(rng: Random) -> Launch:
    """Up to three drafts a request, from none right to all right."""
    requests, most = rng.randint(1, 5), 3
    counts = [rng.randint(0, most) for _ in range(requests)]
    targets = [rng.randrange(VOCABULARY) for _ in range(sum(counts))]
    drafts = [rng.choice((token, token, (token + 1) % VOCABULARY, PAD)) for token in targets]
    greedy = None
    if rng.random() < 0.5:
        greedy = torch.tensor([rng.random() < 0.7 for _ in range(requests)])
    return requests, {
        "output_token_ids": torch.full((requests, most + 1), PAD, dtype=torch.int32),
        "cu_num_draft_tokens": int32(ends(counts)),
        "draft_token_ids": int32([*drafts, 0]),
        "target_argmax": int64([*targets, 0]),
        "bonus_token_ids": int32([[rng.randrange(VOCABULARY)] for _ in range(requests)]),
        "is_greedy": greedy,
        "max_spec_len": most,
        "uniform_probs": None,
        "synthetic_conditional_rates": None,
        "SYNTHETIC_MODE": False,
    }


def rejections(rng: Random) -> Launch:
    """What the drafter is told: requests with and without drafts, one of the tokens sampled at least."""
    requests = rng.randint(1, 5)
    drafts = [rng.randint(0, 3) for _ in range(requests)]
    lengths = [count + rng.randint(1, 3) for count in drafts]
    return requests, {
        "cu_num_draft_tokens": int32(ends(drafts)),
        "valid_sampled_tokens_count": int32([rng.randint(0, count + 1) for count in drafts]),
        "query_start_loc_gpu": int32([0, *ends(lengths)]),
        "token_indices_to_sample": torch.full((requests,), 777, dtype=torch.int32),
        "num_rejected_tokens_gpu": torch.full((requests,), 777, dtype=torch.int32),
        "num_reqs": requests,
    }


def last_tokens(rng: Random) -> Launch:
    """Rows of sampled tokens: rejected ones are -1, and a token past the vocabulary counts for nothing."""
    requests, width = rng.randint(1, 5), rng.randint(1, 4)
    rows = [
        [rng.choice((rng.randrange(VOCABULARY), PAD, VOCABULARY)) for _ in range(width)]
        for _ in range(requests)
    ]
    return requests, {
        "sampled_token_ids": int32(rows),
        "discard_request_mask": torch.tensor([rng.random() < 0.3 for _ in range(requests)]),
        "backup_next_token_ids": int32([rng.randrange(VOCABULARY) for _ in range(requests)]),
        "next_token_ids": torch.full((requests,), 777, dtype=torch.int32),
        "valid_sampled_tokens_count": torch.full((requests,), 777, dtype=torch.int32),
        "vocab_size": VOCABULARY,
        "num_sampled_tokens_per_req": width,
        "num_reqs": requests,
        "stride_sampled_token_ids": width,
        "BLOCK_SIZE_TOKENS": 1 << max(width - 1, 0).bit_length(),
    }


def next_draft_step(rng: Random) -> Launch:
    """Positions up to the last of the model, where the step goes nowhere; and padding behind the batch."""
    requests, width, size = rng.randint(1, 5), rng.randint(1, 4), 4
    length = width * size
    positions = [rng.choice((rng.randrange(length), length - 1)) for _ in range(requests)]
    grid = requests + rng.randint(0, 2)
    return grid, {
        "positions": int64(positions),
        "block_table": tables(rng, requests, width),
        "block_table_stride": width,
        "seq_lens": int32([position + 1 for position in positions]),
        "out_clamped_positions": torch.full((requests,), 777, dtype=torch.int64),
        "out_slot_mapping": torch.full((grid,), 777, dtype=torch.int64),
        "block_size": size,
        "max_model_len": length,
        "n_blocks_per_req": width,
        "PAD_ID": PAD,
        "batch_size": requests,
    }


def copied_states(rng: Random) -> Launch:
    """States of any size, at any address; none is written that another one reads."""
    states = int32([[rng.randrange(1000) for _ in range(6)] for _ in range(12)])
    copies = rng.randint(1, 6)
    addresses = [states[block].data_ptr() for block in rng.sample(range(12), 2 * copies)]
    return copies, {
        "src_ptrs": torch.tensor(addresses[:copies], dtype=torch.uint64),
        "dst_ptrs": torch.tensor(addresses[copies:], dtype=torch.uint64),
        "sizes": int32([rng.choice((7, 16, 24)) for _ in range(copies)]),
        "BLOCK_SIZE": 16,
    }


KERNELS: dict[str, Callable[[Random], Launch]] = {
    "vllm.v1.worker.block_table:_compute_slot_mapping_kernel": slots_of_a_step,
    "vllm.v1.worker.block_table:ComputeSlotMappingKernel.kernel": slots_of_a_step,
    "vllm.v1.sample.rejection_sampler:rejection_greedy_sample_kernel": verified_drafts,
    "vllm.v1.spec_decode.utils:eagle_prepare_inputs_padded_kernel": rejections,
    "vllm.v1.spec_decode.utils:eagle_prepare_next_token_padded_kernel": last_tokens,
    "vllm.v1.spec_decode.utils:eagle_step_slot_mapping_metadata_kernel": next_draft_step,
    "vllm.v1.worker.mamba_utils:batch_memcpy_kernel": copied_states,
}

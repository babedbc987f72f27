"""Limits of the scheduler's configuration: what vLLM is told, what is legal, and what each of them comes to. Pure."""

from typing import Any

from msgspec.structs import replace

from harness.groups import has_mamba
from harness.scenario import Engine, Speculative


def scheduler_fields(engine: Engine) -> dict[str, Any]:
    """Arguments of SchedulerConfig; releases lack some (`harness.compat`)."""
    return {
        "max_num_active_seqs": engine.max_num_active_seqs or None,
        "long_prefill_token_threshold_adaptive": engine.long_prefill_token_threshold_adaptive,
        "scheduler_reserve_full_isl": engine.scheduler_reserve_full_isl,
        "watermark": watermark(engine),
        "prefill_schedule_interval": engine.prefill_schedule_interval,
    }


def watermark(engine: Engine) -> float:
    """vLLM's: a share of all blocks."""
    return engine.watermark / 100


def watermark_blocks(engine: Engine) -> int:
    """Blocks that an admission must leave free (as KVCacheManager rounds them)."""
    return int(watermark(engine) * engine.num_gpu_blocks)


def longest_prefill(engine: Engine, live: int, *, lone_is_free: bool) -> int:
    """Most tokens that one of `live` requests gets in a step by `long_prefill_token_threshold`, or 0 for any number.

    The adaptive threshold is never below a fair share of the step. Whether a lone request is free of the threshold
    depends on the release (`harness.compat.lone_request_has_no_threshold`).
    """
    if live <= 1 and lone_is_free:
        return 0
    threshold = engine.long_prefill_token_threshold
    if threshold and engine.long_prefill_token_threshold_adaptive:
        return max(threshold, engine.max_num_batched_tokens // max(1, live))
    return threshold


def batches_in_flight(engine: Engine) -> int:
    """Steps that may be dispatched before the first one's result is taken (`max_concurrent_batches`)."""
    return 2 if engine.async_scheduling else engine.pipeline_parallel_size


def drafts_after(speculative: Speculative, batch: int) -> int:
    """How many tokens are drafted after a step of `batch` requests; the last entry holds for all larger steps."""
    schedule = speculative.num_speculative_tokens_per_batch_size
    if not schedule:
        return speculative.num_speculative_tokens
    return schedule[min(batch, len(schedule)) - 1]


def repair_limits(engine: Engine) -> Engine:
    """The nearest legal limits; the rest of the engine is legal already."""
    engine = replace(
        engine,
        # SchedulerConfig: max_num_active_seqs <= max_num_seqs.
        max_num_active_seqs=min(engine.max_num_active_seqs, engine.max_num_seqs),
        data_parallel=engine.data_parallel and engine.prefill_schedule_interval > 1,
    )
    speculative = engine.speculative
    if speculative is not None:
        most = speculative.num_speculative_tokens
        # build_dynamic_sd_schedule_lookup caps entries, and reads none beyond max_num_seqs. VllmConfig turns the
        # schedule off for data-parallel ranks, which might disagree.
        schedule = speculative.num_speculative_tokens_per_batch_size[: engine.max_num_seqs]
        schedule = tuple(min(count, most) for count in schedule)
        while len(schedule) > 1 and schedule[-1] == schedule[-2]:
            schedule = schedule[:-1]
        # Nor is the stub of the V2 runner proven with one, nor a state for each draft.
        if engine.data_parallel or engine.model_runner == "v2" or has_mamba(engine):
            schedule = ()
        speculative = replace(speculative, num_speculative_tokens_per_batch_size=schedule)
    return replace(engine, speculative=speculative)

"""O9 hears every step beyond a configured limit."""

import copy

import pytest
from msgspec.structs import replace

from harness.oracles.limits import Limits
from oracles.faults import SCHEDULE, Fault, after, assert_heard, assert_quiet, before, faults
from scenarios import EAGLE, POOLING, SMALL, scenario, text

DRAFTED_TO_THE_END = scenario(replace(SMALL, speculative=EAGLE), text(45, 20, acceptance=(0,)))
"""Drafts, all wrong, at the last positions that the model has."""

pytestmark = pytest.mark.usefixtures("vllm")


def config(**values):
    """Schedules with another SchedulerConfig than the engine's."""

    def change(scheduler):
        scheduler.scheduler_config = copy.copy(scheduler.scheduler_config)
        for name, value in values.items():
            object.__setattr__(scheduler.scheduler_config, name, value)

    return before(change)


def without_token_budget(original, scheduler, *rest):
    scheduler.max_num_scheduled_tokens = 40
    scheduler.scheduler_config = copy.copy(scheduler.scheduler_config)
    scheduler.scheduler_config.max_num_batched_tokens = 40
    return original(scheduler, *rest)


def without_seats(scheduler):
    scheduler.max_num_running_reqs = scheduler.max_num_active_reqs = 99


def without_watermark(scheduler):
    scheduler.kv_cache_manager.watermark_blocks = 0


def without_full_check(original, manager, *arguments, **keywords):
    return original(manager, *arguments, **keywords | {"full_sequence_must_fit": False})


def one_draft_length(scheduler):
    scheduler.dynamic_sd_lookup = [3] * 9


def without_lora_limit(scheduler):
    scheduler.lora_config = None


def longer_model(scheduler):
    scheduler.max_model_len = 60


def longer_tables(scheduler):
    scheduler.kv_cache_manager.max_model_len = 60


def forget_max_tokens(original, scheduler, *rest):
    """The check for a sure end looks at twice the limit."""
    for request in scheduler.running:
        request.max_tokens *= 2
    output = original(scheduler, *rest)
    for request in scheduler.running:
        request.max_tokens = request.sampling_params.max_tokens
    return output


def exceeded(*limits):
    return tuple(("limit-exceeded", limit) for limit in limits)


def past_its_prompt(_, output):
    for row in output.scheduled_new_reqs:
        row.num_computed_tokens = len(row.prompt_token_ids)


POOLED = scenario(POOLING, text(5, 1))
FAULTS = {
    "past a pooled prompt": Fault(
        SCHEDULE, after(past_its_prompt), POOLED, (("scheduled-past-prompt", "Scheduler.schedule"),)
    ),
    "tokens": Fault(SCHEDULE, without_token_budget, "chunked", exceeded("max_num_batched_tokens")),
    "seats": Fault(SCHEDULE, before(without_seats), "abort_waiting", exceeded("max_num_seqs")),
    "long prefill": Fault(
        SCHEDULE,
        config(long_prefill_token_threshold=0),
        "long_prefill",
        exceeded("long_prefill_token_threshold"),
    ),
    "adaptive": Fault(
        SCHEDULE,
        config(long_prefill_token_threshold=0),
        "adaptive_prefill",
        exceeded("long_prefill_token_threshold"),
    ),
    "active": Fault(SCHEDULE, before(without_seats), "active_seqs", exceeded("max_num_active_seqs")),
    "watermark": Fault(SCHEDULE, before(without_watermark), "watermark", exceeded("watermark")),
    "full prompt": Fault(
        "KVCacheManager.allocate_slots",
        without_full_check,
        "reserved_isl",
        exceeded("scheduler_reserve_full_isl"),
    ),
    "adapters": Fault(SCHEDULE, before(without_lora_limit), "lora", exceeded("max_loras")),
    "draft lengths": Fault(
        SCHEDULE,
        before(one_draft_length),
        "dynamic_spec",
        exceeded("num_speculative_tokens_per_batch_size"),
    ),
    "model length": Fault(SCHEDULE, before(longer_model), DRAFTED_TO_THE_END, exceeded("max_model_len")),
    "blocks": Fault(SCHEDULE, before(longer_tables), DRAFTED_TO_THE_END, exceeded("blocks")),
    "past max_tokens": Fault(
        SCHEDULE, forget_max_tokens, "async", (("scheduled-past-max-tokens", "Scheduler.schedule"),)
    ),
}


def test_is_quiet_on_legal_scenarios(legal):
    assert_quiet(Limits, legal)


@faults(FAULTS)
def test_hears(monkeypatch, fault):
    assert_heard(monkeypatch, Limits, fault)

"""O3 hears what is given up while a step, scheduled or in flight, still reads or writes it."""

import pytest
from msgspec.structs import replace

from harness.execute import execute
from harness.oracles.fences import Fences
from harness.scenario import Load, Request, Text
from harness.trace import Delivered
from harness.verdict import Level, Verdict
from oracles.faults import SCHEDULE, Fault, after, assert_heard, assert_quiet, faults
from scenarios import CONNECTED, EVICTABLE, LEGAL, SMALL, scenario, text

pytestmark = pytest.mark.usefixtures("vllm")

EVICTABLE_READ = (("encoder-evictable-while-read", "EncoderCacheManager.freeable"),)


def free_on_scheduled_tokens(scheduler, _):
    """Up to 0.19.1: an image's reference goes when its tokens are scheduled, not when they are computed."""
    for request in scheduler.running:
        for index, feature in enumerate(request.mm_features):
            if feature.mm_position.offset + feature.mm_position.length <= request.num_computed_tokens:
                scheduler.encoder_cache_manager.free_encoder_input(request, index)


def tables(scheduler):
    return scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks


def share_block(scheduler, _):
    """Two requests get one block to write."""
    table = tables(scheduler)
    if {"r0", "r1"} <= table.keys():
        table["r1"][-1] = table["r0"][-1]


def free_last_block(scheduler, output):
    """The block that the step writes goes back to the pool."""
    for request in output.num_scheduled_tokens:
        scheduler.kv_cache_manager.block_pool.free_blocks(tables(scheduler)[request][-1:])


def free_first_block(scheduler, output):
    """A block that the step reads, and does not write, goes back to the pool."""
    for row in output.scheduled_cached_reqs.req_ids:
        scheduler.kv_cache_manager.block_pool.free_blocks(tables(scheduler)[row][:1])


FREED = "Scheduler._update_after_schedule"
FAULTS = {
    "encoder freed on scheduled tokens": Fault(
        FREED, after(free_on_scheduled_tokens), EVICTABLE["sync"], EVICTABLE_READ
    ),
    "the same, async": Fault(FREED, after(free_on_scheduled_tokens), EVICTABLE["async"], EVICTABLE_READ),
    "two writers": Fault(SCHEDULE, after(share_block), "plain", (("block-written-twice", "Full"),)),
    "free block written": Fault(
        SCHEDULE, after(free_last_block, call=0), "plain", (("free-block-written", "Full"),)
    ),
}


def test_is_quiet_on_legal_scenarios(legal):
    assert_quiet(Fences, legal)


@faults(FAULTS)
def test_hears(monkeypatch, fault):
    assert_heard(monkeypatch, Fences, fault)


def test_hears_that_a_free_block_is_read(monkeypatch):
    fault = Fault(SCHEDULE, after(free_first_block, call=2), "chunked", (("free-block-read", "Full"),))
    assert_heard(monkeypatch, Fences, fault)


def test_evictable_in_flight_is_a_hazard():
    """Harmless as long as the worker runs steps in order: shown, and never counted as a finding."""
    result = execute(LEGAL["mm_async"])
    assert result.verdict is Verdict.HAZARD
    assert [(v.oracle, v.kind, v.level, v.fatal) for v in result.violations] == [
        ("O3", "encoder-evictable-in-flight", Level.HAZARD, False)
    ]


def test_two_requests_may_compute_a_failed_load_again():
    """r1, whose own load is asynchronous, shares the blocks of r0's load, which fails: vLLM sends both back."""
    ends = (Text(1, 0, 4), Text(2, 0, 4))
    shared = scenario(
        CONNECTED,
        *(Request((Text(0, 0, 9), end), 2) for end in ends),
    )
    loads = (Load(8, failed=(1,)), Load(12, True))
    requests = tuple(replace(r, load=load) for r, load in zip(shared.requests, loads, strict=True))
    result = execute(replace(shared, requests=requests), (Fences,))
    assert result.violations == ()
    assert any(update.invalid_blocks for update in result.trace.entries if isinstance(update, Delivered))


def test_a_block_reused_in_flight_is_a_hazard():
    """r0 stops while its next step is in flight; the pool is so small that r1 gets r0's blocks at once."""
    engine = replace(
        SMALL,
        max_model_len=16,
        block_size=4,
        num_gpu_blocks=5,
        async_scheduling=True,
        enable_prefix_caching=False,
    )
    ends_early = replace(text(9, 6), stop_at=1)
    result = execute(scenario(engine, ends_early, text(9, 2, 1)))
    assert result.verdict is Verdict.HAZARD
    assert [(v.oracle, v.kind, v.level) for v in result.violations] == [
        ("O3", "block-reused-in-flight", Level.HAZARD)
    ]

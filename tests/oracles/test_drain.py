"""O12 hears every wrong answer of the API on which the engine loop sleeps and shutdowns complete."""

import pytest
from msgspec.structs import replace

from harness.execute import execute
from harness.oracles.drain import Drain
from harness.scenario import Arrive, Close, Pause, Reset, Resume
from harness.trace import Occurred
from harness.verdict import Level
from oracles.faults import Fault, after, assert_heard, assert_quiet, faults, heard, skipped
from scenarios import PICTURE, SMALL, VISION, scenario, session, text

pytestmark = pytest.mark.usefixtures("vllm")


PARKED = scenario(SMALL, session(5, 3), events=(Arrive(0), Close(0, 9)))


def answer(change):
    return lambda original, scheduler: change(original(scheduler))


def wrong(*names):
    return tuple(("wrong-answer", f"Scheduler.{name}") for name in names)


def one_more(count):
    return count + 1


def one_fewer(count):
    return count - 1


def keeps_a_hash(original, pool):
    """The prefix cache is reset, but for one block."""
    entries = list(pool.cached_block_hash_to_block._cache.items())
    done = original(pool)
    if done:
        pool.cached_block_hash_to_block._cache.update(entries[:1])
    return done


def claims(answer):
    """A reset that does nothing, and says this."""
    return lambda original, pool: answer


def completes_at_once(original, core):
    return True


def not_asked(original, core, clear_cache):
    return original(core, False)


RESET = scenario(SMALL, text(14, 3), events=(Arrive(0), Reset(30)))
KEEP = scenario(VISION, PICTURE, images=(6,), events=(Arrive(0), Pause(1, "keep"), Resume(9)))
BUSY = scenario(
    replace(SMALL, async_scheduling=True),
    text(14, 9),
    events=(Arrive(0), Pause(3, "keep", clear_cache=False), Resume(9)),
)
CLEARED = "reset_prefix_cache: BlockPool"
RESETS = {
    "a hash stays": Fault("BlockPool.reset_prefix_cache", keeps_a_hash, RESET, (("not-cleared", CLEARED),)),
    "nothing is reset": Fault(
        "BlockPool.reset_prefix_cache", claims(True), RESET, (("not-cleared", CLEARED),)
    ),
    "refused without reason": Fault(
        "BlockPool.reset_prefix_cache", claims(False), RESET, (("wrong-answer", "reset_prefix_cache"),)
    ),
    "encoder cache stays": Fault(
        "EncoderCacheManager.reset",
        skipped,
        "encoder_reset",
        (("not-cleared", "reset_encoder_cache: EncoderCacheManager"),),
    ),
    "pause without what was asked": Fault(
        "EngineCoreProc._finish_pause",
        not_asked,
        KEEP,
        (
            ("not-cleared", "pause_scheduler: BlockPool"),
            ("not-cleared", "pause_scheduler: EncoderCacheManager"),
        ),
    ),
    "pause with a step in flight": Fault(
        "EngineCoreProc._pause_complete", completes_at_once, BUSY, (("pause-incomplete", "in flight"),)
    ),
    "pause that does not wait": Fault(
        "EngineCoreProc._pause_complete",
        completes_at_once,
        scenario(SMALL, text(14, 6), events=(Arrive(0), Pause(2, "wait", clear_cache=False), Resume(9))),
        (("pause-incomplete", "wait"),),
    ),
}

COUNT, ANY = "get_num_unfinished_requests", "has_unfinished_requests"


def forget_parked(scheduler, _):
    scheduler.num_waiting_for_streaming_input = 0


FAULTS = {
    "parked session counted": Fault(
        "Scheduler._handle_stopped_request", after(forget_parked), PARKED, wrong(COUNT)
    ),
    "one more": Fault(f"Scheduler.{COUNT}", answer(one_more), "plain", wrong(COUNT)),
    "one fewer": Fault(f"Scheduler.{COUNT}", answer(one_fewer), "plain", wrong(COUNT)),
    "none": Fault(f"Scheduler.{ANY}", answer(lambda _: False), "plain", wrong(ANY)),
    "nothing to do": Fault("Scheduler.has_requests", answer(lambda _: False), "plain", wrong("has_requests")),
    "one counted twice": Fault(
        "Scheduler.get_request_counts",
        answer(lambda counts: (counts[0], counts[1] + 1)),
        "plain",
        wrong(COUNT),
    ),
}


def test_is_quiet_on_legal_scenarios(legal):
    assert_quiet(Drain, legal)


def test_a_request_that_is_preempted_under_wait_is_heard_of():
    """It is left behind. A hazard: AsyncLLM's promise to wait for what is in flight may leave out who is queued."""
    forced = scenario(
        SMALL, text(14, 6), events=(Arrive(0), Reset(2, "prefix", True), Pause(0, "wait"), Resume(9))
    )
    (said,) = execute(forced).violations
    assert (said.kind, said.level) == ("pause-incomplete", Level.HAZARD)


@faults({**FAULTS, **RESETS})
def test_hears(monkeypatch, fault):
    assert_heard(monkeypatch, Drain, fault)


def test_a_pause_that_was_taken_back_waits_for_nobody():
    """vLLM completes it with the next one, whoever is left then."""
    wait, keep = Pause(1, "wait", clear_cache=False), Pause(0, "keep", clear_cache=False)
    again = scenario(SMALL, text(1, 2), events=(Arrive(0), wait, Resume(), keep, Resume(1)))
    entries = execute(again).trace.entries
    assert [entry.detail for entry in entries if isinstance(entry, Occurred) and entry.what == "paused"] == [
        "keep",
        "wait",
    ]
    assert heard(again, Drain) == []

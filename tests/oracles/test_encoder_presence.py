"""O4 hears every gather, for the target or the drafter, that finds no encoder output."""

import pytest
from msgspec.structs import replace

from harness import compat
from harness.execute import execute
from harness.oracles.encoder_presence import EncoderPresence
from harness.scenario import Arrive
from harness.verdict import Level
from harness.worker.traits import Traits
from oracles.faults import SCHEDULE, Fault, after, assert_heard, assert_quiet, faults, heard, plant, skipped
from scenarios import LOOK_AHEAD, PICTURE, RENAMED, VISION, scenario

pytestmark = pytest.mark.usefixtures("vllm")

TRY = "Scheduler._try_schedule_encoder_inputs"


def schedule_none(original, scheduler, *arguments, **keywords):
    """The scheduler believes that every image is encoded."""
    found = original(scheduler, *arguments, **keywords)
    return ([], *found[1:])


def ignore_look_ahead(original, scheduler, *arguments, **keywords):
    """Up to 0.23: what only the drafter's window overlaps is not scheduled."""
    return original(scheduler, *arguments, **{**keywords, "shift_computed_tokens": 0})


def drop_while_read(_, output):
    """The worker is told to drop an image that the same step reads again; the scheduler believes it is there."""
    output.free_encoder_mm_hashes = ["image-1"]


def evict_while_read(scheduler, output):
    """The same, and the scheduler knows."""
    output.free_encoder_mm_hashes = ["image-1"]
    del scheduler.encoder_cache_manager.cached["image-1"]


FAULTS = {
    "not encoded": Fault(TRY, schedule_none, "mm", (("target-read-miss", "never encoded"),)),
    "not loaded": Fault(
        "ScriptedEncoderConnector.update_state_after_alloc",
        skipped,
        "encoder_loads",
        (("target-read-miss", "cached according to EncoderCacheManager"),),
    ),
    "dropped": Fault(
        SCHEDULE,
        after(drop_while_read, call=1),
        "mm",
        (("target-read-miss", "cached according to EncoderCacheManager"),),
    ),
    "evicted": Fault(SCHEDULE, after(evict_while_read, call=1), "mm", (("target-read-miss", "evicted"),)),
}


def accept_every_length(original, scheduler, *arguments, **keywords):
    """As up to 0.30."""
    return False


SHARED = scenario(VISION, PICTURE, RENAMED, images=(6,), events=(Arrive(0), Arrive(1, 8)))
"""Two pictures of one name, of which the second is longer."""
REFUSE = "Scheduler._reject_on_encoder_cache_embed_mismatch"


def test_is_quiet_on_legal_scenarios(legal):
    assert_quiet(EncoderPresence, legal)


@faults(FAULTS)
def test_hears(monkeypatch, fault):
    assert_heard(monkeypatch, EncoderPresence, fault)


@pytest.mark.parametrize(
    ("falls_back", "said"), [(False, [("O4", "drafter-read-miss", "never encoded")]), (True, [])]
)
def test_the_drafter_s_window_is_judged_as_the_release_s_runner_does(monkeypatch, falls_back, said):
    monkeypatch.setattr(compat, "runner_traits", lambda: Traits(drafter_falls_back=falls_back))
    assert heard(LOOK_AHEAD, EncoderPresence) == []
    plant(monkeypatch, TRY, ignore_look_ahead)
    assert heard(LOOK_AHEAD, EncoderPresence) == said


def test_hears_an_output_of_another_length(monkeypatch):
    """The newest releases refuse the request; without that the runner reads past the output's end."""
    assert heard(SHARED, EncoderPresence) == []
    plant(monkeypatch, REFUSE, accept_every_length)
    plant(monkeypatch, "EncoderCacheManager.get_cached_num_encoder_embeds", lambda *_: None)
    assert heard(SHARED, EncoderPresence) == [("O4", "target-read-size", "read past its end")]


def test_a_longer_output_is_a_hazard(monkeypatch):
    longer_first = replace(SHARED, timeline=(Arrive(1), Arrive(0, 8)))
    plant(monkeypatch, REFUSE, accept_every_length)
    told = execute(longer_first, [EncoderPresence]).violations
    assert [(v.kind, v.anchor, v.level) for v in told] == [
        ("target-read-size", "of another length", Level.HAZARD)
    ]

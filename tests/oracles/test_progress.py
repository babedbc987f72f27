"""O7 hears a request that nothing moves any more, and one that moves without getting further."""

import pytest
from msgspec.structs import replace

from harness.oracles.progress import Progress
from harness.scenario import Abort, Arrive
from oracles.faults import (
    SCHEDULE,
    UPDATE,
    Fault,
    after,
    assert_heard,
    assert_quiet,
    before,
    faults,
    heard,
    plant,
)
from scenarios import SMALL, scenario, text

pytestmark = pytest.mark.usefixtures("vllm")


def preempt_everything(scheduler, _):
    """Each step is undone: what it computed is thrown away."""
    for request in scheduler.running:
        scheduler._preempt_request(request, 0.0)
    scheduler.running = []


def forbid_tokens(scheduler):
    scheduler.max_num_scheduled_tokens = 0


LONG = scenario(replace(SMALL, enable_prefix_caching=False), text(40))
FAULTS = {
    "no tokens": Fault(SCHEDULE, before(forbid_tokens), "plain", (("no-progress", "WAITING"),)),
    "no tokens any more": Fault(
        SCHEDULE, before(forbid_tokens, call=1), "chunked", (("no-progress", "RUNNING"),)
    ),
    "no tokens before an image": Fault(
        SCHEDULE, before(forbid_tokens), "mm", (("no-progress", "before an encoder input"),)
    ),
    "thrashing": Fault(UPDATE, after(preempt_everything), LONG, (("livelock", "PREEMPTED"),)),
}


def test_is_quiet_on_legal_scenarios(legal):
    assert_quiet(Progress, legal)


@faults(FAULTS)
def test_hears(monkeypatch, fault):
    assert_heard(monkeypatch, Progress, fault)


def test_says_nothing_while_events_are_to_come(monkeypatch):
    """30 passes without progress are no hang if the abort that follows them ends it all."""
    plant(monkeypatch, SCHEDULE, before(forbid_tokens))
    assert heard(scenario(SMALL, text(5), events=(Arrive(0), Abort(0, 30))), Progress) == []

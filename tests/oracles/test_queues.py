"""O11 hears a request in no queue, in two, or in the wrong one."""

import pytest

from harness.oracles.queues import Queues
from oracles.faults import SCHEDULE, UPDATE, Fault, after, assert_heard, assert_quiet, before, faults

pytestmark = pytest.mark.usefixtures("vllm")


def lose_waiting(scheduler):
    for request in list(scheduler.waiting):
        scheduler.waiting.remove_request(request)


def run_twice(scheduler, _):
    scheduler.running.append(scheduler.running[0])


def wait_twice(scheduler, _):
    scheduler.waiting.add_request(scheduler.waiting.peek_request())


def run_and_wait(scheduler, _):
    scheduler.waiting.add_request(scheduler.running[0])


def run_while_waiting(scheduler, _):
    scheduler.running.append(scheduler.waiting.pop_request())


def forget(scheduler, _):
    scheduler.requests.pop("r1")


def keep(scheduler, _):
    """A request that has ended stays known."""
    from types import SimpleNamespace

    scheduler.requests["r9"] = SimpleNamespace(request_id="r9")


ONE_SEAT = "abort_waiting"
FAULTS = {
    "lost": Fault(SCHEDULE, before(lose_waiting, call=0), "plain", (("lost-request", "Scheduler.waiting"),)),
    "running twice": Fault(
        UPDATE, after(run_twice, call=0), "plain", (("queued-twice", "Scheduler.running"),)
    ),
    "waiting twice": Fault(
        UPDATE, after(wait_twice, call=0), ONE_SEAT, (("queued-twice", "Scheduler.waiting"),)
    ),
    "running and waiting": Fault(
        UPDATE, after(run_and_wait, call=0), "plain", (("wrong-queue", "Scheduler.waiting: RUNNING"),)
    ),
    "running with a waiting status": Fault(
        UPDATE, after(run_while_waiting, call=0), ONE_SEAT, (("wrong-queue", "Scheduler.running: WAITING"),)
    ),
    "unknown": Fault(UPDATE, after(forget, call=0), "plain", (("requests-differ", "Scheduler.requests"),)),
    "known for ever": Fault(
        UPDATE, after(keep, call=0), "plain", (("requests-differ", "Scheduler.requests"),)
    ),
}


def test_is_quiet_on_legal_scenarios(legal):
    assert_quiet(Queues, legal)


@faults(FAULTS)
def test_hears(monkeypatch, fault):
    assert_heard(monkeypatch, Queues, fault)

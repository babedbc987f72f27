"""O12 hears every wrong answer of the API on which the engine loop sleeps and shutdowns complete."""

import pytest

from harness.oracles.drain import Drain
from oracles.faults import Fault, assert_heard, assert_quiet, faults

pytestmark = pytest.mark.usefixtures("vllm")


def answer(change):
    return lambda original, scheduler: change(original(scheduler))


def wrong(*names):
    return tuple(("wrong-answer", f"Scheduler.{name}") for name in names)


def one_more(count):
    return count + 1


def one_fewer(count):
    return count - 1


COUNT, ANY = "get_num_unfinished_requests", "has_unfinished_requests"
FAULTS = {
    "one more": Fault(f"Scheduler.{COUNT}", answer(one_more), "plain", wrong(COUNT)),
    "one fewer": Fault(f"Scheduler.{COUNT}", answer(one_fewer), "plain", wrong(COUNT)),
    "none": Fault(f"Scheduler.{ANY}", answer(lambda _: False), "plain", wrong(ANY, "has_requests")),
    "nothing to do": Fault("Scheduler.has_requests", answer(lambda _: False), "plain", wrong("has_requests")),
    "one counted twice": Fault(
        "Scheduler.get_request_counts",
        answer(lambda counts: (counts[0], counts[1] + 1)),
        "plain",
        wrong(COUNT, "get_request_counts"),
    ),
}


def test_is_quiet_on_legal_scenarios(legal):
    assert_quiet(Drain, legal)


@faults(FAULTS)
def test_hears(monkeypatch, fault):
    assert_heard(monkeypatch, Drain, fault)

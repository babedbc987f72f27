"""O10 hears a request's counters leave what was scheduled, sampled and delivered."""

import pytest

from harness.oracles.counters import Counters
from oracles.faults import UPDATE, Fault, after, assert_heard, assert_quiet, faults

pytestmark = pytest.mark.usefixtures("vllm")

ADVANCED = "Scheduler._update_after_schedule"


def add(counter, amount):
    """A counter of every running request drifts."""

    def change(scheduler, _):
        for request in scheduler.running:
            setattr(request, counter, getattr(request, counter) + amount)

    return after(change, call=1)


def lose_output(scheduler, _):
    for request in scheduler.running:
        request._output_token_ids.pop()


def drifted(counter):
    return (("counter-drift", f"Request.{counter}"),)


FAULTS = {
    "placeholders": Fault(
        UPDATE, add("num_output_placeholders", 1), "plain", drifted("num_output_placeholders")
    ),
    "placeholders, negative": Fault(
        "AsyncScheduler._update_after_schedule",
        add("num_output_placeholders", -9),
        "async",
        drifted("num_output_placeholders"),
    ),
    "in flight": Fault(ADVANCED, add("num_in_flight_tokens", 1), "plain", drifted("num_in_flight_tokens")),
    "in flight, async": Fault(
        ADVANCED, add("num_in_flight_tokens", -1), "async", drifted("num_in_flight_tokens")
    ),
    "computed too much": Fault(
        UPDATE, add("num_computed_tokens", 1), "plain", drifted("num_computed_tokens")
    ),
    "output lost": Fault(UPDATE, after(lose_output, call=1), "plain", drifted("output_token_ids")),
}
HELD_AT_ALL_TIMES = {
    "placeholders, async": Fault(
        "AsyncScheduler._update_after_schedule",
        add("num_output_placeholders", 1),
        "async",
        drifted("num_output_placeholders"),
    ),
    "computed too little": Fault(
        UPDATE, add("num_computed_tokens", -1), "plain", drifted("num_computed_tokens")
    ),
}
"""Faults that the docstring promises to see."""


def test_is_quiet_on_legal_scenarios(legal):
    assert_quiet(Counters, legal)


@faults(FAULTS)
def test_hears(monkeypatch, fault):
    if "in_flight" in fault.heard[0][1]:
        from vllm.v1.request import Request

        if "num_in_flight_tokens" not in Request.__init__.__code__.co_names:
            pytest.skip("this release does not count tokens in flight")
    assert_heard(monkeypatch, Counters, fault)


@faults(HELD_AT_ALL_TIMES)
def test_hears_what_it_promises(monkeypatch, fault):
    assert_heard(monkeypatch, Counters, fault)

"""A request gets the tokens that it would get alone in a fresh cache, whatever runs beside it."""

import pytest
from msgspec.structs import replace

from harness import features, presence
from harness.execute import Result, execute
from harness.scenario import Abort, Arrive, Pause, Request, Scenario
from harness.sessions import turns
from harness.trace import Delivered, Entry
from harness.verdict import Level, Verdict
from harness.worker.device.answers import unified
from harness.worker.device.support import cannot_run
from harness.worker.interface import Kind
from scenarios import KNOWN_TRUE, LEGAL, LEGAL_V2

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("device")]


def answers(result: Result) -> dict[str, list[int]]:
    """What each client got: not through an oracle, but straight from the trace."""
    got: dict[str, list[int]] = {}
    for entry in result.trace.entries:
        if isinstance(entry, Delivered):
            for request, tokens in entry.outputs:
                got.setdefault(request, []).extend(tokens)
    return got


def fails(request: Request) -> bool:
    """Whether its load does."""
    return request.load is not None and bool(request.load.failed)


RUNNABLE = [name for name, scenario in LEGAL.items() if cannot_run(scenario) is None]


def test_what_cannot_run_is_rejected_and_no_finding() -> None:
    for name, reason in (("groups_local", "the whole prefix"), ("mamba_cache_eagle", "states of drafts")):
        for kind in (Kind.DEVICE, Kind.TANDEM):
            result = execute(LEGAL[name], worker=kind)
            assert (result.verdict, result.violations, result.steps) == (Verdict.REJECTED, (), 0)
            assert result.rejected and reason in result.rejected


@pytest.mark.parametrize("name", RUNNABLE)
def test_the_runner_answers_as_the_reference_does(name: str) -> None:
    scenario = LEGAL[name]
    result = execute(scenario, worker=Kind.DEVICE)
    assert (result.verdict, result.violations) == (Verdict.OK, ())
    got = answers(result)
    for index in range(len(scenario.requests)):
        expected = [token for turn in turns(scenario, index) for token in turn.expected_output()[0]]
        found = got.get(f"r{index}", [])
        assert found == (expected[: len(found)] if index in cut_short(scenario) else expected)
    assert got == answers(
        execute(unified(scenario))
    )  # as far as those are answered that somebody has cut short


def cut_short(scenario: Scenario) -> set[int]:
    """Requests that somebody ends before they have all their tokens."""
    if any(isinstance(event, Pause) and event.mode == "abort" for event in scenario.timeline):
        return set(range(len(scenario.requests)))
    found = {event.request for event in scenario.timeline if isinstance(event, Abort)}
    connector = scenario.engine.connector
    if connector is not None and connector.kv_load_failure_policy == "fail":
        found |= {index for index, request in enumerate(scenario.requests) if fails(request)}
    return found


@pytest.mark.parametrize(
    "name",
    [
        "chunked",
        "prefix",
        "preemption",
        "priority",
        "stop",
        "sliding_window",
        "spec_preemption",
        "mm_spec_async",
        "free",
    ],
)
def test_busy_or_alone_the_answers_are_the_same(name: str) -> None:
    """Alone: one request at a time on the plainest engine, with a cache that nobody has used."""
    busy = LEGAL[name]
    engine = replace(
        busy.engine,
        enable_prefix_caching=False,
        long_prefill_token_threshold=0,
        policy="fcfs",
        async_scheduling=False,
        speculative=None,
        interleaving="engine",
    )
    alone = {}
    for index, request in enumerate(busy.requests):
        one = Scenario(1, engine, busy.images, (request,), (Arrive(0),))
        alone[f"r{index}"] = answers(execute(one, worker=Kind.DEVICE))["r0"]
    assert answers(execute(busy, worker=Kind.DEVICE)) == alone


@pytest.mark.parametrize("name", RUNNABLE)
def test_stub_and_runner_agree(name: str) -> None:
    """Else `Disagreement`. The oracles hear the stub, and hazards apart, they have nothing to say."""
    result = execute(LEGAL[name], worker=Kind.TANDEM)
    assert {violation.level for violation in result.violations} <= {Level.HAZARD}
    spoiled = any(map(fails, LEGAL[name].requests))  # what a failed load left lets a row sample anything
    assert told(result, blank=spoiled) == told(execute(unified(LEGAL[name])), blank=spoiled)


def told(result: Result, *, blank: bool) -> list[Entry]:
    """The trace with what is sampled by request, or left out."""
    return [
        replace(
            entry,
            sampled=() if blank else tuple(sorted(entry.sampled)),
            outputs=tuple(sorted(entry.outputs)),
            ended=tuple(sorted(entry.ended)),
        )
        if isinstance(entry, Delivered)
        else entry
        for entry in result.trace.entries
    ]


@pytest.mark.parametrize("name", [name for name, made in LEGAL_V2.items() if cannot_run(made) is None])
def test_stub_and_v2_runner_agree(name: str) -> None:
    """Rows of its results come in another order, so that traces differ in that."""
    scenario = LEGAL_V2[name]
    if lacks := presence.lacking().keys() & features.used(scenario):
        pytest.skip(f"this vLLM lacks {lacks}")
    result, stub = execute(scenario, worker=Kind.TANDEM), execute(unified(scenario))
    broken = {(name, each.fingerprint) for each in result.violations if each.level is Level.VIOLATION}
    assert broken <= KNOWN_TRUE["0.33.0"]
    assert (result.steps, result.violations) == (stub.steps, stub.violations)
    spoiled = any(map(fails, scenario.requests))
    assert told(result, blank=spoiled) == told(stub, blank=spoiled)

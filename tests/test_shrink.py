"""The shrinker reaches known minima, keeps what it must keep, and stops where it is told."""

import itertools
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.generate import FEATURES, chunk_length, generate
from fuzz.shrink import Stop, shrink, size
from harness.codec import decode, encode, validate
from harness.groups import blocks_needed
from harness.repair import repair
from harness.scenario import (
    Abort,
    Arrive,
    Encoder,
    Engine,
    Image,
    Request,
    Scenario,
    Speculative,
    Text,
    content_hash,
    part_length,
)

ALL = frozenset(FEATURES)
Predicate = Callable[[Scenario], bool]
seeds = st.integers(0, 2**32 - 1)


def image_shared_and_abort(scenario: Scenario) -> bool:
    """Two requests that arrive show one image, and there is an abort."""
    arrived = [event.request for event in scenario.timeline if isinstance(event, Arrive)]
    owners = [{p.identity for p in scenario.requests[i].prompt if isinstance(p, Image)} for i in arrived]
    shared = any(one & other for i, one in enumerate(owners) for other in owners[:i])
    return shared and any(isinstance(event, Abort) for event in scenario.timeline)


def late_abort(scenario: Scenario) -> bool:
    """At least three iterations before the first abort."""
    passed = 0
    for event in scenario.timeline:
        passed += event.delay
        if isinstance(event, Abort):
            return passed >= 3
    return False


def asynchronous(scenario: Scenario) -> bool:
    return scenario.engine.async_scheduling and any(isinstance(event, Arrive) for event in scenario.timeline)


def chunk_edge_at_image(scenario: Scenario) -> bool:
    """A drafter with look-ahead, and an image that begins where the token budget ends a chunk."""
    engine = scenario.engine
    if (
        engine.speculative is None
        or engine.speculative.method == "ngram"
        or engine.long_prefill_token_threshold
    ):
        return False
    for arrived in (event.request for event in scenario.timeline if isinstance(event, Arrive)):
        at = 0
        for part in scenario.requests[arrived].prompt:
            if isinstance(part, Image) and at and at % chunk_length(engine) == 0:
                return True
            at += part_length(part, scenario.images)
    return False


def long_output_of_the_second(scenario: Scenario) -> bool:
    arrivals = sum(isinstance(event, Arrive) for event in scenario.timeline)
    return arrivals > 1 and any(request.max_tokens >= 4 for request in scenario.requests[1:])


ONE, SHOWS = Request(), Request(prompt=(Image(0),))
MINIMA: list[tuple[Predicate, list[Scenario]]] = [
    (
        image_shared_and_abort,
        [
            Scenario(
                format=1,
                engine=Engine(encoder=Encoder()),
                images=(1,),
                requests=(SHOWS, SHOWS),
                timeline=timeline,
            )
            for timeline in (
                (Arrive(0), Arrive(1), Abort(0)),
                (Arrive(0), Arrive(1), Abort(1)),
                (Arrive(0), Abort(0), Arrive(1)),
            )
        ],
    ),
    (
        late_abort,
        [
            Scenario(format=1, requests=(ONE,), timeline=(Arrive(0, before), Abort(0, 3 - before)))
            for before in range(4)
        ],
    ),
    (asynchronous, [Scenario(1, Engine(async_scheduling=True), (), (ONE,), (Arrive(0),))]),
    (
        chunk_edge_at_image,
        [
            # The budget may not be below max_num_seqs, which is 4 by default.
            Scenario(
                format=1,
                engine=Engine(max_num_batched_tokens=4, speculative=Speculative(), encoder=Encoder()),
                images=(1,),
                requests=(Request(prompt=(Text(length=4), Image(0))),),
                timeline=(Arrive(0),),
            ),
            # Two places from which it takes two changes at a time to get on.
            Scenario(
                format=1,
                engine=Engine(speculative=Speculative(), encoder=Encoder()),
                images=(1,),
                requests=(Request(prompt=(Text(length=64), Image(0))),),
                timeline=(Arrive(0),),
            ),
            Scenario(
                format=1,
                engine=Engine(
                    max_num_seqs=1, max_num_batched_tokens=2, speculative=Speculative(), encoder=Encoder()
                ),
                images=(1,),
                requests=(Request(prompt=(Text(length=2), Image(0))),),
                timeline=(Arrive(0),),
            ),
        ],
    ),
    (
        long_output_of_the_second,
        [Scenario(1, Engine(), (), (ONE, Request(max_tokens=4)), (Arrive(0), Arrive(1)))],
    ),
]


def found(predicate: Predicate, count: int) -> list[Scenario]:
    scenarios = (generate(Random(seed), ALL) for seed in range(2000))
    return [scenario for scenario in scenarios if predicate(scenario)][:count]


@pytest.mark.parametrize(("predicate", "minima"), MINIMA, ids=[predicate.__name__ for predicate, _ in MINIMA])
def test_reaches_the_minimum(predicate: Predicate, minima: list[Scenario]) -> None:
    scenarios = found(predicate, 30)
    assert len(scenarios) >= 12
    results = [shrink(scenario, predicate) for scenario in scenarios]
    assert {result.stopped for result in results} == {Stop.FIXPOINT}
    assert max(result.tries for result in results) <= 110
    reached = {encode(result.scenario).decode() for result in results}
    smallest, *others = (encode(repair(minimum)).decode() for minimum in minima)
    assert smallest in reached
    assert reached <= {smallest, *others}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seeds, st.sampled_from([predicate for predicate, _ in MINIMA]))
def test_every_step_is_legal_smaller_and_reproduces(seed: int, predicate: Predicate) -> None:
    drawn = (generate(Random(number), ALL) for number in itertools.count(seed))
    scenario = next(one for one in drawn if predicate(one))
    accepted = [scenario]
    tried: list[str] = []

    def reproduces(candidate: Scenario) -> bool:
        validate(candidate)
        assert decode(encode(candidate)) == candidate
        assert size(candidate) < size(accepted[-1])
        tried.append(content_hash(candidate))
        if predicate(candidate):
            accepted.append(candidate)
        return predicate(candidate)

    result = shrink(scenario, reproduces)
    assert result.scenario == accepted[-1]
    assert result.tries == len(tried) == len(set(tried))
    assert shrink(scenario, predicate) == result


@pytest.mark.parametrize("spare", [0, 1])
def test_a_window_goes_together_with_the_blocks_that_it_needs(spare: int) -> None:
    """The pool has so many blocks to spare, with the window and without; neither can go alone."""

    def tight(scenario: Scenario) -> bool:
        return scenario.engine.num_gpu_blocks == blocks_needed(scenario.engine) + spare

    windowed = repair(Scenario(1, Engine(num_gpu_blocks=17 + spare, sliding_window=4)))
    assert tight(windowed)
    assert shrink(windowed, tight).scenario.engine == Engine(num_gpu_blocks=9 + spare)


def test_a_ragged_predicate_is_never_lost() -> None:
    """Holds for two thirds of all scenarios, at random: nothing to learn, and nothing may go wrong."""

    def ragged(scenario: Scenario) -> bool:
        return bool(scenario.requests) and int(content_hash(scenario), 16) % 3 > 0

    for scenario in found(ragged, 15):
        assert ragged(shrink(scenario, ragged).scenario)


def test_nothing_reproduces() -> None:
    scenario = generate(Random(1), ALL)
    result = shrink(scenario, lambda candidate: False)
    assert (result.scenario, result.stopped) == (scenario, Stop.FIXPOINT)
    assert 100 < result.tries < 400


def test_everything_reproduces() -> None:
    result = shrink(generate(Random(2), ALL), lambda candidate: True)
    assert result.scenario == repair(Scenario(format=1))
    assert result.tries <= 4


@pytest.mark.parametrize("bound", [0, 1, 7])
def test_stops_after_so_many_tries(bound: int) -> None:
    calls = []

    def reproduces(candidate: Scenario) -> bool:
        calls.append(candidate)
        return late_abort(candidate)

    (scenario,) = found(late_abort, 1)
    result = shrink(scenario, reproduces, max_tries=bound)
    assert result.stopped is Stop.TRIES
    assert result.tries == len(calls) == bound
    assert late_abort(result.scenario)


def test_stops_at_the_deadline_with_what_it_has() -> None:
    left = iter(range(5, -1, -1))
    (scenario,) = found(late_abort, 1)
    result = shrink(scenario, late_abort, deadline=lambda: next(left) == 0)
    assert (result.stopped, result.tries) == (Stop.DEADLINE, 5)
    assert late_abort(result.scenario)

"""The mutators: legal, reproducible, each with an effect; and the edits of timelines that the shrinker uses, too."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.edits import select_requests, without_events, without_requests
from fuzz.generate import FEATURES, generate, restrict
from fuzz.mutate import MUTATORS, mutate
from harness.codec import decode, encode, validate
from harness.repair import repair
from harness.scenario import Abort, Arrive, Request, Scenario

ALL = frozenset(FEATURES)
quick = settings(max_examples=100, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)
subsets = st.sets(st.sampled_from(FEATURES)).map(frozenset)

SCENARIO = Scenario(
    format=1,
    requests=(Request(max_tokens=1), Request(max_tokens=2), Request(max_tokens=3)),
    timeline=(Arrive(0, 1), Arrive(1, 2), Abort(1, 3), Arrive(2, 4), Abort(0, 5)),
)


@quick
@given(seeds, subsets)
def test_chains_of_mutations_stay_legal_and_within_features(seed: int, features: frozenset[str]) -> None:
    rng = Random(seed)
    scenario = generate(rng, ALL)
    for _ in range(5):
        scenario, names = mutate(rng, scenario, features)
        validate(scenario)
        assert decode(encode(scenario)) == scenario
        assert restrict(scenario, features) == scenario
        assert set(names) <= set(MUTATORS)


@pytest.mark.parametrize("name", MUTATORS)
def test_each_mutator_returns_decodable_scenarios_and_often_changes_them(name: str) -> None:
    """Two in a hundred: `reidentify_image` needs images in a request (0.3) and a second identity (0.8) to draw."""
    changed = 0
    for seed in range(200):
        rng = Random(seed)
        scenario = generate(rng, ALL)
        child = repair(MUTATORS[name](rng, scenario))
        assert decode(encode(child)) == child
        changed += child != scenario
    assert changed >= 4


@pytest.mark.parametrize("name", MUTATORS)
def test_each_mutator_survives_the_smallest_scenarios(name: str) -> None:
    for scenario in (Scenario(format=1), Scenario(format=1, requests=(Request(),))):
        for seed in range(20):
            child = repair(MUTATORS[name](Random(seed), scenario))
            assert decode(encode(child)) == child


def test_same_seed_same_child_and_names() -> None:
    parents = [generate(Random(i), ALL) for i in range(50)]
    once, again = ([mutate(Random(i), s, ALL) for i, s in enumerate(parents)] for _ in range(2))
    assert once == again


def test_mutate_nearly_always_has_an_effect_and_mostly_a_small_one() -> None:
    parents = [generate(Random(i), ALL) for i in range(200)]
    children = [mutate(Random(i), s, ALL) for i, s in enumerate(parents)]
    assert sum(child != parent for (child, _), parent in zip(children, parents, strict=True)) >= 190
    # Geometric with 1/2: 100 expected of 200, deviation 7.
    assert 60 <= sum(len(names) == 1 for _, names in children) <= 140


def test_without_events_hands_delays_on() -> None:
    assert without_events(SCENARIO, [1, 2]).timeline == (Arrive(0, 1), Arrive(2, 9), Abort(0, 5))
    assert without_events(SCENARIO, [0]).timeline[0] == Arrive(1, 3)
    assert without_events(SCENARIO, range(5)).timeline == ()


def test_without_events_spreads_what_one_event_cannot_hold() -> None:
    scenario = Scenario(
        format=1,
        requests=(Request(), Request(), Request()),
        timeline=(Arrive(0, 60), Arrive(1, 60), Arrive(2, 1)),
    )
    assert without_events(scenario, [0]).timeline == (Arrive(1, 64), Arrive(2, 57))


def test_without_requests_renumbers_the_timeline() -> None:
    smaller = without_requests(SCENARIO, [1])
    assert [request.max_tokens for request in smaller.requests] == [1, 3]
    assert smaller.timeline == (Arrive(0, 1), Arrive(1, 9), Abort(0, 5))
    validate(smaller)


def test_select_requests_reorders() -> None:
    moved = select_requests(SCENARIO, [2, 0, 1])
    assert [request.max_tokens for request in moved.requests] == [3, 1, 2]
    assert [event.request for event in moved.timeline] == [1, 2, 2, 0, 1]

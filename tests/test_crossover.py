"""Crossover: legal children with something of both parents."""

from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.crossover import crossover
from fuzz.generate import FEATURES, generate, restrict
from harness.codec import decode, encode, validate
from harness.repair import repair
from harness.scenario import (
    MAX_EVENTS,
    MAX_REQUESTS,
    Abort,
    Arrive,
    Encoder,
    Engine,
    Image,
    Request,
    Scenario,
    Text,
)

ALL = frozenset(FEATURES)
quick = settings(max_examples=150, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)


def with_images(*lengths: int, requests: int = 1) -> Scenario:
    prompt = tuple(Image(identity) for identity in range(len(lengths)))
    return repair(
        Scenario(
            format=1,
            engine=Engine(encoder=Encoder()),
            images=lengths,
            requests=(Request(prompt=prompt),) * requests,
            timeline=tuple(Arrive(i) for i in range(requests)),
        )
    )


@quick
@given(seeds)
def test_children_are_legal(seed: int) -> None:
    rng = Random(seed)
    child = crossover(rng, generate(rng, ALL), generate(rng, ALL))
    validate(child)
    assert decode(encode(child)) == child


@quick
@given(seeds, st.sets(st.sampled_from(FEATURES)).map(frozenset))
def test_restricted_children_are_legal(seed: int, features: frozenset[str]) -> None:
    rng = Random(seed)
    child = crossover(rng, generate(rng, features), generate(rng, features))
    validate(restrict(child, features))


def test_same_seed_same_child() -> None:
    parents = [generate(Random(i), ALL) for i in range(30)]
    once, again = (
        [crossover(Random(i), one, other) for i, (one, other) in enumerate(pairwise(parents))]
        for _ in range(2)
    )
    assert once == again


def test_most_children_have_requests_of_both_parents() -> None:
    a = repair(Scenario(format=1, requests=(Request((Text(0),)),) * 3, timeline=tuple(map(Arrive, range(3)))))
    b = repair(Scenario(format=1, requests=(Request((Text(1),)),) * 3, timeline=tuple(map(Arrive, range(3)))))
    children = [crossover(Random(seed), a, b) for seed in range(100)]
    assert all({request.prompt for request in c.requests} == {(Text(0),), (Text(1),)} for c in children)


def test_images_keep_their_lengths() -> None:
    """Every image of the child has the length that it had in its parent; equal ones may become one, others never."""
    sizes = set()
    for seed in range(100):
        child = crossover(Random(seed), with_images(3, 5), with_images(5, 7))
        lengths = [
            [child.images[p.identity] for p in r.prompt if isinstance(p, Image)] for r in child.requests
        ]
        assert lengths == [[3, 5], [5, 7]] or sorted(lengths) == [[3, 5], [5, 7]]
        sizes.add(len(child.images))
    assert sizes == {3, 4}


def test_too_many_images_share_numbers() -> None:
    eight = with_images(*range(1, 9))
    for seed in range(50):
        child = crossover(Random(seed), eight, with_images(20, 21))
        validate(child)
        assert len(child.images) <= 8


def test_limits_of_the_language_hold() -> None:
    aborts = tuple(Abort(i) for i in range(MAX_REQUESTS))
    arrivals = tuple(Arrive(i) for i in range(MAX_REQUESTS))
    full = repair(Scenario(format=1, requests=(Request(),) * MAX_REQUESTS, timeline=arrivals + aborts))
    for seed in range(50):
        child = crossover(Random(seed), full, full)
        assert len(child.requests) <= MAX_REQUESTS and len(child.timeline) <= MAX_EVENTS
        assert decode(encode(child)) == child


def test_empty_parents() -> None:
    empty = repair(Scenario(format=1))
    for seed in range(20):
        validate(crossover(Random(seed), empty, empty))
        validate(crossover(Random(seed), empty, with_images(3)))
        validate(crossover(Random(seed), with_images(3), empty))

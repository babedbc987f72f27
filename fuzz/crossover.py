"""Crossover: the requests and the timelines of two scenarios under one engine.

Either one scenario's beginning is followed by the other's end, or both run side by side. Images are renumbered, and
images of equal length may become one, which is how encoder entries come to be shared by requests that never met.
Rules: the random source comes first; nothing depends on set order, hashing or time; what comes out is legal.
"""

from random import Random

from msgspec.structs import replace

from fuzz.edits import renumbered, select_requests, with_id_of
from harness.repair import repair
from harness.scenario import (
    MAX_EVENTS,
    MAX_REQUESTS,
    MAX_STREAMS,
    Arrive,
    Engine,
    Event,
    Image,
    Part,
    Request,
    Scenario,
    concerns,
)

_MERGE = 0.3
"""Share of crossovers that run both side by side; they have the sum of both lengths, hence the smaller part."""
_MIXED_ENGINE = 0.3
"""Share that draws each field of the configuration from either side; mostly a bug needs one side's as it is."""
_ONE_IMAGE = 0.5
"""Probability that an image takes the place of one of its length on the other side."""


def crossover(rng: Random, a: Scenario, b: Scenario) -> Scenario:
    """A legal child of two legal scenarios."""
    merge = rng.random() < _MERGE
    head, tail = (_only_arriving(a), _only_arriving(b)) if merge else _cut(rng, a, b)
    images: list[int] = []
    tail_requests = (
        r if r.same_id_as is None else with_id_of(r, r.same_id_as + len(head.requests))
        for r in _with_images(rng, tail, images)
    )
    requests = (*_with_images(rng, head, images), *tail_requests)
    moved = renumbered(tail.timeline, lambda request: request + len(head.requests))
    timeline = _interleave(rng, head.timeline, moved) if merge else (*head.timeline, *moved)
    child = Scenario(
        format=1,
        engine=_engine(rng, a.engine, b.engine, images),
        images=tuple(images),
        requests=requests[:MAX_REQUESTS],
        timeline=tuple(event for event in timeline if (concerns(event) or 0) < MAX_REQUESTS)[:MAX_EVENTS],
        step_delays=rng.choice((a, b)).step_delays,
    )
    return repair(_only_arriving(child))


def _cut(rng: Random, a: Scenario, b: Scenario) -> tuple[Scenario, Scenario]:
    """A beginning of `a`'s timeline and an end of `b`'s, one event each at least, and who arrives in it."""
    cut_a = rng.randint(1, max(1, len(a.timeline)))
    cut_b = rng.randint(0, max(0, len(b.timeline) - 1))
    return (
        _only_arriving(replace(a, timeline=a.timeline[:cut_a])),
        _only_arriving(replace(b, timeline=b.timeline[cut_b:])),
    )


def _only_arriving(scenario: Scenario) -> Scenario:
    """Drops the requests that never arrive, and aborts of them."""
    arriving = {event.request for event in scenario.timeline if isinstance(event, Arrive)}
    timeline = tuple(event for event in scenario.timeline if concerns(event) in {None, *arriving})
    return select_requests(replace(scenario, timeline=timeline), sorted(arriving))


def _interleave(rng: Random, one: tuple[Event, ...], other: tuple[Event, ...]) -> tuple[Event, ...]:
    """A random merge that keeps the order on each side."""
    sides = [list(one), list(other)]
    merged: list[Event] = []
    while sides[0] and sides[1]:
        merged.append(rng.choice(sides).pop(0))
    return (*merged, *sides[0], *sides[1])


def _with_images(rng: Random, scenario: Scenario, images: list[int]) -> tuple[Request, ...]:
    """The scenario's requests with their images renumbered for `images`, to which those are added that are new there.

    An image may take the number of one of its length from the other side; what finds no room must share a number.
    """
    others = len(images)
    number: dict[int, int] = {}

    def part(old: Part) -> Part:
        if not isinstance(old, Image):
            return old
        if old.identity not in number:
            length = scenario.images[old.identity]
            equals = [new for new in range(others) if images[new] == length]
            if equals and rng.random() < _ONE_IMAGE:
                number[old.identity] = rng.choice(equals)
            elif len(images) < MAX_STREAMS:
                number[old.identity] = len(images)
                images.append(length)
            else:
                number[old.identity] = rng.choice(equals or range(len(images)))
        return replace(old, identity=number[old.identity])

    return tuple(replace(request, prompt=tuple(map(part, request.prompt))) for request in scenario.requests)


def _engine(rng: Random, a: Engine, b: Engine, images: list[int]) -> Engine:
    """One side's, or a mixture; with an encoder of either side if there are images."""
    engine = rng.choice((a, b))
    if rng.random() < _MIXED_ENGINE:
        engine = Engine(**{name: getattr(rng.choice((a, b)), name) for name in Engine.__struct_fields__})
    return replace(engine, encoder=engine.encoder or a.encoder or b.encoder) if images else engine

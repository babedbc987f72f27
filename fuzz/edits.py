"""Edits of a scenario that mutation and shrinking are made of.

An edit returns a scenario whose references still hold; numbers may have become illegal together, so callers repair.
Edits that draw take the random source first; nothing depends on set order, hashing or time.
"""

from collections.abc import Callable, Container, Sequence
from random import Random
from typing import Any

from msgspec.structs import replace

from harness.scenario import (
    MAX_EVENTS,
    MAX_SCRIPT,
    Event,
    Image,
    Part,
    Request,
    RequestEvent,
    Scenario,
    concerns,
    part_length,
)

Path = tuple[str | int, ...]
"""Where a value is within a scenario: field names and indices."""

MAX_PARTS = 16
MAX_DELAY = 64


def without_events(scenario: Scenario, doomed: Container[int]) -> Scenario:
    """Drops the events at these places of the timeline; each delay goes to the next event that stays.

    What exceeds an event's longest delay goes on to the one after it, so that later events keep their times.
    """
    kept: list[Event] = []
    carried = 0
    for at, event in enumerate(scenario.timeline):
        carried += event.delay
        if at not in doomed:
            kept.append(replace(event, delay=min(MAX_DELAY, carried)))
            carried -= kept[-1].delay
    return replace(scenario, timeline=tuple(kept))


def without_requests(scenario: Scenario, doomed: Container[int]) -> Scenario:
    """Drops these requests with their events; the others are renumbered, and delays go to the next event that stays."""
    gone = [at for at, event in enumerate(scenario.timeline) if concerns(event) in doomed]
    stay = [i for i in range(len(scenario.requests)) if i not in doomed]
    return select_requests(without_events(scenario, gone), stay)


def select_requests(scenario: Scenario, order: Sequence[int]) -> Scenario:
    """The requests in this order, the timeline renumbered to it; no event may name a request that is not in it."""
    number = {old: new for new, old in enumerate(order)}
    requests = (scenario.requests[old] for old in order)
    return replace(
        scenario,
        requests=tuple(
            with_id_of(r, None if r.same_id_as is None else number.get(r.same_id_as)) for r in requests
        ),
        timeline=renumbered(scenario.timeline, number.__getitem__),
    )


def with_id_of(request: Request, first: int | None) -> Request:
    """The request with an id that it has from another one, or its own."""
    return request if request.same_id_as == first else replace(request, same_id_as=first)


def renumbered(timeline: Sequence[Event], number: Callable[[int], int]) -> tuple[Event, ...]:
    """The events with other numbers for their requests."""
    return tuple(
        replace(event, request=number(event.request)) if isinstance(event, RequestEvent) else event
        for event in timeline
    )


def with_identities(scenario: Scenario, number: dict[int, int]) -> Scenario:
    """Images take these numbers instead of theirs; then those in use are numbered by first use, and the rest goes."""
    shown = [part.identity for r in scenario.requests for part in r.prompt if isinstance(part, Image)]
    order = list(dict.fromkeys(number.get(identity, identity) for identity in shown))

    def part(old: Part) -> Part:
        if not isinstance(old, Image):
            return old
        return replace(old, identity=order.index(number.get(old.identity, old.identity)))

    requests = tuple(replace(r, prompt=tuple(map(part, r.prompt))) for r in scenario.requests)
    scenario = replace(scenario, requests=requests, images=tuple(scenario.images[old] for old in order))
    connector = scenario.engine.ec_connector
    if connector is None:
        return scenario
    kept = {number.get(old, old) for old in connector.stored} & set(order)
    stored = tuple(sorted(map(order.index, kept)))
    return with_engine(scenario, ec_connector=replace(connector, stored=stored))


def with_runner(scenario: Scenario, model_runner: str | None) -> Scenario:
    """The scenario on this model runner; None leaves it as it is."""
    if model_runner is None:
        return scenario
    return replace(scenario, engine=replace(scenario.engine, model_runner=model_runner))


def get(node: Any, path: Path) -> Any:
    """The value at a path; None where an accepted candidate has done away with the place."""
    for step in path:
        if isinstance(step, str):
            node = getattr(node, step, None)
        else:
            node = node[step] if isinstance(node, tuple) and step < len(node) else None
    return node


def put(node: Any, path: Path, value: Any) -> Any:
    """The node with this value at the path, which it must have."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(step, str):
        return replace(node, **{step: put(getattr(node, step), rest, value)})
    return (*node[:step], put(node[step], rest, value), *node[step + 1 :])


def any_request(rng: Random, scenario: Scenario, edit: Callable[[Request], Request]) -> Scenario:
    """One request edited, drawn at random."""
    if not scenario.requests:
        return scenario
    i = rng.randrange(len(scenario.requests))
    requests = (*scenario.requests[:i], edit(scenario.requests[i]), *scenario.requests[i + 1 :])
    return replace(scenario, requests=requests)


def any_event(rng: Random, scenario: Scenario, edit: Callable[[Event], Event]) -> Scenario:
    """One event edited, drawn at random."""
    if not scenario.timeline:
        return scenario
    i = rng.randrange(len(scenario.timeline))
    timeline = (*scenario.timeline[:i], edit(scenario.timeline[i]), *scenario.timeline[i + 1 :])
    return replace(scenario, timeline=timeline)


def any_part(
    rng: Random, scenario: Scenario, kind: type[Part], edit: Callable[[Any, int], Sequence[Part]]
) -> Scenario:
    """Replaces one part of this kind by what `edit` makes of it and of the position that it begins at."""

    def change(request: Request) -> Request:
        places = [j for j, part in enumerate(request.prompt) if isinstance(part, kind)]
        if not places:
            return request
        j = rng.choice(places)
        at = sum(part_length(part, scenario.images) for part in request.prompt[:j])
        prompt = (*request.prompt[:j], *edit(request.prompt[j], at), *request.prompt[j + 1 :])
        return replace(request, prompt=prompt[:MAX_PARTS] or request.prompt)

    return any_request(rng, scenario, change)


def insert_event(rng: Random, scenario: Scenario, event: Event) -> Scenario:
    """The event at a random place, after its request's arrival if it has one; nothing changes in a full timeline."""
    if len(scenario.timeline) >= MAX_EVENTS:
        return scenario
    request = concerns(event)
    arrived = [at for at, other in enumerate(scenario.timeline) if concerns(other) == request is not None]
    at = rng.randint(arrived[0] + 1 if arrived else 0, len(scenario.timeline))
    return replace(scenario, timeline=(*scenario.timeline[:at], event, *scenario.timeline[at:]))


def tweak(rng: Random, value: int, low: int, high: int) -> int:
    """Another value within the limits: one step, double, half, or anything."""
    wanted = rng.choice((value - 1, value + 1, value * 2, value // 2, low, rng.randint(low, high)))
    return max(low, min(high, wanted))


def with_engine(scenario: Scenario, **values: object) -> Scenario:
    """The scenario with other fields of its engine."""
    return replace(scenario, engine=replace(scenario.engine, **values))


def change_script(rng: Random, script: tuple[int, ...], high: int) -> tuple[int, ...]:
    """One entry more, less, or other."""
    at = rng.randint(0, len(script))
    value = rng.choice((rng.randint(0, high), 0, high))
    new = rng.choice(((), (value,), (value, *script[at : at + 1])))
    return (*script[:at], *new, *script[at + 1 :])[:MAX_SCRIPT]

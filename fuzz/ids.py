"""Ids that clients use again: a draw, which is a mutator, too (see `mutators`). The random source comes first."""

from random import Random

from msgspec.structs import replace

from fuzz.edits import select_requests, without_events
from harness.scenario import MAX_EVENTS, Abort, Arrive, Event, Scenario

_DELAYS = (0, 0, 0, 0, 1, 2)
"""Mostly none between the abort and the id's next request: what was in flight at the one is so at the other."""


def reuse_id(rng: Random, scenario: Scenario) -> Scenario:
    """One request is aborted, and another arrives with its id right after that."""
    arrived = [event.request for event in scenario.timeline if isinstance(event, Arrive)]
    if len(arrived) < 2:
        return scenario
    first, second = rng.sample(arrived, 2)
    gone = [
        at
        for at, event in enumerate(scenario.timeline)
        if _event_of(event, Arrive, second) or _event_of(event, Abort, first)
    ]
    rest = without_events(scenario, gone).timeline
    start = next(at for at, event in enumerate(rest) if _event_of(event, Arrive, first))
    at = rng.randint(start + 1, len(rest))
    pair = (Abort(first, rng.choice((0, 1, 1, 2, 3))), Arrive(second, rng.choice(_DELAYS)))
    requests = tuple(
        replace(request, same_id_as=first if index == second else None)
        if index in (first, second)
        else request
        for index, request in enumerate(scenario.requests)
    )
    timeline = (*rest[:at], *pair, *rest[at:])[:MAX_EVENTS]
    found = replace(scenario, requests=requests, timeline=timeline)
    # Numbered by arrival, as all that is generated.
    order = [event.request for event in timeline if isinstance(event, Arrive)]
    order += [index for index in range(len(requests)) if index not in order]
    return select_requests(found, order)


def _event_of(event: Event, kind: type[Arrive | Abort], request: int) -> bool:
    """Whether the event is of this kind and about this request."""
    return isinstance(event, kind) and event.request == request

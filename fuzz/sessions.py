"""Streaming sessions for generator and mutators: chunks, and what their clients do in a timeline.

Rules: the random source comes first; nothing depends on set order, hashing or time. Numbers may be illegal together.
"""

from collections.abc import Sequence
from random import Random

from msgspec.structs import replace

from fuzz.edits import MAX_DELAY, any_request, insert_event
from fuzz.timelines import DELAYS
from harness.scenario import (
    MAX_CHUNKS,
    MAX_EVENTS,
    MAX_MODEL_LEN,
    Arrive,
    Chunk,
    Close,
    Continue,
    Engine,
    Event,
    Request,
    Scenario,
    Text,
    concerns,
)

_IN_A_ROW = 0.3
"""Share of chunks that are sent together with the event before them, mostly in the middle of a turn."""


def opened(rng: Random, request: Request, engine: Engine, *, stops: bool) -> Request:
    """The request as the first input of a session."""
    count = rng.choice((0, 1, 1, 1, 2, 2, 3))
    return replace(request, chunks=tuple(new_chunk(rng, request, engine, stops=stops) for _ in range(count)))


def new_chunk(rng: Random, request: Request, engine: Engine, *, stops: bool) -> Chunk:
    """Mostly short, and with the length of the request's outputs, which up to 0.30 is all that vLLM looks at."""
    size = engine.block_size
    length = max(1, rng.choice((1, 1, rng.randint(1, 8), size, size + rng.choice((-1, 0, 1)), 2 * size)))
    tokens = request.max_tokens if rng.random() < 0.7 else rng.randint(1, 8)
    drafts = engine.speculative.num_speculative_tokens if engine.speculative else 0
    return Chunk(
        prompt=(Text(rng.choice((0, 0, 1, 2)), rng.randint(0, 12), length),),
        max_tokens=tokens,
        eos_at=rng.randrange(tokens) if stops and rng.random() < 0.3 else None,
        stop_at=rng.randrange(tokens) if stops and rng.random() < 0.15 else None,
        acceptance=tuple(rng.randint(0, drafts) for _ in range(rng.randint(0, 3))) if drafts else (),
    )


def with_inputs(rng: Random, timeline: tuple[Event, ...], requests: Sequence[Request]) -> tuple[Event, ...]:
    """What the clients of sessions do, each in order, anywhere after the arrival."""
    events = list(timeline)
    for index, request in enumerate(requests):
        if request.chunks is None:
            continue
        at = next(at for at, event in enumerate(events) if concerns(event) == index)
        inputs: list[Event] = [Continue(index, rng.choice(DELAYS)) for _ in request.chunks]
        for event in (*inputs, Close(index, rng.choice(DELAYS))):
            if rng.random() < _IN_A_ROW:
                event, at = replace(event, delay=0), at + 1
            else:
                at = rng.randint(at + 1, len(events))
            events.insert(at, event)
    return tuple(events[:MAX_EVENTS])


def _sessions(scenario: Scenario) -> list[int]:
    arrived = {event.request for event in scenario.timeline if isinstance(event, Arrive)}
    return [i for i, r in enumerate(scenario.requests) if r.chunks is not None and i in arrived]


def insert_chunk(rng: Random, scenario: Scenario) -> Scenario:
    """One more input, for a session or for a request that becomes one."""
    known = _sessions(scenario)
    if not scenario.requests or len(scenario.timeline) >= MAX_EVENTS:
        return scenario
    anyone = not known or rng.random() < 0.3
    index = rng.randrange(len(scenario.requests)) if anyone else rng.choice(known)
    request = scenario.requests[index]
    chunks = list(request.chunks or ())
    if len(chunks) < MAX_CHUNKS:
        chunk = new_chunk(rng, request, scenario.engine, stops=rng.random() < 0.5)
        chunks.insert(rng.randint(0, len(chunks)), chunk)
    requests = list(scenario.requests)
    requests[index] = replace(request, chunks=tuple(chunks))
    scenario = replace(scenario, requests=tuple(requests))
    closing = [at for at, event in enumerate(scenario.timeline) if event == Close(index, event.delay)]
    if not closing:
        return insert_event(rng, scenario, Continue(index, rng.randint(0, 4)))
    arrival = next(at for at, event in enumerate(scenario.timeline) if concerns(event) == index)
    at = rng.randint(arrival + 1, closing[0])
    event = Continue(index, rng.randint(0, 4))
    return replace(scenario, timeline=(*scenario.timeline[:at], event, *scenario.timeline[at:]))


def change_chunk(rng: Random, scenario: Scenario) -> Scenario:
    """One number of a chunk, or its end."""

    def edit(request: Request) -> Request:
        if not request.chunks:
            return request
        at = rng.randrange(len(request.chunks))
        chunk = _changed(rng, request.chunks[at], scenario.engine)
        kept = () if chunk is None else (chunk,)
        return replace(request, chunks=(*request.chunks[:at], *kept, *request.chunks[at + 1 :]))

    return any_request(rng, scenario, edit)


def _changed(rng: Random, chunk: Chunk, engine: Engine) -> Chunk | None:
    match rng.choice(("length", "start", "max_tokens", "eos_at", "stop_at", "acceptance", "none")):
        case "length":
            part = chunk.prompt[0]
            length = rng.choice((part.length - 1, part.length + 1, engine.block_size, rng.randint(1, 40)))
            part = replace(part, length=max(1, min(MAX_MODEL_LEN, length)))
            return replace(chunk, prompt=(part, *chunk.prompt[1:]))
        case "start":
            part = replace(chunk.prompt[0], stream=rng.randrange(3), start=rng.randint(0, 12))
            return replace(chunk, prompt=(part, *chunk.prompt[1:]))
        case "max_tokens":
            return replace(chunk, max_tokens=max(1, rng.choice((chunk.max_tokens - 1, rng.randint(1, 12)))))
        case "acceptance":
            return replace(chunk, acceptance=tuple(rng.randint(0, 4) for _ in range(rng.randint(0, 3))))
        case "none":
            return None
        case name:
            return replace(chunk, **{name: rng.choice((None, rng.randrange(chunk.max_tokens)))})


def hurry(rng: Random, scenario: Scenario) -> Scenario:
    """A session's input comes at once after another event, or long after it."""
    inputs = [at for at, event in enumerate(scenario.timeline) if isinstance(event, Continue | Close)]
    if not inputs:
        return scenario
    at = rng.choice(inputs)
    event = replace(scenario.timeline[at], delay=rng.choice((0, 0, 1, 2, 8, MAX_DELAY)))
    return replace(scenario, timeline=(*scenario.timeline[:at], event, *scenario.timeline[at + 1 :]))

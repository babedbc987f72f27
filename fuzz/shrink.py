"""Shrinking: the scenario that an engineer would have written by hand to show the same thing.

The passes of `shrink_passes.py` run in rounds until a whole round changes nothing. The search takes a candidate only if
it reproduces and is smaller in one total order (`size`), so that it must end.

Rules: deterministic; no random source, no clock (the caller's `deadline` knows the time); every candidate is legal; no
scenario is tried twice. `reproduces` must hold the fingerprint: what it accepts is the same finding.
"""

import enum
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from fuzz.shrink_passes import PASSES, Pass
from harness.repair import repair
from harness.scenario import (
    Abort,
    Arrive,
    Chunk,
    Connector,
    Encoder,
    Engine,
    Grammar,
    Image,
    Load,
    Request,
    Resized,
    Scenario,
    Speculative,
    Text,
    Wide,
    content_hash,
    prompt_length,
)

MAX_TRIES = 2000
"""Measured on generated scenarios with five synthetic predicates: median 20 to 120 tries, at most 665. Three times that
is room for ragged ones, and at 10 ms an execution no more than 20 s."""


class Stop(enum.Enum):
    """Why shrinking ended."""

    FIXPOINT = "fixpoint"
    TRIES = "tries"
    DEADLINE = "deadline"


class Shrunk(msgspec.Struct, frozen=True):
    """The smallest scenario found, the number of calls of `reproduces`, and why there were no more."""

    scenario: Scenario
    tries: int
    stopped: Stop


class _Ended(Exception):
    """A bound is reached; not an error."""


def never() -> bool:
    """The deadline of those who have time."""
    return False


def shrink(
    scenario: Scenario,
    reproduces: Callable[[Scenario], bool],
    *,
    max_tries: int = MAX_TRIES,
    deadline: Callable[[], bool] = never,
) -> Shrunk:
    """The smallest scenario that `reproduces` within the bounds; `scenario` itself is taken to, and must be legal."""
    search = _Search(scenario, reproduces, max_tries, deadline)
    try:
        before = None
        while before != search.current:
            before = search.current
            for one in PASSES:
                search.run(one)
    except _Ended:
        pass
    return Shrunk(search.current, search.tries, search.stopped)


class _Search:
    def __init__(
        self,
        scenario: Scenario,
        reproduces: Callable[[Scenario], bool],
        max_tries: int,
        deadline: Callable[[], bool],
    ) -> None:
        self.current = scenario
        self.tries = 0
        self.stopped = Stop.FIXPOINT
        self._reproduces, self._max_tries, self._deadline = reproduces, max_tries, deadline
        self._size = size(scenario)
        self._seen = {content_hash(scenario)}

    def run(self, one: Pass) -> None:
        candidates = one(self.current)
        try:
            candidate = next(candidates)
            while True:
                self._consider(repair(candidate))
                candidate = candidates.send(self.current)
        except StopIteration:
            return

    def _consider(self, candidate: Scenario) -> None:
        smaller = size(candidate)
        if smaller >= self._size or (name := content_hash(candidate)) in self._seen:
            return
        if self._deadline():
            self.stopped = Stop.DEADLINE
            raise _Ended
        if self.tries >= self._max_tries:
            self.stopped = Stop.TRIES
            raise _Ended
        self._seen.add(name)
        self.tries += 1
        if self._reproduces(candidate):
            self.current, self._size = candidate, smaller


def size(scenario: Scenario) -> tuple[Any, ...]:
    """The total order: what a reader must take in, most expensive first; the canonical form decides what is left."""
    engine, requests, timeline = scenario.engine, scenario.requests, scenario.timeline
    texts = [part for request in requests for part in request.prompt if isinstance(part, Text)]
    chunks = [chunk for request in requests for chunk in request.chunks or ()]
    texts += [part for chunk in chunks for part in chunk.prompt]
    shown = [part.identity for request in requests for part in request.prompt if isinstance(part, Image)]
    arrivals = [event.request for event in timeline if isinstance(event, Arrive)]
    encoded = msgspec.json.encode(scenario)
    delays = [event.delay for event in timeline]
    delays += [request.grammar.delay for request in requests if request.grammar is not None]
    loads = [request.load for request in requests if request.load is not None]
    scripts = [scenario.step_delays, *(request.acceptance for request in requests)]
    scripts += [chunk.acceptance for chunk in chunks]
    scripts += [load.failed for load in loads]
    return (
        len(requests),
        len(timeline),
        _changed(engine, Engine()),
        len(shown) + len(scenario.images),
        len(texts),
        sum(_changed(request, Request(request.prompt, request.max_tokens)) for request in requests)
        + sum(_changed(chunk, Chunk(chunk.prompt, chunk.max_tokens)) for chunk in chunks)
        + sum(isinstance(event, Abort) and event.in_step for event in timeline)
        + sum(isinstance(part, Resized) for request in requests for part in request.prompt),
        sum(prompt_length(request, scenario.images) + request.max_tokens for request in requests)
        + sum(sum(part.length for part in chunk.prompt) + chunk.max_tokens for chunk in chunks),
        sum(delays) + sum(delay > 0 for delay in delays),
        sum(len(script) + sum(script) for script in scripts),
        sum(scenario.images),
        sum(_numbers(engine)),
        sum(abs(request.priority) + (request.eos_at or 0) + (request.stop_at or 0) for request in requests)
        + sum(request.min_tokens + request.cache_salt for request in requests)
        + sum(load.tokens + load.latency + load.undecided for load in loads)
        + sum(request.send or 0 for request in requests)
        + sum((chunk.eos_at or 0) + (chunk.stop_at or 0) for chunk in chunks),
        sum(text.stream + text.start for text in texts),
        _disorder(arrivals) + _disorder(list(dict.fromkeys(shown))),
        len(encoded),
        encoded,
    )


def _changed(value: Any, default: Any) -> int:
    """Fields that a person would have to write down, those within fields included."""
    count = 0
    for name in value.__struct_fields__:
        one = getattr(value, name)
        if isinstance(one, Connector | Encoder | Grammar | Load | Speculative):
            count += 1 + _changed(one, type(one)())
        elif name == "kv_cache_groups":
            count += len(one) + sum(isinstance(group, Wide) for group in one)
        else:
            count += one != getattr(default, name)
    return count


def _numbers(value: Any) -> Iterator[int]:
    for name in value.__struct_fields__:
        number = getattr(value, name)
        if isinstance(number, Encoder | Speculative | Connector):
            yield from _numbers(number)
        elif name == "kv_cache_groups":
            yield from (size for group in number for size in _numbers(group))
        elif isinstance(number, int):
            yield int(number)


def _disorder(numbers: list[int]) -> int:
    """Pairs in descending order."""
    return sum(a > b for i, a in enumerate(numbers) for b in numbers[i + 1 :])

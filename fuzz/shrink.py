"""Shrinking: the scenario that an engineer would have written by hand to show the same thing.

Passes with one idea each run in rounds until a whole round changes nothing. A pass is a generator: it yields a
candidate and is sent back the scenario that now stands; so it goes on where it was, whether that was taken or not.
The search takes a candidate only if it reproduces and is smaller in one total order (`size`), so that it must end.

Rules: deterministic; no random source, no clock (the caller's `deadline` knows the time); every candidate is legal; no
scenario is tried twice. `reproduces` must hold the fingerprint: what it accepts is the same finding.
"""

import enum
from collections.abc import Callable, Generator, Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from fuzz.generate import chunk_length
from fuzz.mutate import select_requests, without_events, without_requests
from harness.scenario import (
    Abort,
    Arrive,
    Encoder,
    Engine,
    Image,
    Part,
    Request,
    Scenario,
    Speculative,
    Text,
    content_hash,
    part_length,
    prompt_length,
    repair,
)

MAX_TRIES = 2000
"""Measured on generated scenarios with five synthetic predicates: median 20 to 120 tries, at most 665. Three times that
is room for ragged ones, and at 10 ms an execution no more than 20 s."""

Pass = Callable[[Scenario], Generator[Scenario, Scenario, None]]
Path = tuple[str | int, ...]
"""Where a value is within a scenario: field names and indices."""
Place = tuple[Path, int]
"""Where a number is, and the least that it can be."""


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
    shown = [part.identity for request in requests for part in request.prompt if isinstance(part, Image)]
    arrivals = [event.request for event in timeline if isinstance(event, Arrive)]
    encoded = msgspec.json.encode(scenario)
    scripts = [scenario.step_delays, *(request.acceptance for request in requests)]
    return (
        len(requests),
        len(timeline),
        _changed(engine, Engine()),
        len(shown) + len(scenario.images),
        len(texts),
        sum(_changed(request, Request(request.prompt, request.max_tokens)) for request in requests)
        + sum(isinstance(event, Abort) and event.in_step for event in timeline),
        sum(prompt_length(request, scenario.images) + request.max_tokens for request in requests),
        sum(event.delay for event in timeline) + sum(event.delay > 0 for event in timeline),
        sum(len(script) + sum(script) for script in scripts),
        sum(scenario.images),
        sum(_numbers(engine)),
        sum(abs(request.priority) + (request.eos_at or 0) + (request.stop_at or 0) for request in requests),
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
        if isinstance(one, Encoder | Speculative):
            count += 1 + _changed(one, type(one)())
        else:
            count += one != getattr(default, name)
    return count


def _numbers(value: Any) -> Iterator[int]:
    for name in value.__struct_fields__:
        number = getattr(value, name)
        if isinstance(number, Encoder | Speculative):
            yield from _numbers(number)
        elif isinstance(number, int):
            yield int(number)


def _disorder(numbers: list[int]) -> int:
    """Pairs in descending order."""
    return sum(a > b for i, a in enumerate(numbers) for b in numbers[i + 1 :])


def _get(node: Any, path: Path) -> Any:
    """The value at a path; None where an accepted candidate has done away with the place."""
    for step in path:
        if isinstance(step, str):
            node = getattr(node, step, None)
        else:
            node = node[step] if isinstance(node, tuple) and step < len(node) else None
    return node


def _put(node: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(step, str):
        return replace(node, **{step: _put(getattr(node, step), rest, value)})
    return (*node[:step], _put(node[step], rest, value), *node[step + 1 :])


def _drop(
    current: Scenario, count: Callable[[Scenario], int], without: Callable[[Scenario, range], Scenario]
) -> Generator[Scenario, Scenario, Scenario]:
    """Runs of elements from the end, halves first, then ever shorter ones down to one."""
    width = max(1, count(current) // 2)
    while True:
        end = count(current)
        while end > 0:
            start = max(0, end - width)
            current = yield without(current, range(start, end))
            end = min(start, count(current))
        if width == 1:
            return current
        width //= 2


def _drop_items(current: Scenario, path: Path) -> Generator[Scenario, Scenario, Scenario]:
    def without(scenario: Scenario, doomed: range) -> Scenario:
        items = _get(scenario, path)
        return _put(scenario, path, items[: doomed.start] + items[doomed.stop :])  # type: ignore[no-any-return]

    return (yield from _drop(current, lambda scenario: len(_get(scenario, path) or ()), without))


def _amounts(value: int, most: int, engine: Engine) -> list[int]:
    """By how much to lower a number: all, half of it, a block, a chunk, parts of what is left, one."""
    if most < 0:
        return [most, -1]
    whole = (most, (value + 1) // 2, (value - 1) % engine.block_size + 1, chunk_length(engine))
    amounts = dict.fromkeys((*whole, *(most // 2**k for k in range(1, 10)), 1))
    return [amount for amount in amounts if 0 < amount <= most]


def _lower(current: Scenario, *places: Place) -> Generator[Scenario, Scenario, Scenario]:
    """Lowers the numbers at these places, all by the same amount, as far as it goes (a negative one rises to 0)."""
    while True:
        values = [_get(current, path) for path, _ in places]
        if any(value is None for value in values):
            return current
        most, value = min((value - floor, value) for value, (_, floor) in zip(values, places, strict=True))
        for amount in _amounts(value, most, current.engine):
            candidate = current
            for (path, _), old in zip(places, values, strict=True):
                candidate = _put(candidate, path, old - amount)
            current = yield candidate
            if [_get(current, path) for path, _ in places] != values:
                break
        else:
            return current


def _drop_requests(current: Scenario) -> Generator[Scenario, Scenario, None]:
    yield from _drop(current, lambda scenario: len(scenario.requests), without_requests)


def _merge_requests(current: Scenario) -> Generator[Scenario, Scenario, None]:
    """One request takes the events of another, where it has no such event itself."""
    for old in reversed(range(len(current.requests))):
        for new in range(len(current.requests)):
            if old != new and old < len(current.requests):
                moved = (replace(e, request=new) if e.request == old else e for e in current.timeline)
                merged = repair(replace(current, timeline=tuple(moved)))
                current = yield without_requests(merged, (old,))


def _drop_events(current: Scenario) -> Generator[Scenario, Scenario, None]:
    yield from _drop(current, lambda scenario: len(scenario.timeline), without_events)


def _default_engine(current: Scenario) -> Generator[Scenario, Scenario, None]:
    """Everything at once, then field by field; the interleaving first, because `engine` says most about the bug."""
    current = yield replace(current, engine=Engine())
    for name in ("interleaving", *reversed(Engine.__struct_fields__)):
        current = yield _put(current, ("engine", name), getattr(Engine(), name))
        for inner in getattr(_get(current, ("engine", name)), "__struct_fields__", ()):
            nested: Any = _get(current, ("engine", name))
            current = yield _put(current, ("engine", name, inner), getattr(type(nested)(), inner))


def _drop_parts(current: Scenario) -> Generator[Scenario, Scenario, None]:
    for i in range(len(current.requests)):
        current = yield from _drop_items(current, ("requests", i, "prompt"))


def _join_parts(current: Scenario) -> Generator[Scenario, Scenario, None]:
    """Images become text of their length; two texts in a row become one."""
    for i in range(len(current.requests)):
        for j in reversed(range(len(current.requests[i].prompt))):
            path: Path = ("requests", i, "prompt")
            prompt = current.requests[i].prompt
            if j < len(prompt) and isinstance(prompt[j], Image):
                text = Text(length=part_length(prompt[j], current.images))
                current = yield _put(current, (*path, j), text)
                prompt = current.requests[i].prompt
            for one, other in [(prompt[j], prompt[j + 1])] if j + 1 < len(prompt) else []:
                if isinstance(one, Text) and isinstance(other, Text):
                    text = replace(one, length=one.length + other.length)
                    current = yield _put(current, path, (*prompt[:j], text, *prompt[j + 2 :]))


def _default_details(current: Scenario) -> Generator[Scenario, Scenario, None]:
    """What a request or an event says beyond the necessary; scripts entry by entry."""
    current = yield replace(current, step_delays=())
    current = yield from _drop_items(current, ("step_delays",))
    for i in range(len(current.requests)):
        for name in ("priority", "ignore_eos", "eos_at", "stop_at", "acceptance"):
            default = Request.__struct_defaults__[Request.__struct_fields__.index(name)]
            current = yield _put(current, ("requests", i, name), default)
        current = yield from _drop_items(current, ("requests", i, "acceptance"))
    for at, event in enumerate(current.timeline):
        if isinstance(event, Abort) and event.in_step:
            current = yield _put(current, ("timeline", at, "in_step"), False)


def _lower_numbers(current: Scenario) -> Generator[Scenario, Scenario, None]:
    for place in _places(current):
        current = yield from _lower(current, place)


def _places(scenario: Scenario) -> list[Place]:
    """Every number with its floor: the longest things first."""
    places: list[Place] = []
    for i, request in enumerate(scenario.requests):
        for j, part in enumerate(request.prompt):
            if isinstance(part, Text):
                fields = (("length", 1), ("start", 0), ("stream", 0))
                places += [(("requests", i, "prompt", j, name), floor) for name, floor in fields]
        places.append((("requests", i, "max_tokens"), 1))
        places += [(("requests", i, name), 0) for name in ("priority", "eos_at", "stop_at")]
        places += [(("requests", i, "acceptance", j), 0) for j in range(len(request.acceptance))]
    places += [(("images", i), 1) for i in range(len(scenario.images))]
    places += [(("timeline", at, "delay"), 0) for at in range(len(scenario.timeline))]
    places += [(("step_delays", at), 0) for at in range(len(scenario.step_delays))]
    return places + _engine_places(scenario)


def _engine_places(scenario: Scenario) -> list[Place]:
    """The numbers of the configuration that are not at their defaults."""
    default = Scenario(format=1, engine=Engine(speculative=Speculative(), encoder=Encoder()))
    paths: list[Path] = [("engine", name) for name in Engine.__struct_fields__ if name != "block_size"]
    paths += [("engine", "speculative", "num_speculative_tokens")]
    paths += [("engine", "encoder", name) for name in Encoder.__struct_fields__]
    changed = [
        path
        for path in paths
        if type(_get(scenario, path)) is int and _get(scenario, path) != _get(default, path)
    ]
    return [(path, 2 if path[-1] == "max_model_len" else 1) for path in changed]


def _lower_together(current: Scenario) -> Generator[Scenario, Scenario, None]:
    """A limit and the length that just meets it; then all numbers that are equal."""
    lengths = [(path, floor) for path, floor in _places(current) if floor]
    for limit in _engine_places(current):
        for length in lengths:
            if length[0][0] != "engine":
                current = yield from _lower(current, limit, length)
    for value in sorted({_get(current, path) or 0 for path, _ in lengths}, reverse=True):
        equal = [(path, floor) for path, floor in lengths if _get(current, path) == value]
        if len(equal) > 1:
            current = yield from _lower(current, *equal)


def _renumber(current: Scenario) -> Generator[Scenario, Scenario, None]:
    """Requests in the order of arrival; images in the order of use, none that is not used, and as few as will do."""
    arrivals = [event.request for event in current.timeline if isinstance(event, Arrive)]
    others = [i for i in range(len(current.requests)) if i not in arrivals]
    current = yield select_requests(current, arrivals + others)
    current = yield _with_identities(current, {})
    for old in reversed(range(len(current.images))):
        for new in range(min(old, len(current.images))):
            current = yield _with_identities(current, {old: new})


def _with_identities(scenario: Scenario, number: dict[int, int]) -> Scenario:
    """Images take these numbers instead of theirs; then those in use are numbered by first use, and the rest goes."""
    shown = [part.identity for r in scenario.requests for part in r.prompt if isinstance(part, Image)]
    order = list(dict.fromkeys(number.get(identity, identity) for identity in shown))

    def part(old: Part) -> Part:
        return Image(order.index(number.get(old.identity, old.identity))) if isinstance(old, Image) else old

    requests = tuple(replace(r, prompt=tuple(map(part, r.prompt))) for r in scenario.requests)
    return replace(scenario, requests=requests, images=tuple(scenario.images[old] for old in order))


PASSES: tuple[Pass, ...] = (
    _drop_requests,
    _merge_requests,
    _drop_events,
    _default_engine,
    _drop_parts,
    _join_parts,
    _default_details,
    _lower_numbers,
    _renumber,
    _lower_together,
)
"""Each round in the order of `size`: what costs a reader most goes first, and makes what follows cheap."""

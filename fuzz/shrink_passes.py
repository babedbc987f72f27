"""The passes of the shrinker: one idea each of what an engineer would try to leave out or to make smaller.

A pass is a generator: it yields a candidate and is sent back the scenario that now stands; so it goes on where it was,
whether that was taken or not. Candidates need not be legal together or smaller: the search repairs and judges them.
Rules: deterministic; no random source, no clock; a pass ends even if everything is taken, or nothing.
"""

from collections.abc import Callable, Generator
from typing import Any

from msgspec.structs import replace

from fuzz.edits import (
    Path,
    get,
    put,
    renumbered,
    select_requests,
    with_identities,
    without_events,
    without_requests,
)
from fuzz.generate import chunk_length
from harness.groups import blocks_needed, scale_of, scaled
from harness.repair import repair
from harness.scenario import (
    Abort,
    Arrive,
    Chunk,
    Chunked,
    Encoder,
    Engine,
    Event,
    Grammar,
    Group,
    Image,
    Load,
    Pause,
    Request,
    Reset,
    Resized,
    Resume,
    Scenario,
    Speculative,
    Text,
    Window,
    part_length,
)

Pass = Callable[[Scenario], Generator[Scenario, Scenario, None]]
Place = tuple[Path, int]
"""Where a number is, and the least that it can be."""


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
        items = get(scenario, path)
        return put(scenario, path, items[: doomed.start] + items[doomed.stop :])  # type: ignore[no-any-return]

    return (yield from _drop(current, lambda scenario: len(get(scenario, path) or ()), without))


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
        values = [get(current, path) for path, _ in places]
        if any(value is None for value in values):
            return current
        most, value = min((value - floor, value) for value, (_, floor) in zip(values, places, strict=True))
        for amount in _amounts(value, most, current.engine):
            candidate = current
            for (path, _), old in zip(places, values, strict=True):
                candidate = put(candidate, path, old - amount)
            current = yield candidate
            if [get(current, path) for path, _ in places] != values:
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
                moved = _moved(current, old, new)
                merged = repair(replace(current, timeline=moved))
                current = yield without_requests(merged, (old,))


def _moved(current: Scenario, old: int, new: int) -> tuple[Event, ...]:
    return renumbered(current.timeline, lambda request: new if request == old else request)


def _drop_events(current: Scenario) -> Generator[Scenario, Scenario, None]:
    yield from _drop(current, lambda scenario: len(scenario.timeline), without_events)


def _default_engine(current: Scenario) -> Generator[Scenario, Scenario, None]:
    """Everything at once, then field by field; the interleaving first, because `engine` says most about the bug."""
    current = yield replace(current, engine=Engine())
    for name in ("interleaving", *reversed(Engine.__struct_fields__)):
        current = yield put(current, ("engine", name), getattr(Engine(), name))
        for inner in getattr(get(current, ("engine", name)), "__struct_fields__", ()):
            nested: Any = get(current, ("engine", name))
            current = yield put(current, ("engine", name, inner), getattr(type(nested)(), inner))
    yield from _drop_items(current, ("engine", "ec_connector", "stored"))


def _default_with_pool(current: Scenario) -> Generator[Scenario, Scenario, None]:
    """A field at its default, and a pool that is as tight for that configuration as it was, or tighter."""
    for name in reversed(Engine.__struct_fields__):
        for tighter in (True, False):
            engine = put(current.engine, (name,), getattr(Engine(), name))
            spare = 0 if tighter else current.engine.num_gpu_blocks - blocks_needed(current.engine)
            pool = min(current.engine.num_gpu_blocks, blocks_needed(engine) + spare)
            current = yield put(current, ("engine",), replace(engine, num_gpu_blocks=pool))


def _drop_groups(current: Scenario) -> Generator[Scenario, Scenario, None]:
    """KV cache groups go, with their share of the pool; then kinds become simpler ones, with blocks of one size."""
    for with_pool in (True, False):
        at = len(current.engine.kv_cache_groups)
        while at := min(at, len(current.engine.kv_cache_groups)):
            at -= 1
            groups = current.engine.kv_cache_groups
            current = yield _with_groups(current, (*groups[:at], *groups[at + 1 :]), with_pool)
    for at, old in enumerate(current.engine.kv_cache_groups):
        if isinstance(old, Chunked):
            groups = current.engine.kv_cache_groups
            current = yield _with_groups(current, (*groups[:at], Window(old.size), *groups[at + 1 :]), False)
    groups = current.engine.kv_cache_groups
    current = yield _with_groups(current, tuple(scaled(group, 1) for group in groups), False)
    for at, old in enumerate(current.engine.kv_cache_groups):
        if scale_of(old) > 1:
            groups = current.engine.kv_cache_groups
            one = scaled(old, scale_of(old) // 2)
            current = yield _with_groups(current, (*groups[:at], one, *groups[at + 1 :]), False)


def _with_groups(scenario: Scenario, groups: tuple[Group, ...], with_pool: bool) -> Scenario:
    engine = replace(scenario.engine, kv_cache_groups=groups)
    if with_pool:
        spare = engine.num_gpu_blocks - blocks_needed(scenario.engine)
        engine = replace(engine, num_gpu_blocks=blocks_needed(engine) + spare)
    return replace(scenario, engine=engine)


def _drop_parts(current: Scenario) -> Generator[Scenario, Scenario, None]:
    for i in range(len(current.requests)):
        current = yield from _drop_items(current, ("requests", i, "prompt"))
        if current.requests[i].chunks:
            current = yield from _drop_items(current, ("requests", i, "chunks"))
        for j in range(len(current.requests[i].chunks or ())):
            if get(current, ("requests", i, "chunks", j)) is not None:
                current = yield from _drop_items(current, ("requests", i, "chunks", j, "prompt"))


def _join_parts(current: Scenario) -> Generator[Scenario, Scenario, None]:
    """Images become text of their length, or have the length that goes with their names; two texts in a row become
    one."""
    for i in range(len(current.requests)):
        for j in reversed(range(len(current.requests[i].prompt))):
            path: Path = ("requests", i, "prompt")
            prompt = current.requests[i].prompt
            if j < len(prompt) and isinstance(prompt[j], Image):
                text = Text(length=part_length(prompt[j], current.images))
                current = yield put(current, (*path, j), text)
                found = get(current, (*path, j))
                if isinstance(found, Resized):
                    current = yield put(current, (*path, j), Image(found.identity))
                prompt = current.requests[i].prompt
            for one, other in [(prompt[j], prompt[j + 1])] if j + 1 < len(prompt) else []:
                if isinstance(one, Text) and isinstance(other, Text):
                    text = replace(one, length=one.length + other.length)
                    current = yield put(current, path, (*prompt[:j], text, *prompt[j + 2 :]))


def _default_details(current: Scenario) -> Generator[Scenario, Scenario, None]:
    """What a request says beyond the necessary; scripts entry by entry."""
    current = yield replace(current, step_delays=())
    current = yield from _drop_items(current, ("step_delays",))
    if get(current, _SCHEDULE):
        current = yield from _drop_items(current, _SCHEDULE)
    for i in range(len(current.requests)):
        for name in Request.__struct_fields__[2:]:
            default = Request.__struct_defaults__[Request.__struct_fields__.index(name)]
            current = yield put(current, ("requests", i, name), default)
        if current.requests[i].grammar is not None:
            current = yield put(current, ("requests", i, "grammar"), Grammar())
            current = yield put(current, ("requests", i, "grammar", "fails"), False)
        current = yield from _drop_items(current, ("requests", i, "acceptance"))
        for j in reversed(range(len(current.requests[i].chunks or ()))):
            chunk: Path = ("requests", i, "chunks", j)
            for name in ("acceptance", "stop_at", "eos_at", "max_tokens"):
                if get(current, chunk) is not None:
                    default = (
                        current.requests[i].max_tokens if name == "max_tokens" else getattr(Chunk(), name)
                    )
                    current = yield put(current, (*chunk, name), default)
        if current.requests[i].load is not None:
            for name in ("load_kv_async", "latency", "failed", "undecided"):
                default = getattr(Load(), name)
                if current.requests[i].load is not None:
                    current = yield put(current, ("requests", i, "load", name), default)
            current = yield from _drop_items(current, ("requests", i, "load", "failed"))


def _simple_events(current: Scenario) -> Generator[Scenario, Scenario, None]:
    """An event without what it says beyond the necessary; a pause goes with its end, or becomes a reset."""
    for at in reversed(range(len(current.timeline))):
        if at >= len(current.timeline):
            continue
        event = current.timeline[at]
        if isinstance(event, Abort) and event.in_step:
            current = yield put(current, ("timeline", at, "in_step"), False)
        elif isinstance(event, Reset):
            current = yield put(current, ("timeline", at), Reset(event.delay))
        elif isinstance(event, Pause):
            end = next(i for i, e in enumerate(current.timeline) if i > at and isinstance(e, Resume))
            current = yield put(current, ("timeline", at), Pause(event.delay))
            reset = put(current, ("timeline", at), Reset(event.delay, reset_running_requests=True))
            for candidate in (without_events(reset, (end,)), without_events(current, (at, end))):
                before, current = current, (yield candidate)
                if current != before:
                    break


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
            elif isinstance(part, Resized):
                places.append((("requests", i, "prompt", j, "length"), 1))
        places.append((("requests", i, "max_tokens"), 1))
        places.append((("requests", i, "grammar", "delay"), 0))
        names = ("priority", "eos_at", "stop_at", "min_tokens", "cache_salt", "lora")
        places += [(("requests", i, name), 0) for name in names]
        places += [(("requests", i, "acceptance", j), 0) for j in range(len(request.acceptance))]
        places.append((("requests", i, "send"), 0))
        places += _chunk_places(i, request.chunks or ())
        if request.load is not None:
            places += [
                (("requests", i, "load", name), floor)
                for name, floor in (("tokens", 1), ("latency", 0), ("undecided", 0))
            ]
            places += [(("requests", i, "load", "failed", j), 0) for j in range(len(request.load.failed))]
    places += [(("images", i), 1) for i in range(len(scenario.images))]
    places += [(("timeline", at, "delay"), 0) for at in range(len(scenario.timeline))]
    places += [(("step_delays", at), 0) for at in range(len(scenario.step_delays))]
    return places + _engine_places(scenario)


_SCHEDULE: Path = ("engine", "speculative", "num_speculative_tokens_per_batch_size")


def _chunk_places(i: int, chunks: tuple[Chunk, ...]) -> list[Place]:
    places: list[Place] = []
    for j, chunk in enumerate(chunks):
        path: Path = ("requests", i, "chunks", j)
        for k in range(len(chunk.prompt)):
            fields = (("length", 1), ("start", 0), ("stream", 0))
            places += [((*path, "prompt", k, name), floor) for name, floor in fields]
        places += [
            ((*path, name), floor) for name, floor in (("max_tokens", 1), ("eos_at", 0), ("stop_at", 0))
        ]
        places += [((*path, "acceptance", k), 0) for k in range(len(chunk.acceptance))]
    return places


def _engine_places(scenario: Scenario) -> list[Place]:
    """The numbers of the configuration that are not at their defaults."""
    default = Scenario(format=1, engine=Engine(speculative=Speculative(), encoder=Encoder()))
    paths: list[Path] = [("engine", name) for name in Engine.__struct_fields__ if name != "block_size"]
    paths += [("engine", "speculative", "num_speculative_tokens")]
    paths += [("engine", "encoder", name) for name in Encoder.__struct_fields__]
    paths += [("engine", "ec_connector", "latency")]
    schedule = get(scenario, _SCHEDULE) or ()
    paths += [(*_SCHEDULE, index) for index in range(len(schedule))]
    groups = range(len(scenario.engine.kv_cache_groups))
    paths += [("engine", "kv_cache_groups", index, "size") for index in groups]
    changed = [
        path
        for path in paths
        if type(get(scenario, path)) is int and get(scenario, path) != get(default, path)
    ]
    return [(path, 2 if path[-1] == "max_model_len" else int(path[:-1] != _SCHEDULE)) for path in changed]


def _lower_together(current: Scenario) -> Generator[Scenario, Scenario, None]:
    """A limit and the length that just meets it; then all numbers that are equal."""
    lengths = [(path, floor) for path, floor in _places(current) if floor]
    for limit in _engine_places(current):
        for length in lengths:
            if length[0][0] != "engine":
                current = yield from _lower(current, limit, length)
    for value in sorted({get(current, path) or 0 for path, _ in lengths}, reverse=True):
        equal = [(path, floor) for path, floor in lengths if get(current, path) == value]
        if len(equal) > 1:
            current = yield from _lower(current, *equal)


def _renumber(current: Scenario) -> Generator[Scenario, Scenario, None]:
    """Requests in the order of arrival; images in the order of use, none that is not used, and as few as will do."""
    arrivals = [event.request for event in current.timeline if isinstance(event, Arrive)]
    others = [i for i in range(len(current.requests)) if i not in arrivals]
    current = yield select_requests(current, arrivals + others)
    current = yield with_identities(current, {})
    for old in reversed(range(len(current.images))):
        for new in range(min(old, len(current.images))):
            current = yield with_identities(current, {old: new})


PASSES: tuple[Pass, ...] = (
    _drop_requests,
    _merge_requests,
    _drop_events,
    _default_engine,
    _default_with_pool,
    _drop_groups,
    _drop_parts,
    _join_parts,
    _default_details,
    _simple_events,
    _lower_numbers,
    _renumber,
    _lower_together,
)
"""Each round in the order of `size`: what costs a reader most goes first, and makes what follows cheap."""

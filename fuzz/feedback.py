"""What an execution teaches the fuzzer: code edges of vLLM's scheduler, and features of the states it went through.

State features are declared once, in `TABLE`; they are numbers below `SIZE`, computed from a trace alone, so that any
engine can use them and any process computes the same. `instrument` adds Atheris' branch counters to code that is
already imported: atheris.instrument_imports only knows whole top-level packages, and all of vLLM costs minutes and
says little. Comparisons are not traced: they serve libFuzzer's byte mutators, which never see our inputs.
`counters` shows the features to libFuzzer as if they were branches.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from harness.trace import Compiled, Delivered, Dispatched, Masked, Occurred, Trace

PACKAGES = ("vllm.v1.core", "vllm.v1.request")
"""Instrumented with everything below them."""
FUNCTIONS = {
    "vllm.v1.engine.core": (
        "EngineCore.step",
        "EngineCore.step_with_batch_queue",
        "EngineCore.post_step",
        "EngineCore._process_aborts_queue",
        "EngineCore.add_request",
        "EngineCore.abort_requests",
    )
}
"""Single functions of modules that are otherwise left alone; a name that a release lacks is skipped."""

_ARRIVED, _NEW, _RUNNING, _DRAFTING, _RESUMED, _ENCODING, _PREEMPTED, _ABORTED, _ENDED, _SKIPPED = range(10)
_STATUSES = 10
_SOURCES = ("new", "running", "resumed")
_CONTROLS = ("reset", "pause", "paused", "resume")
_DETAILS = ("prefix", "encoder", "abort", "wait", "keep")
_REASONS = ("stop", "length", "abort", "error")


@dataclass(slots=True)
class View:
    """A trace, sorted once for all features."""

    steps: list[Dispatched] = field(default_factory=list)
    events: list[tuple[Occurred, int]] = field(default_factory=list)
    """With the status of the request before the event."""
    ends: list[tuple[str, int]] = field(default_factory=list)
    """(reason, steps in flight)."""
    controls: list[tuple[Occurred, int, int, int]] = field(default_factory=list)
    """With steps in flight, and running and waiting requests, after the last step before it."""
    accepted: list[tuple[int, int]] = field(default_factory=list)
    """(drafts, tokens accepted), once a request and delivered step."""
    masks: list[tuple[Masked, int]] = field(default_factory=list)
    """With the number of steps in flight."""
    compiled: list[tuple[bool, int]] = field(default_factory=list)
    """(failed, steps in flight)."""
    reports: list[tuple[Delivered, int]] = field(default_factory=list)
    """Updates in which a connector reported something, with the steps in flight."""
    histories: dict[str, list[int]] = field(default_factory=dict)
    """Statuses of each request, repetitions left out."""


def view(trace: Trace) -> View:
    """Sorts a trace's entries."""
    out = View()
    histories = out.histories
    pending: dict[int, dict[str, int]] = {}
    in_flight = 0
    for entry in trace.entries:
        if isinstance(entry, Dispatched):
            out.steps.append(entry)
            in_flight = entry.in_flight
            for request in entry.preempted:
                _note(histories, request, _PREEMPTED)
            now = set()
            for row in entry.scheduled:
                now.add(row.request)
                _note(histories, row.request, _status(row.source, row.drafts, bool(row.encoder_inputs)))
            pending[entry.step] = {row.request: row.drafts for row in entry.scheduled if row.drafts}
            for request, history in histories.items():
                if request not in now and history[-1] in (_NEW, _RUNNING, _DRAFTING, _RESUMED, _ENCODING):
                    history.append(_SKIPPED)
        elif isinstance(entry, Delivered):
            if entry.received or entry.sent or entry.invalid_blocks:
                out.reports.append((entry, in_flight))
            drafts = pending.pop(entry.step, {})
            for request, tokens in entry.sampled if drafts else ():
                if request in drafts:
                    out.accepted.append((drafts[request], max(0, len(tokens) - 1)))
            for request, reason in entry.ended:
                out.ends.append((reason, in_flight))
                _note(histories, request, _ENDED)
        elif isinstance(entry, Masked):
            out.masks.append((entry, in_flight))
        elif isinstance(entry, Compiled):
            out.compiled.append((entry.failed, in_flight))
        elif isinstance(entry, Occurred) and not entry.request:
            last = out.steps[-1] if out.steps else None
            state = (in_flight, last.running, last.waiting) if last else (0, 0, 0)
            out.controls.append((entry, *state))
        elif isinstance(entry, Occurred):
            before = histories.get(entry.request)
            out.events.append((entry, before[-1] if before else _ARRIVED))
            _note(histories, entry.request, _ARRIVED if entry.what == "arrive" else _ABORTED)
    return out


def _note(histories: dict[str, list[int]], request: str, status: int) -> None:
    history = histories.setdefault(request, [])
    if not history or history[-1] != status:
        history.append(status)


def _status(source: str, drafts: int, encodes: bool) -> int:
    if encodes:
        return _ENCODING
    if drafts:
        return _DRAFTING
    return {"new": _NEW, "resumed": _RESUMED}.get(source, _RUNNING)


def _log(value: int) -> int:
    """0, 1, 2-3, 4-7, ... 64 and more: 0 to 7."""
    return min(7, value.bit_length()) if value > 0 else 0


def _free_blocks(seen: View) -> Iterator[int]:
    for step in seen.steps:
        share = 8 * step.free_blocks // max(1, step.num_blocks)
        yield 2 * (min(7, 1 + share) if step.free_blocks else 0) + bool(step.preempted)


def _queues(seen: View) -> Iterator[int]:
    return (8 * min(7, step.running) + min(7, step.waiting) for step in seen.steps)


def _in_flight(seen: View) -> Iterator[int]:
    return (2 * min(3, step.in_flight) + bool(step.scheduled) for step in seen.steps)


def _preemptions(seen: View) -> Iterator[int]:
    total = 0
    for step in seen.steps:
        total += len(step.preempted)
        yield 8 * min(3, len(step.preempted)) + _log(total)


def _drafts(seen: View) -> Iterator[int]:
    return (9 * min(8, drafts) + min(8, accepted) for drafts, accepted in seen.accepted)


def _encoder_cache(seen: View) -> Iterator[int]:
    return (8 * _log(step.encoder_free) + _log(step.encoder_freeable) for step in seen.steps)


def _encoder_traffic(seen: View) -> Iterator[int]:
    for step in seen.steps:
        encoded = sum(len(row.encoder_inputs) for row in step.scheduled)
        if encoded or step.freed_encoder:
            yield 12 * min(3, len(step.freed_encoder)) + 3 * min(3, encoded) + min(2, step.in_flight)


def _events(seen: View) -> Iterator[int]:
    for event, status in seen.events:
        yield _STATUSES * (2 * (event.what == "abort") + event.in_step) + status


def _controls(seen: View) -> Iterator[int]:
    for event, flights, running, waiting in seen.controls:
        what = _CONTROLS.index(event.what) if event.what in _CONTROLS else 0
        detail = _DETAILS.index(event.detail.partition(" ")[0]) if event.detail else 0
        state = 8 * bool(flights) + 4 * event.done + 2 * bool(running) + bool(waiting)
        yield 16 * (len(_DETAILS) * what + detail) + state


def _rows(seen: View) -> Iterator[int]:
    for step in seen.steps:
        for row in step.scheduled:
            kind = 2 * bool(row.encoder_inputs) + bool(row.drafts)
            yield 32 * _SOURCES.index(row.source) + 8 * kind + _log(row.tokens)


def _mixes(seen: View) -> Iterator[int]:
    for step in seen.steps:
        bits = 64 * bool(step.preempted) + 32 * bool(step.finished)
        for row in step.scheduled:
            bits |= 1 << _SOURCES.index(row.source)
            bits |= 8 * bool(row.encoder_inputs) | 16 * bool(row.drafts)
        yield bits


def _finishes(seen: View) -> Iterator[int]:
    for reason, flights in seen.ends:
        yield 4 * (_REASONS.index(reason) if reason in _REASONS else 4) + min(3, flights)


def _grammars(seen: View) -> Iterator[int]:
    for mask, flights in seen.masks:
        most = max(rows for _, rows in mask.rows)
        yield 8 * min(3, len(mask.rows)) + 2 * min(3, most - 1) + bool(flights)
    for failed, flights in seen.compiled:
        yield 32 + 2 * failed + bool(flights)


def _transitions(seen: View) -> Iterator[int]:
    for history in seen.histories.values():
        for one, two, three in zip(history, history[1:], history[2:], strict=False):
            yield _STATUSES * (_STATUSES * one + two) + three


def _transfers(seen: View) -> Iterator[int]:
    """What of a connector began with a step, and what met it."""
    for step in seen.steps:
        if step.loads or step.sends:
            asynchronous = any(load.asynchronous for load in step.loads)
            kind = 4 * bool(step.sends) + 2 * asynchronous + any(not load.asynchronous for load in step.loads)
            full = step.free_blocks * 4 < step.num_blocks
            yield 16 * kind + 8 * full + 4 * bool(step.preempted) + min(3, step.in_flight)


def _reports(seen: View) -> Iterator[int]:
    """What a connector reported, by how many steps were in flight; 4 of each at most."""
    for entry, flights in seen.reports:
        kinds = (len(entry.received), len(entry.sent), len(entry.invalid_blocks))
        number = 0
        for count in kinds:
            number = 4 * number + min(3, count)
        yield 4 * number + min(3, flights)


class Feature(NamedTuple):
    """A family of features: `function` yields numbers below `size`."""

    name: str
    help: str
    size: int
    function: Callable[[View], Iterable[int]]


TABLE: tuple[Feature, ...] = (
    Feature("free_blocks", "share of free KV blocks, with and without a preemption", 16, _free_blocks),
    Feature("queues", "running and waiting requests after a step", 64, _queues),
    Feature("in_flight", "steps in flight, and whether this one computes anything", 8, _in_flight),
    Feature("preemptions", "preemptions in a step and so far", 32, _preemptions),
    Feature("drafts", "drafts of a request in a step, and how many were accepted", 81, _drafts),
    Feature("encoder_cache", "free and freeable encoder slots", 64, _encoder_cache),
    Feature(
        "encoder_traffic", "outputs freed and computed in a step, by steps in flight", 48, _encoder_traffic
    ),
    Feature("events", "what the client did, by the status of the request", 4 * _STATUSES, _events),
    Feature("rows", "source and kind of a scheduled request, and how many tokens", 96, _rows),
    Feature("mixes", "kinds of work that met in one step", 128, _mixes),
    Feature("finishes", "finish reasons, by steps in flight", 20, _finishes),
    Feature(
        "grammars", "requests and drafts under masks, and compilations, by steps in flight", 36, _grammars
    ),
    Feature("transitions", "two status transitions of a request in a row", _STATUSES**3, _transitions),
    Feature("controls", "what the operator did, and to what kind of state", 16 * 20, _controls),
    Feature(
        "transfers", "a connector's loads and sends that begin, and how tight blocks are", 128, _transfers
    ),
    Feature("reports", "a connector's loads and sends that are over, and failures", 256, _reports),
)
SIZE = sum(feature.size for feature in TABLE)


def features(trace: Trace) -> frozenset[int]:
    """The state features of an execution, each below SIZE."""
    seen = view(trace)
    out: set[int] = set()
    base = 0
    for feature in TABLE:
        out.update(base + number for number in feature.function(seen))
        base += feature.size
    return frozenset(out)


def describe(number: int) -> str:
    """`family:index` of a feature. ValueError if there is no such feature."""
    base = 0
    for feature in TABLE:
        if base <= number < base + feature.size:
            return f"{feature.name}:{number - base}"
        base += feature.size
    raise ValueError(f"no feature {number}; there are {SIZE}")


def instrument() -> int:
    """Adds branch counters to the scheduler of the vLLM that is imported; returns how many functions got them.

    Call it after vLLM's scheduler has been imported. Idempotent: Atheris skips what it has instrumented.
    """
    import atheris

    done = 0
    for function in _functions():
        code: CodeType = function.__code__
        if code.co_filename.startswith("<"):
            continue  # generated, as a dataclass' __init__
        function.__code__ = atheris.patch_code(code, trace_dataflow=False)
        done += 1
    return done


def _functions() -> Iterator[FunctionType]:
    """Each function once, in the order of module names and definitions."""
    seen: set[int] = set()
    for name in sorted(sys.modules):
        if any(name == package or name.startswith(package + ".") for package in PACKAGES):
            for value in list(vars(sys.modules[name]).values()):
                for function in _within(value, name):
                    if id(function) not in seen:
                        seen.add(id(function))
                        yield function
    for name, wanted in FUNCTIONS.items():
        for path in wanted:
            found: Any = sys.modules.get(name)
            for part in path.split("."):
                found = getattr(found, part, None)
            if isinstance(found, FunctionType):
                yield found


def _within(value: Any, module: str) -> Iterator[FunctionType]:
    """The functions that `module` defines in `value`: itself, or a class's methods and properties."""
    if isinstance(value, FunctionType):
        if value.__module__ == module and value.__code__.co_name != "<lambda>":
            yield value
    elif isinstance(value, staticmethod | classmethod):
        yield from _within(value.__func__, module)
    elif isinstance(value, property):
        for accessor in (value.fget, value.fset):
            yield from _within(accessor, module)
    elif isinstance(value, type) and value.__module__ == module:
        for member in list(vars(value).values()):
            yield from () if isinstance(member, type) else _within(member, module)


def counters() -> tuple[Callable[[], None], ...]:
    """One instrumented function a feature: to call it is to tell libFuzzer that the feature was seen."""
    import atheris

    source = "\n".join(f"def feature_{number}(): pass" for number in range(SIZE))
    namespace: dict[str, Callable[[], None]] = {}
    exec(compile(source, "<features>", "exec"), namespace)
    return tuple(atheris.instrument_func(namespace[f"feature_{number}"]) for number in range(SIZE))

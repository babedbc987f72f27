"""What happened, step by step, told from the trace; violations stand where they were seen."""

from collections.abc import Iterator
from itertools import groupby

from fuzz.explain.promise import promise
from fuzz.explain.words import MARK, Items, count
from harness.execute import Result
from harness.model import EOS, STOP
from harness.scenario import Scenario
from harness.trace import (
    Compiled,
    Delivered,
    Dispatched,
    Entry,
    Masked,
    Occurred,
    ScheduledRequest,
    Violated,
)
from harness.verdict import Level, Violation

_VERBS = {
    "arrive": "arrives",
    "abort": "is aborted",
    "continue": "gets its next chunk",
    "close": "is closed: no chunk will come",
}


def story(scenario: Scenario, result: Result, items: Items) -> Iterator[str]:
    """The trace, line by line; passes that schedule nothing in one."""
    if not result.trace.entries:
        yield "  (nothing)"
    violations = {violation.fingerprint: violation for violation in result.violations}
    iteration = -1
    for idle, group in groupby(result.trace.entries, _is_idle):
        entries = list(group)
        passes = [entry for entry in entries if isinstance(entry, Dispatched)]
        if idle and len(passes) > 1:
            last = entries[-1].iteration
            yield f"iterations {entries[0].iteration} to {last}"
            yield f"  steps {passes[0].step} to {passes[-1].step} schedule nothing; {_state(scenario, passes[-1])}"
            iteration = -1
            continue
        for entry in entries:
            if entry.iteration != iteration:
                iteration = entry.iteration
                yield f"iteration {iteration}"
            yield from _told(scenario, entry, items, violations)


def _is_idle(entry: Entry) -> bool:
    if isinstance(entry, Dispatched):
        return not (
            entry.scheduled
            or entry.finished
            or entry.preempted
            or entry.freed_encoder
            or entry.encoder_loads
            or entry.loads
            or entry.sends
        )
    return isinstance(entry, Delivered) and not _says(entry)


def _says(entry: Delivered) -> bool:
    return bool(
        entry.sampled or entry.outputs or entry.ended or entry.received or entry.sent or entry.invalid_blocks
    )


def _told(scenario: Scenario, entry: Entry, items: Items, violations: dict[str, Violation]) -> Iterator[str]:
    if isinstance(entry, Occurred) and not entry.request:
        yield f"  {_control(entry)}"
    elif isinstance(entry, Occurred):
        verb = _VERBS.get(entry.what, entry.what)
        late = ", between the execution of a step and its update" if entry.in_step else ""
        yield f"  {entry.request} {verb}{late}"
    elif isinstance(entry, Dispatched):
        yield from _step(scenario, entry, items)
    elif isinstance(entry, Delivered):
        yield f"  update of step {entry.step}{'' if _says(entry) else ': nothing'}"
        yield from _update(entry)
    elif isinstance(entry, Compiled):
        yield f"  the grammar of {entry.request} {'cannot be compiled' if entry.failed else 'is compiled'}"
    elif isinstance(entry, Masked):
        rows = ", ".join(f"{request} ({count(rows, 'row')})" for request, rows in entry.rows)
        yield f"  step {entry.step} samples under masks for {rows}"
    else:
        yield from _violation(entry, violations)


def _control(entry: Occurred) -> str:
    if entry.what == "reset":
        answer = "it is done" if entry.done else "it is refused"
        return f"reset of the cache: {entry.detail}; {answer}"
    if entry.what == "resume":
        return "the engine is resumed"
    return f"the pause is complete: {entry.detail}" if entry.done else f"the engine is paused: {entry.detail}"


def _step(scenario: Scenario, entry: Dispatched, items: Items) -> Iterator[str]:
    flying = f", with {count(entry.in_flight, 'other')} in flight" if entry.in_flight else ""
    yield f"  step {entry.step}{flying}{'' if entry.scheduled else ': nothing is scheduled'}"
    for share in entry.scheduled:
        yield f"    {_share(share, items.get(share.request, []), _looks_ahead(scenario))}"
    for what, names in (
        ("preempted", entry.preempted),
        ("worker drops the encoder output of", entry.freed_encoder),
        ("worker loads the encoder output of", entry.encoder_loads),
        ("worker is told the end of", entry.finished),
        ("begins to be sent", entry.sends),
    ):
        if names:
            yield f"    {what}: {', '.join(names)}"
    for source, target in entry.copies:
        yield f"    worker copies block {source} to block {target}"
    for load in entry.loads:
        how = "begins to be loaded" if load.asynchronous else "is loaded"
        yield f"    {how}: {load.request} at [{load.start}, {load.stop})"
    yield f"    then {_state(scenario, entry)}"


def _looks_ahead(scenario: Scenario) -> bool:
    speculative = scenario.engine.speculative
    return speculative is not None and speculative.method != "ngram"


def _share(share: ScheduledRequest, items: list[tuple[int, int, str]], looks_ahead: bool) -> str:
    start, end = share.computed, share.computed + share.tokens
    told = [f"{share.request} ({share.source}) computes [{start}, {end})"]
    if share.drafts:
        told[0] += (
            f", the last {count(share.drafts, 'token')} of it drafts"
            if share.drafts > 1
            else ", its last a draft"
        )
    if any(share.new_blocks):
        groups = [",".join(map(str, blocks)) or "none" for blocks in share.new_blocks]
        told.append(f"blocks {' / '.join(groups)}")
    names = [items[index][2] if index < len(items) else f"input {index}" for index in share.encoder_inputs]
    if names:
        told.append(f"encodes {', '.join(names)}")
    reads = [f"{name} at [{first}, {stop})" for first, stop, name in items if first < end and stop > start]
    if reads:
        told.append(f"reads {', '.join(reads)}")
    if looks_ahead and share.tokens:
        told += [
            f"its drafter, one token ahead, reaches {name} at [{first}, {stop})"
            for first, stop, name in items
            if first == end
        ]
    return "; ".join(told)


def _state(scenario: Scenario, entry: Dispatched) -> str:
    told = f"{entry.running} running, {entry.waiting} waiting; {entry.free_blocks} of {entry.num_blocks} blocks free"
    encoder = scenario.engine.encoder
    if encoder is not None:
        told += (
            f"; encoder cache: {entry.encoder_free} of {encoder.encoder_cache_size} free, "
            f"{entry.encoder_freeable} with what is evictable"
        )
    return told


def _update(entry: Delivered) -> Iterator[str]:
    outputs, ended = dict(entry.outputs), dict(entry.ended)
    sampled = dict(entry.sampled)
    for request in dict.fromkeys((*sampled, *outputs, *ended)):
        tokens, given = sampled.get(request, ()), outputs.get(request, ())
        if tokens == given:
            told = f"gets {_tokens(given)}"
        else:
            told = f"gets {_tokens(given)}, of {_tokens(tokens)} sampled"
        end = f"; it ends: {ended[request]}" if request in ended else ""
        yield f"    {request} {told}{end}"
    for what, names in (
        ("load is over", entry.received),
        ("send is over", entry.sent),
        ("blocks whose load failed", tuple(map(str, entry.invalid_blocks))),
    ):
        if names:
            yield f"    {what}: {', '.join(names)}"


def _tokens(tokens: tuple[int, ...]) -> str:
    if not tokens:
        return "no token"
    names = " ".join({EOS: "EOS", STOP: "STOP"}.get(token, str(token)) for token in tokens)
    return f"{count(len(tokens), 'token')} ({names})"


def _violation(entry: Violated, violations: dict[str, Violation]) -> Iterator[str]:
    violation = violations[entry.fingerprint]
    yield f"{MARK} {entry.fingerprint}{' (hazard)' if violation.level is Level.HAZARD else ''}"
    yield f"{MARK} {entry.message}"
    if broken := promise(violation.oracle, violation.speaker):
        yield f"{MARK} The promise: {broken}"

"""An execution told to a person: the configuration that matters, the requests, then what happened, step by step.

Plain text, the same for the same arguments. It is written from the scenario and the trace alone, so that it tells
what was recorded and nothing that somebody concluded afterwards; the violations stand where they were seen.
"""

import inspect
from collections.abc import Iterator
from itertools import groupby

from msgspec.structs import asdict, fields

from harness.execute import Result
from harness.groups import scale_of, scaled
from harness.model import EOS, STOP
from harness.scenario import (
    Chunk,
    Chunked,
    EncoderConnector,
    Engine,
    Group,
    Image,
    Load,
    Mamba,
    Request,
    Resized,
    Scenario,
    Text,
    Window,
    id_in,
    image_hash,
    part_length,
)
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
from harness.verdict import Level, Verdict, Violation

MAX_LINES = 600
"""Lines of the story: ten times what a shrunk finding takes. From the middle of a longer one, lines are left out."""
MARK = ">>>"

_VERBS = {
    "arrive": "arrives",
    "abort": "is aborted",
    "continue": "gets its next chunk",
    "close": "is closed: no chunk will come",
}
Items = dict[str, list[tuple[int, int, str]]]
"""Per request its images as (first position, position after the last, name)."""


def promise(oracle: str) -> str:
    """What a family of oracles ("O1", ...) promises: the first paragraph of its docstring; empty if it says nothing."""
    try:
        from harness import oracles
    except ImportError:
        return ""
    for cls in oracles.ALL:
        if cls.family == oracle:
            paragraph = (inspect.getdoc(cls) or "").partition("\n\n")[0]
            return " ".join(paragraph.split()).removeprefix(f"{oracle}: ")
    return ""


def explain(scenario: Scenario, result: Result, *, vllm: str, file: str = "minimal.json") -> str:
    """Tells an execution of `scenario`, ending in a newline.

    `vllm` is what a shell takes after `--vllm` to get the same vLLM again, `file` the scenario's file.
    """
    items = _items(scenario)
    story = list(_story(scenario, result, items))
    if len(story) > MAX_LINES:
        left_out = len(story) - MAX_LINES
        story[MAX_LINES // 2 : MAX_LINES // 2 + left_out] = [f"  ... {left_out} lines left out ..."]
    lines = [
        *_summary(result, vllm),
        "",
        "Configuration (all else has its default)",
        *_configuration(scenario),
        "",
        "Requests (positions in tokens; [a, b) is a up to, not including, b)",
        *(_request(scenario, index, items) for index in range(len(scenario.requests))),
        "",
        "What happened",
        *story,
        "",
        "To see it again",
        f"  schedfuzz replay {file} --vllm {vllm}",
    ]
    return "\n".join(lines) + "\n"


def _summary(result: Result, vllm: str) -> Iterator[str]:
    if result.verdict is Verdict.REJECTED:
        yield f"vLLM {vllm} refuses this configuration: {result.rejected}"
    elif not result.violations:
        yield f"vLLM {vllm} keeps every promise that we check, in {_count(result.steps, 'step')}"
    for violation in result.violations:
        hazard = " (a hazard: harmless only because today's worker runs steps in order)"
        yield f"{violation.fingerprint} on vLLM {vllm}{hazard if violation.level is Level.HAZARD else ''}"
        yield f"  {violation.message}"


# -- the input --------------------------------------------------------------------------------------------------------


def _configuration(scenario: Scenario) -> Iterator[str]:
    engine, default = scenario.engine, Engine()
    lines = [
        f"  {field.name} = {_value(getattr(engine, field.name))}"
        for field in fields(Engine)
        if field.name not in ("speculative", "encoder", "connector", "kv_cache_groups", "ec_connector")
        and getattr(engine, field.name) != getattr(default, field.name)
    ]
    if engine.kv_cache_groups:
        lines.append(f"  KV cache groups = {', '.join(map(_group, engine.kv_cache_groups))}")
    if engine.speculative is not None:
        lines += [
            f"  speculative_config.{name} = {_value(value)}"
            for name, value in asdict(engine.speculative).items()
            if value != ()
        ]
    if engine.encoder is not None:
        lines += [
            f"  {name} = {_value(value)}"
            for name, value in asdict(engine.encoder).items()
            if value is not False
        ]
    if engine.connector is not None:
        lines += [
            f"  kv_transfer_config.{name} = {value}" for name, value in asdict(engine.connector).items()
        ]
    if engine.ec_connector is not None:
        lines.append(f"  ec_transfer_config.ec_role = {engine.ec_connector.ec_role}")
        lines.append(f"  {_outside(engine.ec_connector)}")
    if scenario.step_delays:
        delays = ", ".join(map(str, scenario.step_delays))
        lines.append(f"  results are ready after, in turn and again from the first: {delays} iterations")
    yield from lines or ["  (none)"]


def _outside(connector: EncoderConnector) -> str:
    if not connector.stored:
        return "no encoder output is outside at first"
    told = f"encoder outputs outside: {', '.join(map(image_hash, connector.stored))}"
    return told + (f", fetched in {_count(connector.latency, 'pass')}" if connector.latency else "")


def _group(group: Group) -> str:
    if (scale := scale_of(group)) > 1:
        return f"{_group(scaled(group, 1))} (blocks {scale} times as large)"
    if isinstance(group, Window):
        return f"sliding window {group.size}"
    if isinstance(group, Chunked):
        return f"chunks of {group.size}"
    return "Mamba" if isinstance(group, Mamba) else "full attention"


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _items(scenario: Scenario) -> Items:
    items: Items = {}
    for index, request in enumerate(scenario.requests):
        at = 0
        found = items[id_in(scenario, index)] = []
        for part in request.prompt:
            length = part_length(part, scenario.images)
            if isinstance(part, Image):
                found.append((at, at + length, image_hash(part.identity)))
            at += length
    return items


def _request(scenario: Scenario, index: int, items: Items) -> str:
    request: Request = scenario.requests[index]
    at = 0
    parts = []
    for part in request.prompt:
        end = at + part_length(part, scenario.images)
        if isinstance(part, Text):
            what = f"text {part.stream}:{part.start}"
        else:
            what = image_hash(part.identity) + ", its length its own," * isinstance(part, Resized)
        parts.append(f"{what} at [{at}, {end})")
        at = end
    told = [f"prompt of {at}: {', '.join(parts)}", f"max_tokens {request.max_tokens}"]
    if request.priority:
        told.append(f"priority {request.priority}")
    if request.min_tokens:
        told.append(f"min_tokens {request.min_tokens}")
    if request.cache_salt:
        told.append(f"cache_salt {request.cache_salt}")
    if request.lora:
        told.append(f"LoRA adapter {request.lora}")
    if request.prompt_logprobs:
        told.append("wants its prompt's logprobs")
    if request.skip_reading_prefix_cache:
        told.append("skips reading the prefix cache")
    for name, position in (("EOS", request.eos_at), ("a stop token", request.stop_at)):
        if position is not None:
            ignored = ", ignored" if name == "EOS" and request.ignore_eos else ""
            told.append(f"{name} as output {position}{ignored}")
    if request.acceptance:
        told.append(f"accepts, in turn, {', '.join(map(str, request.acceptance))} drafts")
    if request.grammar is not None:
        result = "fails to compile" if request.grammar.fails else "is compiled"
        told.append(f"structured: its grammar {result} after {_count(request.grammar.delay, 'iteration')}")
    if request.load is not None:
        told.append(_load(request.load))
    if request.send is not None:
        told.append(f"its blocks are sent after its end, in {_count(request.send, 'iteration')}")
    if request.chunks is not None:
        told.append("a streaming session" + "".join(map(_chunk, request.chunks)))
    if request.same_id_as is not None:
        told.append("an id that was another request's before")
    return f"  {id_in(scenario, index)}  {'; '.join(told)}"


def _chunk(chunk: Chunk) -> str:
    texts = ", ".join(f"{part.length} of text {part.stream}:{part.start}" for part in chunk.prompt)
    told = f", then {texts} for max_tokens {chunk.max_tokens}"
    for name, position in (("EOS", chunk.eos_at), ("a stop token", chunk.stop_at)):
        told += f" ({name} as output {position})" if position is not None else ""
    if chunk.acceptance:
        told += f" (accepts {', '.join(map(str, chunk.acceptance))} drafts)"
    return told


def _load(load: Load) -> str:
    told = f"the connector finds [0, {load.tokens}) outside"
    if load.undecided:
        told += f", knows so after {_count(load.undecided, 'question')}"
    told += (
        f", loads in {_count(load.latency, 'iteration')}" if load.load_kv_async else ", loads within the step"
    )
    if load.failed:
        told += f", and fails on loaded {'block' if len(load.failed) == 1 else 'blocks'} "
        told += ", ".join(map(str, load.failed))
    return told


# -- the story --------------------------------------------------------------------------------------------------------


def _story(scenario: Scenario, result: Result, items: Items) -> Iterator[str]:
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
        rows = ", ".join(f"{request} ({_count(rows, 'row')})" for request, rows in entry.rows)
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
    flying = f", with {_count(entry.in_flight, 'other')} in flight" if entry.in_flight else ""
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
            f", the last {_count(share.drafts, 'token')} of it drafts"
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
    return f"{_count(len(tokens), 'token')} ({names})"


def _violation(entry: Violated, violations: dict[str, Violation]) -> Iterator[str]:
    violation = violations.get(entry.fingerprint)
    oracle = violation.oracle if violation else entry.fingerprint.partition("-")[0]
    hazard = " (hazard)" if violation and violation.level is Level.HAZARD else ""
    yield f"{MARK} {entry.fingerprint}{hazard}"
    yield f"{MARK} {entry.message}"
    if broken := promise(oracle):
        yield f"{MARK} The promise: {broken}"


def _count(number: int, noun: str) -> str:
    plural = "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{'' if number == 1 else plural}"

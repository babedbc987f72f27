"""The input of an execution, told: the configuration that matters, and the requests."""

from collections.abc import Iterator

from msgspec.structs import asdict, fields

from fuzz.explain.words import Items, count
from harness.groups import scale_of, scaled
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


def configuration(scenario: Scenario) -> Iterator[str]:
    """A line for each setting that is not its default."""
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
    return told + (f", fetched in {count(connector.latency, 'pass')}" if connector.latency else "")


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


def items(scenario: Scenario) -> Items:
    """Where each request's images are."""
    found_in: Items = {}
    for index, request in enumerate(scenario.requests):
        at = 0
        found = found_in[id_in(scenario, index)] = []
        for part in request.prompt:
            length = part_length(part, scenario.images)
            if isinstance(part, Image):
                found.append((at, at + length, image_hash(part.identity)))
            at += length
    return found_in


def request(scenario: Scenario, index: int, items: Items) -> str:
    """One request in a line."""
    spec: Request = scenario.requests[index]
    at = 0
    parts = []
    for part in spec.prompt:
        end = at + part_length(part, scenario.images)
        if isinstance(part, Text):
            what = f"text {part.stream}:{part.start}"
        else:
            what = image_hash(part.identity) + ", its length its own," * isinstance(part, Resized)
        parts.append(f"{what} at [{at}, {end})")
        at = end
    told = [f"prompt of {at}: {', '.join(parts)}", f"max_tokens {spec.max_tokens}"]
    if spec.priority:
        told.append(f"priority {spec.priority}")
    if spec.min_tokens:
        told.append(f"min_tokens {spec.min_tokens}")
    if spec.cache_salt:
        told.append(f"cache_salt {spec.cache_salt}")
    if spec.lora:
        told.append(f"LoRA adapter {spec.lora}")
    if spec.prompt_logprobs:
        told.append("wants its prompt's logprobs")
    if spec.skip_reading_prefix_cache:
        told.append("skips reading the prefix cache")
    for name, position in (("EOS", spec.eos_at), ("a stop token", spec.stop_at)):
        if position is not None:
            ignored = ", ignored" if name == "EOS" and spec.ignore_eos else ""
            told.append(f"{name} as output {position}{ignored}")
    if spec.acceptance:
        told.append(f"accepts, in turn, {', '.join(map(str, spec.acceptance))} drafts")
    if spec.grammar is not None:
        result = "fails to compile" if spec.grammar.fails else "is compiled"
        told.append(f"structured: its grammar {result} after {count(spec.grammar.delay, 'iteration')}")
    if spec.load is not None:
        told.append(_load(spec.load))
    if spec.send is not None:
        told.append(f"its blocks are sent after its end, in {count(spec.send, 'iteration')}")
    if spec.chunks is not None:
        told.append("a streaming session" + "".join(map(_chunk, spec.chunks)))
    if spec.same_id_as is not None:
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
        told += f", knows so after {count(load.undecided, 'question')}"
    told += (
        f", loads in {count(load.latency, 'iteration')}" if load.load_kv_async else ", loads within the step"
    )
    if load.failed:
        told += f", and fails on loaded {'block' if len(load.failed) == 1 else 'blocks'} "
        told += ", ".join(map(str, load.failed))
    return told

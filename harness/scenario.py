"""The input language: what the engine is, which requests exist, what the outside world does and when.

A scenario is data: frozen structs, strict JSON, one spelling for one meaning (defaults are omitted, keys are in
declaration order), with vLLM's own names for what vLLM names. Lengths are in tokens, sizes of encoder outputs in
embeddings, times in engine iterations. Pure: imports no vLLM, does no I/O, knows no time.

`decode` is strict and says where the fault is; `repair` turns any decodable value into the nearest legal scenario,
where legal means that vLLM's own configuration checks and its front end would let it through.
"""

import hashlib
import json
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

FORMAT = 1
MAX_BYTES = 1 << 20
"""Larger files are refused unread: the largest scenario that the limits below admit has about 100 kB."""
MAX_DEPTH = 16
"""The language nests to depth 6; msgspec's own decoder recurses, so deep files are refused before it sees them."""

LINE_WIDTH = 100
"""Of the canonical layout, in characters."""

MAX_REQUESTS = 24
MAX_EVENTS = 64
MAX_MODEL_LEN = 512
BLOCK_SIZES = (4, 8, 16, 32)
MAX_STREAMS = 8
MAX_SCRIPT = 16

Tokens = Annotated[int, Meta(ge=0, le=MAX_MODEL_LEN)]
Count = Annotated[int, Meta(ge=1, le=MAX_MODEL_LEN)]
Index = Annotated[int, Meta(ge=0, lt=MAX_REQUESTS)]
Delay = Annotated[int, Meta(ge=0, le=64)]
Draft = Annotated[int, Meta(ge=0, le=8)]
Script: TypeAlias = Annotated[tuple[Draft, ...], Meta(max_length=MAX_SCRIPT)]


class ScenarioError(ValueError):
    """A file or value that is not a scenario; the message names the place (a JSON path) and the remedy."""


class _Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class Speculative(_Base, frozen=True):
    """vLLM's SpeculativeConfig as far as the scheduler reads it.

    `eagle` and `mtp` (one module) draft `num_speculative_tokens` each step with a look-ahead of one token; `ngram`
    drafts as many as its script says and has no look-ahead.
    """

    method: Literal["eagle", "mtp", "ngram"] = "eagle"
    num_speculative_tokens: Annotated[int, Meta(ge=1, le=8)] = 1


class Encoder(_Base, frozen=True):
    """A multimodal model: per-step encoder budget and encoder cache size, both in embeddings."""

    max_num_encoder_input_tokens: Count = 64
    encoder_cache_size: Count = 64
    disable_chunked_mm_input: bool = False


class Engine(_Base, frozen=True):
    """Configuration of the engine; every name but `interleaving` is vLLM's.

    `interleaving="free"` lets results be delivered in orders that today's `EngineCore` loop does not make, within the
    same contract (first in, first out; no more batches in flight than the configuration allows).
    """

    max_num_seqs: Annotated[int, Meta(ge=1, le=32)] = 4
    max_num_batched_tokens: Count = 64
    max_model_len: Annotated[int, Meta(ge=2, le=MAX_MODEL_LEN)] = 128
    block_size: Literal[4, 8, 16, 32] = 16
    num_gpu_blocks: Annotated[int, Meta(ge=2, le=1024)] = 64
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: Tokens = 0
    policy: Literal["fcfs", "priority"] = "fcfs"
    async_scheduling: bool = False
    sliding_window: Tokens = 0
    speculative: Speculative | None = None
    encoder: Encoder | None = None
    interleaving: Literal["engine", "free"] = "engine"


class Text(_Base, frozen=True, tag="text", tag_field="kind", array_like=True):
    """Tokens `start .. start+length` of a shared token stream: equal numbers mean equal tokens."""

    stream: Annotated[int, Meta(ge=0, lt=MAX_STREAMS)] = 0
    start: Tokens = 0
    length: Count = 1


class Image(_Base, frozen=True, tag="image", tag_field="kind", array_like=True):
    """One multimodal item; its identity indexes `Scenario.images`, which holds its length."""

    identity: Annotated[int, Meta(ge=0, lt=MAX_STREAMS)] = 0


Part: TypeAlias = Text | Image


class Request(_Base, frozen=True):
    """A request as the front end would submit it, and the script of the model's answers to it.

    `eos_at` and `stop_at` give the output position (0 is the first generated token) at which the reference model emits
    EOS or a stop token. `acceptance` cycles over the request's drafting steps: how many drafts, from the first, will
    be right (capped by `num_speculative_tokens`).
    """

    prompt: Annotated[tuple[Part, ...], Meta(min_length=1, max_length=16)] = msgspec.field(
        default_factory=lambda: (Text(),)
    )
    max_tokens: Count = 1
    priority: Annotated[int, Meta(ge=-8, le=8)] = 0
    ignore_eos: bool = False
    eos_at: Tokens | None = None
    stop_at: Tokens | None = None
    acceptance: Script = ()


class Arrive(_Base, frozen=True, tag="arrive", tag_field="event"):
    """Request `request` reaches the engine's input queue `delay` iterations after the previous event."""

    request: Index
    delay: Delay = 0


class Abort(_Base, frozen=True, tag="abort", tag_field="event"):
    """The client aborts; `in_step` puts it between the step's execution and its update, as the aborts queue does."""

    request: Index
    delay: Delay = 0
    in_step: bool = False


Event: TypeAlias = Arrive | Abort


class Scenario(_Base, frozen=True):
    """One execution. `step_delays` cycles over dispatched steps: iterations until a step's result is ready."""

    format: Literal[1]
    engine: Engine = msgspec.field(default_factory=Engine)
    images: Annotated[tuple[Count, ...], Meta(max_length=MAX_STREAMS)] = ()
    requests: Annotated[tuple[Request, ...], Meta(max_length=MAX_REQUESTS)] = ()
    timeline: Annotated[tuple[Event, ...], Meta(max_length=MAX_EVENTS)] = ()
    step_delays: Script = ()


_DECODER = msgspec.json.Decoder(Scenario, strict=True)


def part_length(part: Part, images: tuple[int, ...]) -> int:
    """Length of a prompt part in tokens. IndexError if it names an image that the scenario lacks."""
    return part.length if isinstance(part, Text) else images[part.identity]


def prompt_length(request: Request, images: tuple[int, ...]) -> int:
    """Length of a request's prompt in tokens."""
    return sum(part_length(part, images) for part in request.prompt)


def encode(scenario: Scenario) -> bytes:
    """Canonical JSON, laid out for people (what fits in a line stays in one), ending in a newline."""
    return (_layout(msgspec.to_builtins(scenario), 0) + "\n").encode()


def _layout(value: object, depth: int) -> str:
    flat = json.dumps(value)
    if not isinstance(value, dict | list | tuple) or (depth and len(flat) + depth < LINE_WIDTH):
        return flat
    if isinstance(value, dict):
        opening, closing = "{", "}"
        parts = [f"{json.dumps(key)}: {_layout(item, depth + 1)}" for key, item in value.items()]
    else:
        opening, closing = "[", "]"
        parts = [_layout(item, depth + 1) for item in value]
    indent = " " * depth
    return opening + "\n" + ",\n".join(f"{indent} {part}" for part in parts) + f"\n{indent}{closing}"


def content_hash(scenario: Scenario) -> str:
    """Sixteen hex digits that name the scenario (SHA-256 of its compact canonical form)."""
    return hashlib.sha256(msgspec.json.encode(scenario)).hexdigest()[:16]


def decode(data: bytes) -> Scenario:
    """Strict decoding and validation. ScenarioError names the JSON path and what is expected there."""
    if len(data) > MAX_BYTES:
        raise ScenarioError(f"$: {len(data)} bytes; a scenario has at most {MAX_BYTES}")
    if _depth(data) > MAX_DEPTH:
        raise ScenarioError(f"$: nested deeper than {MAX_DEPTH}")
    try:
        scenario = _DECODER.decode(data)
    except msgspec.ValidationError as error:
        before, found, after = str(error).rpartition(" - at `")
        message, path = (before, after) if found else (after, "$")
        raise ScenarioError(f"{path.strip('`') or '$'}: {message}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ScenarioError(f"$: not JSON: {error}") from None
    validate(scenario)
    return scenario


def _depth(data: bytes) -> int:
    deepest = depth = 0
    in_string = escaped = False
    for byte in data:
        if in_string:
            in_string = escaped or byte != 0x22
            escaped = byte == 0x5C and not escaped
        elif byte == 0x22:
            in_string = True
        elif byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest


def validate(scenario: Scenario) -> None:
    """Checks what types cannot say. ScenarioError names the first place where `repair` would change something."""
    for i, request in enumerate(scenario.requests):
        for j, part in enumerate(request.prompt):
            if isinstance(part, Image) and part.identity >= len(scenario.images):
                raise ScenarioError(
                    f"$.requests[{i}].prompt[{j}]: image {part.identity} is not in $.images, "
                    f"which has {len(scenario.images)}"
                )
    for i, event in enumerate(scenario.timeline):
        if event.request >= len(scenario.requests):
            raise ScenarioError(
                f"$.timeline[{i}].request: {event.request}, but there are {len(scenario.requests)} requests"
            )
    repaired = repair(scenario)
    if repaired != scenario:
        path, found, legal = _first_difference(
            msgspec.to_builtins(scenario), msgspec.to_builtins(repaired), "$"
        )
        raise ScenarioError(f"{path}: {found} is not legal with the rest of the scenario; {legal} would be")


def _first_difference(found: object, legal: object, path: str) -> tuple[str, object, object]:
    if isinstance(found, dict) and isinstance(legal, dict):
        for key in [*found, *legal]:
            if found.get(key) != legal.get(key):
                return _first_difference(found.get(key), legal.get(key), f"{path}.{key}")
    if isinstance(found, list | tuple) and isinstance(legal, list | tuple) and len(found) == len(legal):
        for i, (one, other) in enumerate(zip(found, legal, strict=True)):
            if one != other:
                return _first_difference(one, other, f"{path}[{i}]")
    return path, _short(found), _short(legal)


def _short(value: object) -> str:
    text = "its default" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:57] + "..."


def repair(scenario: Scenario) -> Scenario:
    """The nearest legal scenario. Idempotent; the identity on legal ones."""
    images = _repair_images(scenario)
    engine = _repair_engine(scenario.engine, images if _shows_images(scenario) else ())
    requests = tuple(_repair_request(request, engine, images) for request in scenario.requests)
    if not any(isinstance(part, Image) for request in requests for part in request.prompt):
        images = ()
    return msgspec.structs.replace(
        scenario,
        engine=engine,
        images=images,
        requests=requests,
        timeline=_repair_timeline(scenario.timeline, len(requests)),
        step_delays=scenario.step_delays if engine.async_scheduling else (),
    )


def _shows_images(scenario: Scenario) -> bool:
    return any(isinstance(part, Image) for request in scenario.requests for part in request.prompt)


def _repair_images(scenario: Scenario) -> tuple[int, ...]:
    # An item must leave room for one text token before or after it and for one output token.
    longest = max(1, scenario.engine.max_model_len - 2)
    return tuple(min(length, longest) for length in scenario.images)


def blocks_needed(engine: Engine) -> int:
    """Blocks that one request of `max_model_len` tokens can hold, over all groups, plus vLLM's null block.

    vLLM refuses to start with a pool that cannot hold one full request (`check_enough_kv_cache_memory`).
    """
    groups = 2 if engine.sliding_window else 1
    return 1 + groups * -(-engine.max_model_len // engine.block_size)


def _repair_engine(engine: Engine, images: tuple[int, ...]) -> Engine:
    speculative, encoder = engine.speculative, engine.encoder
    asynchronous = engine.async_scheduling and not (speculative and speculative.method == "ngram")
    longest = max(images, default=0)
    # SchedulerConfig: max_num_batched_tokens >= max_num_seqs; without chunking also >= max_model_len.
    budget = max(engine.max_num_batched_tokens, engine.max_num_seqs)
    if not engine.enable_chunked_prefill:
        budget = max(budget, engine.max_model_len)
    if speculative is not None:
        # VllmConfig: more slots than draft tokens, or nothing can be scheduled.
        budget = max(budget, speculative.num_speculative_tokens + 1)
    if encoder is not None:
        if encoder.disable_chunked_mm_input:
            # MultiModalBudget refuses items that do not fit into one step.
            budget = max(budget, longest)
        # MultiModalBudget raises both limits to the longest item.
        encoder = msgspec.structs.replace(
            encoder,
            max_num_encoder_input_tokens=max(encoder.max_num_encoder_input_tokens, longest),
            encoder_cache_size=max(encoder.encoder_cache_size, longest),
        )
    threshold = engine.long_prefill_token_threshold if engine.enable_chunked_prefill else 0
    return msgspec.structs.replace(
        engine,
        max_num_batched_tokens=min(budget, MAX_MODEL_LEN),
        num_gpu_blocks=max(engine.num_gpu_blocks, blocks_needed(engine)),
        # VllmConfig: the threshold may not exceed max_model_len.
        long_prefill_token_threshold=min(threshold, engine.max_model_len),
        async_scheduling=asynchronous,
        sliding_window=min(engine.sliding_window, engine.max_model_len),
        encoder=encoder,
    )


def _repair_request(request: Request, engine: Engine, images: tuple[int, ...]) -> Request:
    # The front end refuses prompts that leave no room for one output token.
    room = engine.max_model_len - 1
    prompt: list[Part] = []
    for part in request.prompt:
        if isinstance(part, Image):
            if engine.encoder is None or not images:
                continue
            part = Image(part.identity % len(images))
        length = part_length(part, images)
        if length > room:
            if isinstance(part, Image) or room == 0:
                continue
            part = msgspec.structs.replace(part, length=room)
            length = room
        room -= length
        prompt.append(part)
    speculative = engine.speculative
    limit = speculative.num_speculative_tokens if speculative else 0
    return msgspec.structs.replace(
        request,
        prompt=tuple(prompt) or (Text(),),
        priority=request.priority if engine.policy == "priority" else 0,
        ignore_eos=request.ignore_eos and request.eos_at is not None and request.eos_at < request.max_tokens,
        eos_at=None if request.eos_at is None or request.eos_at >= request.max_tokens else request.eos_at,
        stop_at=None if request.stop_at is None or request.stop_at >= request.max_tokens else request.stop_at,
        acceptance=tuple(min(count, limit) for count in request.acceptance) if limit else (),
    )


def _repair_timeline(timeline: tuple[Event, ...], num_requests: int) -> tuple[Event, ...]:
    """Each request arrives at most once, and is aborted at most once, after it arrived; delays are handed on."""
    arrived: set[int] = set()
    aborted: set[int] = set()
    kept: list[Event] = []
    carried = 0
    for event in timeline if num_requests else ():
        event = msgspec.structs.replace(event, request=event.request % num_requests)
        legal = (
            event.request not in arrived
            if isinstance(event, Arrive)
            else event.request in arrived and event.request not in aborted
        )
        if not legal:
            carried = min(64, carried + event.delay)
            continue
        (arrived if isinstance(event, Arrive) else aborted).add(event.request)
        kept.append(msgspec.structs.replace(event, delay=min(64, event.delay + carried)))
        carried = 0
    return tuple(kept)

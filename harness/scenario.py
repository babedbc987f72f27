"""The input language: what the engine is, which requests exist, what the outside world does and when.

A scenario is data: frozen structs, strict JSON, one spelling for one meaning (defaults are omitted, keys are in
declaration order), with vLLM's own names for what vLLM names. Lengths are in tokens, sizes of encoder outputs in
embeddings, times in engine iterations. Pure: imports no vLLM, does no I/O, knows no time.

`codec` reads and writes it; `repair` says what is legal beyond types.
"""

import hashlib
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

MAX_REQUESTS = 24
MAX_EVENTS = 64
MAX_MODEL_LEN = 512
BLOCK_SIZES = (4, 8, 16, 32)
MAX_STREAMS = 8
MAX_LORAS = 4
"""Adapters that a request may ask for, by ids from 1 on."""
MAX_GROUPS = 6
MAX_SCRIPT = 16
MAX_CHUNKS = 8
DEFAULT_DELAY = 1
"""A step takes as long as one pass of the scheduler: the usual case that asynchronous scheduling is made for."""

Tokens = Annotated[int, Meta(ge=0, le=MAX_MODEL_LEN)]
Count = Annotated[int, Meta(ge=1, le=MAX_MODEL_LEN)]
Index = Annotated[int, Meta(ge=0, lt=MAX_REQUESTS)]
Delay = Annotated[int, Meta(ge=0, le=64)]
Draft = Annotated[int, Meta(ge=0, le=8)]
Script: TypeAlias = Annotated[tuple[Draft, ...], Meta(max_length=MAX_SCRIPT)]


class _Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class Speculative(_Base, frozen=True):
    """vLLM's SpeculativeConfig as far as the scheduler reads it.

    `eagle` and `mtp` (one module) draft `num_speculative_tokens` each step with a look-ahead of one token; `ngram`
    drafts as many as its script says and has no look-ahead. `num_speculative_tokens_per_batch_size` has an entry for
    each number of requests in a step, from one on; the last holds for all larger ones (vLLM's has ranges).
    """

    method: Literal["eagle", "mtp", "ngram"] = "eagle"
    num_speculative_tokens: Annotated[int, Meta(ge=1, le=8)] = 1
    num_speculative_tokens_per_batch_size: Annotated[tuple[Draft, ...], Meta(max_length=8)] = ()


class Encoder(_Base, frozen=True):
    """A multimodal model: per-step encoder budget and encoder cache size, both in embeddings.

    An encoder-decoder model reads one item at the beginning of the prompt, by cross-attention and in the step that
    encodes it; its place in the decoder's prompt is tokens like any other.
    """

    max_num_encoder_input_tokens: Count = 64
    encoder_cache_size: Count = 64
    disable_chunked_mm_input: bool = False
    is_encoder_decoder: bool = False


class Full(_Base, frozen=True, tag="full", tag_field="kind", array_like=True):
    """A KV cache group of layers with full attention."""


class Window(_Base, frozen=True, tag="window", tag_field="kind", array_like=True):
    """A group whose layers attend to the last `size` positions, their own included."""

    size: Count = 1


class Chunked(_Base, frozen=True, tag="chunked", tag_field="kind", array_like=True):
    """A group with chunked local attention: queries attend to their own chunk of `size` positions, up to themselves."""

    size: Count = 1


class Mamba(_Base, frozen=True, tag="mamba", tag_field="kind", array_like=True):
    """A group whose layers keep one state for the whole prefix.

    In one block a request without prefix caching (`mamba_cache_mode="none"`), else also at the ends of blocks
    (`"align"`).
    """


Scale: TypeAlias = Literal[2, 4]
"""How many times as many positions as a block of the engine (`block_size`) a wide group's block holds."""


class WideFull(Full, frozen=True, tag="wide_full"):
    """Full attention with larger blocks: vLLM gives them to layers that need less memory a position."""

    scale: Scale = 2


class WideWindow(Window, frozen=True, tag="wide_window"):
    """A sliding window with larger blocks."""

    scale: Scale = 2


class WideMamba(Mamba, frozen=True, tag="wide_mamba"):
    """States at the ends of larger blocks: as next to a drafter whose layers have smaller ones."""

    scale: Scale = 2


Wide: TypeAlias = WideFull | WideWindow | WideMamba
Group: TypeAlias = Full | Window | Chunked | Mamba | Wide


class Connector(_Base, frozen=True):
    """vLLM's KVTransferConfig: a KV connector, whose other side is scripted by `Request.load` and `Request.send`."""

    kv_role: Literal["kv_both", "kv_consumer", "kv_producer"] = "kv_both"
    kv_load_failure_policy: Literal["recompute", "fail"] = "recompute"


class EncoderConnector(_Base, frozen=True):
    """vLLM's ECTransferConfig: an encoder-cache connector, whose other side holds the outputs of the images `stored`.

    From 0.23 on it may have to fetch them: each takes `latency` scheduling passes from the first time that a request is
    considered that needs it, and the request waits. `ec_both` also gives what this engine encodes, once it is known to
    be there. (A mere producer has no language model, and so no KV cache.)
    """

    ec_role: Literal["ec_consumer", "ec_both"] = "ec_consumer"
    stored: Annotated[
        tuple[Annotated[int, Meta(ge=0, lt=MAX_STREAMS)], ...], Meta(max_length=MAX_STREAMS)
    ] = ()
    latency: Delay = 0


class Engine(_Base, frozen=True):
    """Configuration of the engine; every name but `interleaving`, `model_runner` and `data_parallel` is vLLM's.

    A model has one full-attention group, or one and a window group (`sliding_window`); `kv_cache_groups` says every
    other mixture (`harness.groups`). `block_size` is that of the group with the smallest blocks.

    `interleaving="free"` lets results be delivered in orders that today's `EngineCore` loop does not make, within the
    same contract (first in, first out; no more batches in flight than the configuration allows).
    `model_runner` is what VLLM_USE_V2_MODEL_RUNNER says: scheduler and worker have a contract for each.

    `max_num_active_seqs` 0 is none; `max_loras` 0 is an engine without LoRA. `watermark` is in hundredths of all
    blocks. With `data_parallel` the engine is one rank of many, which all pace prefills (`prefill_schedule_interval`)
    by one count of the engine's iterations. A pooling model (`runner_type`) answers each request once, with what it
    makes of the whole prompt, and generates nothing.
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
    kv_cache_groups: Annotated[tuple[Group, ...], Meta(max_length=MAX_GROUPS)] = ()
    speculative: Speculative | None = None
    encoder: Encoder | None = None
    connector: Connector | None = None
    enable_kv_cache_events: bool = False
    interleaving: Literal["engine", "free"] = "engine"
    model_runner: Literal["v1", "v2"] = "v1"
    max_num_active_seqs: Annotated[int, Meta(ge=0, le=32)] = 0
    long_prefill_token_threshold_adaptive: bool = False
    scheduler_reserve_full_isl: bool = True
    watermark: Annotated[int, Meta(ge=0, le=99)] = 0
    prefill_schedule_interval: Annotated[int, Meta(ge=1, le=16)] = 1
    data_parallel: bool = False
    max_loras: Annotated[int, Meta(ge=0, le=8)] = 0
    pipeline_parallel_size: Annotated[int, Meta(ge=1, le=4)] = 1
    ec_connector: EncoderConnector | None = None
    runner_type: Literal["generate", "pooling"] = "generate"


class Text(_Base, frozen=True, tag="text", tag_field="kind", array_like=True):
    """Tokens `start .. start+length` of a shared token stream: equal numbers mean equal tokens."""

    stream: Annotated[int, Meta(ge=0, lt=MAX_STREAMS)] = 0
    start: Tokens = 0
    length: Count = 1


class Image(_Base, frozen=True, tag="image", tag_field="kind", array_like=True):
    """One multimodal item; its identity indexes `Scenario.images`, which holds its length."""

    identity: Annotated[int, Meta(ge=0, lt=MAX_STREAMS)] = 0


class Resized(Image, frozen=True, tag="resized"):
    """An item that its client names like another (`multi_modal_uuids`), though it has a length of its own.

    As far as both go they say the same.
    """

    length: Count = 1


Part: TypeAlias = Text | Image | Resized


class Grammar(_Base, frozen=True):
    """A structured output: a grammar that accepts, at each output position, the reference model's token alone.

    Its compilation takes `delay` iterations from the request's arrival, and then `fails` or not.
    """

    delay: Delay = 0
    fails: bool = False


class Load(_Base, frozen=True):
    """What a KV connector finds outside for a request: the KV of its first `tokens` positions.

    It does not know yet the first `undecided` times that it is asked. A synchronous load is there with the step that
    needs it, an asynchronous one `latency` iterations after it began. `failed` names blocks, counted from the first one
    that is loaded, whose load fails; only a request's first load does.
    """

    tokens: Count = 1
    load_kv_async: bool = False
    latency: Delay = 0
    failed: Script = ()
    undecided: Draft = 0


class Chunk(_Base, frozen=True):
    """One more input of a streaming session, with what a request says of its own: prompt, length, the model's answers.

    vLLM discards the last token of the outputs before it, and appends the chunk to the rest.
    """

    prompt: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=8)] = msgspec.field(
        default_factory=lambda: (Text(),)
    )
    max_tokens: Count = 1
    eos_at: Tokens | None = None
    stop_at: Tokens | None = None
    acceptance: Script = ()


class Request(_Base, frozen=True):
    """A request as the front end would submit it, and the script of the model's answers to it.

    `eos_at` and `stop_at` give the output position (0 is the first generated token) at which the reference model emits
    EOS or a stop token; never below `min_tokens`, where a sampler masks them. Salts and LoRA adapters are numbers; 0 is
    none. An adapter makes another model: other answers, other KV contents.
    `acceptance` cycles over the request's drafting steps: how many drafts, from the first, will
    be right (capped by `num_speculative_tokens`); it is laid along the outputs, see `Reference.errs`.
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
    grammar: Grammar | None = None
    min_tokens: Tokens = 0
    cache_salt: Annotated[int, Meta(ge=0, le=3)] = 0
    skip_reading_prefix_cache: bool = False
    load: Load | None = None
    send: Delay | None = None
    """Iterations that the connector takes, once the request has ended, to send its blocks; None if it does not."""
    lora: Annotated[int, Meta(ge=0, le=MAX_LORAS)] = 0
    chunks: Annotated[tuple[Chunk, ...], Meta(max_length=MAX_CHUNKS)] | None = None
    """Of a streaming session (`resumable`), the inputs after the first; None of any other request."""
    same_id_as: Index | None = None
    """The request whose id its client gives it, too, once that one has been aborted."""
    prompt_logprobs: bool = False
    """Whether the client wants to know how likely the model finds each token of the prompt but the first."""


class Arrive(_Base, frozen=True, tag="arrive", tag_field="event"):
    """Request `request` reaches the engine's input queue `delay` iterations after the previous event."""

    request: Index
    delay: Delay = 0


class Abort(_Base, frozen=True, tag="abort", tag_field="event"):
    """The client aborts; `in_step` puts it between the step's execution and its update, as the aborts queue does."""

    request: Index
    delay: Delay = 0
    in_step: bool = False


class Continue(_Base, frozen=True, tag="continue", tag_field="event"):
    """The client of a streaming session sends its next chunk; it may come during a turn, and waits for its end then."""

    request: Index
    delay: Delay = 0


class Close(_Base, frozen=True, tag="close", tag_field="event"):
    """The client's input stream ends: vLLM's front end sends a last request that cannot be resumed."""

    request: Index
    delay: Delay = 0


class Reset(_Base, frozen=True, tag="reset", tag_field="event"):
    """`EngineCore.reset_prefix_cache`, or `reset_encoder_cache`.

    Without `reset_running_requests` the scheduler refuses while blocks are in use. An encoder cache is reset only
    while no request is unfinished, which a pause makes so: vLLM warns that anything else may desynchronise caches.
    """

    delay: Delay = 0
    cache: Literal["prefix", "encoder"] = "prefix"
    reset_running_requests: bool = False


class Pause(_Base, frozen=True, tag="pause", tag_field="event"):
    """`EngineCoreProc.pause_scheduler`; it completes, and clears the caches, when the engine has become idle."""

    delay: Delay = 0
    mode: Literal["abort", "wait", "keep"] = "abort"
    clear_cache: bool = True


class Resume(_Base, frozen=True, tag="resume", tag_field="event"):
    """`EngineCoreProc.resume_scheduler`, after a pause, complete or not."""

    delay: Delay = 0


RequestEvent: TypeAlias = Arrive | Abort | Continue | Close
Control: TypeAlias = Reset | Pause | Resume
Event: TypeAlias = RequestEvent | Control


class Scenario(_Base, frozen=True):
    """One execution. `step_delays` cycles over dispatched steps: iterations until a step's result is ready."""

    format: Literal[1]
    engine: Engine = msgspec.field(default_factory=Engine)
    images: Annotated[tuple[Count, ...], Meta(max_length=MAX_STREAMS)] = ()
    requests: Annotated[tuple[Request, ...], Meta(max_length=MAX_REQUESTS)] = ()
    timeline: Annotated[tuple[Event, ...], Meta(max_length=MAX_EVENTS)] = ()
    step_delays: Script = ()


def part_length(part: Part, images: tuple[int, ...]) -> int:
    """Length of a prompt part in tokens. IndexError if it names an image that the scenario lacks."""
    return part.length if isinstance(part, Text | Resized) else images[part.identity]


def prompt_length(request: Request, images: tuple[int, ...]) -> int:
    """Length of a request's prompt in tokens."""
    return sum(part_length(part, images) for part in request.prompt)


def content_hash(scenario: Scenario) -> str:
    """Sixteen hex digits that name the scenario (SHA-256 of its compact canonical form)."""
    return hashlib.sha256(msgspec.json.encode(scenario)).hexdigest()[:16]


def concerns(event: Event) -> int | None:
    """The request that an event is about; None for what concerns the whole engine."""
    return event.request if isinstance(event, RequestEvent) else None


def request_id(index: int) -> str:
    """The id in vLLM and in every message of a scenario's request that has one of its own."""
    return f"r{index}"


def id_in(scenario: Scenario, index: int) -> str:
    """The id of a scenario's request, which it may have from an earlier one."""
    first = scenario.requests[index].same_id_as
    return request_id(index if first is None else first)


def lora_name(adapter: int) -> str:
    """The name of an adapter in vLLM; its id is its number."""
    return f"adapter-{adapter}"


def image_hash(identity: int) -> str:
    """The multimodal hash of an item of the scenario."""
    return f"image-{identity}"

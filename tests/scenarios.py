"""Small scenarios written by hand, one or more a feature, and what is known to be wrong with vLLM on legal input.

Each scenario's name says what it shows; `SHOWS` (in test_engine.py) checks that it really does. Pure: no vLLM.
"""

from collections.abc import Collection
from random import Random

from msgspec.structs import replace

from fuzz.edits import with_runner
from fuzz.generate import FEATURES, generate
from fuzz.restrict import restrict
from harness.codec import validate
from harness.repair import repair
from harness.scenario import (
    Abort,
    Arrive,
    Chunk,
    Chunked,
    Close,
    Connector,
    Continue,
    Encoder,
    EncoderConnector,
    Engine,
    Event,
    Full,
    Grammar,
    Image,
    Load,
    Mamba,
    Pause,
    Request,
    Reset,
    Resized,
    Resume,
    Scenario,
    Speculative,
    Text,
    WideFull,
    WideMamba,
    WideWindow,
    Window,
)


def scenario(
    engine: Engine,
    *requests: Request,
    images: tuple[int, ...] = (),
    events: tuple[Event, ...] = (),
    delays: tuple[int, ...] = (),
) -> Scenario:
    """A legal scenario. Requests arrive together at the start, unless `events` says it all."""
    arrivals = tuple(Arrive(index) for index in range(len(requests)))
    made = Scenario(1, engine, images, requests, events or arrivals, delays)
    validate(made)
    return made


def text(length: int, tokens: int = 4, stream: int = 0, **rest: object) -> Request:
    """A request of plain text."""
    return Request(prompt=(Text(stream, 0, length),), max_tokens=tokens, **rest)


SMALL = Engine(max_num_batched_tokens=16, max_model_len=48, block_size=4, num_gpu_blocks=64)
TIGHT = replace(SMALL, num_gpu_blocks=13, max_num_seqs=3)
"""Twelve blocks of 4 for requests of up to 48 tokens: three of them preempt one another."""
POOLING = replace(SMALL, runner_type="pooling")
CONNECTED = replace(SMALL, connector=Connector())
VISION = replace(SMALL, encoder=Encoder(max_num_encoder_input_tokens=16, encoder_cache_size=16))
EAGLE = Speculative("eagle", 2)
EVERYTHING = replace(VISION, async_scheduling=True, speculative=EAGLE)

PICTURE = Request(prompt=(Text(0, 0, 3), Image(0), Text(0, 3, 2)), max_tokens=4)
"""Text, an image and text again, which fit into one chunk."""
ALBUM = Request(prompt=(Text(0, 0, 6), Image(0), Text(0, 6, 2), Image(1), Text(0, 8, 2)), max_tokens=4)
"""Two images of 6 and 8, of which the second lies across the end of a chunk of 16."""
RENAMED = Request(prompt=(Text(2, 0, 3), Resized(0, 8), Text(0, 3, 2)), max_tokens=4)
"""A picture whose client gives it the name of another that is shorter."""

BACKLOG = (text(20, 12), text(20, 12, 1), text(20, 12, 2))
DRAFTED = (text(9, 9, acceptance=(0, 1, 2)), text(5, 7, 1, acceptance=(2, 0)))


def structured(*requests: Request, delay: int = 0) -> tuple[Request, ...]:
    """The requests, all with a grammar."""
    return tuple(replace(request, grammar=Grammar(delay)) for request in requests)


MIXED = (*structured(*DRAFTED), text(7, 6, 2, eos_at=4, grammar=Grammar(2)), text(6, 8, 3))
"""Structured requests, one of which comes late and stops, and one that is not."""
LONG = (text(20, 12), text(40, 4, 1))
DYNAMIC = Speculative("eagle", 3, (3, 1, 0))
"""Three drafts for a request that is alone, one for each of two, none for more."""
ADAPTED = (text(14, 6), text(14, 6, lora=1), text(14, 6, lora=2), text(14, 3, lora=1), text(14, 3))


def session(length: int, tokens: int, *chunks: Chunk, stream: int = 0, **rest: object) -> Request:
    """A streaming session whose first input is plain text."""
    return text(length, tokens, stream, chunks=chunks, **rest)


def more(length: int, tokens: int, stream: int = 3, **rest: object) -> Chunk:
    """A chunk of plain text."""
    return Chunk((Text(stream, 0, length),), tokens, **rest)


DIALOGUE = (session(9, 4, more(3, 4), more(6, 4, eos_at=1)), text(6, 8, 1))
FORCED = Reset(2, reset_running_requests=True)
TALK = (text(14, 6), text(9, 6, 1))
SALTED = (text(14, 3), text(14, 3, cache_salt=1), text(14, 3, cache_salt=2), text(14, 3, cache_salt=1))

LEGAL: dict[str, Scenario] = {
    "plain": scenario(SMALL, text(5), text(7, 3, 1)),
    "chunked": scenario(SMALL, text(40, 3), text(9, 3, 1)),
    "unchunked": scenario(
        replace(SMALL, max_num_batched_tokens=48, enable_chunked_prefill=False), text(40, 3), text(9)
    ),
    "long_prefill": scenario(replace(SMALL, long_prefill_token_threshold=5), text(20, 3), text(9, 3, 1)),
    "events": scenario(
        replace(SMALL, num_gpu_blocks=13, max_num_seqs=2, enable_kv_cache_events=True),
        text(14, 3),
        text(44, 3, 1),
        text(13, 3),
        events=(Arrive(0), Arrive(1, 6), Arrive(2, 12)),
    ),
    "prefix": scenario(
        SMALL,
        text(14, 3),
        text(19, 3),
        Request(prompt=(Text(0, 0, 8), Text(3, 0, 5)), max_tokens=3),
        events=(Arrive(0), Arrive(1, 2), Arrive(2, 2)),
    ),
    "preemption": scenario(TIGHT, *BACKLOG),
    "priority": scenario(
        replace(TIGHT, policy="priority"),
        text(20, 12, priority=1),
        text(20, 12, 1),
        text(20, 6, 2, priority=-1),
        events=(Arrive(0), Arrive(1, 1), Arrive(2, 3)),
    ),
    "abort": scenario(
        SMALL, text(20, 8), text(6, 8, 1), events=(Arrive(0), Arrive(1), Abort(0, 3), Abort(1, 1))
    ),
    "abort_in_step": scenario(
        SMALL, text(20, 8), text(6, 8, 1), events=(Arrive(0), Arrive(1), Abort(1, 2, in_step=True))
    ),
    "abort_waiting": scenario(
        replace(SMALL, max_num_seqs=1), text(6, 8), text(6, 8, 1), events=(Arrive(0), Arrive(1), Abort(1, 2))
    ),
    "stop": scenario(
        SMALL, text(5, 8, eos_at=3), text(6, 8, 1, stop_at=2), text(7, 6, 2, eos_at=2, ignore_eos=True)
    ),
    "max_model_len": scenario(SMALL, text(45, 20), text(47, 20, 1)),
    "sliding_window": scenario(
        replace(SMALL, sliding_window=6), text(30, 6), text(34, 6), events=(Arrive(0), Arrive(1, 4))
    ),
    "groups": scenario(
        replace(SMALL, kv_cache_groups=(Full(), Window(6), Window(6), Window(13), Chunked(8))),
        text(30, 12),
        text(34, 6),
        text(27, 3),
        events=(Arrive(0), Arrive(1, 4), Arrive(2, 3)),
    ),
    "groups_local": scenario(
        replace(TIGHT, kv_cache_groups=(Chunked(12), Window(7)), num_gpu_blocks=25, policy="priority"),
        *BACKLOG,
        text(21, 3, priority=-1),
        events=(Arrive(0), Arrive(1, 1), Arrive(2, 1), Arrive(3, 3)),
    ),
    "groups_eagle": scenario(
        replace(
            SMALL,
            kv_cache_groups=(Window(5), Full(), Window(9)),
            speculative=EAGLE,
            async_scheduling=True,
        ),
        text(33, 6),
        text(38, 6, acceptance=(1, 2)),
        text(33, 3),
        events=(Arrive(0), Arrive(1, 4), Arrive(2, 4)),
    ),
    "groups_mamba": scenario(
        replace(
            TIGHT,
            kv_cache_groups=(Window(6), Mamba(), Mamba(), Full()),
            enable_prefix_caching=False,
            async_scheduling=True,
            num_gpu_blocks=27,
            max_num_seqs=4,
        ),
        *BACKLOG,
        text(20, 12, 3),
    ),
    "mamba_cache": scenario(
        replace(
            TIGHT, kv_cache_groups=(Full(), Mamba()), async_scheduling=True, max_num_seqs=4, num_gpu_blocks=15
        ),
        *BACKLOG,
        text(20, 12, 3),
        text(24, 5, 3),
        events=(Arrive(0), Arrive(1), Arrive(2, 2), Arrive(3, 2), Arrive(4, 1)),
    ),
    "mamba_cache_eagle": scenario(
        replace(SMALL, kv_cache_groups=(Full(), Mamba()), speculative=Speculative("eagle", 3)),
        text(18, 9, acceptance=(3, 0, 2, 1)),
        text(17, 7, acceptance=(2, 3)),
        text(26, 6, acceptance=(1,)),
        events=(Arrive(0), Arrive(1, 4), Arrive(2, 3)),
    ),
    "block_sizes": scenario(
        replace(TIGHT, kv_cache_groups=(WideFull(2), Window(6), WideWindow(9, 4)), num_gpu_blocks=24),
        *BACKLOG,
        text(30, 3),
        text(34, 3),
        events=(Arrive(0), Arrive(1), Arrive(2, 1), Arrive(3, 1), Arrive(4, 6)),
    ),
    "block_sizes_eagle": scenario(
        replace(SMALL, kv_cache_groups=(Full(), WideWindow(6, 2)), speculative=EAGLE, async_scheduling=True),
        text(33, 6),
        text(38, 6, acceptance=(1, 2)),
        text(33, 3),
        events=(Arrive(0), Arrive(1, 4), Arrive(2, 4)),
    ),
    "block_sizes_mamba": scenario(
        replace(SMALL, max_num_batched_tokens=48, kv_cache_groups=(WideFull(2), Full(), WideMamba(4))),
        text(15, 6),
        text(14, 3),
        text(30, 6),
        text(30, 6),
        events=(Arrive(0), Arrive(1, 7), Arrive(2, 7), Arrive(3, 3)),
    ),
    "async": scenario(replace(SMALL, async_scheduling=True), text(20, 6), text(5, 6, 1), delays=(0, 2, 1)),
    "async_preemption": scenario(replace(TIGHT, async_scheduling=True), *BACKLOG),
    "async_abort": scenario(
        replace(SMALL, async_scheduling=True),
        text(20, 8),
        text(6, 8, 1),
        events=(Arrive(0), Arrive(1), Abort(0, 2, in_step=True), Abort(1, 2)),
    ),
    "spec_eagle": scenario(replace(SMALL, speculative=EAGLE), *DRAFTED),
    "spec_mtp": scenario(replace(SMALL, speculative=Speculative("mtp", 1)), text(9, 9, acceptance=(0, 1))),
    "spec_ngram": scenario(replace(SMALL, speculative=Speculative("ngram", 2)), *DRAFTED),
    "spec_async_eagle": scenario(replace(SMALL, speculative=EAGLE, async_scheduling=True), *DRAFTED),
    "spec_async_mtp": scenario(
        replace(SMALL, speculative=Speculative("mtp", 1), async_scheduling=True),
        text(9, 9, acceptance=(0, 1)),
    ),
    "spec_preemption": scenario(replace(TIGHT, speculative=EAGLE, async_scheduling=True), *BACKLOG),
    "mm": scenario(VISION, ALBUM, PICTURE, images=(6, 8)),
    "mm_unchunked": scenario(
        replace(VISION, encoder=replace(VISION.encoder, disable_chunked_mm_input=True)),
        ALBUM,
        PICTURE,
        images=(6, 8),
    ),
    "mm_uuids": scenario(
        VISION,
        PICTURE,
        Request(prompt=(Text(1, 0, 3), Image(1)), max_tokens=2),
        RENAMED,
        images=(6, 12),
        events=(Arrive(0), Arrive(1, 8), Arrive(2, 8)),
    ),
    "mm_async": scenario(replace(VISION, async_scheduling=True), ALBUM, PICTURE, images=(6, 8)),
    "mm_spec_async": scenario(EVERYTHING, ALBUM, PICTURE, images=(6, 8)),
    "grammar": scenario(SMALL, text(20, 6, grammar=Grammar()), text(9, 6, 1, grammar=Grammar(3)), text(5)),
    "grammar_fails": scenario(SMALL, text(5, grammar=Grammar(2, fails=True)), text(5, 6, 1)),
    "grammar_abort": scenario(
        replace(SMALL, async_scheduling=True),
        text(5, 6, grammar=Grammar(8)),
        text(5, 9, 1, grammar=Grammar()),
        events=(Arrive(0), Arrive(1), Abort(0, 2), Abort(1, 2, in_step=True)),
    ),
    "grammar_preemption": scenario(replace(TIGHT, async_scheduling=True), *structured(*BACKLOG, delay=1)),
    "grammar_async": scenario(
        replace(SMALL, async_scheduling=True),
        *structured(text(9, 9), text(5, 7, 1)),
        *MIXED[2:],
        delays=(1, 2, 1),
    ),
    "grammar_spec": scenario(replace(SMALL, speculative=EAGLE), *MIXED),
    "grammar_spec_async": scenario(replace(SMALL, speculative=EAGLE, async_scheduling=True), *MIXED),
    "grammar_spec_preemption": scenario(
        replace(TIGHT, speculative=EAGLE, async_scheduling=True), *structured(*BACKLOG)
    ),
    "grammar_free": scenario(
        replace(SMALL, speculative=EAGLE, async_scheduling=True, interleaving="free"),
        *MIXED,
        delays=(3, 0, 2, 1),
    ),
    "free": scenario(
        replace(SMALL, async_scheduling=True, interleaving="free"),
        text(20, 6),
        text(5, 6, 1),
        delays=(3, 0, 2, 1),
    ),
    "reset": scenario(
        SMALL, *TALK, events=(Arrive(0), Reset(1), FORCED, Arrive(1, 1), Reset(40), Reset(0, "prefix", True))
    ),
    "reset_async": scenario(
        replace(SMALL, async_scheduling=True), *TALK, events=(Arrive(0), Arrive(1), FORCED, FORCED)
    ),
    "reset_spec_async": scenario(
        replace(SMALL, async_scheduling=True, speculative=EAGLE),
        *DRAFTED,
        events=(Arrive(0), Arrive(1), FORCED, FORCED),
    ),
    "reset_free": scenario(
        replace(SMALL, async_scheduling=True, interleaving="free"),
        *TALK,
        events=(Arrive(0), Arrive(1), FORCED, FORCED),
        delays=(3, 0, 2, 1),
    ),
    "encoder_reset": scenario(
        VISION,
        PICTURE,
        PICTURE,
        images=(6,),
        events=(Arrive(0), Reset(1, "encoder"), Reset(20, "encoder"), Arrive(1)),
    ),
    "encoder_reset_mid_item": scenario(
        replace(EVERYTHING, max_num_batched_tokens=5),
        ALBUM,
        images=(6, 8),
        events=(Arrive(0), Pause(2, "keep", clear_cache=False), Reset(0, "encoder"), Resume(9)),
    ),
    "pause_abort": scenario(SMALL, *TALK, events=(Arrive(0), Pause(2), Arrive(1, 1), Resume(9))),
    "pause_wait": scenario(SMALL, *TALK, events=(Arrive(0), Pause(2, "wait"), Arrive(1, 1), Resume(20))),
    "pause_keep": scenario(SMALL, *TALK, events=(Arrive(0), Pause(2, "keep"), Arrive(1, 1), Resume(20))),
    "pause_async": scenario(
        replace(SMALL, async_scheduling=True, speculative=EAGLE),
        *DRAFTED,
        events=(Arrive(0), Pause(2, "keep"), Arrive(1, 1), Resume(9), Pause(2, "wait"), Resume(20)),
        delays=(2,),
    ),
    "min_tokens": scenario(SMALL, text(5, 8, eos_at=4, min_tokens=4), text(6, 8, 1, min_tokens=8)),
    "cache_salt": scenario(SMALL, *SALTED, events=tuple(Arrive(index, 4) for index in range(4))),
    "active_seqs": scenario(replace(SMALL, max_num_active_seqs=1), text(6, 8), text(6, 8, 1)),
    "adaptive_prefill": scenario(
        replace(SMALL, long_prefill_token_threshold=2, long_prefill_token_threshold_adaptive=True),
        text(20, 3),
        text(9, 3, 1),
    ),
    "unreserved_isl": scenario(replace(TIGHT, scheduler_reserve_full_isl=False), *LONG),
    "reserved_isl": scenario(TIGHT, *LONG),
    "watermark": scenario(replace(TIGHT, watermark=50), *BACKLOG),
    "prefill_interval": scenario(
        replace(SMALL, prefill_schedule_interval=4),
        text(5, 12),
        text(5, 3, 1),
        events=(Arrive(0), Arrive(1, 1)),
    ),
    "prefill_interval_dp": scenario(
        replace(SMALL, prefill_schedule_interval=4, data_parallel=True),
        text(5, 12),
        text(5, 3, 1),
        events=(Arrive(0), Arrive(1, 1)),
    ),
    "dynamic_spec": scenario(replace(SMALL, speculative=DYNAMIC), *DRAFTED, text(4, 3, 2)),
    "dynamic_spec_async": scenario(
        replace(SMALL, speculative=DYNAMIC, async_scheduling=True), *DRAFTED, text(4, 5, 2)
    ),
    "dynamic_spec_ngram": scenario(
        replace(SMALL, speculative=replace(DYNAMIC, method="ngram")), *DRAFTED, text(4, 3, 2)
    ),
    "lora": scenario(
        replace(SMALL, max_loras=1),
        *ADAPTED,
        events=(Arrive(0), Arrive(1), Arrive(2), Arrive(3), Arrive(4, 1)),
    ),
    "lora_prefix": scenario(
        replace(SMALL, max_loras=2), *ADAPTED, events=tuple(Arrive(index, 4) for index in range(5))
    ),
    "lora_spec_async": scenario(
        replace(SMALL, max_loras=2, async_scheduling=True, speculative=EAGLE),
        *ADAPTED,
        *DRAFTED,
        events=tuple(Arrive(index, 1) for index in range(7)),
    ),
    "lora_preemption": scenario(
        replace(TIGHT, max_loras=2),
        *(replace(request, lora=lora) for lora, request in enumerate(BACKLOG)),
        text(20, 6, 2, lora=2),
    ),
    "pipeline": scenario(
        replace(SMALL, pipeline_parallel_size=2), text(40, 3), text(9, 6, 1), text(5, 6, 2), delays=(2, 1)
    ),
    "pipeline_preemption": scenario(replace(TIGHT, pipeline_parallel_size=3), *BACKLOG, delays=(3, 1)),
    "pipeline_free": scenario(
        replace(SMALL, pipeline_parallel_size=4, interleaving="free"), *BACKLOG, delays=(3, 0, 2, 1)
    ),
    "skip_prefix": scenario(
        TIGHT,
        text(14, 3),
        text(14, 9, skip_reading_prefix_cache=True),
        events=(Arrive(0), Arrive(1, 4), FORCED),
    ),
    "connector_sync": scenario(CONNECTED, text(13, load=Load(10)), text(9, 4, 1)),
    "connector_async": scenario(CONNECTED, text(13, load=Load(13, True, 3, undecided=1)), text(9, 6, 1)),
    "connector_mamba": scenario(
        replace(CONNECTED, kv_cache_groups=(Mamba(), Window(6), Full()), enable_prefix_caching=False),
        text(13, load=Load(10)),
        text(14, 6, 1, load=Load(12, True, 2)),
        text(9, 4, 2, send=2),
    ),
    "connector_mamba_cache": scenario(
        replace(CONNECTED, kv_cache_groups=(Full(), Mamba())),
        text(21, load=Load(17, True, 2)),
        text(21, 6, load=Load(20, True, 1)),
        text(14, 6, 1, send=2),
        events=(Arrive(0), Arrive(2), Arrive(1, 6)),
    ),
    "connector_send": scenario(CONNECTED, text(13, send=4), text(9, 4, 1, send=0)),
    "connector_failure": scenario(
        CONNECTED, text(13, load=Load(10, failed=(1,))), text(14, 4, 1, load=Load(12, True, 2, failed=(0, 2)))
    ),
    "connector_fail_policy": scenario(
        replace(CONNECTED, connector=Connector(kv_load_failure_policy="fail")),
        text(13, load=Load(10, failed=(1,))),
        text(14, 4, 1, load=Load(12, True, 2, failed=(2,))),
        text(6, 4, 2),
    ),
    "connector_abort": scenario(
        replace(CONNECTED, async_scheduling=True),
        text(13, load=Load(10, True, 6), send=2),
        text(9, 6, 1, send=3),
        events=(Arrive(0), Arrive(1), Abort(0, 2), Abort(1, 2)),
    ),
    "connector_grammar": scenario(
        replace(CONNECTED, async_scheduling=True),
        text(1, 2, grammar=Grammar(), send=0),
        events=(Arrive(0), Abort(0, 1, in_step=True)),
    ),
    "connector_preemption": scenario(
        replace(TIGHT, connector=Connector()),
        *(text(20, 12, stream, load=Load(12, True, 1), send=1) for stream in range(3)),
    ),
    "connector_salt": scenario(
        CONNECTED,
        text(13, load=Load(10), send=1, cache_salt=1),
        text(13, 6, skip_reading_prefix_cache=True, load=Load(13, True, 1), cache_salt=1),
        text(13, 4, cache_salt=2),
        events=(Arrive(0), Arrive(1, 4), Arrive(2, 4)),
    ),
    "connector_reset": scenario(
        CONNECTED,
        text(13, 9, load=Load(10)),
        text(14, 6, 1, load=Load(14, True, 6), send=4),
        events=(Arrive(0), FORCED, Arrive(1), FORCED, FORCED, Reset(12)),
    ),
    "connector_pause": scenario(
        CONNECTED,
        text(13, 9, load=Load(10)),
        text(14, 6, 1, load=Load(14, True, 6), send=4),
        events=(
            Arrive(0),
            Arrive(1),
            Pause(1, "wait", clear_cache=False),
            Resume(9),
            Pause(1, "keep", clear_cache=False),
            Resume(9),
        ),
    ),
    "encoder_loads": scenario(
        replace(VISION, ec_connector=EncoderConnector(stored=(1,))), ALBUM, PICTURE, images=(6, 8)
    ),
    "encoder_saves": scenario(
        replace(VISION, ec_connector=EncoderConnector("ec_both"), encoder=Encoder(8, 8)),
        ALBUM,
        PICTURE,
        images=(6, 8),
        events=(Arrive(0), Arrive(1, 9)),
    ),
    "encoder_fetch": scenario(
        replace(
            VISION,
            ec_connector=EncoderConnector(stored=(0, 1), latency=3),
            async_scheduling=True,
            speculative=EAGLE,
        ),
        ALBUM,
        PICTURE,
        text(9),
        images=(6, 8),
        events=(Arrive(0), Arrive(1, 2), Arrive(2)),
    ),
    "pooling": scenario(POOLING, text(48, 1), text(20, 1, 1)),
    "pooling_prefix": scenario(
        POOLING,
        text(20, 1),
        text(20, 1),
        text(20, 1, skip_reading_prefix_cache=True),
        events=(Arrive(0), Arrive(1, 4), Arrive(2, 4)),
    ),
    "pooling_async": scenario(
        replace(TIGHT, runner_type="pooling", async_scheduling=True, max_loras=2, policy="priority"),
        text(40, 1),
        text(30, 1, 1, lora=1),
        text(40, 1, priority=-1),
        text(20, 1, 2, lora=2),
        events=(Arrive(0), Arrive(1), Arrive(2, 2), Abort(1, 1, in_step=True), Arrive(3)),
        delays=(2, 0, 1),
    ),
    "pooling_free": scenario(
        replace(VISION, runner_type="pooling", async_scheduling=True, interleaving="free"),
        replace(ALBUM, max_tokens=1),
        replace(PICTURE, max_tokens=1),
        images=(6, 8),
        delays=(3, 0, 2, 1),
    ),
    "prompt_logprobs": scenario(
        SMALL,
        text(20, 3),
        text(20, 3, prompt_logprobs=True),
        text(1, 3, 1, prompt_logprobs=True),
        events=(Arrive(0), Arrive(1, 6), Arrive(2)),
    ),
    "prompt_logprobs_preemption": scenario(
        replace(TIGHT, async_scheduling=True),
        *(replace(request, prompt_logprobs=True) for request in BACKLOG),
    ),
    "prompt_logprobs_skipped": scenario(
        replace(
            VISION, max_num_batched_tokens=6, encoder=replace(VISION.encoder, disable_chunked_mm_input=True)
        ),
        Request(prompt=(Text(0, 0, 3), Image(0)), max_tokens=2),
        text(9, 2, 1, prompt_logprobs=True),
        images=(6,),
    ),
    "prompt_logprobs_spec": scenario(
        replace(SMALL, speculative=EAGLE, async_scheduling=True),
        *(replace(request, prompt_logprobs=True) for request in DRAFTED),
    ),
    "streaming": scenario(
        SMALL, *DIALOGUE, events=(Arrive(0), Arrive(1), Continue(0), Continue(0, 12), Close(0, 12))
    ),
    "streaming_early": scenario(
        replace(SMALL, max_num_seqs=1),
        *DIALOGUE,
        events=(Arrive(0), Continue(0), Continue(0), Close(0), Arrive(1)),
    ),
    "streaming_abort": scenario(
        SMALL,
        session(20, 8, more(3, 8)),
        session(6, 3, more(4, 3), stream=1),
        session(5, 2, stream=2),
        events=(
            *(Arrive(0), Arrive(1), Arrive(2), Continue(0), Abort(0, 3)),
            *(Abort(2, 3, in_step=True), Continue(1, 3), Abort(1, 1, in_step=True)),
        ),
    ),
    "streaming_async": scenario(
        replace(SMALL, async_scheduling=True),
        session(9, 6, more(3, 6), more(6, 6, eos_at=1), eos_at=2),
        text(6, 20, 1),
        events=(Arrive(0), Arrive(1), Continue(0), Continue(0, 16), Close(0, 1)),
        delays=(2, 0),
    ),
    "streaming_spec": scenario(
        replace(SMALL, speculative=EAGLE),
        session(9, 5, more(3, 5, acceptance=(2,)), more(6, 5), acceptance=(0, 1, 2)),
        text(6, 9, 1),
        events=(Arrive(0), Arrive(1), Continue(0), Continue(0, 9), Close(0, 1)),
    ),
    "streaming_preemption": scenario(
        TIGHT,
        session(20, 12, more(4, 8)),
        text(20, 12, 1),
        text(20, 12, 2),
        events=(Arrive(0), Arrive(1), Arrive(2), Continue(0), Close(0)),
    ),
    "streaming_free": scenario(
        replace(SMALL, async_scheduling=True, interleaving="free"),
        *DIALOGUE,
        events=(Arrive(0), Arrive(1), Continue(0, 2), Continue(0, 9), Close(0, 9)),
        delays=(3, 0),
    ),
    "streaming_pause": scenario(
        SMALL,
        session(9, 6, more(3, 4)),
        text(6, 8, 1),
        events=(Arrive(0), Pause(2, "abort"), Continue(0), Resume(4), Arrive(1), Close(0)),
    ),
}
"""By name; legal on every release (asynchronous drafts with grammars from 0.14 on), and quiet on the newest but for the
hazard of the asynchronous encoder cache."""

LEGAL_V2 = {
    f"{name}, V2": made
    for name, made in ((name, with_runner(made, "v2")) for name, made in LEGAL.items())
    if repair(made) == made
}
"""The same on the V2 model runner, as far as it is modelled; what a release lacks of it is rejected there."""

EVICTABLE = {
    "sync": scenario(VISION, PICTURE, images=(6,)),
    "async": scenario(replace(VISION, async_scheduling=True), PICTURE, images=(6,)),
}
"""Finding (i), PR 38907: an image that one chunk reads whole, and so is freed by the pass that schedules the read."""

LOOK_AHEAD = scenario(
    replace(VISION, speculative=EAGLE), Request(prompt=(Text(0, 0, 16), Image(0)), max_tokens=2), images=(6,)
)
"""Finding (ii): an image that starts exactly where the first chunk ends, one token ahead of the drafter."""

PUBLISHED = scenario(
    Engine(
        max_model_len=14,
        block_size=4,
        num_gpu_blocks=12,
        long_prefill_token_threshold=2,
        policy="priority",
        async_scheduling=True,
        sliding_window=2,
        speculative=Speculative("eagle", 1),
    ),
    text(2, 4),
    text(13, 1),
    text(1, 2),
    text(4, 3, priority=-1),
    events=(Arrive(0), Arrive(1, 1), Arrive(2, 1), Arrive(3, 4)),
)
"""Ledger 43569: r1 gets blocks in the pass that then preempts it for r3; their hashes stay, and r1 hits them."""

RACE = scenario(
    replace(
        SMALL,
        max_model_len=16,
        num_gpu_blocks=5,
        async_scheduling=True,
        enable_prefix_caching=False,
        connector=Connector("kv_consumer"),
    ),
    text(9, 6, stop_at=1),
    text(9, 2, 1, load=Load(8, True, 1)),
    events=(Arrive(0), Arrive(1, 2)),
)
"""r1's load gets the blocks of r0, which has stopped while its next step is in flight."""

SAME_PROMPTS = scenario(
    Engine(long_prefill_token_threshold=1, speculative=Speculative()),
    text(3, 9, eos_at=0),
    text(3, 9),
    text(1, 4, 1),
    events=(Arrive(0), Arrive(1), Arrive(2, 5)),
)
"""O1-exception-bac762cf on 0.33.0: r2 is admitted beside r1's decode. r0 has r1's prompt, and ends at once."""

KNOWN_TRUE = {
    "0.33.0": {
        ("connector_failure, V2", "O2-kv-read-mismatch-83edf930"),  # docs/findings
        ("generated 5", "O5-counter-drift-d7586260"),  # ledger 51228
        ("generated 27", "O1-exception-161f29a9"),  # ledger derived-reset
        ("generated 53", "O14-removed-while-held-f796f50f"),  # ledger 55092
        ("generated 58", "O1-exception-161f29a9"),
    }
}
"""All violations that a release shows on legal scenarios, with the scenario's name, so that nothing else passes."""
HAZARDS = {("O3", "encoder-evictable-in-flight"), ("O3", "block-reused-in-flight")}
"""(oracle, kind) of hazards that legal scenarios may show: what is given up while a step in flight uses it."""


NEWER = frozenset({"mm_uuids", "reused_ids"})
"""Features that generated scenarios leave out, so that the others stay as they were; they have tests of their own."""


def generated(count: int, lacking: Collection[str] = ()) -> dict[str, Scenario]:
    """The first `count` scenarios of the generator, with all features but NEWER and those that a release lacks."""
    drawn = frozenset(FEATURES) - NEWER
    having = drawn.difference(lacking)
    return {f"generated {seed}": restrict(generate(Random(seed), drawn), having) for seed in range(count)}

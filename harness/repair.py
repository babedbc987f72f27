"""`repair`: the nearest legal scenario to any decodable value, so that no mutation is wasted. Pure.

Legal means that vLLM's own configuration checks and its front end would let it through; each rule says whose it is.
"""

from msgspec.structs import replace

from harness.groups import (
    blocks_per_sequence,
    canonical_groups,
    groups_of,
    has_mamba,
    looks_ahead,
    state_tokens,
    states_are_cached,
)
from harness.limits import batches_in_flight, repair_limits
from harness.scenario import (
    MAX_EVENTS,
    MAX_MODEL_LEN,
    Abort,
    Arrive,
    Chunk,
    Close,
    Continue,
    Engine,
    Event,
    Image,
    Load,
    Part,
    Pause,
    Request,
    RequestEvent,
    Reset,
    Resume,
    Scenario,
    Text,
    part_length,
)


def repair(scenario: Scenario) -> Scenario:
    """The nearest legal scenario. Idempotent; the identity on legal ones."""
    images = _repair_images(scenario)
    engine = _repair_engine(scenario.engine, images if _shows_images(scenario) else ())
    if any(isinstance(event, Pause) for event in scenario.timeline):
        # DPEngineCoreProc pauses by agreement of all ranks, which is not modelled.
        engine = replace(engine, data_parallel=False)
    engine = repair_limits(engine)
    requests = tuple(_repair_request(request, engine, images) for request in scenario.requests)
    if not any(isinstance(part, Image) for request in requests for part in request.prompt):
        images = ()
    timeline = _repair_timeline(scenario.timeline, requests)
    return replace(
        scenario,
        engine=engine,
        images=images,
        requests=tuple(_only_sent(request, index, timeline) for index, request in enumerate(requests)),
        timeline=timeline,
        step_delays=scenario.step_delays if batches_in_flight(engine) > 1 else (),
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
    return 1 + sum(blocks_per_sequence(group, engine) for group in groups_of(engine))


def _repair_states(engine: Engine) -> Engine:
    """What Mamba layers allow beside them."""
    if not has_mamba(engine):
        return engine
    if not states_are_cached(engine):
        # vLLM keeps a state for each draft then, too; we model that with cached states only.
        return replace(engine, speculative=None)
    if engine.speculative is not None:
        # Hybrid models draft with a module of their own. Ours: one step at a time, on the V1 runner.
        engine = replace(
            engine,
            speculative=engine.speculative if looks_ahead(engine) else None,
            async_scheduling=False,
        )
    threshold, size = engine.long_prefill_token_threshold, state_tokens(engine)
    return replace(
        engine,
        # MambaModelConfig: chunked prefill is required; VllmConfig: a chunk can be a block.
        enable_chunked_prefill=True,
        max_num_batched_tokens=max(engine.max_num_batched_tokens, size),
        long_prefill_token_threshold=max(threshold, size) if threshold else 0,
        # The stub's states are proven on one stage of the V1 runner.
        model_runner="v1",
        pipeline_parallel_size=1,
    )


def _repair_engine(engine: Engine, images: tuple[int, ...]) -> Engine:
    if engine.connector is not None:
        # What a connector loads for a state or a chunk is its own affair; vLLM's load attention, windows included. Of
        # runners, the stub of V1 is proven with one, and without a pipeline: each stage would have a side of its own.
        engine = replace(engine, kv_cache_groups=(), model_runner="v1", pipeline_parallel_size=1)
    if reads_across(engine):
        # SchedulerConfig, VllmConfig and the scheduler's constructor: neither goes with an encoder-decoder model.
        engine = replace(
            engine,
            enable_prefix_caching=False,
            enable_chunked_prefill=False,
            speculative=None,
            connector=None,
            sliding_window=0,
            kv_cache_groups=(),
            model_runner="v1",
            pipeline_parallel_size=1,
        )
    sliding_window, groups = canonical_groups(_repair_states(engine))
    # A second time: the groups that stay say how large a state's block is.
    engine = _repair_states(replace(engine, sliding_window=sliding_window, kv_cache_groups=groups))
    if engine.pipeline_parallel_size > 1:
        # The loop takes drafts right after a dispatch, when the step is in flight: each request with drafts is then
        # scheduled for them alone. vLLM checks nothing. The V2 runner's stages hand tokens on; its stub is one stage.
        engine = replace(engine, speculative=None, model_runner="v1")
    speculative, encoder = engine.speculative, engine.encoder
    asynchronous = engine.async_scheduling and not (speculative and speculative.method == "ngram")
    # VllmConfig of 0.33: the V1 runner has no asynchronous scheduling with a pipeline.
    asynchronous = asynchronous and engine.pipeline_parallel_size == 1
    longest = max(images, default=0)
    # SchedulerConfig: max_num_batched_tokens >= max_num_seqs; without chunking also >= max_model_len.
    budget = max(engine.max_num_batched_tokens, engine.max_num_seqs)
    if not engine.enable_chunked_prefill:
        budget = max(budget, engine.max_model_len)
    if speculative is not None:
        # VllmConfig: more slots than draft tokens, or nothing can be scheduled.
        budget = max(budget, speculative.num_speculative_tokens + 1)
    if encoder is not None:
        # VllmConfig: a chunk must be able to end at a block's end, also inside an item.
        whole = encoder.disable_chunked_mm_input and not states_are_cached(engine)
        encoder = replace(encoder, disable_chunked_mm_input=whole)
        if whole:
            # MultiModalBudget refuses items that do not fit into one step.
            budget = max(budget, longest)
        # MultiModalBudget raises both limits to the longest item.
        encoder = replace(
            encoder,
            max_num_encoder_input_tokens=max(encoder.max_num_encoder_input_tokens, longest),
            encoder_cache_size=max(encoder.encoder_cache_size, longest),
            disable_chunked_mm_input=encoder.disable_chunked_mm_input or encoder.is_encoder_decoder,
        )
    threshold = engine.long_prefill_token_threshold if engine.enable_chunked_prefill else 0
    return replace(
        engine,
        max_num_batched_tokens=min(budget, MAX_MODEL_LEN),
        num_gpu_blocks=max(engine.num_gpu_blocks, blocks_needed(engine)),
        # VllmConfig: the threshold may not exceed max_model_len.
        long_prefill_token_threshold=min(threshold, engine.max_model_len),
        async_scheduling=asynchronous,
        encoder=encoder,
        # Without prefix caching there is nothing to tell, and vLLM warns.
        enable_kv_cache_events=engine.enable_kv_cache_events and engine.enable_prefix_caching,
    )


def reads_across(engine: Engine) -> bool:
    """Whether the model is an encoder-decoder one."""
    return engine.encoder is not None and engine.encoder.is_encoder_decoder


def _repair_request(request: Request, engine: Engine, images: tuple[int, ...]) -> Request:
    # The front end refuses prompts that leave no room for one output token.
    room = engine.max_model_len - 1
    prompt: list[Part] = []
    for part in request.prompt:
        if isinstance(part, Image):
            if engine.encoder is None or not images or (reads_across(engine) and prompt):
                continue
            part = Image(part.identity % len(images))
        length = part_length(part, images)
        if length > room:
            if isinstance(part, Image) or room == 0:
                continue
            part = replace(part, length=room)
            length = room
        room -= length
        prompt.append(part)
    speculative = engine.speculative
    limit = speculative.num_speculative_tokens if speculative else 0
    # SamplingParams: min_tokens <= max_tokens. The sampler masks what would end a request before that.
    min_tokens = min(request.min_tokens, request.max_tokens)
    eos_at, stop_at = (
        None if at is None or not min_tokens <= at < request.max_tokens else at
        for at in (request.eos_at, request.stop_at)
    )
    connector = engine.connector
    parts = tuple(prompt) or (Text(),)
    consumes = connector is not None and connector.kv_role != "kv_producer"
    produces = connector is not None and connector.kv_role != "kv_consumer"
    length = sum(part_length(part, images) for part in parts)
    # What a session's later turns do with a connector's blocks, or with a grammar that has ended, is not said anywhere:
    # both are left to requests of one turn. In a pipeline, the stages' own views of a turn are not modelled.
    chunks = request.chunks if connector is None and engine.pipeline_parallel_size == 1 else None
    grammar = request.grammar if chunks is None else None
    if chunks is not None:
        chunks = _repair_chunks(request, chunks, length, engine, min_tokens)
    return replace(
        request,
        prompt=parts,
        priority=request.priority if engine.policy == "priority" else 0,
        ignore_eos=request.ignore_eos and _says_eos(eos_at, chunks),
        eos_at=eos_at,
        stop_at=stop_at,
        acceptance=tuple(min(count, limit) for count in request.acceptance) if limit else (),
        min_tokens=min_tokens,
        # The front end refuses adapters if LoRA is not enabled.
        lora=request.lora if engine.max_loras else 0,
        grammar=grammar,
        chunks=chunks,
        load=_repair_load(request.load, length, engine) if consumes else None,
        send=request.send if produces else None,
    )


def _repair_chunks(
    request: Request, chunks: tuple[Chunk, ...], prompt_length: int, engine: Engine, min_tokens: int
) -> tuple[Chunk, ...]:
    """Chunks that leave room for an output token, however long the turns before them are.

    vLLM's front end looks at each chunk alone; what an engine does with more than `max_model_len` is not said.
    """
    limit = engine.speculative.num_speculative_tokens if engine.speculative else 0
    legal: list[Chunk] = []
    length = prompt_length + request.max_tokens - 1  # the last output is discarded
    for chunk in chunks:
        parts: list[Text] = []
        for part in chunk.prompt:
            room = engine.max_model_len - 1 - length - sum(kept.length for kept in parts)
            if room > 0:
                parts.append(replace(part, length=min(part.length, room)))
        if not parts:
            break
        eos_at, stop_at = (
            None if at is None or not min(min_tokens, chunk.max_tokens) <= at < chunk.max_tokens else at
            for at in (chunk.eos_at, chunk.stop_at)
        )
        acceptance = tuple(min(count, limit) for count in chunk.acceptance) if limit else ()
        legal.append(
            replace(chunk, prompt=tuple(parts), eos_at=eos_at, stop_at=stop_at, acceptance=acceptance)
        )
        length += sum(part.length for part in parts) + chunk.max_tokens - 1
    return tuple(legal)


def _only_sent(request: Request, index: int, timeline: tuple[Event, ...]) -> Request:
    """The request with those chunks only that its client sends."""
    if not request.chunks:
        return request
    sent = sum(isinstance(event, Continue) and event.request == index for event in timeline)
    chunks = request.chunks[:sent]
    return replace(
        request, chunks=chunks, ignore_eos=request.ignore_eos and _says_eos(request.eos_at, chunks)
    )


def _says_eos(eos_at: int | None, chunks: tuple[Chunk, ...] | None) -> bool:
    """Whether some turn's model says EOS, so that it can be ignored."""
    return any(at is not None for at in (eos_at, *(chunk.eos_at for chunk in chunks or ())))


def _repair_load(load: Load | None, prompt_length: int, engine: Engine) -> Load | None:
    if load is None:
        return None
    # KVConnectorBase_V1: "the largest prefix of prompt-tokens". vLLM's connectors leave one token to compute, but for
    # asynchronous loads, whose last token the scheduler computes again: of a single token, nothing would be saved (the
    # scheduler, left with none computed, would ask and load again for ever).
    whole = load.load_kv_async and prompt_length > 1
    tokens = min(load.tokens, prompt_length if whole else prompt_length - 1)
    if tokens < 1:
        return None
    return replace(
        load,
        tokens=tokens,
        latency=load.latency if load.load_kv_async else 0,
        failed=tuple(sorted(set(load.failed))),
    )


def _repair_timeline(timeline: tuple[Event, ...], requests: tuple[Request, ...]) -> tuple[Event, ...]:
    """What `_Legal` lets through; delays are handed on; who has paused resumes, and who has opened a session closes
    it.
    """
    legal = _Legal(requests)
    kept: list[Event] = []
    carried = 0
    for event in timeline if requests else ():
        event = _nearest(event, len(requests))
        if not legal.accepts(event, MAX_EVENTS - len(kept)):
            carried = min(64, carried + event.delay)
            continue
        kept.append(replace(event, delay=min(64, event.delay + carried)))
        carried = 0
    if legal.paused:
        kept.append(Resume())
    return (*kept, *(Close(request) for request in sorted(legal.open)))


def _nearest(event: Event, num_requests: int) -> Event:
    if isinstance(event, RequestEvent):
        return replace(event, request=event.request % num_requests)
    if isinstance(event, Reset) and event.cache == "encoder":
        return replace(event, reset_running_requests=False)
    return event


class _Legal:
    """Each request arrives at most once, and is aborted at most once, after it arrived. Pauses do not nest. A session's
    client sends each chunk once, and nothing after its end or its abort. Pauses and sessions leave room in the timeline
    for their ends.
    """

    def __init__(self, requests: tuple[Request, ...]) -> None:
        self.paused = False
        self.open: dict[int, int] = {}
        """Sessions, and how many chunks each has left to send."""
        self._requests = requests
        self._arrived: set[int] = set()
        self._aborted: set[int] = set()

    def accepts(self, event: Event, room: int) -> bool:
        """Whether the event is legal here; what it changes is remembered then."""
        if not self._possible(event) or room - 1 < self.paused + len(self.open) + self._adds(event):
            return False
        if isinstance(event, Resume | Pause):
            self.paused = isinstance(event, Pause)
        elif isinstance(event, Arrive):
            self._arrived.add(event.request)
            chunks = self._requests[event.request].chunks
            if chunks is not None:
                self.open[event.request] = len(chunks)
        elif isinstance(event, Abort):
            self._aborted.add(event.request)
            self.open.pop(event.request, None)
        elif isinstance(event, Continue):
            self.open[event.request] -= 1
        elif isinstance(event, Close):
            del self.open[event.request]
        return True

    def _possible(self, event: Event) -> bool:
        match event:
            case Resume():
                return self.paused
            case Pause():
                return not self.paused
            case Arrive():
                return event.request not in self._arrived
            case Abort():
                return event.request in self._arrived and event.request not in self._aborted
            case Continue():
                return self.open.get(event.request, 0) > 0
            case Close():
                return event.request in self.open
        return True

    def _adds(self, event: Event) -> int:
        """Events that this one makes necessary, less those that it makes unnecessary."""
        if isinstance(event, Arrive):
            return self._requests[event.request].chunks is not None
        if isinstance(event, Resume):
            return -1
        if isinstance(event, Abort | Close):
            return -(event.request in self.open)
        return isinstance(event, Pause)

"""`repair`: the nearest legal scenario to any decodable value, so that no mutation is wasted. Pure.

Legal means that vLLM's own configuration checks and its front end would let it through; each rule says whose it is.
"""

from itertools import pairwise

from msgspec.structs import replace

from harness.engine_repair import repair_engine
from harness.groups import (
    has_mamba,
    reads_across,
    states_are_cached,
)
from harness.limits import batches_in_flight, repair_limits
from harness.scenario import (
    Chunk,
    Continue,
    EncoderConnector,
    Engine,
    Event,
    Image,
    Load,
    Part,
    Pause,
    Request,
    Resized,
    Scenario,
    Text,
    part_length,
)
from harness.timeline import repair_timeline


def repair(scenario: Scenario) -> Scenario:
    """The nearest legal scenario. Idempotent; the identity on legal ones."""
    images = _repair_images(scenario)
    scenario = replace(scenario, requests=_repair_names(scenario, images))
    engine = repair_engine(scenario.engine, _lengths(scenario, images))
    if any(isinstance(event, Pause) for event in scenario.timeline):
        # DPEngineCoreProc pauses by agreement of all ranks, which is not modelled.
        engine = replace(engine, data_parallel=False)
    engine = repair_limits(engine)
    requests = _repair_ids(
        tuple(_repair_request(request, engine, images) for request in scenario.requests), engine
    )
    if not any(isinstance(part, Image) for request in requests for part in request.prompt):
        images = ()
    if engine.ec_connector is not None:
        engine = replace(engine, ec_connector=_repair_stored(engine.ec_connector, len(images)))
    timeline = repair_timeline(scenario.timeline, requests)
    return replace(
        scenario,
        engine=engine,
        images=images,
        requests=tuple(_only_sent(request, index, timeline) for index, request in enumerate(requests)),
        timeline=timeline,
        step_delays=scenario.step_delays if batches_in_flight(engine) > 1 else (),
    )


def _lengths(scenario: Scenario, images: tuple[int, ...]) -> tuple[int, ...]:
    """Lengths that items can have; none if no request shows one."""
    shown = [part for request in scenario.requests for part in request.prompt if isinstance(part, Image)]
    return (*images, *(part.length for part in shown if isinstance(part, Resized))) if shown else ()


def _longest_item(engine: Engine) -> int:
    """An item must leave room for one text token before or after it and for one output token."""
    return max(1, engine.max_model_len - 2)


def _repair_images(scenario: Scenario) -> tuple[int, ...]:
    longest = _longest_item(scenario.engine)
    return tuple(min(length, longest) for length in scenario.images)


def _repair_names(scenario: Scenario, images: tuple[int, ...]) -> tuple[Request, ...]:
    """A name is of several lengths only if no item of it lies right beside another item.

    Up to 0.18 a block's hash does not say where in the block an item begins: two of one name side by side are the same
    there as one that is as long as both. Whoever names items so breaks a promise himself. An encoder-decoder model's
    items are not kept by name; what a connector holds under a name is of one length.
    """
    engine = scenario.engine
    of_one_length = reads_across(engine) or engine.ec_connector is not None
    if not any(isinstance(part, Resized) for request in scenario.requests for part in request.prompt):
        return scenario.requests
    touching = {
        part.identity % max(1, len(images))
        for request in scenario.requests
        for pair in pairwise(request.prompt)
        if all(isinstance(part, Image) for part in pair)
        for part in pair
        if isinstance(part, Image)
    }

    def named(part: Part) -> Part:
        if not isinstance(part, Resized) or not images:
            return part
        identity = part.identity % len(images)
        length = min(part.length, _longest_item(scenario.engine))
        if of_one_length or identity in touching or length == images[identity]:
            return Image(identity)
        return Resized(identity, length)

    return tuple(replace(r, prompt=tuple(map(named, r.prompt))) for r in scenario.requests)


def _repair_stored(connector: EncoderConnector, num_images: int) -> EncoderConnector:
    stored = tuple(sorted({image for image in connector.stored if image < num_images}))
    return replace(connector, stored=stored, latency=connector.latency if stored else 0)


def _repair_request(request: Request, engine: Engine, images: tuple[int, ...]) -> Request:
    # The front end refuses prompts that leave no room for one output token, of which a pooling model has none.
    pools = engine.runner_type == "pooling"
    room = engine.max_model_len - (not pools)
    if pools:
        # PoolingParams know nothing of all this.
        request = replace(
            request,
            max_tokens=1,
            ignore_eos=False,
            eos_at=None,
            stop_at=None,
            grammar=None,
            min_tokens=0,
            chunks=None,
            prompt_logprobs=False,
        )
    prompt: list[Part] = []
    for part in request.prompt:
        if isinstance(part, Image):
            if engine.encoder is None or not images or (reads_across(engine) and prompt):
                continue
            part = replace(part, identity=part.identity % len(images))
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
        # The V2 runner and a pipeline's last stage gather them otherwise; a session's turns have prompts of their own.
        prompt_logprobs=request.prompt_logprobs
        and engine.model_runner == "v1"
        and engine.pipeline_parallel_size == 1
        and chunks is None,
        # vLLM's connectors find nothing for a request that reads no cached prefix, as one with prompt logprobs.
        load=_repair_load(request.load, length, engine) if consumes and not request.prompt_logprobs else None,
        send=request.send if produces else None,
    )


def _repair_ids(requests: tuple[Request, ...], engine: Engine) -> tuple[Request, ...]:
    """Ids that are used again are of plain requests: what a grammar's compilation, a session or a connector's transfer
    outlives of its request is not told apart from what comes after it.
    """

    def plain(request: Request) -> bool:
        return engine.connector is None and request.grammar is None and request.chunks is None

    def repaired(index: int, request: Request) -> Request:
        first = request.same_id_as
        if first is None or (
            first < len(requests)
            and first != index
            and requests[first].same_id_as is None
            and plain(request)
            and plain(requests[first])
        ):
            return request
        return replace(request, same_id_as=None)

    return tuple(repaired(index, request) for index, request in enumerate(requests))


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
    # A state cannot be computed again from the state after itself: NixlConnector leaves a token, too.
    whole = load.load_kv_async and prompt_length > 1 and not has_mamba(engine)
    # The V1 runner moves cached states before a load that is ordered with the step begins; vLLM's connectors load
    # states beside the steps only.
    asynchronous = load.load_kv_async or states_are_cached(engine)
    tokens = min(load.tokens, prompt_length if whole else prompt_length - 1)
    if tokens < 1:
        return None
    return replace(
        load,
        tokens=tokens,
        load_kv_async=asynchronous,
        latency=load.latency if asynchronous else 0,
        # Where a state has failed there is none to go on from, and a connector says so of the request, not of blocks.
        failed=() if has_mamba(engine) else tuple(sorted(set(load.failed))),
    )

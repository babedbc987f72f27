"""The nearest legal engine: what vLLM's configuration checks refuse, and what our stub is not proven for. Pure."""

from msgspec.structs import replace

from harness.groups import (
    blocks_needed,
    canonical_groups,
    has_mamba,
    looks_ahead,
    reads_across,
    scaled,
    state_tokens,
    states_are_cached,
)
from harness.scenario import MAX_GROUPS, MAX_MODEL_LEN, Engine, Full, Mamba


def repair_engine(engine: Engine, images: tuple[int, ...]) -> Engine:
    """The nearest legal engine for items of these lengths (embeddings each); limits of `harness.limits` apart."""
    engine = _repair_model(_repair_connector(engine))
    sliding_window, groups = canonical_groups(_repair_states(engine))
    # A second time: the groups that stay say how large a state's block is.
    engine = _repair_states(replace(engine, sliding_window=sliding_window, kv_cache_groups=groups))
    if engine.pipeline_parallel_size > 1:
        # The loop takes drafts right after a dispatch, when the step is in flight: each request with drafts is then
        # scheduled for them alone. vLLM checks nothing. The V2 runner's stages hand tokens on; its stub is one stage.
        engine = replace(engine, speculative=None, model_runner="v1")
    return _repair_budgets(engine, max(images, default=0))


def _repair_connector(engine: Engine) -> Engine:
    """What a KV connector allows beside it."""
    if engine.connector is None:
        return engine
    # The stub is proven without a pipeline, of which each stage would have a side of its own, with blocks of one
    # size, and with a group that says whether what is sent is whole.
    groups = tuple(scaled(group, 1) for group in engine.kv_cache_groups)
    if states_are_cached(engine):
        # 0.24 to 0.27 take the hit of full attention for all groups', so that the state always has to be loaded;
        # what of a window would have to be, is not said.
        groups = tuple(group for group in groups if isinstance(group, Full | Mamba))
    groups += (Full(),) * (bool(groups) and not any(isinstance(group, Full) for group in groups))
    engine = replace(engine, kv_cache_groups=groups[-MAX_GROUPS:], pipeline_parallel_size=1)
    return replace(engine, speculative=None) if has_mamba(engine) else engine


def _repair_model(engine: Engine) -> Engine:
    """What a pooling, an encoder-decoder and a multimodal model allow beside them."""
    if engine.runner_type == "pooling":
        # Drafts are of what is generated. Of runners, the stub of V1 is proven, on one stage; what a connector has of a
        # pooling model's prompts is modelled for generative ones only.
        engine = replace(
            engine, speculative=None, connector=None, model_runner="v1", pipeline_parallel_size=1
        )
    if reads_across(engine):
        # SchedulerConfig, VllmConfig and the scheduler's constructor: neither goes with an encoder-decoder model.
        engine = replace(
            engine,
            enable_prefix_caching=False,
            enable_chunked_prefill=False,
            speculative=None,
            connector=None,
            ec_connector=None,
            sliding_window=0,
            kv_cache_groups=(),
            model_runner="v1",
            pipeline_parallel_size=1,
            runner_type="generate",
        )
    if engine.ec_connector is not None:
        # Without a multimodal model there is nothing to load. The V2 runner has it from 0.28 on; its stub has not.
        connector = engine.ec_connector if engine.encoder is not None else None
        engine = replace(engine, ec_connector=connector, model_runner="v1")
    return engine


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


def _repair_budgets(engine: Engine, longest: int) -> Engine:
    """What a step, the encoder and the pool must have room for; `longest` is the longest item, in embeddings."""
    speculative, encoder = engine.speculative, engine.encoder
    asynchronous = engine.async_scheduling and not (speculative and speculative.method == "ngram")
    # VllmConfig refuses asynchronous scheduling with a pipeline up to 0.14, and from 0.31 with the V1 runner. Between
    # them, and with V2, it is legal and not modelled.
    asynchronous = asynchronous and engine.pipeline_parallel_size == 1
    # SchedulerConfig: max_num_batched_tokens >= max_num_seqs; without chunking also >= max_model_len.
    budget = max(engine.max_num_batched_tokens, engine.max_num_seqs)
    if not engine.enable_chunked_prefill:
        budget = max(budget, engine.max_model_len)
    if speculative is not None:
        # VllmConfig: more slots than draft tokens, or nothing can be scheduled.
        budget = max(budget, speculative.num_speculative_tokens + 1)
    if encoder is not None:
        # VllmConfig: a chunk must be able to end at a block's end, also inside an item. Across there are no chunks.
        whole = encoder.disable_chunked_mm_input or encoder.is_encoder_decoder
        whole = whole and not states_are_cached(engine)
        if whole:
            # MultiModalBudget refuses items that do not fit into one step.
            budget = max(budget, longest)
        # MultiModalBudget raises both limits to the longest item.
        encoder = replace(
            encoder,
            max_num_encoder_input_tokens=max(encoder.max_num_encoder_input_tokens, longest),
            encoder_cache_size=max(encoder.encoder_cache_size, longest),
            disable_chunked_mm_input=whole,
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

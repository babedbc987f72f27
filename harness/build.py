"""Scenario.engine -> VllmConfig, KVCacheConfig, Scheduler and EngineCore, all vLLM's own.

What is replaced, and why: the model configuration (the real one inspects a model class in another process and needs a
checkpoint), the checks of SpeculativeConfig (they load a draft model) and the multimodal budget (it runs a processor);
the two encoder limits that the budget would compute are set from the scenario. What compiles grammars is scripted
(`harness.peers.grammar`). `EngineCoreProc` is made without its constructor, which starts workers, threads and sockets
and profiles memory; every attribute that its loop reads is set as the constructors of 0.12 to 0.33 set it.
"""

import copy
import functools
import queue
import types
from collections import deque
from typing import Any

from harness import compat, features, presence
from harness.groups import has_mamba, state_tokens, states_are_cached
from harness.kv_groups import grouped
from harness.limits import batches_in_flight, scheduler_fields
from harness.peers.events import Listener
from harness.peers.grammar import Grammars
from harness.scenario import Connector, EncoderConnector, Engine, Scenario
from harness.verdict import HarnessError


class Rejected(Exception):
    """vLLM refused the configuration with an error of its own: not a finding."""


def refuse_what_is_lacking(scenario: Scenario) -> None:
    """Raises Rejected if the scenario uses a feature that this release, or our stub of its runner, does not have."""
    for name in features.used(scenario):
        if (missing := presence.lacking().get(name)) is not None:
            raise Rejected(f"this vLLM has no {name}: {missing}")
    engine = scenario.engine
    if (
        engine.async_scheduling
        and engine.speculative is not None
        and any(request.grammar for request in scenario.requests)
        and not compat.grammars_go_with_async_drafts()
    ):
        raise Rejected("this vLLM's front end refuses structured outputs with asynchronous drafts")


class ModelStandIn:
    """The attributes of ModelConfig that scheduler and engine loop read, for a plain decoder.

    Attributes that a release adds are None (falsy), which is what a plain decoder has; `unknown` keeps their names
    for the drift test.
    """

    is_encoder_decoder = False
    is_hybrid = False
    is_moe = False
    is_diffusion = False
    is_quantized = False
    is_attention_free = False
    has_inner_state = False
    supports_multimodal_inputs = False
    is_multimodal_model = False
    uses_mrope = False
    uses_xdrope = False
    enable_prompt_embeds = False
    enable_return_routed_experts = False
    return_sampling_mask = False
    skip_tokenizer_init = True
    architectures = ("StandIn",)
    model = served_model_name = "stand-in"
    hf_config = types.SimpleNamespace(model_type="stand-in")

    def __init__(self, max_model_len: int, runner_type: str = "generate") -> None:
        self.max_model_len = max_model_len
        self.runner_type = runner_type
        self.unknown: set[str] = set()

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
        self.unknown.add(name)


def _speculative_config(engine: Engine) -> Any:
    from vllm.config import SpeculativeConfig

    speculative = engine.speculative
    if speculative is None:
        return None
    return compat.default_instance(
        SpeculativeConfig,
        method=speculative.method,
        num_speculative_tokens=speculative.num_speculative_tokens,
        **compat.dynamic_drafts(speculative.num_speculative_tokens_per_batch_size),
    )


def lora_config(engine: Engine) -> Any:
    """The LoRAConfig of an engine; None without LoRA."""
    from vllm.config import LoRAConfig

    return LoRAConfig(max_loras=engine.max_loras) if engine.max_loras else None


@functools.cache
def _parallel_config() -> Any:
    from vllm.config import ParallelConfig

    return ParallelConfig()


@functools.cache
def _device_config() -> Any:
    from vllm.config import DeviceConfig

    return DeviceConfig(device="cpu")


def mamba_cache(engine: Engine) -> dict[str, Any]:
    """What MambaModelConfig settles for a hybrid model."""
    return (
        {"mamba_cache_mode": "align", "mamba_block_size": state_tokens(engine)}
        if states_are_cached(engine)
        else {}
    )


@functools.lru_cache(maxsize=256)
def vllm_config(engine: Engine) -> Any:
    """The VllmConfig of an engine; cached, since it costs as much as a whole short execution (1.5-3 ms).

    Raises Rejected if vLLM's own validation refuses the values. To be called, as all that makes or runs vLLM's parts,
    with the engine's `compat.model_runner`.
    """
    from vllm.config import CacheConfig, VllmConfig

    connector: dict[str, Any] = {}  # its default is no constant in every release
    if engine.connector is not None:
        connector["kv_transfer_config"] = kv_transfer_config(engine.connector)
    try:
        config = compat.construct(
            VllmConfig,
            scheduler_config=_scheduler_config(engine),
            cache_config=compat.construct(
                CacheConfig,
                block_size=engine.block_size,
                enable_prefix_caching=engine.enable_prefix_caching,
                **mamba_cache(engine),
            ),
            parallel_config=_parallel_config(),
            device_config=_device_config(),
            **connector,
        )
    except (ValueError, AssertionError, NotImplementedError) as error:
        raise Rejected(" ".join(str(error).split())[:400]) from error
    if getattr(config, "use_v2_model_runner", False) != (engine.model_runner == "v2"):
        raise HarnessError("made without the engine's compat.model_runner")
    config.model_config = ModelStandIn(engine.max_model_len, engine.runner_type)
    config.speculative_config = _speculative_config(engine)
    if engine.model_runner == "v2" and (unsupported := compat.v2_unsupported(config)):
        # VllmConfig says so itself when it is made; it did not know the drafter then.
        raise Rejected(f"Model Runner V2 does not yet support: {', '.join(unsupported)}")
    config.lora_config = lora_config(engine)
    _settle(config, engine)
    return config


def _scheduler_config(engine: Engine) -> Any:
    from vllm.config import SchedulerConfig

    encoder = engine.encoder
    return compat.construct(
        SchedulerConfig,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_model_len=engine.max_model_len,
        is_encoder_decoder=False,
        is_multimodal_model=encoder is not None,
        enable_chunked_prefill=engine.enable_chunked_prefill,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        policy=engine.policy,
        async_scheduling=engine.async_scheduling,
        disable_chunked_mm_input=bool(encoder and encoder.disable_chunked_mm_input),
        **scheduler_fields(engine),
    )


def _settle(config: Any, engine: Engine) -> None:
    """Says again what VllmConfig settles for a model, and for devices, that it does not know."""
    from vllm.config import KVEventsConfig

    if engine.data_parallel or engine.pipeline_parallel_size > 1:
        config.parallel_config = copy.copy(config.parallel_config)
        config.parallel_config.data_parallel_size = 1 + engine.data_parallel
        config.parallel_config.pipeline_parallel_size = engine.pipeline_parallel_size
    encoder = engine.encoder
    config.scheduler_config.async_scheduling = engine.async_scheduling
    config.scheduler_config.enable_chunked_prefill = engine.enable_chunked_prefill
    config.scheduler_config.disable_chunked_mm_input = bool(encoder and encoder.disable_chunked_mm_input)
    config.scheduler_config.disable_hybrid_kv_cache_manager = False  # as on a GPU
    config.cache_config.enable_prefix_caching = engine.enable_prefix_caching
    config.cache_config.block_size = engine.block_size
    config.cache_config.num_gpu_blocks = engine.num_gpu_blocks
    if engine.ec_connector is not None:
        config.ec_transfer_config = ec_transfer_config(engine.ec_connector)
    if engine.enable_kv_cache_events:
        config.kv_events_config = KVEventsConfig(enable_kv_cache_events=True, publisher="null")
    compat.fix_kv_cache_layout(config.cache_config)


def kv_transfer_config(connector: Connector) -> Any:
    """vLLM's KVTransferConfig, which names our connector by its module."""
    from vllm.config import KVTransferConfig

    return compat.construct(
        KVTransferConfig,
        kv_connector="ScriptedConnector",
        kv_connector_module_path="harness.peers.kv_connector",
        kv_role=connector.kv_role,
        kv_load_failure_policy=connector.kv_load_failure_policy,
        kv_buffer_device="cpu",
        engine_id="schedfuzz",  # the default is random
    )


def ec_transfer_config(connector: EncoderConnector) -> Any:
    """vLLM's ECTransferConfig, which names our connector by its module."""
    from vllm.config import ECTransferConfig

    return compat.construct(
        ECTransferConfig,
        ec_connector="ScriptedEncoderConnector",
        ec_connector_module_path="harness.peers.ec_connector",
        ec_role=connector.ec_role,
        engine_id="schedfuzz",  # the default is random
    )


def kv_cache_config(engine: Engine) -> Any:
    """The KVCacheConfig of an engine; fresh, since it is mutable."""
    from vllm.v1.kv_cache_interface import KVCacheConfig

    # Grouping takes as long as a short execution, and reads little of an engine: the cache holds it by that.
    named = [
        "max_model_len",
        "block_size",
        "sliding_window",
        "kv_cache_groups",
        "speculative",
        "model_runner",
    ]
    if has_mamba(engine):
        named.append("enable_prefix_caching")
    groups = [
        copy.copy(group) for group in _groups(Engine(**{name: getattr(engine, name) for name in named}))
    ]
    return KVCacheConfig(num_blocks=engine.num_gpu_blocks, kv_cache_tensors=[], kv_cache_groups=groups)


@functools.lru_cache(maxsize=256)
def _groups(engine: Engine) -> tuple[Any, ...]:
    return grouped(engine, vllm_config(engine))


def engine_core(engine: Engine, executor: Any, grammars: Grammars | None = None) -> Any:
    """An EngineCoreProc whose scheduler is real and whose executor is `executor`. Raises Rejected as `vllm_config`."""
    from vllm.v1.engine.core import EngineCoreProc

    config = vllm_config(engine)
    caches = kv_cache_config(engine)
    block_size, hash_block_size = compat.block_sizes(caches, config)
    if hasattr(caches, "hash_block_size"):
        caches.hash_block_size = hash_block_size
    core = object.__new__(EngineCoreProc)
    core.vllm_config = config
    core.log_stats = False
    core.model_executor = executor
    core.structured_output_manager = (grammars or Grammars({})).manager(config)
    core.scheduler = compat.construct(
        config.scheduler_config.get_scheduler_cls(),
        vllm_config=config,
        kv_cache_config=caches,
        structured_output_manager=core.structured_output_manager,
        block_size=block_size,
        hash_block_size=hash_block_size,
        log_stats=False,
    )
    _fit_encoder(core.scheduler, engine)
    if engine.enable_kv_cache_events:
        core.scheduler.kv_event_publisher = Listener()
    hashes = engine.enable_prefix_caching or engine.connector is not None
    core.request_block_hasher = compat.block_hasher(hash_block_size or block_size, config) if hashes else None
    core.use_spec_decode = core.check_for_draft_tokens = engine.speculative is not None
    core.async_scheduling = engine.async_scheduling
    core.batch_queue_size = batches_in_flight(engine)
    core.batch_queue = deque(maxlen=core.batch_queue_size) if core.batch_queue_size > 1 else None
    core.step_fn = core.step if core.batch_queue is None else core.step_with_batch_queue
    core.aborts_queue = queue.Queue()
    core.is_ec_consumer = True
    core.is_ec_producer = False
    core.is_mm_encoder_only = False
    core.is_pooling_model = engine.runner_type == "pooling"
    core._pooler_config_logged = True  # from 0.33; it says once what is asked of a pooler
    core.mm_receiver_cache = None
    core._weight_version = "default"
    core._idle_state_callbacks = []
    core._scheduler_paused = False  # 0.16
    core.abort_requests = functools.partial(_abort_in_order, core)
    if engine.data_parallel:
        compat.pace_prefills_as_a_rank(core)
    # EngineCoreProc's
    core.output_queue = queue.Queue()
    core.engines_running = False
    core.reject_new_requests = False
    return core


def _fit_encoder(scheduler: Any, engine: Engine) -> None:
    """What the scheduler's constructor takes from the multimodal budget."""
    from vllm.v1.core import encoder_cache_manager

    encoder = engine.encoder
    if encoder is None:
        return
    scheduler.is_encoder_decoder = encoder.is_encoder_decoder
    manager = "EncoderDecoderCacheManager" if encoder.is_encoder_decoder else "EncoderCacheManager"
    make = getattr(encoder_cache_manager, manager)
    scheduler.encoder_cache_manager = make(cache_size=encoder.encoder_cache_size)
    scheduler.max_num_encoder_input_tokens = encoder.max_num_encoder_input_tokens


def _abort_in_order(core: Any, request_ids: list[str]) -> None:
    """One call a request. Those of one call are freed in the order of a set of strings, which is another one in every
    process; this is one of its orders. (A pause that aborts takes all requests at once, in order.)
    """
    for request in request_ids:
        type(core).abort_requests(core, [request])

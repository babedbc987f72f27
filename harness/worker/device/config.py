"""Scenario.engine -> the VllmConfig and KVCacheConfig of a worker that runs our network.

The scheduler has a configuration of its own (`harness.build`), the same for every worker; the two agree on every
number that both read. A ModelConfig is real here: the runner asks it more than a stand-in could know. It reads a
`config.json` of ours, and finds our classes in vLLM's registry; nothing is downloaded and no class is
inspected in another process.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import build, compat
from harness.groups import groups_of, looks_ahead, scale_of
from harness.model import VOCABULARY
from harness.scenario import MAX_GROUPS, MAX_MODEL_LEN, Chunked, Engine, Full, Group, Mamba, Window
from harness.worker.device.integers import LIMBS

LOADER = "schedfuzz"
WIDTH = 8
"""Hidden size: a fingerprint's limbs, or an embedding's row, and room."""


def device_type() -> str:
    """`cpu` or `cuda`, as the active platform says."""
    from vllm.platforms import current_platform

    return str(current_platform.device_type)


def architecture(engine: Engine) -> str:
    """Which of our networks an engine needs."""
    pools = engine.runner_type == "pooling"
    return "Schedfuzz" + "Image" * bool(engine.encoder) + "Pooling" * pools + "Target"


CHECKPOINT = Path(__file__).parent / "checkpoint"
"""A model without weights. Its `config.json` says a type that transformers knows, of which nothing is used; vLLM puts
in the rest (`_settings`) when it reads the file."""


def _settings(architecture: str) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "hidden_size": WIDTH,
        "intermediate_size": WIDTH,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": WIDTH,
        "num_hidden_layers": 1,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 2 * MAX_MODEL_LEN,
        "torch_dtype": "float32",
    }


def _model_config(name: str, engine: Engine, runner: str = "generate") -> Any:
    from vllm.config import ModelConfig

    config = ModelConfig(
        model=str(CHECKPOINT),
        tokenizer=str(CHECKPOINT),
        hf_overrides=_settings(name),
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=engine.max_model_len,
        enforce_eager=True,
        seed=0,
        runner=runner,
    )
    config.hf_config.schedfuzz_groups = groups_of(engine)
    config.hf_config.schedfuzz_images = engine.encoder is not None
    return config


def vllm_config(engine: Engine) -> Any:
    """The worker's VllmConfig; vLLM's own errors go through."""
    from vllm.config import CacheConfig, DeviceConfig, LoadConfig, ParallelConfig, SchedulerConfig, VllmConfig

    connector: dict[str, Any] = {}
    if engine.connector is not None:
        connector["kv_transfer_config"] = build.kv_transfer_config(engine.connector)
    config = compat.construct(
        VllmConfig,
        model_config=_model_config(architecture(engine), engine, engine.runner_type),
        scheduler_config=compat.construct(
            SchedulerConfig,
            max_num_seqs=engine.max_num_seqs,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            max_model_len=engine.max_model_len,
            is_encoder_decoder=False,
            is_multimodal_model=engine.encoder is not None,
            enable_chunked_prefill=engine.enable_chunked_prefill,
            async_scheduling=engine.async_scheduling,
        ),
        cache_config=compat.construct(
            CacheConfig,
            block_size=engine.block_size,
            enable_prefix_caching=engine.enable_prefix_caching,
            **build.mamba_cache(engine),
        ),
        parallel_config=ParallelConfig(),
        device_config=DeviceConfig(device=device_type()),
        load_config=LoadConfig(load_format=LOADER),
        **connector,
        lora_config=build.lora_config(engine),
    )
    # What VllmConfig settles for a platform (no asynchronous scheduling on a CPU), said again.
    config.scheduler_config.async_scheduling = engine.async_scheduling
    config.scheduler_config.disable_hybrid_kv_cache_manager = False
    config.cache_config.block_size = engine.block_size
    config.cache_config.num_gpu_blocks = engine.num_gpu_blocks
    if engine.ec_connector is not None:
        config.ec_transfer_config = build.ec_transfer_config(engine.ec_connector)
    compat.fix_kv_cache_layout(config.cache_config)
    config.speculative_config = _speculative_config(engine, config)
    return config


def _speculative_config(engine: Engine, config: Any) -> Any:
    from vllm.config import SpeculativeConfig

    speculative = engine.speculative
    if speculative is None:
        return None
    drafter = {"eagle": "SchedfuzzDrafter", "mtp": "SchedfuzzMtpDrafter", "ngram": None}[speculative.method]
    count = speculative.num_speculative_tokens
    return compat.default_instance(
        SpeculativeConfig,
        method=speculative.method,
        num_speculative_tokens=count,
        **compat.dynamic_drafts(speculative.num_speculative_tokens_per_batch_size),
        target_model_config=config.model_config,
        target_parallel_config=config.parallel_config,
        draft_model_config=drafter and _model_config(drafter, engine, "draft"),
        draft_parallel_config=config.parallel_config,
        speculative_token_tree=str([(0,) * (depth + 1) for depth in range(count)]),
    )


DRAFTER = MAX_GROUPS
"""The number of the drafter's memory; those of the target have the number of their group."""


def layer(number: int) -> str:
    """The name of a memory; the number in it is what vLLM orders caches by."""
    return f"model.layers.{number}.memory"


def groups_in(config: Any) -> tuple[Group, ...]:
    """The groups that the model of a VllmConfig was made for."""
    return tuple(config.model_config.hf_config.schedfuzz_groups)


def last_full(groups: Sequence[Group]) -> int:
    """Index of the group that the drafter's memory is in."""
    return max(at for at, group in enumerate(groups) if isinstance(group, Full))


def spec_of(config: Any, group: Group) -> Any:
    """The KV cache spec of a memory: pages of one size, for heads of `LIMBS` floats or more, key and value."""
    import torch
    from vllm.v1.kv_cache_interface import (
        ChunkedLocalAttentionSpec,
        FullAttentionSpec,
        MambaSpec,
        SlidingWindowSpec,
    )

    heads = max(map(scale_of, groups_in(config)))
    if isinstance(group, Mamba):
        # One state, as large as a page of attention, of a type for which vLLM prepares no kernels of its own.
        mode = getattr(config.cache_config, "mamba_cache_mode", "none")
        return compat.construct(
            MambaSpec,
            block_size=config.model_config.max_model_len
            if mode == "none"
            else config.cache_config.block_size * scale_of(group),
            shapes=((2 * LIMBS * config.cache_config.block_size * heads,),),
            dtypes=(torch.float32,),
            mamba_type=compat.linear_attention(),
            mamba_cache_mode=mode,
        )
    common = {
        "block_size": config.cache_config.block_size * scale_of(group),
        "num_kv_heads": 1,
        "head_size": LIMBS * heads // scale_of(group),
        "dtype": torch.float32,
    }
    if isinstance(group, Window):
        return compat.construct(SlidingWindowSpec, sliding_window=group.size, **common)
    if isinstance(group, Chunked):
        return compat.construct(ChunkedLocalAttentionSpec, attention_chunk_size=group.size, **common)
    return compat.construct(FullAttentionSpec, **common)


def kv_cache_config(engine: Engine, config: Any) -> Any:
    """The groups of `harness.kv_groups`, one layer each and the drafter's, and memory: as in vLLM's own grouping, the
    i-th layers of all groups share one tensor, since a block belongs to one group at a time.
    """
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

    groups = groups_of(engine)
    names = [[layer(number)] for number in range(len(groups))]
    if looks_ahead(engine):
        names[last_full(groups)].append(layer(DRAFTER))
    page = spec_of(config, groups[0]).page_size_bytes
    return KVCacheConfig(
        num_blocks=engine.num_gpu_blocks,
        kv_cache_tensors=compat.kv_cache_tensors(names, page, engine.num_gpu_blocks),
        kv_cache_groups=[
            KVCacheGroupSpec(layer_names=layers, kv_cache_spec=spec_of(config, group))
            for layers, group in zip(names, groups, strict=True)
        ],
    )

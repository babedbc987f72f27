"""Which optional features (`harness.features`) the loaded vLLM has, detected from its code as in `compat`."""

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping

from harness.compat import DYNAMIC_DRAFTS, accepts, loads_are_whole_blocks, optional
from harness.runner_source import worker_source


def _has_field(config: str, field: str) -> Callable[[], bool]:
    """Whether a class of vllm.config has a field."""
    return lambda: field in accepts(getattr(importlib.import_module("vllm.config"), config))


def _scheduler_has(field: str) -> tuple[Callable[[], bool], str]:
    """An optional feature that is a field of SchedulerConfig."""
    return _has_field("SchedulerConfig", field), f"SchedulerConfig.{field}"


def _refuses_failed_blocks_of_groups() -> bool:
    """From 0.31 on."""
    scheduler = optional("vllm.v1.core.sched.scheduler", "Scheduler")
    names = scheduler._handle_invalid_blocks.__code__.co_names
    return "kv_cache_groups" in names and "RuntimeError" in names


def _makes_ids_unique() -> bool:
    source = worker_source("../engine/input_processor.py")  # importing it takes what a front end needs
    return "def assign_request_id(" in source.read_text(encoding="utf-8")


def _asserts_no_loads_of_states() -> bool:
    """ "External KV connector is not verified yet"; up to 0.22."""
    split = getattr(optional("vllm.v1.core.sched.scheduler", "Scheduler"), "_mamba_block_aligned_split", None)
    return split is not None and any("not verified" in str(value) for value in split.__code__.co_consts)


def _any_mixture_of_groups() -> bool:
    """From 0.14 on the coordinator sorts groups into any number of `attention_groups`."""
    coordinator = optional("vllm.v1.core.kv_cache_coordinator", "HybridKVCacheCoordinator")
    verify = getattr(coordinator, "verify_and_split_kv_cache_groups", None)
    return verify is not None and "attention_groups" in verify.__code__.co_names


def _hashes_for_any_state_block() -> bool:
    """Not from 0.20 to 0.27: hashes are for the largest blocks then, and the coordinator asserts that there are no
    smaller ones.
    """
    resolve = optional("vllm.v1.core.kv_cache_utils", "resolve_kv_cache_block_sizes")
    if resolve is None:
        return True
    inner = (code for code in resolve.__code__.co_consts if inspect.iscode(code))
    return any("mamba_cache_mode" in code.co_names for code in (resolve.__code__, *inner))


def _has_v2_runner() -> bool:
    """Whether a configuration can have the V2 model runner (from 0.22), with parts for CPUs (from 0.23)."""
    from vllm.config import VllmConfig

    return hasattr(VllmConfig, "use_v2_model_runner") and worker_source("cpu/buffer_utils.py").is_file()


_EC_BASE = "vllm.distributed.ec_transfer.ec_connector.base"


def _has_both_roles() -> bool:
    roles = optional("vllm.config.ec_transfer", "ECRole")
    return "ec_both" in str(roles)


_PRESENT: Mapping[str, tuple[Callable[[], bool], str]] = {
    "groups": (
        _any_mixture_of_groups,
        "its HybridKVCacheCoordinator takes full attention and one other kind only",
    ),
    "encoder_decoder": (
        lambda: optional("vllm.v1.core.encoder_cache_manager", "EncoderDecoderCacheManager") is not None,
        "EncoderDecoderCacheManager (from 0.13)",
    ),
    "mamba_block_sizes": (
        _hashes_for_any_state_block,
        "cached Mamba states with larger blocks than another group's stop it from starting",
    ),
    "mamba_cache": (
        lambda: optional("vllm.v1.worker.mamba_utils", "preprocess_mamba") is not None,
        'its Mamba states cannot be cached at the ends of blocks (mamba_cache_mode="align")',
    ),
    "pause": (
        lambda: hasattr(optional("vllm.v1.core.sched.scheduler", "Scheduler"), "set_pause_state"),
        "Scheduler.set_pause_state (from 0.17)",
    ),
    "encoder_reset": (
        lambda: hasattr(optional("vllm.v1.engine.core", "EngineCore"), "reset_encoder_cache"),
        "EngineCore.reset_encoder_cache (from 0.16)",
    ),
    "load_failure_policy": (
        _has_field("KVTransferConfig", "kv_load_failure_policy"),
        "KVTransferConfig.kv_load_failure_policy",
    ),
    "hybrid_connector": (
        lambda: not loads_are_whole_blocks(),
        "the scheduler takes a connector's asynchronous load for one of a single KV cache group",
    ),
    "connector_states": (
        lambda: not _asserts_no_loads_of_states(),
        "its scheduler asserts that nothing is loaded beside cached Mamba states (up to 0.22)",
    ),
    "streaming": (
        lambda: hasattr(optional("vllm.v1.request", "RequestStatus"), "WAITING_FOR_STREAMING_REQ"),
        "RequestStatus.WAITING_FOR_STREAMING_REQ (from 0.15)",
    ),
    "reused_ids": (
        lambda: not _makes_ids_unique(),
        "its front end adds something random to every id (InputProcessor.assign_request_id, from 0.14)",
    ),
    "hybrid_failed_load": (
        lambda: not _refuses_failed_blocks_of_groups(),
        "the scheduler says that blocks of a failed load cannot be told with several KV cache groups",
    ),
    "v2_runner": (
        _has_v2_runner,
        "its V2 model runner, if it has one, does not run on a CPU, so that no stub of it was ever proven",
    ),
    "v2_ngram": (
        lambda: worker_source("gpu/spec_decode/ngram/speculator.py").is_file(),
        "its V2 model runner has no n-gram search",
    ),
    "active_seqs": _scheduler_has("max_num_active_seqs"),
    "adaptive_prefill": _scheduler_has("long_prefill_token_threshold_adaptive"),
    "unreserved_isl": _scheduler_has("scheduler_reserve_full_isl"),
    "watermark": _scheduler_has("watermark"),
    "prefill_interval": _scheduler_has("prefill_schedule_interval"),
    "dynamic_spec": (
        _has_field("SpeculativeConfig", DYNAMIC_DRAFTS),
        f"SpeculativeConfig.{DYNAMIC_DRAFTS} (from 0.24)",
    ),
    "ec_both": (_has_both_roles, "an encoder-cache connector cannot save and load (from 0.17)"),
    "ec_latency": (
        lambda: hasattr(optional(_EC_BASE, "ECConnectorBase"), "ensure_cache_available"),
        "ECConnectorBase.ensure_cache_available (from 0.23)",
    ),
}
"""Optional features (harness.features) by name: whether the loaded vLLM has it, and what it must have for that."""


@functools.cache
def lacking() -> Mapping[str, str]:
    """Optional features that this release lacks, each with what is missing in words."""
    return {name: missing for name, (present, missing) in _PRESENT.items() if not present()}

"""The only place where vLLM releases differ for us: one small function a difference, each naming the release.

Differences are detected from the loaded code (signatures, fields, the syntax tree of the runner), not from version
numbers, so that a source tree between two releases is treated as what it is.
"""

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness.runner_source import runner_traits as runner_traits
from harness.runner_source import runner_traits_v2 as runner_traits_v2


@functools.cache
def loads_are_whole_blocks() -> bool:
    """Whether the scheduler takes an asynchronous load for all slots of the blocks of one group; up to 0.17."""
    from vllm.v1.core.sched.scheduler import Scheduler

    return "block_ids" in Scheduler._update_waiting_for_remote_kv.__code__.co_varnames


def construct(cls: Callable[..., Any], **kwargs: Any) -> Any:
    """`cls(**kwargs)` without the keyword arguments that this release does not know."""
    accepted = accepts(cls)
    return cls(**{name: value for name, value in kwargs.items() if name in accepted})


@functools.cache
def accepts(cls: Callable[..., Any]) -> frozenset[str]:
    """Names that the constructor takes; a subclass that passes everything on (AsyncScheduler) takes its base's."""
    parameters = inspect.signature(cls).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        for base in inspect.getmro(cls)[1:] if isinstance(cls, type) else ():
            if "__init__" in vars(base):
                return accepts(base) | frozenset(parameters)
    return frozenset(parameters)


def default_instance(cls: type[Any], **values: Any) -> Any:
    """An instance of a (pydantic) dataclass with its plain defaults, without running its checks.

    For SpeculativeConfig, whose checks load a draft model.
    """
    instance = object.__new__(cls)
    for field in dataclasses.fields(cls):
        default: Any = None
        if field.default is not dataclasses.MISSING:
            default = field.default
        elif field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        # Fields declared with pydantic's Field(...) carry a FieldInfo as their default.
        if type(default).__name__ == "FieldInfo":
            default = default.get_default(call_default_factory=True)
            default = None if type(default).__name__ == "PydanticUndefinedType" else default
        object.__setattr__(instance, field.name, default)
    for name, value in values.items():
        object.__setattr__(instance, name, value)
    return instance


def optional(module: str, name: str) -> Any:
    """`module.name`, or None where this release lacks either."""
    try:
        return getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and lacks something itself
        return None


def block_sizes(kv_cache_config: Any, vllm_config: Any) -> tuple[int, int | None]:
    """(scheduler block size, hash block size); one size for both up to 0.19, resolved per group in later releases."""
    resolve = optional("vllm.v1.core.kv_cache_utils", "resolve_kv_cache_block_sizes")
    if resolve is None:
        return vllm_config.cache_config.block_size, None
    sizes = resolve(kv_cache_config, vllm_config)
    return int(sizes[0]), int(sizes[1])


def block_hasher(hash_block_size: int, vllm_config: Any) -> Any:
    """vLLM's request block hasher; hashes cover a look-ahead token for EAGLE from 0.33."""
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    function = get_hash_fn_by_name(vllm_config.cache_config.prefix_caching_hash_algo)
    init_none_hash(function)
    arguments: list[Any] = [hash_block_size, function]
    if "num_hash_lookahead_tokens" in accepts(get_request_block_hasher):
        arguments.append(vllm_config.num_hash_lookahead_tokens)
    return get_request_block_hasher(*arguments)


def set_eos(sampling_params: Any, eos_token_id: int | None) -> dict[str, Any]:
    """Makes a request stop at EOS: on the sampling parameters, if it has any, from 0.17; an argument of Request
    before."""
    from vllm.v1.request import Request

    if "eos_token_id" in accepts(Request):
        return {"eos_token_id": eos_token_id}
    if sampling_params is not None:
        sampling_params._eos_token_id = eos_token_id
    return {}


@functools.cache
def grammars_go_with_async_drafts() -> bool:
    """Whether the scheduler can learn drafts before it masks; up to 0.13 it cannot, and the front end refuses
    structured outputs with asynchronous drafts.
    """
    from vllm.v1.core.sched.scheduler import Scheduler

    return hasattr(Scheduler, "update_draft_token_ids_in_output")


DYNAMIC_DRAFTS = "num_speculative_tokens_per_batch_size"


def dynamic_drafts(schedule: tuple[int, ...]) -> dict[str, Any]:
    """SpeculativeConfig's schedule of draft lengths, if there is one: (first, last, drafts) for steps' sizes."""
    return (
        {DYNAMIC_DRAFTS: [(size, size, count) for size, count in enumerate(schedule, 1)]} if schedule else {}
    )


def pace_prefills_as_a_rank(core: Any) -> None:
    """Lets an engine core pace prefills as data-parallel ranks do, by `step_counter`."""
    from vllm.v1.engine.core import DPEngineCoreProc

    core.step_counter = 0
    core.prefill_schedule_interval = core.vllm_config.scheduler_config.prefill_schedule_interval
    core._should_throttle_prefills = functools.partial(DPEngineCoreProc._should_throttle_prefills, core)


def schedule(core: Any) -> Any:
    """A scheduling pass as the engine's loop asks for it: from 0.24 on it says whether prefills must wait."""
    if hasattr(core, "_should_throttle_prefills"):
        return core.scheduler.schedule(core._should_throttle_prefills())
    return core.scheduler.schedule()


def deferred_frees(scheduler: Any) -> list[Any]:
    """Lists of blocks that nobody holds and that steps in flight may still write; from 0.24."""
    return [blocks for _, blocks in getattr(scheduler, "deferred_frees", ())]


def process_aborts(core: Any) -> None:
    """Takes the aborts that arrived during a step; the loop up to 0.12 leaves them to the next input queue."""
    if hasattr(core, "_process_aborts_queue"):
        core._process_aborts_queue()


@functools.cache
def lone_request_has_no_threshold() -> bool:
    """Whether `long_prefill_token_threshold` is ignored while there is one request only; so from 0.31."""
    from vllm.v1.core.sched.scheduler import Scheduler

    return "num_eligible_reqs" in Scheduler.schedule.__code__.co_varnames


def blocks_reserved_for_decoding(scheduler: Any) -> int:
    """Blocks that must be free beside an asynchronous load's own: none up to 0.30, a method in 0.31, then a number."""
    reserved = getattr(scheduler, "_spec_decode_step_blocks", 0)
    return int(reserved() if callable(reserved) else reserved)


def transfer_results(sent: set[str], received: set[str]) -> Any:
    """What a connector's worker side answers from 0.30 on, where `get_finished` answered before."""
    results = optional("vllm.distributed.kv_transfer.kv_connector.v1.base", "KVConnectorTransferResults")
    return results(finished_sending=sent, finished_recving=received)


@functools.cache
def transfers_keep_the_engine_awake() -> bool:
    """Whether ended requests whose blocks a connector's transfer holds count in `Scheduler.has_requests`."""
    from vllm.v1.core.sched.scheduler import Scheduler

    return "connector" in Scheduler.has_finished_requests.__code__.co_names


@functools.cache
def encoder_connector_hears_ends() -> bool:
    """Whether the scheduler tells an encoder-cache connector of ended requests; from 0.26."""
    from vllm.v1.core.sched.scheduler import Scheduler

    return "ec_connector" in Scheduler._free_request.__code__.co_names


@functools.cache
def refuses_other_lengths() -> bool:
    """Whether a request ends with an error if the encoder output of an item's name has another length; from 0.31."""
    from vllm.v1.core.sched.scheduler import Scheduler

    return hasattr(Scheduler, "_reject_on_encoder_cache_embed_mismatch")


def attention_interfaces() -> tuple[Any, Any]:
    """AttentionBackend and AttentionMetadataBuilder; they moved in 0.14."""
    try:
        from vllm.v1.attention.backend import AttentionBackend, AttentionMetadataBuilder
    except ImportError:
        from vllm.attention.backends.abstract import AttentionBackend
        from vllm.v1.attention.backends.utils import AttentionMetadataBuilder
    return AttentionBackend, AttentionMetadataBuilder


def any_block_size() -> list[Any]:
    """What an attention backend without demands on block sizes answers."""
    multiple = optional("vllm.v1.attention.backend", "MultipleOf")
    multiple = multiple or optional("vllm.attention.backends.abstract", "MultipleOf")  # up to 0.13
    return [multiple(1)]


def linear_attention() -> Any:
    """The `MambaSpec.mamba_type` of linear attention: a name up to 0.20."""
    from vllm.v1.kv_cache_interface import MambaSpec

    known = MambaSpec.mamba_type
    return "linear_attention" if isinstance(known, str) else type(known).LINEAR


def mamba_block_table(table: Any, seq_lens: Any, spec: Any, mode: str) -> Any:
    """What Mamba kernels get for a group's block table, [requests, states]: the table itself where vLLM knows no other
    mode, up to 0.14.
    """
    choose = optional("vllm.v1.attention.backends.utils", "mamba_get_block_table_tensor")
    return table if choose is None else choose(table, seq_lens, spec, mode)


def fix_kv_cache_layout(cache_config: Any) -> None:
    """From 0.32 on the engine core resolves a layout that all layers obey: blocks, heads, slots, content."""
    if hasattr(cache_config, "kv_cache_layout"):
        cache_config.kv_cache_layout = "LBHNC"


def kv_cache_groups(vllm_config: Any, layers: dict[str, Any]) -> list[Any]:
    """vLLM's groups of a model's layers (spec by name). From 0.33 on what marks the drafter's group is not part of
    the grouping; releases before it know a drafter's layer by its look only, if at all, and then let all groups drop.
    """
    grouping = optional("vllm.v1.core.kv_cache_planning", "get_global_kv_cache_groups")
    if grouping is not None:
        return list(grouping(vllm_config, [layers]))
    from vllm.v1.core.kv_cache_utils import get_kv_cache_groups

    return list(get_kv_cache_groups(vllm_config, layers))


def kv_cache_tensors(groups: list[list[str]], page: int, num_blocks: int) -> list[Any]:
    """KVCacheTensors for groups of layers (by name) whose i-th layers share memory; `page` is in bytes.

    A tensor a set of layers that share it; from 0.32 on a tensor a group, placed in one allocation for all.
    """
    from vllm.v1.kv_cache_interface import KVCacheTensor

    depth = max(map(len, groups))
    size = num_blocks * page
    if "shared_by" in accepts(KVCacheTensor):
        return [
            KVCacheTensor(size=size, shared_by=[names[i] for names in groups if i < len(names)])
            for i in range(depth)
        ]
    return [
        KVCacheTensor(size=size * depth, layers=names, layer_stride=size, block_stride=page)
        for names in groups
    ]


def mtp_drafts_from_target_state() -> bool:
    """Whether an MTP module's second draft starts from the target's hidden state and not from its own; so up to 0.17.

    Outputs are right all the same, but hardly a second draft is; the stub's drafter is not that bad.
    """
    eagle = importlib.util.find_spec("vllm.v1.spec_decode.eagle")
    if eagle is None or eagle.origin is None:
        return False
    text = " ".join(Path(eagle.origin).read_text(encoding="utf-8").split())
    return 'if self.method == "mtp": hidden_states = self.hidden_states[' in text


def v2_unsupported(vllm_config: Any) -> list[str]:
    """What of a configuration the V2 model runner does not support, in vLLM's words."""
    return list(vllm_config._get_v2_model_runner_unsupported_features())


@contextlib.contextmanager
def model_runner(name: str) -> Iterator[None]:
    """Lets everything that vLLM makes and runs have the model runner `v1` or `v2`; afterwards all is as it was.

    vLLM asks the environment at each use. 0.23 to 0.32 refuse V2 where Triton cannot run; a worker here has something
    in the place of Triton's kernels.
    """
    settings = vars(importlib.import_module("vllm.config.vllm")) if name == "v2" else {}
    triton = settings.get("HAS_TRITON")
    before = os.environ.get(_V2_VARIABLE)
    os.environ[_V2_VARIABLE] = str(int(name == "v2"))
    if triton is not None:
        settings["HAS_TRITON"] = True
    try:
        yield
    finally:
        if triton is not None:
            settings["HAS_TRITON"] = triton
        if before is None:
            del os.environ[_V2_VARIABLE]
        else:
            os.environ[_V2_VARIABLE] = before


_V2_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"

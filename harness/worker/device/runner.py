"""Builds vLLM's own model runner around our network, for one engine configuration: about 10 ms on a CPU."""

import functools
import gc
import tempfile
from pathlib import Path
from typing import Any

import torch

from harness import compat
from harness.build import Rejected
from harness.scenario import Engine
from harness.worker.device import adapters, config, connector, features, ngram, streams
from harness.worker.device.kernels import launch, v1, v2_batch, v2_sampling

POISON = 54321.0
"""What fresh cache memory holds: no limb of any word that is stored, so that reading it is seen."""


def model_runner(engine: Engine) -> Any:
    """A new model runner, V1 or V2 as vLLM chooses, with poisoned caches. vLLM's own errors go through; Rejected if the
    runner does not have a feature."""
    from vllm.config import set_current_vllm_config

    _prepare()
    drafts = engine.speculative
    several = drafts is not None and drafts.method == "mtp" and drafts.num_speculative_tokens > 1
    if several and compat.mtp_drafts_from_target_state():
        raise Rejected("its MTP drafts after the first are made from the target's state (mended in 0.18)")
    settings = config.vllm_config(engine)
    v2 = getattr(settings, "use_v2_model_runner", False)
    with set_current_vllm_config(settings):
        try:
            runner = (_v2_runner_class if v2 else _runner_class)()(
                settings, torch.device(config.device_type())
            )
        except NotImplementedError as error:
            raise Rejected(f"its model runner: {error}") from error
        runner.load_model()
        caches = config.kv_cache_config(engine, settings)
        connector.join(settings, caches)
        runner.initialize_kv_cache(caches)
        if getattr(caches, "needs_kv_cache_zeroing", False) and hasattr(runner, "_init_kv_zero_meta"):
            runner._init_kv_zero_meta()  # as vLLM's Worker does
    adapters.ADAPTERS.slots = engine.max_loras
    poison(runner)
    return runner


def poison(runner: Any) -> None:
    """Makes all KV memory unwritten, behind whatever is in flight."""
    for memory in runner.vllm_config.compilation_config.static_forward_context.values():
        memory.slots.fill_(POISON)


@functools.cache
def _runner_class() -> Any:
    """The runner of CUDA deployments, on a CPU too.

    vLLM's CPU subclass refuses speculative decoding up to 0.19, and makes device buffers the host's own, which hides
    what an asynchronous copy can do wrong. Without it the same code runs in every release and on every device.
    """
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    if config.device_type() != "cpu":
        return GPUModelRunner

    class HostRunner(GPUModelRunner):  # type: ignore[misc]
        def _init_device_properties(self) -> None:
            self.num_sms = 1

        def _sync_device(self) -> None:
            """Work is done when it is issued."""

    return HostRunner


@functools.cache
def _v2_runner_class() -> Any:
    """The V2 runner of CUDA deployments. vLLM's CPU subclass adds nothing to it but a warm-up."""
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    if config.device_type() == "cpu":
        from vllm.v1.worker.cpu.buffer_utils import UvaBuffer
        from vllm.v1.worker.gpu import buffer_utils

        buffer_utils.UvaBuffer = UvaBuffer  # host memory that a device reads; here both are the host
        launch.install(v2_batch.STAND_INS)
        launch.install(v2_sampling.STAND_INS)
        features.lock_no_pages()
    ngram.install_v2()
    return GPUModelRunner


@functools.cache
def _prepare() -> None:
    """Once a process: what vLLM's Worker does before it makes a runner, and our parts."""
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment

    ngram.install()
    from harness.worker.device import loader  # imports our networks, and they the runner

    loader.register()
    adapters.install()
    features.do_without_processor()
    on_cpu = config.device_type() == "cpu"
    if on_cpu:
        _run_on_host()
    with (
        tempfile.TemporaryDirectory(
            prefix="schedfuzz-rendezvous-"
        ) as folder,  # of one process: over once it is made
        set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device=config.device_type()))),
    ):
        rendezvous = (Path(folder) / "file").as_uri()
        init_distributed_environment(1, 0, rendezvous, 0, "gloo" if on_cpu else "nccl")
        ensure_model_parallel_initialized(1, 1)
    # Older runners collect garbage while they load a model, which takes 100 ms with all of vLLM on the heap.
    gc.freeze()


def _run_on_host() -> None:
    from vllm.platforms import current_platform

    torch.set_num_threads(1)  # more cost a hundred times what they save on tensors this small
    type(current_platform).get_current_memory_usage = classmethod(lambda cls, device=None: 0.0)
    launch.install(v1.STAND_INS)
    launch.define_missing_ops()
    # From 0.23 on vLLM's own preparations for a CPU; for one, a copy to the device that locks no pages there.
    compat.optional("vllm.v1.worker.cpu.shm", "noop")
    streams.ignore()

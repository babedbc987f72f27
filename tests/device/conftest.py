"""vLLM's own model runner in the pytest process: SCHEDFUZZ_DEVICE says where it runs, SCHEDFUZZ_VLLM which one."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from conftest import activated
from harness.step import Step
from harness.target import Platform, Target, TargetError

PLATFORM = Platform(os.environ.get("SCHEDFUZZ_DEVICE") or "cpu")
on_cpu = pytest.mark.skipif(PLATFORM is not Platform.CPU, reason="names releases, which run on a CPU only")

Plant = Callable[[Any, Step], None]
"""Changes something behind a model runner's back before a step."""


@pytest.fixture(scope="session")
def device(chosen: Target) -> str:
    """Activates the vLLM under test for the device's platform; its version."""
    try:
        return activated(chosen, PLATFORM)
    except TargetError as error:
        pytest.skip(f"{error} (pytest -m device)")


@pytest.fixture
def plant(device: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[Plant], None]:
    """Calls a function with the model runner and the step before each step."""
    from harness.worker.device.worker import DeviceWorker

    run = DeviceWorker.execute_model

    def planted(change: Plant) -> None:
        def execute_model(self: Any, step: Step, scheduler_output: Any) -> Any:
            change(self._runner, step)
            return run(self, step, scheduler_output)

        monkeypatch.setattr(DeviceWorker, "execute_model", execute_model)

    return planted

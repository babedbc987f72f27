"""LoRA adapters without weights: what takes the place of vLLM's manager of them.

The runner's side, which maps the tokens of a step to adapters, stays vLLM's own; here the network reads that mapping.
"""

from typing import Any

import torch

from harness.model import adapter_value
from harness.scenario import MAX_LORAS
from harness.worker.device.integers import signed

_VALUES = torch.tensor([signed(adapter_value(lora)) for lora in range(MAX_LORAS + 1)], dtype=torch.int64)


class Adapters:
    """A runner's `lora_manager`; one network a process, so one of them."""

    def __init__(self) -> None:
        self.slots = 0
        self._tokens: tuple[int, ...] = ()

    def set_active_adapters(self, lora_requests: Any, mapping: Any) -> None:
        """vLLM's hook, before each step: adapters to load, and the adapter of each of its tokens."""
        wanted = {request.lora_int_id for request in lora_requests}
        if len(wanted) > self.slots:  # as LRUCacheWorkerLoRAManager does
            raise RuntimeError(f"Number of requested LoRAs ({len(wanted)}) is greater than {self.slots}")
        self._tokens = tuple(lora if lora in wanted else 0 for lora in map(int, mapping.index_mapping))

    def supports_tower_connector_lora(self) -> bool:
        """Encoders run without adapters."""
        return False

    def values(self, count: int, device: torch.device) -> torch.Tensor:
        """`adapter_value` of the step's first `count` tokens, padding included."""
        values = _VALUES[list((*self._tokens, *(0,) * count)[:count])]
        return values.to(device)


ADAPTERS = Adapters()


def install() -> None:
    """Lets every runner with LoRA have it, and no wrapped layers."""
    from vllm.v1.worker.lora_model_runner_mixin import LoRAModelRunnerMixin

    def load_lora_model(runner: Any, model: Any, *_: Any, **__: Any) -> Any:
        runner.lora_manager = ADAPTERS
        return model

    LoRAModelRunnerMixin.load_lora_model = load_lora_model

"""A model loader of vLLM's plug-in kind: our networks need no weights but those they are made with."""

from typing import Any

from torch import nn
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models import ModelRegistry

from harness.worker.device.config import LOADER
from harness.worker.device.network import NETWORKS


class Loader(BaseModelLoader):  # type: ignore[misc]
    """Instantiates the registered class, and that is all: vLLM's own loaders go through quantization."""

    def download_model(self, model_config: Any) -> None:
        """Nothing to download."""

    def load_weights(self, model: nn.Module, model_config: Any) -> None:
        """Nothing to load."""

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "", **_: Any) -> nn.Module:
        model = initialize_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
        return model.to(vllm_config.device_config.device).eval()


def register() -> None:
    """Makes the loader and the networks known to vLLM. Once a process."""
    register_model_loader(LOADER)(Loader)
    for network in NETWORKS:
        ModelRegistry.register_model(f"Schedfuzz{network.__name__}", network)

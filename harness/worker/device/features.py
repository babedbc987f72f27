"""Multimodal items with precomputed features: what takes the place of an image processor and of a vision tower."""

from typing import Any

import torch

from harness import compat
from harness.model import PLACEHOLDER, item_value
from harness.worker.device.config import WIDTH

FIELD = "features"


def encoder_output(identity: int, length: int) -> torch.Tensor:
    """What the encoder makes of an item, [length, WIDTH]."""
    rows = torch.zeros(length, WIDTH)
    rows[:, 0] = PLACEHOLDER
    rows[:, 1] = torch.tensor([float(item_value(identity, at)) for at in range(length)])
    return rows


def item_data(identity: int, length: int) -> Any:
    """The MultiModalKwargsItem of an item: its encoder output, [length, WIDTH], which the network's encoder passes
    on.
    """
    from vllm.multimodal.inputs import MultiModalBatchedField, MultiModalFieldElem, MultiModalKwargsItem

    element = compat.construct(
        MultiModalFieldElem,
        modality="image",
        key=FIELD,
        data=encoder_output(identity, length),
        field=MultiModalBatchedField(),
    )
    return MultiModalKwargsItem({FIELD: element})


def do_without_processor() -> None:
    """Lets a model that accepts items be one without a registered processor, which vLLM would ask for dummy inputs."""
    from vllm.config import ModelConfig
    from vllm.multimodal import MULTIMODAL_REGISTRY
    from vllm.v1.worker import gpu_model_runner

    def accepts_items(_: Any, model_config: Any) -> bool:
        """The drafter, too, as far as it is asked for (by the V2 runner up to 0.28)."""
        return bool(getattr(model_config.hf_config, "schedfuzz_images", False))

    type(MULTIMODAL_REGISTRY).supports_multimodal_inputs = accepts_items
    if hasattr(ModelConfig, "supports_multimodal_inputs"):  # from 0.30 on
        ModelConfig.supports_multimodal_inputs = property(lambda config: config.is_multimodal_model)
    # Encoder profiling, its only use in a runner, does not happen here.
    gpu_model_runner.MultiModalBudget = lambda *_: None


def lock_no_pages() -> None:
    """Without an accelerator nothing can be locked for it; the V2 runner of 0.24 to 0.27 asks for it all the same."""
    from vllm.v1.worker.gpu.mm import encoder_runner

    batch = encoder_runner.group_and_batch_mm_kwargs

    def batch_unlocked(items: Any, **named: Any) -> Any:
        return batch(items, **{**named, "pin_memory": False})

    encoder_runner.group_and_batch_mm_kwargs = batch_unlocked

"""The network's layers with a KV cache: they write keys to slots and add up what they find in the context.

To vLLM they are attention layers: it allocates their caches, builds their metadata from the batch (block tables,
slot mapping, sequence lengths) and calls them in its forward context. An attention kernel finds its context through
the same three tensors and masks by the same rule, so a wrong entry in any of them changes the output here as it
does there. Here it always does: a sum of 64-bit keys leaves nothing to chance, where a real network's output may
survive.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

from harness import compat
from harness.model import SEED, mix
from harness.scenario import Chunked, Group, Window
from harness.worker.device.config import layer, spec_of
from harness.worker.device.integers import LIMBS, from_limbs, signed, to_limbs
from harness.worker.observation import DeviceAssertion

AttentionBackend, AttentionMetadataBuilder = compat.attention_interfaces()


@dataclass
class Batch:
    """Which tokens are whose. Copies: the drafter goes on changing vLLM's own."""

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    num_tokens: int

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Per query token: its request's row, and its position by the sequence lengths (as a causal mask counts)."""
        tokens = torch.arange(self.num_tokens, device=self.query_start_loc.device)
        ends = self.query_start_loc[1:].to(torch.int64)
        row = torch.searchsorted(ends, tokens, right=True)
        return row, self.seq_lens[row].to(torch.int64) - (ends[row] - tokens)


@dataclass
class Context(Batch):
    """A batch and where its context is."""

    block_table: torch.Tensor
    slot_mapping: torch.Tensor


class ContextBuilder(AttentionMetadataBuilder):  # type: ignore[misc, valid-type]
    """Takes what the runner knows about the batch as it is."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Context:
        """vLLM's hook: the metadata of one step for this group of layers."""
        common = common_attn_metadata
        return Context(
            common.query_start_loc[: common.num_reqs + 1].clone(),
            common.seq_lens[: common.num_reqs].clone(),
            common.num_actual_tokens,
            common.block_table_tensor[: common.num_reqs].clone(),
            common.slot_mapping[: common.num_actual_tokens].clone(),
        )


class Backend(AttentionBackend):  # type: ignore[misc, valid-type]
    """What vLLM asks a layer for: shapes and the builder. Any block size will do."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32]

    @staticmethod
    def get_name() -> str:
        return "SCHEDFUZZ"

    @staticmethod
    def get_impl_cls() -> Any:
        raise NotImplementedError

    @staticmethod
    def get_builder_cls() -> Any:
        return ContextBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return compat.any_block_size()

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        """[blocks, heads, slots, key and value], the order that 0.33 fixes for all."""
        return num_blocks, num_kv_heads, block_size, 2 * head_size


class Layer(nn.Module, AttentionLayerBase):  # type: ignore[misc]
    """What vLLM takes for a layer with a cache: it finds it by name, and asks for its spec and backend."""

    backend: ClassVar[type[Backend]]

    def __init__(self, vllm_config: Any, number: int, group: Group) -> None:
        super().__init__()
        self.layer_name = layer(number)
        self.salt = signed(mix(SEED, number))
        """Layers hold different things of one token, so a block of another group is seen."""
        self.group = group
        self.spec = spec_of(vllm_config, group)
        self.kv_cache: Any = torch.tensor([])
        vllm_config.compilation_config.static_forward_context[self.layer_name] = self

    def get_attn_backend(self) -> Any:
        return self.backend

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        return self.spec


class Memory(Layer):
    """One layer's KV cache, of a group's kind."""

    backend = Backend

    def attended_from(self, position: torch.Tensor) -> torch.Tensor:
        """`harness.groups.attended_from`, element by element: what an attention kernel masks by."""
        if isinstance(self.group, Window):
            return (position - self.group.size + 1).clamp(min=0)
        if isinstance(self.group, Chunked):
            return position // self.group.size * self.group.size
        return torch.zeros_like(position)

    @property
    def slots(self) -> torch.Tensor:
        """The cache as [blocks, slots, key and value]."""
        cache = self.kv_cache[0] if isinstance(self.kv_cache, list) else self.kv_cache
        return cache[:, 0]

    def forward(self, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
        """Writes the batch's keys; returns (sums, row, position): running sums of the context of each request,
        [requests, positions + 1], and where each token stands in them. None in a dummy run, which has no metadata.
        """
        metadata = get_forward_context().attn_metadata
        if metadata is None:
            return None
        context: Context = metadata[self.layer_name]
        slots = self.slots
        block_size = slots.shape[1]
        # Padding (PAD_SLOT_ID, -1) writes back what slot 0 holds: to pick it out would wait for a device.
        to = context.slot_mapping.clamp(min=0)
        block, at = to // block_size, to % block_size
        real = (context.slot_mapping >= 0).unsqueeze(1)
        # CUDA asserts the same by itself; there, to look would wait for the device.
        on_cpu = slots.device.type == "cpu"
        if on_cpu and max(int(block.max()), int(context.block_table.max())) >= len(slots):
            raise DeviceAssertion(f"a block beyond the cache's {len(slots)}")
        slots[block, at, :LIMBS] = torch.where(
            real, to_limbs(keys[: len(to)] + self.salt), slots[block, at, :LIMBS]
        )
        found = from_limbs(slots[context.block_table.to(torch.int64)][..., :LIMBS]).flatten(1) - self.salt
        sums = torch.nn.functional.pad(found.cumsum(1), (1, 0))
        return sums, *context.rows()

    def difference(
        self, keys: torch.Tensor, sums: torch.Tensor, row: torch.Tensor, position: torch.Tensor
    ) -> torch.Tensor:
        """Writes the batch's keys; what this layer finds in each token's context beyond what full attention found
        there (`sums`, `row` and `position` as its `forward` returns them).
        """
        found = self(keys)
        assert found is not None  # full attention has seen that there is metadata
        seen, first = found[0], self.attended_from(position)
        return (seen[row, position + 1] - seen[row, first]) - (sums[row, position + 1] - sums[row, first])

"""The network's Mamba layers: one state a request, the sum of all keys that it has been fed.

To vLLM they are Mamba layers: it allocates pages for their states, copies them between blocks in mode "align"
(`mamba_utils.preprocess_mamba`) and hands over in which blocks a batch's states are. A state stands for the whole
prefix, so it must agree with what full attention finds of it; one that is another request's, of another position or
never written does not.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from vllm.forward_context import get_forward_context

from harness import compat
from harness.worker.device.integers import LIMBS, from_limbs, to_limbs
from harness.worker.device.memory import AttentionMetadataBuilder, Backend, Batch, Layer
from harness.worker.observation import DeviceAssertion


@dataclass
class Places(Batch):
    """A batch and the blocks of its states, one a request."""

    blocks: torch.Tensor


class PlacesBuilder(AttentionMetadataBuilder):  # type: ignore[misc]
    """Finds states as vLLM's builders for Mamba kernels do: if they are cached, in the block in which the step ends."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._spec = kv_cache_spec
        self._mode = getattr(vllm_config.cache_config, "mamba_cache_mode", "none")

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Places:
        """vLLM's hook: the metadata of one step for this group of layers."""
        common = common_attn_metadata
        seq_lens = common.seq_lens[: common.num_reqs]
        table = compat.mamba_block_table(
            common.block_table_tensor[: common.num_reqs], seq_lens, self._spec, self._mode
        )
        return Places(
            common.query_start_loc[: common.num_reqs + 1].clone(),
            seq_lens.clone(),
            common.num_actual_tokens,
            table[:, 0].to(torch.int64),
        )


class StateBackend(Backend):
    """What vLLM asks a Mamba layer for: the builder."""

    @staticmethod
    def get_name() -> str:
        return "SCHEDFUZZ_STATE"

    @staticmethod
    def get_builder_cls() -> Any:
        return PlacesBuilder

    @staticmethod
    def get_kv_cache_shape(*_: Any, **__: Any) -> tuple[int, ...]:
        """A state's shape is its spec's."""
        raise NotImplementedError


class State(Layer):
    """One layer's states, a page each, of which the first limbs are used."""

    backend = StateBackend

    def bind_kv_cache(self, kv_cache: torch.Tensor) -> None:
        """vLLM's hook, from 0.27.1 on: pages of bytes, [blocks, 1, 1, bytes]. Before, vLLM sets a list of states."""
        self.kv_cache = (kv_cache.flatten(1).view(torch.float32),)

    @property
    def slots(self) -> torch.Tensor:
        """The cache as [blocks, floats]: one slot a block."""
        cache = self.kv_cache
        while not isinstance(cache, torch.Tensor):
            cache = cache[0]
        return cache

    def forward(self, keys: torch.Tensor) -> torch.Tensor:
        """Adds the batch's keys to its states; the state after each token.

        As Mamba kernels do, a request without computed tokens starts from nothing, whatever its block holds, and all
        states are read before any is written.
        """
        places: Places = get_forward_context().attn_metadata[self.layer_name]
        states, blocks = self.slots, places.blocks
        if states.device.type == "cpu" and int(blocks.max()) >= len(states):
            raise DeviceAssertion(f"a block beyond the cache's {len(states)}")
        bounds = places.query_start_loc.to(torch.int64)
        first, end = bounds[:-1], bounds[1:]
        computed = places.seq_lens.to(torch.int64) - (end - first)
        before = torch.where(computed > 0, from_limbs(states[blocks, :LIMBS]) - self.salt, 0)
        sums = nn.functional.pad(keys[: places.num_tokens].cumsum(0), (1, 0))
        row, _ = places.rows()
        after = sums[1:] + (before - sums[first])[row]
        states[blocks, :LIMBS] = to_limbs(after[end - 1] + self.salt)
        return after

    def difference(
        self, keys: torch.Tensor, sums: torch.Tensor, row: torch.Tensor, position: torch.Tensor
    ) -> torch.Tensor:
        """What the states say of each token's prefix beyond what full attention does (`Memory.difference`)."""
        return self(keys) - sums[row, position + 1]

"""The device's KV memories as the connector sees them, and vLLM's place for the connector of a worker process."""

import itertools
from collections.abc import Mapping
from typing import Any

import torch

from harness.model import Reference
from harness.peers.mover import Mover
from harness.peers.orders import LoadOrder, SendOrder
from harness.worker.device.integers import signed, to_limbs

SPOILED = 43210.0
"""What a failed load leaves in every limb."""


class DeviceMemory:
    """Writes keys as the network's memories do. The drafter's memory is left as it is: it decides nothing."""

    def __init__(self, network: Any, references: Mapping[str, Reference]) -> None:
        self._groups = list(network.model.memories)
        """One a KV cache group, in vLLM's order."""
        self._references = references

    def load(self, order: LoadOrder) -> None:
        """A position's key is what it adds to the fingerprint of the prefix."""
        reference = self._references[order.request]
        sums = [0, *(reference.content(position) for position in range(order.stop))]
        keys = [signed((after - before) % (1 << 64)) for before, after in itertools.pairwise(sums)]
        for memory, table in zip(self._groups, order.tables, strict=True):
            slots = memory.slots
            limbs = to_limbs(torch.tensor(keys) + memory.salt).to(slots)
            size = slots.shape[1]
            for position in range(order.start, order.stop):
                if block := table[position // size]:
                    slots[block, position % size, : limbs.shape[1]] = limbs[position]
            for block in order.failed:
                slots[block] = SPOILED

    def send(self, order: SendOrder) -> None:
        """The receiver is not ours to look at."""


def join(settings: Any, caches: Any) -> None:
    """Makes this process's connector as vLLM's Worker does, if there is to be one; the one of before goes."""
    from vllm.distributed import kv_transfer

    kv_transfer.ensure_kv_transfer_shutdown()
    kv_transfer.ensure_kv_transfer_initialized(settings, caches)


def mover(runner: Any, references: Mapping[str, Reference]) -> Mover | None:
    """Gives the worker's side of this process's connector, if there is one, the runner's memories to move to."""
    from vllm.distributed import kv_transfer

    if not kv_transfer.has_kv_transfer_group():
        return None
    made = Mover(DeviceMemory(runner.get_model(), references))
    kv_transfer.get_kv_transfer_group().mover = made
    return made

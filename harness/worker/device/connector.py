"""The device's memories as the connectors see them, and vLLM's places for the connectors of a worker process."""

import itertools
from collections.abc import Mapping
from typing import Any

import torch

from harness.model import Reference, adapter_value
from harness.peers.mover import Mover
from harness.peers.orders import LoadOrder, SendOrder
from harness.scenario import image_hash
from harness.worker.device.features import encoder_output
from harness.worker.device.integers import LIMBS, signed, to_limbs
from harness.worker.device.state import State

SPOILED = 43210.0
"""What a failed load leaves in every limb."""


class DeviceMemory:
    """Writes keys as the network's memories do. The drafter's memory is left as it is: it decides nothing."""

    def __init__(self, network: Any, references: Mapping[str, Reference]) -> None:
        self._groups = list(network.model.memories)
        """One a KV cache group, in vLLM's order."""
        self._references = references

    def load(self, order: LoadOrder) -> None:
        """A position's key is what it adds to the fingerprint of the prefix; an adapter adds to the first one, and once
        more to every answer, which is no part of the memory."""
        reference = self._references[order.request]
        sums = [
            adapter_value(reference.request.lora),
            *(reference.content(position) for position in range(order.stop)),
        ]
        keys = [signed((after - before) % (1 << 64)) for before, after in itertools.pairwise(sums)]
        for memory, table in zip(self._groups, order.tables, strict=True):
            slots = memory.slots
            if isinstance(memory, State):
                # The sum of all keys, at the place of the last position.
                block = table[(order.stop - 1) // memory.spec.block_size]
                state = signed((sums[-1] - sums[0]) % (1 << 64))
                if block:
                    slots[block, :LIMBS] = to_limbs(torch.tensor([state]) + memory.salt).to(slots)[0]
                continue
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
    """Makes this process's connectors as vLLM's Worker does, if there are to be any; those of before go."""
    from vllm.distributed import ec_transfer, kv_transfer
    from vllm.distributed.ec_transfer import ec_transfer_state

    kv_transfer.ensure_kv_transfer_shutdown()
    kv_transfer.ensure_kv_transfer_initialized(settings, caches)
    ec_transfer_state._EC_CONNECTOR_AGENT = None  # up to 0.22 nothing shuts it down
    ec_transfer.ensure_ec_transfer_initialized(settings)


def give_outputs(runner: Any, images: tuple[int, ...]) -> None:
    """Gives the worker's side of this process's encoder-cache connector, if there is one, the outputs of a scenario's
    images, which are what the network's encoder would make of them."""
    from vllm.distributed import ec_transfer

    if ec_transfer.has_ec_transfer():
        lengths = {image_hash(identity): (identity, length) for identity, length in enumerate(images)}
        connector = ec_transfer.get_ec_transfer()
        connector.output = lambda item: encoder_output(*lengths[item]).to(runner.device)


def mover(runner: Any, references: Mapping[str, Reference]) -> Mover | None:
    """Gives the worker's side of this process's connector, if there is one, the runner's memories to move to."""
    from vllm.distributed import kv_transfer

    if not kv_transfer.has_kv_transfer_group():
        return None
    made = Mover(DeviceMemory(runner.get_model(), references))
    kv_transfer.get_kv_transfer_group().mover = made
    return made

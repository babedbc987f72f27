"""The worker's side of the connector: moves what it is ordered to move, when the script says so. Pure.

A synchronous load is there before the step's forward pass. An asynchronous one is there, and is reported, with the
first step at or after its latency: the last moment at which the data may land, so that whoever reads it before the
report finds nothing. A send reads its blocks at its end, the last moment at which they must still hold what they held.
Failed loads leave something that is nobody's content, and are reported in the step in which they are noticed.
"""

from typing import Protocol

from harness.peers.orders import NOTHING, LoadOrder, Orders, SendOrder, Transfers


class Memory(Protocol):
    """A worker's KV memory as the connector sees it."""

    def load(self, order: LoadOrder) -> None:
        """Writes the true content of the order's positions to its blocks, and spoils the failed ones."""

    def send(self, order: SendOrder) -> None:
        """Reads an order's blocks for the last time."""


class Mover:
    """Transfers in progress on the worker."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._now = 0
        self._loads: dict[str, tuple[int, LoadOrder]] = {}
        """By request: the iteration at which the load is over, and its order."""
        self._sends: dict[str, tuple[int, SendOrder]] = {}
        self._invalid: set[int] = set()
        self.transfers: Transfers = NOTHING
        """What the step that runs reports, as far as it is known; of the last one, all."""

    def begin(self, iteration: int) -> None:
        """A step begins to run; nothing moves yet."""
        self._now = iteration
        self.transfers = NOTHING

    def start(self, orders: Orders) -> None:
        """`start_load_kv` and `wait_for_save` of a step."""
        for load in orders.loads:
            if load.asynchronous:
                self._loads[load.request] = self._now + load.latency, load
            else:
                self._load(load)
        for send in orders.sends:
            self._sends[send.request] = self._now + send.latency, send
        self.transfers = Transfers(invalid=frozenset(self._invalid))

    def finish(self) -> Transfers:
        """`get_finished` and `get_block_ids_with_load_errors` of a step."""
        received = [request for request, (due, _) in self._loads.items() if due <= self._now]
        for request in received:
            self._load(self._loads.pop(request)[1])
        sent = [request for request, (due, _) in self._sends.items() if due <= self._now]
        for request in sent:
            self._memory.send(self._sends.pop(request)[1])
        self.transfers = Transfers(tuple(received), tuple(sent), frozenset(self._invalid))
        self._invalid.clear()
        return self.transfers

    def _load(self, order: LoadOrder) -> None:
        self._memory.load(order)
        self._invalid.update(order.failed)

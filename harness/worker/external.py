"""The stub's KV memory as its connector sees it: the true content arrives, or something that is nobody's."""

from collections.abc import Callable, Mapping

import numpy as np

from harness.model import Reference
from harness.peers.orders import LoadOrder, SendOrder
from harness.worker.observation import Observation, SentMismatch
from harness.worker.shadow import KvShadow


class StubMemory:
    """Moves content between shadow memory and the outside, which holds every prompt as it is."""

    def __init__(
        self, kv: KvShadow, references: Mapping[str, Reference], report: Callable[[Observation], None]
    ) -> None:
        self._kv = kv
        self._references = references
        self._report = report
        self.has_failed = False
        """Whether any load ever has; until then nothing can be spoiled."""

    def load(self, order: LoadOrder) -> None:
        """Each group's blocks; a sliding window's null blocks are left out."""
        size = self._kv.block_size
        reference = self._references[order.request]
        reference.token(order.stop - 1)
        contents = np.array(reference.contents[order.start : order.stop], dtype=np.uint64)
        for group, table in enumerate(order.tables):
            slots = self._kv.slots(list(table), order.start, order.stop)
            self._kv.write(group, np.where(slots < size, -1, slots), contents)
        self.has_failed = self.has_failed or bool(order.failed)
        for block in order.failed:
            self._kv.spoil(np.arange(block * size, (block + 1) * size))

    def send(self, order: SendOrder) -> None:
        """What the receiver gets of the group that keeps everything must be what the request computed."""
        if not order.tokens:
            return
        reference = self._references[order.request]
        reference.token(order.tokens - 1)
        expected = np.array(reference.contents[: order.tokens], dtype=np.uint64)
        slots = self._kv.slots(list(order.tables[0]), 0, order.tokens)
        wrong = self._kv.mismatches(0, slots, expected)
        if len(wrong):
            found = self._kv.describe(int(slots[wrong[0]]))
            self._report(SentMismatch(order.request, int(wrong[0]), found))

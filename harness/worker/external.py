"""The stub's KV memory as its connector sees it: the true content arrives, or something that is nobody's."""

from collections.abc import Callable, Mapping

import numpy as np

from harness.groups import groups_of, tokens_per_block, whole_group
from harness.model import Reference
from harness.peers.orders import LoadOrder, SendOrder
from harness.scenario import Engine, Mamba
from harness.worker.observation import Observation, SentMismatch
from harness.worker.shadow import Contents, KvShadow


class StubMemory:
    """Moves content between shadow memory and the outside, which holds every prompt as it is."""

    def __init__(
        self,
        engine: Engine,
        kv: KvShadow,
        references: Mapping[str, Reference],
        report: Callable[[Observation], None],
    ) -> None:
        self._engine = engine
        self._kv = kv
        self._references = references
        self._report = report
        self.has_failed = False
        """Whether any load ever has; until then nothing can be spoiled."""

    def load(self, order: LoadOrder) -> None:
        """Each group's blocks, null blocks left out; of a state, that after the last position."""
        size = self._kv.block_size
        contents = self._true(order.request, order.start, order.stop)
        for group, (kind, table) in enumerate(zip(groups_of(self._engine), order.tables, strict=True)):
            if isinstance(kind, Mamba):
                place = (order.stop - 1) // tokens_per_block(kind, self._engine)
                slots, loaded = self._kv.state(list(table), place), contents[-1:]
            else:
                slots, loaded = self._kv.slots(group, list(table), order.start, order.stop), contents
            self._kv.write(group, np.where(slots < size, -1, slots), loaded)
        self.has_failed = self.has_failed or bool(order.failed)
        for block in order.failed:
            self._kv.spoil(np.arange(block * size, (block + 1) * size))

    def send(self, order: SendOrder) -> None:
        """What the receiver gets of the group that keeps everything must be what the request computed."""
        if not order.tokens:
            return
        expected = self._true(order.request, 0, order.tokens)
        group = whole_group(self._engine)
        slots = self._kv.slots(group, list(order.tables[group]), 0, order.tokens)
        wrong = self._kv.mismatches(group, slots, expected)
        if len(wrong):
            found = self._kv.describe(int(slots[wrong[0]]))
            self._report(SentMismatch(order.request, int(wrong[0]), found))

    def _true(self, request: str, start: int, stop: int) -> Contents:
        """What the request's blocks hold of positions [start, stop)."""
        reference = self._references[request]
        reference.token(stop - 1)
        return np.array(reference.contents[start:stop], dtype=np.uint64) ^ np.uint64(reference.salt)

"""Shadow memory: for each physical KV slot, the fingerprint of the prefix whose key and value it holds.

All KV cache groups draw their blocks from one pool, as in vLLM; a slot remembers the group that wrote it, so that
reading another group's block is seen. A block has as many slots as the largest group's blocks have positions; groups
with smaller ones use the first of them. Slot 0..block_size-1 is the null block, which nobody owns.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from harness.model import mix
from harness.scenario import MAX_MODEL_LEN

Slots = NDArray[np.int64]
Contents = NDArray[np.uint64]
UNWRITTEN = np.uint64(0)
SPOILED = np.uint64(1)
"""What a failed load leaves, and what is computed from it: wrong by the connector's fault, not by the scheduler's."""
SPOILED_WORDS = "what a failed load left"
MAX_POSITIONS = MAX_MODEL_LEN + 16
"""A step may reach past the model length by its drafts (at most 8)."""


class KvShadow:
    """`num_blocks` blocks, all unwritten; `sizes` are the groups' positions per block."""

    def __init__(self, num_blocks: int, sizes: Sequence[int]) -> None:
        self.block_size = max(sizes)
        """Slots per block."""
        self.contents: Contents = np.zeros(num_blocks * self.block_size, dtype=np.uint64)
        positions = np.arange(MAX_POSITIONS, dtype=np.int64)
        self._sizes = tuple(sizes)
        self._block_of = {size: positions // size for size in sizes}
        self._offset_of = {size: positions % size for size in sizes}
        self._salts = [np.uint64(mix(group, 7)) for group in range(len(sizes))]

    def slots(self, group: int, table: list[int], start: int, stop: int) -> Slots:
        """Slots of a group's positions [start, stop); -1 where the block table has no entry, as before position 0."""
        if start < 0:
            before = np.full(min(stop, 0) - start, -1, dtype=np.int64)
            return np.append(before, self.slots(group, table, 0, max(stop, 0)))
        size = self._sizes[group]
        first = start // size
        known = np.array(table[first : -(-stop // size)], dtype=np.int64)
        missing = -(-stop // size) - first - len(known)
        if missing > 0:
            known = np.append(known, np.full(missing, -1, dtype=np.int64))
        blocks = known[self._block_of[size][start:stop] - first]
        slots: Slots = blocks * self.block_size + self._offset_of[size][start:stop]
        if missing > 0:
            slots[blocks < 0] = -1
        return slots

    def write(self, group: int, slots: Slots, contents: Contents) -> None:
        """Later positions overwrite earlier ones, as on the device; slots of -1 are skipped."""
        kept = slots >= 0
        self.contents[slots[kept]] = contents[kept] ^ self._salts[group]

    def zero(self, blocks: Iterable[int]) -> None:
        """What fresh memory holds: nothing that anybody may read."""
        for block in blocks:
            self.contents[block * self.block_size : (block + 1) * self.block_size] = UNWRITTEN

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Whole blocks, from one to another, all at once."""
        whole = self.contents.reshape(-1, self.block_size)
        if copies:
            sources, targets = map(list, zip(*copies, strict=True))
            whole[targets] = whole[sources]

    def state(self, table: list[int], place: int = 0) -> Slots:
        """The slot of a state: the first of a block of the table; -1 if the table does not go so far."""
        known = 0 <= place < len(table)
        return np.array([table[place] * self.block_size if known else -1], dtype=np.int64)

    def copy(self, moves: Iterable[tuple[Slots, ...]]) -> None:
        """Slots to slots, as (source, target), all at once; what has no source or no target is left out."""
        read = [
            (target, self.contents[source].copy()) for source, target in moves if source[0] >= 0 <= target[0]
        ]
        for target, contents in read:
            self.contents[target] = contents

    def forget(self) -> None:
        """Everything is unwritten again."""
        self.contents.fill(UNWRITTEN)

    def mismatches(self, group: int, slots: Slots, expected: Contents) -> NDArray[np.int64]:
        """Indices into `slots` at which the memory does not hold `expected`."""
        found = self.contents[slots]
        return np.flatnonzero((found != (expected ^ self._salts[group])) | (slots < self.block_size))

    def is_spoiled(self, slots: Slots) -> bool:
        """Whether any of these slots holds what a failed load left; a slot of -1 holds nothing."""
        return bool((self.contents[slots[slots >= 0]] == SPOILED).any())

    def spoil(self, slots: Slots) -> None:
        """Puts into these slots what a failed load leaves; slots of -1 are skipped."""
        self.contents[slots[slots >= 0]] = SPOILED

    def describe(self, slot: int) -> str:
        """What a wrong slot holds, in the words of `KvMismatch.found`."""
        if slot < 0:
            return "missing block"
        if slot < self.block_size:
            return "null block"
        if self.contents[slot] == SPOILED:
            return SPOILED_WORDS
        return "unwritten" if self.contents[slot] == UNWRITTEN else "other content"

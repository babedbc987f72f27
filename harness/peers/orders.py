"""What the two sides of a KV connector tell each other and vLLM, as plain values. Pure.

The scheduler's side sends `Orders` with each step (they are vLLM's KVConnectorMetadata); the worker's side answers with
`Transfers` (they become vLLM's KVConnectorOutput).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Tables = tuple[tuple[int, ...], ...]
"""Block ids of a request from its first position on, per KV cache group; 0 is the null block."""


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """Positions [start, stop) of a request are to come from outside into its blocks."""

    request: str
    start: int
    stop: int
    tables: Tables
    asynchronous: bool
    latency: int
    """Iterations until an asynchronous load is over."""
    failed: tuple[int, ...]
    """Block ids whose load will fail."""

    def destinations(self, sizes: Sequence[int]) -> frozenset[int]:
        """Blocks that the load writes; `sizes` are the groups' tokens per block."""
        return frozenset(
            block
            for table, size in zip(self.tables, sizes, strict=True)
            for block in table[self.start // size : -(-self.stop // size)]
            if block
        )


@dataclass(frozen=True, slots=True)
class SendOrder:
    """A finished request's blocks are to go outside; they stay its own until that is over."""

    request: str
    tables: Tables
    tokens: int
    """Positions, from the first, whose content the receiver relies on; 0 for an aborted request."""
    latency: int

    def sources(self) -> frozenset[int]:
        """Blocks that the send reads."""
        return frozenset(block for table in self.tables for block in table if block)


@dataclass(frozen=True, slots=True)
class Orders:
    """What starts with a step."""

    loads: tuple[LoadOrder, ...] = ()
    sends: tuple[SendOrder, ...] = ()


@dataclass(frozen=True, slots=True)
class Transfers:
    """What a step's result reports: asynchronous transfers that are over, and blocks whose load failed."""

    received: tuple[str, ...] = ()
    sent: tuple[str, ...] = ()
    invalid: frozenset[int] = frozenset()


NOTHING = Transfers()


class OrderedIds(set[str]):
    """A set, as vLLM wants it, that is walked in the order in which transfers ended.

    vLLM frees blocks in the order of such sets, which otherwise hangs on how a process hashes strings.
    """

    def __init__(self, ids: tuple[str, ...]) -> None:
        super().__init__(ids)
        self._ids = ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

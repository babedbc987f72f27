"""O14: the stream of KV cache events."""

import functools
from typing import Any, ClassVar

from harness.oracles.base import Oracle
from harness.peers.events import Listener
from harness.step import Step

Block = tuple[Any, int | None]
"""A block's hash as the stream spells it, and its KV cache group (None where the release does not tell)."""


class KvEvents(Oracle):
    """O14: whoever replays the event stream knows which blocks the prefix cache holds.

    Promised by KVEventsConfig ("enable KV cache events for tracking block storage and removal") and made for routers
    that send a request where its prefix is: after every batch, the hashes that were stored and not removed since are
    those under which the block pool finds a block. How many blocks a hash has is not told, so a hash is removed when
    its last block is.

    Ledger: 55092.
    """

    family: ClassVar[str] = "O14"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._stored: set[Block] = set()
        self._removed: set[Block] = set()
        self._differs = False
        """Nothing follows from a mirror that is wrong already."""

    def delivered(self, step: Step, outputs: object) -> None:
        listener = self.world.scheduler.kv_event_publisher
        if not isinstance(listener, Listener) or self._differs:
            return
        for event in listener.take():
            self._replay(event)
        # What happened after the batch was taken is told with the next one.
        if not self.world.pool.kv_event_queue:
            self._compare(step)

    def _replay(self, event: Any) -> None:
        name = type(event).__name__
        if name == "AllBlocksCleared":
            self._stored.clear()
            self._removed.clear()
            return
        blocks = {(key, getattr(event, "group_idx", None)) for key in event.block_hashes}
        if name == "BlockStored":
            self._stored |= blocks
            self._removed -= blocks
        else:
            self._stored -= blocks
            self._removed |= blocks

    def _compare(self, step: Step) -> None:
        held = self._held()
        missing = held - self._stored
        for kind, blocks, what in (
            (
                "removed-while-held",
                missing & self._removed,
                "the stream has removed, and the block pool holds",
            ),
            ("held-untold", missing - self._removed, "the block pool holds, and the stream has not stored"),
            ("stored-not-held", self._stored - held, "the stream has stored, and the block pool has not"),
        ):
            if blocks:
                message = f"step {step.index}: hashes that {what}: {len(blocks)}"
                self.report(kind, "KVEventBatch", message, fatal=False)
                self._differs = True
                return

    def _held(self) -> set[Block]:
        from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id, maybe_convert_block_hash

        tells = _tells_groups()
        return {
            (maybe_convert_block_hash(get_block_hash(key)), get_group_id(key) if tells else None)
            for key in self.world.pool.cached_block_hash_to_block._cache
        }


@functools.cache
def _tells_groups() -> bool:
    """Whether the stream says which KV cache group a block is of."""
    from vllm.distributed.kv_events import BlockRemoved

    return "group_idx" in BlockRemoved.__struct_fields__

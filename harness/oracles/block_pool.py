"""O6: block pool accounting."""

from collections import Counter
from typing import Any, ClassVar

from harness import compat
from harness.oracles.base import Oracle
from harness.step import Step


class BlockAccounting(Oracle):
    """O6: reference counts, free queue and hash map of the block pool agree with who holds blocks.

    Promised by BlockPool and KVCacheBlock: a block's `ref_cnt` is the number of requests that hold it; blocks without
    reference are in the free queue, once, and no others; the null block is never handed out; a block with a hash is
    in the hash map under it, and the map holds no block without that hash; with no request, every block is free.

    Ledger: 11565, 24084, 12545 (blocks), 46289, 11186.
    """

    family: ClassVar[str] = "O6"

    def dispatched(self, step: Step) -> None:
        self._check()

    def drained(self) -> None:
        self._check()
        pool = self.world.pool
        lingering = self.world.lingering  # releases whose loop sleeps while transfers last
        pinned = {
            block.block_id
            for request, blocks in self.world.holders()
            for block in blocks
            if request in lingering
        }
        held = [block.block_id for block in pool.blocks if block.ref_cnt and not block.is_null]
        owners = sorted({r for r, blocks in self.world.holders() if blocks and r not in lingering})
        if owners:
            self.report("leak", "req_to_blocks", f"no request lives, but {owners} hold blocks", *owners)
        elif not pinned.issuperset(held):
            self.report("leak", "BlockPool", f"no request lives, but blocks {held} are held")

    def _check(self) -> None:
        pool = self.world.pool
        counts = Counter(
            block.block_id for _, blocks in self.world.holders() for block in blocks if not block.is_null
        )
        # From 0.24: blocks of ended or preempted requests, which steps in flight may still write.
        for blocks in compat.deferred_frees(self.world.scheduler):
            counts.update(block.block_id for block in blocks if not block.is_null)
        free = _free_ids(pool.free_block_queue)
        if len(free) != pool.free_block_queue.num_free_blocks:
            self.report(
                "free-count",
                "FreeKVCacheBlockQueue",
                f"num_free_blocks is {pool.free_block_queue.num_free_blocks}, the queue holds {len(free)}",
            )
        listed = set(free)
        if len(listed) != len(free) or pool.null_block.block_id in listed:
            self.report(
                "free-queue", "FreeKVCacheBlockQueue", "a block is queued twice, or the null block is queued"
            )
        self._check_hashes(pool)
        for block in pool.blocks:
            if not block.is_null and (
                block.ref_cnt != counts[block.block_id] or (not block.ref_cnt) != (block.block_id in listed)
            ):
                self._wrong_block(block, counts[block.block_id], block.block_id in listed)
                return

    def _check_hashes(self, pool: Any) -> None:
        mapped: dict[int, set[Any]] = {}
        for key, entry in pool.cached_block_hash_to_block._cache.items():
            # One block, or several that were computed under the same hash.
            for block in entry.values() if isinstance(entry, dict) else (entry,):
                mapped.setdefault(block.block_id, set()).add(key)
        further = getattr(pool, "cached_block_hashes_by_block", {})  # partial entries, from 0.24
        for block in pool.blocks:
            number = block.block_id
            if block.block_hash is None and number not in mapped and number not in further:
                continue  # most blocks
            own = set(further.get(number, ()))
            if block.block_hash is not None:
                own.add(block.block_hash)
            found = mapped.get(number, set())
            if own != found:
                self.report(
                    "hash-map",
                    "BlockPool.cached_block_hash_to_block",
                    f"block {block.block_id} has {len(own)} hashes, the map knows it under {len(found)}",
                )
                return

    def _wrong_block(self, block: Any, holders: int, listed: bool) -> None:
        if block.ref_cnt != holders:
            kind, what = "ref-count", f"{holders} requests hold it"
        else:
            kind, what = "free-queue", f"it is {'' if listed else 'not '}in the free queue"
        self.report(
            kind, "KVCacheBlock.ref_cnt", f"block {block.block_id} has ref_cnt {block.ref_cnt}, but {what}"
        )


def _free_ids(queue: Any) -> list[int]:
    """Block ids in the free queue, walked by its own links; stops after more nodes than there can be."""
    ids: list[int] = []
    block = queue.fake_free_list_head.next_free_block
    while block is not None and block is not queue.fake_free_list_tail and len(ids) <= 4096:
        ids.append(block.block_id)
        block = block.next_free_block
    return ids

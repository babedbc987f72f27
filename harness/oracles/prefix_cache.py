"""O6: the prefix cache's answers."""

from typing import Any, ClassVar

from harness.groups import (
    attended_from,
    groups_of,
    has_block_sizes,
    has_mamba,
    looks_ahead,
    states_are_cached,
)
from harness.lookups import Lookup
from harness.oracles.base import Oracle
from harness.oracles.kv_content import reads_nothing
from harness.scenario import Mamba, Window
from harness.step import Step
from harness.verdict import Level


class PrefixCache(Oracle):
    """O6: a lookup in the prefix cache finds the longest prefix that is there.

    Promised by `KVCacheManager.get_computed_blocks` and the coordinators' `find_longest_cache_hit`: of all lengths in
    whole blocks that leave a token to compute, the longest for which each KV cache group has what its first query
    attends to: full attention every block, a window or a chunk those that it still sees, a state the last one. Compared
    with a search through all blocks of the pool. More than that is somebody else's memory. Less is a hazard: nothing
    is wrong but that the work is done again.

    A drafter gives back one block of each hit; which groups must hold one more for that differs from release to
    release, so that with one only what is missed with a block more in every group is a miss. Up to 0.19 several groups
    each give one back. Not judged: groups with blocks of different sizes, whose hits end inside blocks; states that are
    not cached.
    """

    family: ClassVar[str] = "O6"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        engine = self.world.engine
        self._speaks = not has_block_sizes(engine) and (states_are_cached(engine) or not has_mamba(engine))
        self._drops = int(looks_ahead(engine))
        """Blocks of a hit that are given back."""

    def dispatched(self, step: Step) -> None:
        for lookup in self.world.lookups if self._speaks else ():
            self._judge(lookup)

    def _judge(self, lookup: Lookup) -> None:
        if reads_nothing(self.world.references[lookup.request].request):
            return  # O2's
        longest, least = self._longest(lookup, 0), self._longest(lookup, self._drops)
        told = f"the prefix cache gives {lookup.request} {lookup.hit} tokens, and holds {longest} of its"
        if lookup.hit > longest:
            self.report("hit-invented", "get_computed_blocks", told, lookup.request)
        elif lookup.hit < least:
            anchor = "get_computed_blocks, with a drafter" if self._drops else "get_computed_blocks"
            self.report("hit-missed", anchor, told, lookup.request, level=Level.HAZARD)

    def _longest(self, lookup: Lookup, more: int) -> int:
        """The longest hit that every group holds, and as many blocks more."""
        size = self.world.engine.block_size
        most = min(lookup.limit // size, len(lookup.hashes)) - more
        return next((count for count in range(most, 0, -1) if self._holds(lookup, count, more)), 0) * size

    def _holds(self, lookup: Lookup, count: int, more: int) -> bool:
        """Whether every group has what a request needs that begins after so many blocks."""
        size = self.world.engine.block_size
        for group, kind in enumerate(groups_of(self.world.engine)):
            first = attended_from(kind, count * size) // size
            if isinstance(
                kind, Mamba | Window
            ):  # vLLM wants the last block also of a window that sees only itself
                first = count - 1 if isinstance(kind, Mamba) else min(first, count - 1)
            needed = range(max(first, 0), count + more)
            if any(_key(lookup.hashes[at], group) not in lookup.cached for at in needed):
                return False
        return True


def _key(block_hash: bytes, group: int) -> bytes:
    """As vLLM's `make_block_hash_with_group_id` does."""
    return block_hash + group.to_bytes(4, "big")

"""A tap on vLLM's prefix cache lookup: what it was asked, what it answered, and what the cache held at that moment.

The pool changes between a lookup and the end of its pass, so that nobody can judge the answer later without this. The
tap calls vLLM's own method and hands on what that returns. It does not see what `get_computed_blocks_for_connector`
finds of its own (0.24 on, groups with states beside a connector).
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Lookup:
    """One call of `KVCacheManager.get_computed_blocks`. Lengths in tokens."""

    request: str
    limit: int
    """The longest hit that was asked for: what the request has, less its last token, if nobody says otherwise."""
    hit: int
    hashes: tuple[bytes, ...]
    """Of the request's full blocks, in order."""
    cached: frozenset[bytes]
    """Hashes of all blocks of the pool, each with the number of its KV cache group (vLLM's BlockHashWithGroupId)."""


def tap(scheduler: Any) -> list[Lookup]:
    """Records every lookup of a scheduler from now on, oldest first."""
    manager, record = scheduler.kv_cache_manager, list[Lookup]()
    original = manager.get_computed_blocks

    def get_computed_blocks(request: Any, *arguments: Any, **keywords: Any) -> Any:
        cached = frozenset(block.block_hash for block in manager.block_pool.blocks if block.block_hash)
        answer = original(request, *arguments, **keywords)
        limit = next(iter((*arguments, *keywords.values())), None)
        record.append(
            Lookup(
                request.request_id,
                request.num_tokens - 1 if limit is None else limit,
                answer[1],
                tuple(request.block_hashes),
                cached,
            )
        )
        return answer

    manager.get_computed_blocks = get_computed_blocks
    return record

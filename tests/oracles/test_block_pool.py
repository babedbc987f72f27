"""O6 hears when the block pool's reference counts, free queue or hash map leave what the requests hold."""

import pytest
from msgspec.structs import replace

from harness.oracles.block_pool import BlockAccounting
from harness.scenario import Abort, Arrive
from oracles.faults import SCHEDULE, UPDATE, Fault, after, assert_heard, assert_quiet, faults, skipped
from scenarios import CONNECTED, scenario, text

pytestmark = pytest.mark.usefixtures("vllm")


def pool(scheduler):
    return scheduler.kv_cache_manager.block_pool


def held(scheduler):
    return next(block for block in pool(scheduler).blocks if block.ref_cnt and not block.is_null)


def count_once_more(scheduler, _):
    held(scheduler).ref_cnt += 1


def count_one_free_more(scheduler, _):
    pool(scheduler).free_block_queue.num_free_blocks += 1


def queue_held_block(scheduler, _):
    pool(scheduler).free_block_queue.append(held(scheduler))


def queue_null_block(scheduler, _):
    pool(scheduler).free_block_queue.append(pool(scheduler).null_block)


def hand_out_free_block(scheduler, _):
    """A block leaves the free queue and nobody gets it."""
    pool(scheduler).free_block_queue.popleft()


ABORTED_IN_FLIGHT = scenario(
    replace(CONNECTED, async_scheduling=True), text(9, 6), events=(Arrive(0), Abort(0, 3, in_step=True))
)
"""A step still writes blocks when their request ends, and a load could be given them."""
REF_COUNT = (("ref-count", "KVCacheBlock.ref_cnt"),)
FREE_QUEUE = (("free-queue", "KVCacheBlock.ref_cnt"),)
FAULTS = {
    "one reference too many": Fault(SCHEDULE, after(count_once_more, call=0), "plain", REF_COUNT),
    "a prefix hit without reference": Fault("BlockPool.touch", skipped, "prefix", REF_COUNT),
    "freed by one, kept by the pool": Fault("BlockPool.free_blocks", skipped, "plain", REF_COUNT),
    "never freed": Fault("KVCacheManager.free", skipped, "plain", (("leak", "req_to_blocks"),)),
    "fenced for ever": Fault(
        "Scheduler._drain_deferred_frees", skipped, ABORTED_IN_FLIGHT, (("leak", "BlockPool"),)
    ),
    "free count": Fault(
        UPDATE, after(count_one_free_more, call=0), "plain", (("free-count", "FreeKVCacheBlockQueue"),)
    ),
    "held and free": Fault(SCHEDULE, after(queue_held_block, call=0), "plain", FREE_QUEUE),
    "neither held nor free": Fault(SCHEDULE, after(hand_out_free_block, call=0), "plain", FREE_QUEUE),
    "null block free": Fault(
        SCHEDULE, after(queue_null_block, call=0), "plain", (("free-queue", "FreeKVCacheBlockQueue"),)
    ),
}


def test_is_quiet_on_legal_scenarios(legal):
    assert_quiet(BlockAccounting, legal)


@faults(FAULTS)
def test_hears(monkeypatch, fault):
    assert_heard(monkeypatch, BlockAccounting, fault)


def lose_hash(scheduler, _):
    """The map keeps a block under a hash that the block no longer has."""
    for block in pool(scheduler).blocks:
        block._block_hash = None


def lose_entry(scheduler, _):
    """The map loses its entries; the blocks keep their hashes."""
    pool(scheduler).cached_block_hash_to_block._cache.clear()


@pytest.mark.parametrize("change", [lose_hash, lose_entry])
def test_hears_that_hash_map_and_blocks_differ(monkeypatch, change):
    fault = Fault(
        SCHEDULE, after(change, call=0), "chunked", (("hash-map", "BlockPool.cached_block_hash_to_block"),)
    )
    assert_heard(monkeypatch, BlockAccounting, fault)

"""O2 hears every read of a slot that does not hold what its position must hold."""

import pytest
from msgspec.structs import replace

from harness.oracles.kv_content import KvContent
from harness.scenario import Arrive, Chunked, Full, Mamba, Reset, Window
from oracles.faults import SCHEDULE, Fault, after, assert_heard, assert_quiet, faults
from scenarios import SMALL, scenario, text

pytestmark = pytest.mark.usefixtures("vllm")

HIT = (("kv-read-mismatch", "position taken from the prefix cache"),)
COMPUTED = (("kv-read-mismatch", "position that the request computed"),)
WINDOW = scenario(replace(SMALL, sliding_window=6, enable_prefix_caching=False), text(30, 6))
CHUNKED = scenario(
    replace(SMALL, kv_cache_groups=(Window(13), Chunked(12)), enable_prefix_caching=False), text(30, 6)
)


def swap_cached_blocks(scheduler, output):
    """Two blocks of a prefix hit change places in what the worker is told."""
    for new in output.scheduled_new_reqs:
        if new.num_computed_tokens >= 8:
            blocks = new.block_ids[0]
            blocks[0], blocks[1] = blocks[1], blocks[0]


def foreign_block(scheduler, output):
    """A running request's new block is the other one's first."""
    cached = output.scheduled_cached_reqs
    for i, request in enumerate(cached.req_ids):
        if request == "r1" and cached.new_block_ids[i]:
            first = scheduler.kv_cache_manager.get_block_ids("r0")[0][0]
            cached.new_block_ids[i] = tuple([first, *ids[1:]] for ids in cached.new_block_ids[i])


def claim_one_more(scheduler, output):
    """A position counts as computed that never was."""
    for new in output.scheduled_new_reqs:
        new.num_computed_tokens += 1


def unwritten_hit(original, pool, *arguments):
    """The prefix cache offers a block that nobody wrote: the pool's last."""
    found = original(pool, *arguments)
    return found and [pool.blocks[-1]]


def too_short_a_window(original, manager, computed):
    """Blocks leave the window one block too early."""
    return original(manager, computed) + manager.block_size


def null_blocks_only(original, *arguments, **named):
    """Every block of the longest possible hit is outside what the group's layers see, or so it says."""
    size, pool = named["kv_cache_spec"].block_size, named["block_pool"]
    count = named["max_length"] // size
    return ([pool.null_block] * count,) * len(named["kv_cache_group_ids"]), count * size


def state_of_the_other(scheduler, output):
    """r1 is told the block of r0's state as its own."""
    for new in output.scheduled_new_reqs:
        if new.req_id == "r1":
            new.block_ids[1][:] = scheduler.kv_cache_manager.get_block_ids("r0")[1]


def shares_without_a_copy(scheduler, output):
    """A block that a hit ends in is to be written, and its copy is forgotten."""
    output.kv_cache_block_copies = None


def hashed_as_the_base_model(original, scheduler, request):
    adapter, request.lora_request = request.lora_request, None
    request.block_hashes.clear()
    request.update_block_hashes()
    request.lora_request = adapter
    return original(scheduler, request)


def unsalted(original, scheduler, request):
    """Block hashes are made as if there were no salts."""
    request.cache_salt = None
    request.block_hashes = []
    request.update_block_hashes()
    return original(scheduler, request)


def reads_all_the_same(original, scheduler, request):
    request.skip_reading_prefix_cache = False
    return original(scheduler, request)


def keeps_what_was_cached(original, pool):
    """The reset says that it is done, and does nothing."""
    return True


TWINS = scenario(
    replace(SMALL, kv_cache_groups=(Full(), Mamba()), max_num_batched_tokens=48), text(13, 2), text(13, 2)
)


def forgets_what_the_step_makes(original, manager, *arguments, **named):
    """States that a step computes can be hit in that very step."""
    original(manager, *arguments, **named)
    manager.cached_blocks_this_step.clear()


AGAIN = scenario(SMALL, text(14, 3), text(14, 3), events=(Arrive(0), Reset(20), Arrive(1, 1)))

FAULTS = {
    "cached blocks swapped": Fault(SCHEDULE, after(swap_cached_blocks), "prefix", HIT),
    "another request's block": Fault(SCHEDULE, after(foreign_block), "chunked", COMPUTED),
    "one position too many": Fault(SCHEDULE, after(claim_one_more), "plain", HIT),
    "hit on an unwritten block": Fault("BlockPool.get_cached_block", unwritten_hit, "prefix", HIT),
    "salt without effect": Fault("Scheduler.add_request", unsalted, "cache_salt", HIT),
    "adapter without effect": Fault("Scheduler.add_request", hashed_as_the_base_model, "lora_prefix", HIT),
    "hit after a reset": Fault("BlockPool.reset_prefix_cache", keeps_what_was_cached, AGAIN, HIT),
    "hit that the request declined": Fault(
        "Scheduler.add_request",
        reads_all_the_same,
        "skip_prefix",
        (("cache-read-in-spite", "skip_reading_prefix_cache"),),
    ),
    "window freed too early": Fault(
        "SlidingWindowManager.get_num_skipped_tokens", too_short_a_window, WINDOW, COMPUTED
    ),
    "chunk freed too early": Fault(
        "ChunkedLocalAttentionManager.get_num_skipped_tokens", too_short_a_window, CHUNKED, COMPUTED
    ),
    "a state that this very step makes": Fault(
        "MambaManager.cache_blocks", forgets_what_the_step_makes, TWINS, HIT
    ),
    "another request's state": Fault(SCHEDULE, after(state_of_the_other), "groups_mamba", COMPUTED),
    "copy forgotten": Fault(SCHEDULE, after(shares_without_a_copy), "block_sizes_mamba", HIT),
    "window left out of a hit": Fault(
        "SlidingWindowManager.find_longest_cache_hit", null_blocks_only, "groups", HIT
    ),
    "chunk left out of a hit": Fault(
        "ChunkedLocalAttentionManager.find_longest_cache_hit", null_blocks_only, "groups", HIT
    ),
}


def test_is_quiet_on_legal_scenarios(legal):
    assert_quiet(KvContent, legal)


@faults(FAULTS)
def test_hears(monkeypatch, fault):
    assert_heard(monkeypatch, KvContent, fault)

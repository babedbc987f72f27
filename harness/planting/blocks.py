"""Plants in the KV cache: managers, coordinator, allocation. Written for 0.33.0."""

from harness.planting.edits import precede, swap
from harness.planting.plant import Edit, Plant

_COORDINATOR = "vllm.v1.core.kv_cache_coordinator:HybridKVCacheCoordinator"
_MANAGERS = "vllm.v1.core.single_type_kv_cache_manager"
_CACHE = "vllm.v1.core.kv_cache_manager:KVCacheManager"

PLANTS = (
    Plant(
        "29387",
        "a recurrent state is taken from a block that the same step computes",
        (
            Edit(
                f"{_MANAGERS}:MambaManager.get_num_blocks_to_allocate",
                swap("new_computed_blocks[-1].block_hash in self.cached_blocks_this_step", "False"),
            ),
        ),
    ),
    Plant(
        "43559",
        "the search for a common hit looks one block further for recurrent states, too",
        (
            Edit(
                f"{_COORDINATOR}.find_longest_cache_hit",
                swap("drop_eagle_block and (not isinstance(spec, MambaSpec))", "drop_eagle_block"),
            ),
        ),
    ),
    Plant(
        "39528",
        "a window group insists, for a drafter, on hits that are multiples of its own block size only",
        (
            Edit(
                f"{_MANAGERS}:SlidingWindowManager.find_longest_cache_hit",
                precede(
                    "return ...",
                    "assert not drop_eagle_block or kv_cache_spec.block_size == alignment_tokens",
                ),
            ),
        ),
    ),
    Plant(
        "11565",
        "blocks of a prefix hit are taken before it is known whether the rest fits",
        (
            Edit(
                f"{_CACHE}.allocate_slots",
                precede(
                    "if required_blocks > available_blocks:",
                    "if num_external_computed_tokens == 0 and new_computed_block_list is not "
                    "self.empty_kv_cache_blocks.blocks:\n"
                    "    self.block_pool.touch([b for group in new_computed_block_list for b in group])",
                ),
            ),
        ),
    ),
    Plant(
        "10730",
        "slots for drafts may lie beyond max_model_len",
        (
            Edit(
                f"{_CACHE}.allocate_slots",
                swap(
                    "min(num_tokens_main_model + num_lookahead_tokens, self.max_model_len)",
                    "num_tokens_main_model + num_lookahead_tokens",
                ),
            ),
        ),
    ),
)

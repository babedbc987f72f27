"""Plants the other way round: bugs that no release has fixed, mended. They tell whose fault a finding is.

Each is the smallest edit that takes the bug away, not a proposal. Written for 0.33.0, but for 42492: for 0.13.0.
"""

from harness.planting.edits import assign, precede, swap
from harness.planting.plant import Edit, Plant

_ACROSS = "vllm.v1.core.encoder_cache_manager:EncoderDecoderCacheManager"
_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"

PLANTS = (
    Plant(
        "mend-43569",
        "mended: a victim that this pass has scheduled loses the hashes of what it will not compute",
        (
            Edit(
                f"{_SCHEDULER}.schedule",
                precede(
                    "scheduled_running_reqs.remove(preempted_req)",
                    "for manager in self.kv_cache_manager.coordinator.single_type_managers:\n"
                    "    first = preempted_req.num_computed_tokens // manager.block_size\n"
                    "    for block in manager.req_to_blocks[preempted_req.request_id][first:]:\n"
                    "        self.kv_cache_manager.block_pool._maybe_evict_cached_block(block)",
                ),
            ),
        ),
    ),
    Plant(
        "mend-42492",
        "mended: a frame is given to the requests that it was scheduled for, and not to others with their ids",
        (
            Edit(
                f"{_SCHEDULER}.schedule",
                precede(
                    "self._update_after_schedule(scheduler_output)",
                    "scheduler_output.owners = {one: self.requests[one] for one in num_scheduled_tokens}",
                ),
            ),
            Edit(
                f"{_SCHEDULER}.update_from_output",
                swap(
                    "self.requests.get(req_id)",
                    "{scheduler_output.owners[req_id]: scheduler_output.owners[req_id]}.get(self.requests.get(req_id))",
                ),
            ),
        ),
    ),
    Plant(
        "mend-54076",
        "mended: chunks end where blocks of recurrent states end, whatever the smallest block of all groups is",
        (
            Edit(
                f"{_SCHEDULER}._mamba_block_aligned_split",
                assign(
                    "block_size",
                    "next(group.kv_cache_spec.block_size for group in self.kv_cache_config.kv_cache_groups "
                    "if isinstance(group.kv_cache_spec, MambaSpec))",
                ),
            ),
        ),
    ),
    Plant(
        "mend-55092",
        "mended: a hash is removed from the stream with its last block",
        (
            Edit(
                "vllm.v1.core.block_pool:BlockPool._remove_cached_block_hashes",
                swap(
                    "self.cached_block_hash_to_block.pop(block_hash, block.block_id) is not None",
                    "self.cached_block_hash_to_block.pop(block_hash, block.block_id) is not None and "
                    "self.cached_block_hash_to_block.get_one_block(block_hash) is None",
                ),
            ),
        ),
    ),
    Plant(
        "mend-51228",
        "mended: a request's encoder output is given back once",
        (
            Edit(
                f"{_ACROSS}.allocate",
                precede(
                    "self.num_free_slots -= num_encoder_embeds",
                    "vars(self).setdefault('mended', set()).add(request.request_id)",
                ),
            ),
            Edit(
                f"{_ACROSS}.free_encoder_input",
                precede(
                    "self.num_free_slots += num_encoder_embeds",
                    "if request.request_id not in vars(self).setdefault('mended', set()):\n"
                    "    return\n"
                    "self.mended.discard(request.request_id)",
                ),
            ),
        ),
    ),
    Plant(
        "mend-reset",
        "mended: a forced reset takes fenced blocks back first",
        (
            Edit(
                f"{_SCHEDULER}.reset_prefix_cache",
                precede(
                    "reset_successful = self.kv_cache_manager.reset_prefix_cache()",
                    "while self.deferred_frees:\n"
                    "    self.kv_cache_manager.block_pool.free_blocks(self.deferred_frees.popleft()[1])",
                ),
            ),
        ),
    ),
    Plant(
        "mend-49439",
        "mended: when nobody runs, sessions that wait behind another give back what they hold",
        (
            Edit(
                f"{_SCHEDULER}.schedule",
                precede(
                    "self.kv_cache_manager.new_step_starts()",
                    "if not self.running:\n"
                    "    for held in list(self.kv_holding_waiting)[1:]:\n"
                    "        if held.status == RequestStatus.WAITING and held.num_in_flight_tokens == 0:\n"
                    "            self.kv_holding_waiting.remove_request(held)\n"
                    "            self.kv_cache_manager.free(held)\n"
                    "            self.encoder_cache_manager.free(held)\n"
                    "            held.num_computed_tokens = 0\n"
                    "            self.waiting.add_request(held)",
                ),
            ),
        ),
    ),
    Plant(
        "mend-34220",
        "mended: a chunk is rolled back to the item and not to the drafter's position before it",
        (
            Edit(
                f"{_SCHEDULER}._try_schedule_encoder_inputs",
                swap(
                    "max(0, start_pos - (num_computed_tokens + shift_computed_tokens))",
                    "start_pos - num_computed_tokens",
                ),
                count=1,
            ),
        ),
    ),
)

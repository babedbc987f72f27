"""Plants around KV connectors. Written for 0.33.0."""

from harness.planting.edits import answer, assign, drop, swap
from harness.planting.plant import Edit, Plant

_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"

PLANTS = (
    Plant(
        "45357",
        "blocks go back to the pool while a step in flight still writes them",
        (
            Edit(
                f"{_SCHEDULER}.__init__",
                swap("multiple_inflight_batches and kv_transfer_config.is_kv_consumer", "False"),
            ),
        ),
    ),
    Plant(
        "49674",
        "requests are preempted although what they hold cannot be used in this pass",
        (
            Edit(
                f"{_SCHEDULER}.schedule",
                drop("if not self._request_blocks_can_be_freed(preempted_req):"),
            ),
        ),
    ),
    Plant(
        "45357-zero",
        "blocks that a load fills are zeroed by a step",
        (
            Edit(
                f"{_SCHEDULER}.schedule",
                swap(
                    "self.connector.get_loaded_kv_cache_group_ids(request) if load_kv_async and "
                    "self.connector is not None else ()",
                    "()",
                ),
            ),
        ),
    ),
    Plant(
        "45388",
        "a load is admitted although what runs already needs the blocks to end",
        (
            Edit(
                f"{_SCHEDULER}.schedule",
                assign("reserved_blocks", "0"),
                count=2,
            ),
        ),
    ),
    Plant(
        "57841",
        "requests that hold blocks wait behind requests that hold none",
        (Edit(f"{_SCHEDULER}._holds_kv_blocks", answer("False")),),
    ),
    Plant(
        "32255",
        "the blocks of a load whose request is aborted are free at once",
        (Edit(f"{_SCHEDULER}.finish_requests", assign("delay_free_blocks", "False"), count=2),),
    ),
    Plant(
        "31583",
        "a preempted request comes back from a load as a new one",
        (Edit(f"{_SCHEDULER}._handle_blocked_waiting_request", swap("request.num_preemptions", "False")),),
    ),
)

"""Plants in the flow of steps: asynchronous scheduling, preemption, aborts. Written for 0.33.0."""

from harness.planting.edits import drop, every, swap
from harness.planting.plant import Edit, Plant

_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_CORE = "vllm.v1.engine.core:EngineCore"

PLANTS = (
    Plant(
        "48245",
        "output that was in flight when its request was preempted counts for the request's new life",
        (
            Edit(
                f"{_SCHEDULER}._preempt_request",
                every(
                    drop("request.num_stale_output_tokens = request.num_in_flight_tokens"),
                    drop("request.num_output_placeholders = 0"),
                ),
                count=2,
            ),
        ),
    ),
    Plant(
        "27922",
        "asynchronous scheduling goes one step beyond max_tokens",
        (
            Edit(
                f"{_SCHEDULER}.schedule",
                drop("if request.num_output_placeholders > 0 and request.num_computed_tokens + 2 ..."),
            ),
        ),
    ),
    Plant(
        "29987",
        "an abort that arrives during a step is looked at only after the step's output",
        (
            Edit(f"{_CORE}.step", drop("self._process_aborts_queue()")),
            Edit(f"{_CORE}.step_with_batch_queue", drop("self._process_aborts_queue()")),
        ),
    ),
    Plant(
        "30916",
        "a preempted request keeps its drafts",
        (Edit(f"{_SCHEDULER}._preempt_request", drop("if request.spec_token_ids:")),),
    ),
    Plant(
        "23347",
        "a victim that the same pass has scheduled already stays scheduled",
        (Edit(f"{_SCHEDULER}.schedule", swap("preempted_req in scheduled_running_reqs", "False")),),
    ),
    Plant(
        "28787",
        "the token list sent again after a preemption ends where the computed tokens end",
        (
            Edit(
                f"{_SCHEDULER}._make_cached_request_data",
                swap("req.all_token_ids.copy()", "req.all_token_ids[: req.num_computed_tokens]"),
            ),
        ),
    ),
    Plant(
        "26385",
        "a request that comes back is not sent with its tokens",
        (
            Edit(
                f"{_SCHEDULER}._make_cached_request_data",
                drop("if req_id not in self.prev_step_scheduled_req_ids:"),
            ),
        ),
    ),
    Plant(
        "38663",
        "a grammar's refusal of a token is not acted on",
        (
            Edit(
                f"{_SCHEDULER}.update_from_output",
                drop("if new_token_ids and (not self.structured_output_manager.accept_tokens(request ..."),
            ),
        ),
    ),
)

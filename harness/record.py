"""Trace entries from vLLM's live objects: the only place that turns state into history."""

from collections.abc import Sequence
from typing import Any

from harness.step import NewRow, Step
from harness.trace import Delivered, Dispatched, Loading, Masked, ScheduledRequest
from harness.world import Flight, World


def dispatched(world: World, step: Step) -> Dispatched:
    """A schedule pass, and the state of vLLM's queues and pools right after it."""
    scheduler = world.scheduler
    encoder = scheduler.encoder_cache_manager if world.engine.encoder else None
    rows = [(row.request, _source(world, row), row.block_ids, row.computed) for row in step.new]
    rows += [
        (row.request, "resumed" if row.resumed else "running", row.new_block_ids or (), row.computed)
        for row in step.cached
    ]
    return Dispatched(
        iteration=world.iteration,
        step=step.index,
        scheduled=tuple(
            ScheduledRequest(
                request=request,
                source=source,
                computed=computed,
                tokens=step.scheduled.get(request, 0),
                drafts=len(step.drafts.get(request, ())),
                new_blocks=blocks,
                encoder_inputs=step.encoder_inputs.get(request, ()),
            )
            for request, source, blocks, computed in rows
        ),
        copies=step.copies,
        encoder_loads=step.encoder_loads,
        finished=step.finished,
        preempted=step.preempted,
        freed_encoder=step.freed_encoder,
        in_flight=len(world.flights),
        running=len(scheduler.running),
        waiting=len(scheduler.requests) - len(scheduler.running),
        free_blocks=world.pool.get_num_free_blocks(),
        num_blocks=world.engine.num_gpu_blocks,
        encoder_free=encoder.num_free_slots if encoder else 0,
        encoder_freeable=getattr(encoder, "num_freeable_slots", encoder.num_free_slots) if encoder else 0,
        loads=tuple(
            Loading(load.request, load.start, load.stop, load.asynchronous)
            for load in (step.orders.loads if step.orders else ())
        ),
        sends=tuple(send.request for send in (step.orders.sends if step.orders else ())),
    )


def _source(world: World, row: NewRow) -> str:
    """The V2 runner gets resumed requests as new ones."""
    state = world.scheduler.requests.get(row.request)
    return "resumed" if row.prefill and state is not None and state.num_preemptions else "new"


def delivered(world: World, flight: Flight, outputs: Sequence[Any]) -> Delivered:
    """A result that reached the scheduler, and vLLM's EngineCoreOutputs for it."""
    return Delivered(
        iteration=world.iteration,
        step=flight.step.index,
        # In the scheduler's order: rows of a batch have another, which is the runner's own affair.
        sampled=tuple(
            (request, tuple(flight.sampled[request]))
            for request in dict.fromkeys([*flight.step.scheduled, *flight.sampled])
            if request in flight.sampled
        ),
        outputs=tuple((output.request_id, tuple(output.new_token_ids)) for output in outputs),
        ended=tuple(
            (output.request_id, str(output.finish_reason))
            for output in outputs
            if output.finish_reason is not None
        ),
        received=flight.transfers.received,
        sent=flight.transfers.sent,
        invalid_blocks=tuple(sorted(flight.transfers.invalid)),
    )


def masked(world: World, flight: Flight, grammar_output: Any) -> Masked:
    """vLLM's GrammarOutput for a step."""
    return Masked(
        iteration=world.iteration,
        step=flight.step.index,
        rows=tuple(
            (request, 1 + len(flight.step.drafts.get(request, ())))
            for request in grammar_output.structured_output_request_ids
        ),
    )

"""`interleaving="free"`: the engine loop's calls in orders that the contract allows and today's loop does not make."""

from collections import deque
from collections.abc import Callable
from typing import Any

from harness import compat
from harness.world import Flight, World


class FreeLoop:
    """Steps of one execution. `take` gives a flight's result; `updated` hears what the scheduler made of it."""

    def __init__(self, world: World, take: Callable[[Flight], Any], updated: Callable[[Any], None]) -> None:
        self._world = world
        self._take = take
        self._updated = updated
        self._queue: deque[tuple[Any, Flight]] = (
            deque() if world.core.batch_queue is None else world.core.batch_queue
        )
        """The engine's own where it has one: a pause waits until it is empty."""

    def step(self) -> None:
        """Schedules if a batch may be in flight, then delivers the oldest result if it is ready."""
        core, flights = self._world.core, self._world.flights
        scheduler, executor = core.scheduler, core.model_executor
        scheduled = False
        if scheduler.has_requests() and len(flights) < core.batch_queue_size:
            output = compat.schedule(core)
            executor.execute_model(output, non_block=True)
            if output.total_num_scheduled_tokens:
                if not core.is_pooling_model:
                    self._sample(output)
                scheduled = True
            self._queue.append((output, flights[-1]))
        if not self._queue:
            return
        full = len(flights) >= core.batch_queue_size
        if full or not scheduled or self._queue[0][1].ready <= self._world.iteration:
            self._update()
            if core.use_spec_decode and not core.async_scheduling and scheduled:
                drafts = executor.take_draft_token_ids()
                if drafts is not None:
                    scheduler.update_draft_token_ids(drafts)

    def _sample(self, output: Any) -> None:
        """Masks need the tokens of the steps before: their results first, then their drafts.

        vLLM's loop asks for drafts only if it had to wait for results; here these may be there already.
        """
        core = self._world.core
        if output.pending_structured_output_tokens:
            while self._queue:
                self._update()
        drafts_are_late = core.use_spec_decode and core.async_scheduling
        if drafts_are_late and compat.grammars_go_with_async_drafts():
            drafts = core.model_executor.take_draft_token_ids()
            if drafts is not None:
                core.scheduler.update_draft_token_ids_in_output(drafts, output)
        core.model_executor.sample_tokens(core.scheduler.get_grammar_bitmask(output), non_block=True)

    def _update(self) -> None:
        """The oldest result reaches the scheduler."""
        output, flight = self._queue.popleft()
        result = self._take(flight)
        compat.process_aborts(self._world.core)
        self._updated(self._world.core.scheduler.update_from_output(output, result))

"""O15: waiting."""

from typing import Any, ClassVar

from harness.groups import blocks_needed
from harness.oracles.base import Oracle
from harness.step import Step
from harness.verdict import Level

PATIENCE = 2
"""Passes without tokens: one may tell the worker who finished, and skip a queue."""


class Starvation(Oracle):
    """O15: requests do not wait for somebody who has nothing to compute.

    A hazard, since the client of a parked streaming session may come back, or never: while nothing runs and the pool
    has room for any request, those that wait are held up by sessions that wait for their clients, because these
    count as running (`max_num_seqs`, `max_num_active_seqs`).

    Ledger: 53130.
    """

    family: ClassVar[str] = "O15"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._idle = 0

    def dispatched(self, step: Step) -> None:
        if step.total:
            self._idle = 0

    def settled(self) -> None:
        scheduler = self.world.scheduler
        statuses = {
            life.request: scheduler.requests[life.request].status.name
            for life in self.world.live
            if life.request in scheduler.requests
        }
        parked = [request for request, status in statuses.items() if status == "WAITING_FOR_STREAMING_REQ"]
        waiting = [request for request, status in statuses.items() if status in ("WAITING", "PREEMPTED")]
        engine = self.world.engine
        held_up = (
            len(parked) >= (engine.max_num_active_seqs or engine.max_num_seqs)
            and waiting
            and not scheduler.running
            and not self.world.flights
            and self.world.paused is None
            and self.world.pool.get_num_free_blocks() >= blocks_needed(engine) - 1
        )
        self._idle = self._idle + 1 if held_up else 0
        if self._idle > PATIENCE:
            self.report(
                "held-up-by-parked-sessions",
                "max_num_seqs",
                f"nothing runs, and {', '.join(waiting)} wait for the clients of {', '.join(parked)}",
                *waiting,
                level=Level.HAZARD,
                fatal=False,
            )

"""O15: preemption."""

from typing import Any, ClassVar

from harness.oracles.base import Oracle
from harness.step import Step
from harness.world import Act


class Preemption(Oracle):
    """O15: a pass preempts a request only for blocks that this gives back.

    Promised by `Scheduler.schedule` ("a deferred free will not help with immediate allocation", from 0.30), and by the
    sense of a preemption: where blocks are fenced until a step in flight is over (`defer_block_free`), the victim of
    such a step loses its place and its computed tokens, and the one for whom it was preempted gets nothing.

    Ledger: 49674.
    """

    family: ClassVar[str] = "O15"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._before: dict[str, int] = {}
        """Preemptions that each request has had before this pass."""

    def controlled(self, act: Act) -> None:
        self._note()  # a reset preempts, too, and means it

    def settled(self) -> None:
        self._note()

    def dispatched(self, step: Step) -> None:
        if not getattr(self.world.scheduler, "defer_block_free", False):  # from 0.24
            return
        for request, times in self._times().items():
            flying = [flight.step.index for flight in self.world.flights if request in flight.step.scheduled]
            if times > self._before.get(request, 0) and flying:
                self.report(
                    "preempted-in-vain",
                    "Scheduler.schedule",
                    f"the pass of step {step.index} preempts {request}, whose blocks stay fenced until step "
                    f"{flying[-1]} is over",
                    request,
                )

    def _note(self) -> None:
        self._before = self._times()

    def _times(self) -> dict[str, int]:
        requests = self.world.scheduler.requests
        return {
            life.request: requests[life.request].num_preemptions
            for life in self.world.live
            if life.request in requests
        }

"""O13: the SchedulerOutput contract."""

from collections.abc import Sequence
from typing import Any, ClassVar

from harness.oracles.base import Oracle
from harness.step import NewRow, Step
from harness.worker.observation import Breach, Observation
from harness.world import Life


class Contract(Oracle):
    """O13: every SchedulerOutput says what the model runner needs, once, and nothing that is not so.

    Promised by SchedulerOutput's field comments and relied on by GPUModelRunner: each scheduled request has data, and
    the other way round; the total is the sum; drafts leave room for one token; every position fed is a known token,
    the token sampled in the very last step or a draft; blocks cover what is written; each end is told exactly once; a
    prompt is the client's, and in a session that of its last turn without its last output, and the chunk
    (`Scheduler._update_request_as_session`). To the V2 runner: a slot for each request, all its tokens when it comes
    (again), no drafts scheduled that were skipped, and counts that bound the device's own.

    Ledger: 26385, 28787, 31583, 22543, 40768, 36122, 30916.
    """

    family: ClassVar[str] = "O13"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._told: set[str] = set()
        self._arrived: set[str] = set()
        self._due: set[str] = set()
        """Ids that were used again before the worker was told that the request which had them first is over."""

    def arrived(self, life: Life) -> None:
        if life.request in self._arrived and life.request not in self._told:
            self._due.add(life.request)
        self._told.discard(life.request)
        self._arrived.add(life.request)

    def dispatched(self, step: Step) -> None:
        for request, count in step.scheduled.items():
            life = self.world.lives.get(request)
            if life is None or not life.live:
                self._breach(
                    "ended-request-scheduled",
                    f"step {step.index} schedules {request}, which is over",
                    request,
                )
            if count <= 0:
                self._breach(
                    "no-tokens", f"step {step.index} schedules {count} tokens for {request}", request
                )
            elif len(step.drafts.get(request, ())) >= count:
                self._breach(
                    "drafts-fill-step", f"step {step.index}: {request} computes drafts only", request
                )
        for row in step.new:
            self._prompt(step, row)
        for name, keys in (("drafts", step.drafts), ("encoder inputs", step.encoder_inputs)):
            strays = sorted(keys.keys() - step.scheduled.keys())
            if strays:
                self._breach(
                    "unscheduled-data", f"step {step.index} has {name} for {strays}, not scheduled", *strays
                )
        for request in step.finished:
            life = self.world.lives.get(request)
            if request in self._due:
                self._due.remove(request)
                if life is not None and life.live:
                    continue
            if life is None or life.live:
                self._breach(
                    "live-request-finished", f"step {step.index} says that {request} is over", request
                )
            if request in self._told:
                self._breach(
                    "finished-twice", f"step {step.index} says again that {request} is over", request
                )
            self._told.add(request)

    def _prompt(self, step: Step, row: NewRow) -> None:
        reference, life = self.world.references.get(row.request), self.world.lives.get(row.request)
        if reference is None or row.prompt == tuple(reference.tokens[: reference.prompt_length]):
            return
        if self.world.engine.model_runner == "v2" and len(row.prompt) == reference.prompt_length:
            return  # that runner takes the tokens from elsewhere, and the stub with it
        continues = life is not None and life.session is not None and life.session.turn > 0
        message = f"step {step.index} sends {len(row.prompt)} prompt tokens for {row.request}, and not " + (
            f"the {reference.prompt_length} of its turns before, their last output left out, and its chunk"
            if continues
            else f"its client's {reference.prompt_length}"
        )
        self._breach("session-prompt-differs" if continues else "prompt-differs", message, row.request)

    def executed(self, step: Step, observations: Sequence[Observation]) -> None:
        for seen in observations:
            if isinstance(seen, Breach):
                self._breach(
                    seen.kind, f"step {step.index}: {seen.message}", *([seen.request] if seen.request else ())
                )

    def drained(self) -> None:
        untold = sorted(self.world.lives.keys() - self._told)
        if untold:
            self._breach("finish-not-told", f"the worker was never told that {untold} are over", *untold)

    def _breach(self, kind: str, message: str, *requests: str) -> None:
        self.report(kind, "SchedulerOutput", message, *requests)

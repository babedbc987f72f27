"""O16: grammars and their masks."""

from collections.abc import Sequence
from typing import Any, ClassVar

from harness.oracles.base import Oracle
from harness.step import Step
from harness.worker.observation import MaskMismatch, Observation


class GrammarMasks(Oracle):
    """O16: a structured request samples each output under its grammar's mask for exactly that position.

    Promised by StructuredOutputManager and Scheduler: nothing is scheduled before its grammar is compiled
    (`WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR`); the mask of a step is computed when all outputs before it are accepted
    (`pending_structured_output_tokens`), one row for each draft and one for the token after them, rejected drafts
    excepted; a grammar has accepted what its client has received, and nothing else (`accept_tokens`, `rollback`).
    Only outputs that a client will receive count. Of a mask that allows too much, a client sees nothing here, since
    our model never wants another token; a real one does.

    Ledger: 29379, 30916, 38663, 42619, 45015, 54437. Out of reach: 49694 (a worker that trims drafts).
    """

    family: ClassVar[str] = "O16"

    def dispatched(self, step: Step) -> None:
        for request in step.scheduled:
            if self._structured(request) and request not in self.world.grammars:
                self.report(
                    "scheduled-without-grammar",
                    "Scheduler.schedule",
                    f"step {step.index} schedules {request}, whose grammar is not compiled",
                    request,
                )

    def executed(self, step: Step, observations: Sequence[Observation]) -> None:
        for seen in observations:
            # What has ended since it was scheduled needs no mask: its sample goes nowhere. vLLM may know it still, for
            # as long as a connector sends its blocks.
            state = self.world.scheduler.requests.get(getattr(seen, "request", ""))
            if isinstance(seen, MaskMismatch) and state is not None and not state.is_finished():
                place = "after drafts" if seen.drafts else "first token of a step"
                self.report(
                    "mask-" + seen.found.replace(" ", "-"),
                    f"GrammarOutput: {place}",
                    f"step {step.index} samples output {seen.output} of {seen.request}"
                    + (f", after {seen.drafts} right drafts," if seen.drafts else "")
                    + (" without a mask" if seen.found == "missing" else f" under a mask that {seen.found}"),
                    seen.request,
                )
                return

    def delivered(self, step: Step, outputs: Sequence[Any]) -> None:
        for output in outputs:
            request = output.request_id
            grammar, life = self.world.grammars.get(request), self.world.lives.get(request)
            if grammar is None or life is None or grammar.accepted == len(life.outputs):
                continue
            self.report(
                "state-differs",
                "StructuredOutputGrammar",
                f"step {step.index}: the grammar of {request} has accepted {grammar.accepted} tokens, its client "
                f"has received {len(life.outputs)}",
                request,
            )

    def _structured(self, request: str) -> bool:
        reference = self.world.references.get(request)
        return reference is not None and reference.request.grammar is not None

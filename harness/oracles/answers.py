"""O8: answers that are no tokens."""

from collections.abc import Sequence
from typing import Any, ClassVar

from harness.model import EOS, STOP, Reference, drawn
from harness.oracles.base import Oracle
from harness.step import Step
from harness.world import Life


class OtherAnswers(Oracle):
    """O8: a client also receives, once, what it asked for beside tokens, and it is right.

    Of a pooling model one output for a request, with what the model makes of the whole prompt, and with the request's
    end ("pooling stops as soon as there is output"). With `prompt_logprobs` the first output has a row for each token
    of the prompt but the first ("EngineCore returns no partial prefill outputs"), all of them computed for this
    request; no other output has any.

    Ledger: 41411, 28899.
    """

    family: ClassVar[str] = "O8"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._told: set[str] = set()
        """Requests whose prompt's logprobs have been delivered, or should have been."""

    def arrived(self, life: Life) -> None:
        self._told.discard(life.request)  # an id that its client uses again

    def delivered(self, step: Step, outputs: Sequence[Any]) -> None:
        for output in outputs:
            if output.request_id not in self.world.lives or str(output.finish_reason) in ("abort", "error"):
                continue
            reference = self.world.references[output.request_id]
            if reference.pools:
                self._pooled(step, output, reference)
            else:
                self._prompt(step, output, reference)

    def _pooled(self, step: Step, output: Any, reference: Reference) -> None:
        request, answer = output.request_id, output.pooling_output
        anchor = "EngineCoreOutput.pooling_output"
        if answer is None:
            message = f"step {step.index} delivers an output for {request}, and nothing in it"
            self.report("no-pooling-output", anchor, message, request)
        elif int(answer) % (1 << 64) != reference.pooled:
            message = f"step {step.index}: what {request} gets is not what the model makes of its prompt"
            self.report("wrong-pooling-output", anchor, message, request)
        elif output.finish_reason is None:
            message = f"step {step.index}: {request} gets its answer, and does not end"
            self.report("pooling-goes-on", "update_from_output", message, request)

    def _prompt(self, step: Step, output: Any, reference: Reference) -> None:
        request, tensors = output.request_id, output.new_prompt_logprobs_tensors
        if not reference.request.prompt_logprobs or request in self._told:
            if tensors is not None:
                asked = "again" if reference.request.prompt_logprobs else "unasked"
                self._wrong(
                    asked, f"step {step.index}: {request} gets its prompt's logprobs, {asked}", request
                )
            return
        if tensors is None and not output.new_token_ids:
            return
        self._told.add(request)
        if tensors is None:
            self._wrong("missing", f"step {step.index}: the first output of {request} lacks them", request)
            return
        rows = [(int(row[0]), int(row[1])) for row in tensors.logprob_token_ids]
        if len(rows) != reference.prompt_length - 1:
            message = (
                f"step {step.index}: {request} gets {len(rows)} rows for {reference.prompt_length} tokens"
            )
            self._wrong("rows", message, request)
            return
        for position, (token, likely) in enumerate(rows):
            true = drawn(reference.content(position))
            # A network answers a prefix as any request's script says.
            if token != reference.token(position + 1) or likely not in (true, EOS, STOP):
                what = "was not computed" if token < 0 else "is not this prompt's"
                message = f"step {step.index}: the row of position {position + 1} of {request} {what}"
                self._wrong("not computed" if token < 0 else "other content", message, request)
                return

    def _wrong(self, what: str, message: str, request: str) -> None:
        self.report("wrong-prompt-logprobs", what, message, request, fatal=False)

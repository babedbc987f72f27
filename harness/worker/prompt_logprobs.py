"""Prompts' logprobs as the V1 model runner gathers them (`GPUModelRunner._get_prompt_logprobs_dict`).

A request that comes as new has all of its rows to be computed; each step computes those of the positions that it
feeds, and the step that reaches the prompt's last token tells them all, once. Where they are kept until then is a
matter of the release (`rows_keep_prompt_logprobs`).
"""

from collections.abc import Callable, Sequence

from harness.model import drawn
from harness.step import Step
from harness.worker.batch_v1 import BatchV1
from harness.worker.traits import Traits

Row = tuple[int, int]
"""At a position: the prompt's next token, and the one that the model would say."""
NOT_COMPUTED: Row = (-1, -1)


class PromptLogprobs:
    """What is known so far. `NOT_COMPUTED` stands where the real tensors have what memory held before."""

    def __init__(self, traits: Traits) -> None:
        self._traits = traits
        self._rows: dict[str, list[Row]] = {}
        """Of requests that have not been told theirs."""

    def update(self, step: Step, batch: BatchV1) -> None:
        """The step's state part."""
        for request in step.finished:
            self._rows.pop(request, None)
        for new in step.new:
            if batch.requests[new.request].reference.request.prompt_logprobs:
                self._rows[new.request] = [NOT_COMPUTED] * (len(new.prompt) - 1)
        if not self._traits.rows_keep_prompt_logprobs:
            lost = [
                request for request in self._rows if request not in batch.rows or request in batch.returned
            ]
            for request in lost:
                self._rows[request] = [NOT_COMPUTED] * len(self._rows[request])

    def told(
        self, step: Step, batch: BatchV1, contents: Callable[[str], Sequence[int]]
    ) -> dict[str, list[Row]]:
        """The prompts that the step completes; `contents` gives the fingerprints that it computed for a request."""
        completed: dict[str, list[Row]] = {}
        for request, rows in list(self._rows.items()):
            if request not in step.scheduled:
                continue
            cached = batch.requests[request]
            start, count = cached.computed, step.scheduled[request]
            for position, content in zip(range(start, len(rows)), contents(request), strict=False):
                rows[position] = cached.prompt[position + 1], drawn(content)
            if start + count >= len(cached.prompt):
                completed[request] = self._rows.pop(request)
        return completed

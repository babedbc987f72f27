"""A worker that obeys the V2 model runner's contract and knows the truth.

Its bookkeeping is `batch_v2`; memory, the target's answers and the encoder are as V1's (`forward`). The order of a
step: freed encoder outputs and requests leave, requests come, new blocks are zeroed, encoder, the target's gather,
forward; and, in the runner's second call, sampling under the grammars' masks, what a connector tells, the drafter's
gather (by the scheduler's count, as the target's), counts, drafts.

Only rows that the host takes for unfinished prefills gather encoder outputs. The drafter has no lack of room: where
positions end it goes on with the last. The scheduler is told drafts for grammars only, else how many there are.
"""

from collections.abc import Mapping

from harness.model import Reference, wrong_token
from harness.scenario import Engine
from harness.step import Step
from harness.worker.batch_v2 import NO_DRAFT, BatchV2, Slot
from harness.worker.forward import Forward
from harness.worker.masks import Rows
from harness.worker.observation import Breach
from harness.worker.traits import TraitsV2


class StubV2(Forward):
    """One worker for one execution. `references` maps request ids to their truth.

    Where a grammar limits drafts (from 0.32), a request's masks end with those that may be right.
    """

    grammars_limit_drafts = True

    def __init__(self, engine: Engine, references: Mapping[str, Reference], traits: TraitsV2) -> None:
        super().__init__(engine, references, traits)
        self.batch: BatchV2 = BatchV2(references, engine, traits)
        self.drafts = {}
        self._step: Step
        """The step in progress, without drafts that it cannot have."""

    def forward(self, step: Step) -> None:
        self.batch.observations = []
        self._inputs = {}
        self.encoder.free(step)
        self._check_tables(step)
        self.batch.update(step)
        self._zero(step.zeroed)
        self.kv.copy_blocks(step.copies)
        self.spoiled.clear()
        self.adrift.clear()
        self._step = step
        self._begin_transfers(step)
        if step.total == 0:
            self._end_transfers(step)
            return
        self._check_total(step, fails=False)
        bounded = self.batch.traits.drafts_are_bounded
        self._step = step = self.batch.fitting(step, fails=bounded)
        starts = {request: self.batch.requests[request].computed for request in step.scheduled}
        inputs = self._fed(step)
        self.encoder.run(step)
        self._gather_rows(step, "target")
        self._embed(step, inputs)
        self._forward(step, starts, inputs)
        self._inputs = inputs

    def sample(self, step: Step, rows: Mapping[str, Rows]) -> dict[str, list[int]]:
        self.batch.observations = []
        step = self._step
        if step.total == 0:
            return {}
        sampled = {request: self._sample(step, request, rows.get(request)) for request in self._inputs}
        self._end_transfers(step)
        if self.looks_ahead:
            self._gather_rows(step, "drafter")
        for request, tokens in sampled.items():
            self.batch.keep(step, request, tokens)
        if self.num_spec:
            self._propose(step, sampled)
        return sampled

    def _fed(self, step: Step) -> dict[str, list[int]]:
        copied = any(map(self.batch.prefills, step.scheduled))
        return {request: self.batch.inputs(step, request, copied=copied) for request in step.scheduled}

    def _gather_rows(self, step: Step, window: str) -> None:
        """EncoderRunner.gather_mm_embeddings, for the target, or one token ahead."""
        ahead = 1 if window == "drafter" else 0
        for request, count in step.scheduled.items():
            slot = self.batch.requests[request]
            if slot.counted + ahead < len(slot.prefill):
                self.encoder.gather(request, slot.counted + ahead, count, window)
        self.encoder.merge()

    def _embed(self, step: Step, inputs: Mapping[str, list[int]]) -> None:
        for request, tokens in inputs.items():
            if NO_DRAFT in tokens:
                message = f"{request} verifies drafts that were not proposed (-1), which no embedding has"
                raise self.batch.fail(Breach("placeholder-fed", message, request, True))

    def _sample(self, step: Step, request: str, rows: Rows | None) -> list[int]:
        """Tokens that the step samples; empty if it ends inside what the request came with."""
        slot, tokens = self.batch.requests[request], self._inputs[request]
        known = len(tokens) - len(step.drafts.get(request, ()))
        position = slot.computed + known
        stale = self._stale_token(request, slot.computed, tokens[:known])
        if stale is not None:
            self.observations.append(stale)
        if slot.computed + len(tokens) < len(slot.prefill):
            return []
        if request in self.spoiled:
            return [wrong_token(slot.reference.token(position))]
        # Drafts in a step that begins in the prefill pad it to the size of others, and are never right.
        drafts = tokens[known:] if position > len(slot.prefill) else []
        if rows is not None:
            drafts = drafts[: len(rows) - 1]
        sampled = self._verified(request, position, drafts, rows)
        if slot.reference.request.grammar is not None and stale is None:
            self._check_mask(request, position - slot.reference.prompt_length, len(sampled), rows)
        if slot.total + len(sampled) > self.engine.max_model_len:
            message = f"{request} samples up to position {position + len(sampled)}, past max_model_len"
            self.observations.append(Breach("sampled-past-model-length", message, request))
        return sampled

    # -- drafter ------------------------------------------------------------------------------------------------

    def _propose(self, step: Step, sampled: dict[str, list[int]]) -> None:
        count = 0 if step.skip_drafts else self.num_spec
        for request, tokens in sampled.items():
            slot = self.batch.requests[request]
            slot.drafts = self._draft(slot, tokens)[:count] + [NO_DRAFT] * (self.num_spec - count)
        self.drafts = {
            request: self.batch.requests[request].drafts[:count] if step.structured else [NO_DRAFT] * count
            for request in sampled
        }

    def _draft(self, slot: Slot, sampled: list[int]) -> list[int]:
        if not sampled:
            return [wrong_token(0)] * self.num_spec
        if self.looks_ahead:
            return slot.reference.drafts(slot.total, self.num_spec)
        # The search repeats the last token where it finds nothing.
        found = slot.reference.matched(slot.total, self.num_spec)
        return found + [slot.last] * (self.num_spec - len(found))

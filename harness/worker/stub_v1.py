"""A worker that obeys the V1 model runner's contract and knows the truth.

Its bookkeeping is `batch_v1`; here are the encoder cache, KV memory, the target model and the drafter, in the real
runner's order: new blocks are zeroed, freed encoder outputs leave, state, encoder, the target's gather, forward (every
request writes before any request reads, as layer by layer on the device); and, in the runner's second call, sampling
under the grammars' masks, then the drafter's gather with corrected counts. What the stub needs it must find where the
SchedulerOutput says; what it meets it reports.

The target samples what the reference model says, if the mask lets it; the drafter is right as often as the scenario's
script says. Not modelled: the drafter's own KV entries (ledger 41838), which decide acceptance but never the output.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from harness.groups import attended_from, groups_of, looks_ahead
from harness.model import Reference, mix, wrong_token
from harness.peers.mover import Mover
from harness.scenario import Engine, Mamba
from harness.step import Step
from harness.worker import masks
from harness.worker.batch_v1 import UNRESOLVED, BatchV1
from harness.worker.external import StubMemory
from harness.worker.masks import Rows
from harness.worker.observation import (
    Breach,
    EncoderMiss,
    KvMismatch,
    MaskMismatch,
    Observation,
    RunnerFailure,
)
from harness.worker.shadow import KvShadow
from harness.worker.traits import Traits


@dataclass(frozen=True, slots=True)
class Execution:
    """What a step gave: sampled tokens per request (empty where the sample is discarded) and observations."""

    sampled: dict[str, list[int]]
    observations: tuple[Observation, ...]


class StubV1:
    """One worker for one execution. `references` maps request ids to their truth."""

    def __init__(self, engine: Engine, references: Mapping[str, Reference], traits: Traits) -> None:
        self.engine = engine
        self.traits = traits
        speculative = engine.speculative
        self.num_spec = speculative.num_speculative_tokens if speculative else 0
        self.looks_ahead = looks_ahead(engine)
        self.groups = groups_of(engine)
        self.kv = KvShadow(engine.num_gpu_blocks, engine.block_size, len(self.groups))
        self.batch = BatchV1(references, async_scheduling=engine.async_scheduling, traits=traits)
        self.encoder_cache: set[str] = set()
        self.ever_encoded: set[str] = set()
        self.stripped: set[str] = set()
        """Images that could not be encoded, since their data was left out."""
        self.drafts: dict[str, list[int]] | None = None
        self.drafts_are_told = False
        self._starts: dict[str, int] = {}
        self._inputs: dict[str, list[int]] = {}
        self._step: Step
        """The step in progress, as the batch runs it."""
        self.outside = StubMemory(self.kv, references, lambda seen: self.observations.append(seen))
        self.mover = Mover(self.outside) if engine.connector else None
        self.spoiled: set[str] = set()
        """Rows of the step in progress that attend to what a failed load left."""

    @property
    def observations(self) -> list[Observation]:
        """What the step in progress has met so far; the list that a RunnerFailure leaves behind."""
        return self.batch.observations

    def execute(self, step: Step, rows: Mapping[str, Rows] | None = None) -> Execution:
        """Both calls of a step in a row."""
        self.forward(step)
        seen = tuple(self.observations)
        sampled = self.sample(step, rows or {})
        return Execution(sampled, (*seen, *self.observations))

    def forward(self, step: Step) -> None:
        """Runs a step up to its logits. RunnerFailure where the real runner raises; `observations` say why."""
        self.batch.observations = []
        self._starts, self._inputs = {}, {}
        self.kv.zero(step.zeroed)
        self.encoder_cache.difference_update(step.freed_encoder)
        self.spoiled.clear()
        self._step = step = self.batch.update(step)
        self._transfer(step, now=step.loads_first)
        if step.total == 0:
            self._transfer(step, now=not step.loads_first, last=True)
            return
        if step.total != sum(step.scheduled.values()):
            message = f"total_num_scheduled_tokens is {step.total}, the sum is {sum(step.scheduled.values())}"
            raise self.batch.fail(Breach("wrong-total", message, fails=True))
        starts = {request: self.batch.start(request) for request in self.batch.rows}
        inputs = {request: self.batch.inputs(step, request) for request in self.batch.rows}
        self.batch.take_drafts(step)
        self._run_encoder(step)
        for request in self.batch.rows:
            self._gather(request, self.batch.requests[request].computed, step.scheduled[request], "target")
        self._embed(step, inputs)
        self._forward(starts, inputs)
        self._transfer(step, now=not step.loads_first, last=True)
        self._starts, self._inputs = starts, inputs

    def sample(self, step: Step, rows: Mapping[str, Rows]) -> dict[str, list[int]]:
        """Samples under the grammars' masks and drafts: tokens per request, none where the sample is discarded.

        `rows` holds masks of requests (see `masks`). RunnerFailure and `observations` as in `forward`, afresh.
        """
        self.batch.observations = []
        step = self._step
        if step.total == 0:
            return {}
        starts = self._starts
        sampled = {request: self._sample(step, request, rows.get(request)) for request in starts}
        # The CPU's idea of the longest sequence still counts every draft as accepted.
        longest = max(self.batch.requests[request].computed + step.scheduled[request] for request in starts)
        self.batch.settle(starts)
        self.batch.keep(sampled)
        self.batch.prev_rows = list(starts)
        if self.num_spec:
            self._propose(step, starts, sampled, fits=longest + self.num_spec <= self.engine.max_model_len)
        return sampled

    def reset_encoder_cache(self) -> None:
        """GPUModelRunner.reset_encoder_cache; what was encoded has gone as if it had been evicted."""
        self.encoder_cache.clear()

    # -- connector ----------------------------------------------------------------------------------------------

    def _transfer(self, step: Step, *, now: bool, last: bool = False) -> None:
        """KVConnectorModelRunnerMixin: loads start before the forward pass or after it; then what is over is told."""
        if self.mover is None:
            return
        if step.orders is None:
            message = f"step {step.index} comes without metadata for the connector"
            raise self.batch.fail(Breach("no-connector-metadata", message, "", True))
        if now:
            self.mover.now = step.iteration
            self.mover.start(step.orders)
        if last:
            self.mover.finish()

    # -- encoder ------------------------------------------------------------------------------------------------

    def _run_encoder(self, step: Step) -> None:
        for request, indices in step.encoder_inputs.items():
            cached = self.batch.requests[request]
            for index in indices:
                image = cached.items[index][2]
                if index in cached.stripped:
                    self.stripped.add(image)  # the runner skips it, and says nothing
                    continue
                self.encoder_cache.add(image)
                self.ever_encoded.add(image)

    def _gather(self, request: str, start: int, count: int, window: str) -> None:
        """GPUModelRunner._gather_mm_embeddings: every item that overlaps [start, start+count) must be there."""
        encoder = self.engine.encoder
        if encoder is not None and encoder.is_encoder_decoder:
            return  # cross-attention reads what the step itself has encoded
        end_of_target = start + count - (1 if window == "drafter" else 0)
        for offset, length, image in self.batch.requests[request].items:
            if offset >= start + count or offset + length <= start or image in self.encoder_cache:
                continue
            if self.traits.drafter_falls_back and offset >= end_of_target:
                continue
            reason = "evicted" if image in self.ever_encoded else "never encoded"
            if image in self.stripped:
                reason = "sent without the data that its encoder needs"
            self.observations.append(EncoderMiss(request, image, window, reason))
            raise RunnerFailure(f"Encoder cache miss for {image}.")

    def _embed(self, step: Step, inputs: dict[str, list[int]]) -> None:
        """A placeholder that no device token has replaced. It gets to the device only if the step has other tokens
        that the host must send (`_prepare_input_ids`); else what is left there from the last step is embedded."""
        sent = step.total - sum(map(len, step.drafts.values())) > len(self.batch.prev_sampled)
        for request, tokens in inputs.items():
            if sent and UNRESOLVED in tokens and not self.traits.placeholders_are_clamped:
                message = f"{request} is fed a placeholder (-1), which no embedding has"
                raise self.batch.fail(Breach("placeholder-fed", message, request, True))

    # -- target -------------------------------------------------------------------------------------------------

    def _forward(self, starts: dict[str, int], inputs: dict[str, list[int]]) -> None:
        """In an attention layer every request writes before any reads; a Mamba layer reads each state before it
        writes it."""
        for request, start in starts.items():
            self._read(request, start, states=True)
        for request, start in starts.items():
            self._write(request, start, inputs[request])
        if self.outside.has_failed:
            self._spread(starts, inputs)
        for request, start in starts.items():
            self._read(request, start, states=False)

    def _write(self, request: str, start: int, tokens: list[int]) -> None:
        cached = self.batch.requests[request]
        contents = np.array(self._contents(cached.reference, start, tokens), dtype=np.uint64)
        contents ^= np.uint64(cached.reference.salt)
        for group, (table, kind) in enumerate(zip(cached.tables, self.groups, strict=True)):
            if isinstance(kind, Mamba):
                slots, written = self.kv.state(table), contents[-1:]
            else:
                slots, written = self.kv.slots(table, start, start + len(tokens)), contents
            wrong = np.flatnonzero(slots < self.kv.block_size)
            if len(wrong):
                position = start + int(wrong[0])
                what = self.kv.describe(int(slots[wrong[0]]))
                message = f"{request} writes position {position} of group {group} to a {what}"
                self.observations.append(Breach("write-" + what.replace(" ", "-"), message, request))
            self.kv.write(group, slots, written)

    def _spread(self, starts: dict[str, int], inputs: dict[str, list[int]]) -> None:
        """What is computed from what a failed load left is as wrong as that."""
        spreads = True
        while spreads:
            spreads = False
            for request, start in starts.items():
                if request in self.spoiled or not self._attends_to_spoiled(request, start):
                    continue
                spreads = True
                self.spoiled.add(request)
                for table in self.batch.requests[request].tables:
                    self.kv.spoil(self.kv.slots(table, start, start + len(inputs[request])))

    def _attends_to_spoiled(self, request: str, start: int) -> bool:
        tables = self.batch.requests[request].tables
        return any(
            self.kv.is_spoiled(self.kv.slots(table, attended_from(kind, start), start))
            for table, kind in zip(tables, self.groups, strict=True)
        )

    @staticmethod
    def _contents(reference: Reference, start: int, tokens: list[int]) -> list[int]:
        """Fingerprints that feeding `tokens` from `start` on writes; the truth as long as the tokens are true."""
        contents: list[int] = []
        true = True
        for position, token in enumerate(tokens, start):
            true = true and token == reference.token(position)
            previous = contents[-1] if contents else 0
            contents.append(reference.content(position) if true else mix(previous, token))
        return contents

    def _read(self, request: str, start: int, *, states: bool) -> None:
        """Attention to the context [0, start), or to the part of it that the group's first query sees; those that
        follow see no more of it. A state stands for the whole context, and is empty before the first position."""
        cached = self.batch.requests[request]
        if start > 0:
            cached.reference.token(start - 1)
        for group, (table, kind) in enumerate(zip(cached.tables, self.groups, strict=True)):
            if isinstance(kind, Mamba) is not states:
                continue
            first = start - 1 if states else attended_from(kind, start)
            if not 0 <= first < start:
                continue
            slots = self.kv.state(table) if states else self.kv.slots(table, first, start)
            expected = np.array(cached.reference.contents[first:start], dtype=np.uint64)
            expected ^= np.uint64(cached.reference.salt)
            wrong = self.kv.mismatches(group, slots, expected)
            if len(wrong):
                slot = int(slots[wrong[0]])
                self.observations.append(
                    KvMismatch(
                        request=request,
                        group=group,
                        position=first + int(wrong[0]),
                        block=slot // self.kv.block_size,
                        found=self.kv.describe(slot),
                    )
                )

    def _sample(self, step: Step, request: str, rows: Rows | None) -> list[int]:
        """Tokens that the step samples; empty if it ends inside what is known already (an unfinished prefill)."""
        cached, start, tokens = self.batch.requests[request], self._starts[request], self._inputs[request]
        drafts = len(step.drafts.get(request, ()))
        last = start + len(tokens) - drafts
        true_so_far = True
        for position, token in enumerate(tokens[: len(tokens) - drafts], start):
            if request in self.spoiled:
                break  # what it sampled last is as wrong
            if token != cached.reference.token(position):
                what = "a token that it does not know" if token < 0 else f"token {token}"
                message = f"{request} is fed {what} at position {position}"
                self.observations.append(Breach("stale-token", message, request))
                true_so_far = False
                break
        if cached.computed + len(tokens) < len(cached.prompt) + len(cached.outputs):
            return []
        if request in self.spoiled:
            return [wrong_token(cached.reference.token(last))]
        sampled: list[int] = []
        for draft in (*tokens[len(tokens) - drafts :], None) if drafts else (None,):
            true = cached.reference.token(last + len(sampled))
            sampled.append(true if rows is None else masks.sampled(rows[len(sampled)], true))
            if draft != sampled[-1]:
                break
        if cached.reference.request.grammar is not None and true_so_far:
            self._check_mask(request, last - len(cached.prompt), len(sampled), rows)
        if last + len(sampled) > self.engine.max_model_len:
            message = f"{request} samples up to position {last + len(sampled)}, past max_model_len"
            raise self.batch.fail(Breach("sampled-past-model-length", message, request, True))
        return sampled

    def _check_mask(self, request: str, first: int, count: int, rows: Rows | None) -> None:
        """The masks that `count` tokens from output position `first` on were sampled under: the grammar's, up to the
        output's end.
        """
        reference = self.batch.requests[request].reference
        for drafts in range(min(count, len(reference.expected_output()[0]) - first)):
            token = reference.token(reference.prompt_length + first + drafts)
            if rows is None:
                found = "missing"
            elif masks.allows_everything(rows[drafts]):
                found = "allows every token"
            elif masks.allowed(rows[drafts]).tolist() != [token]:
                found = "allows other tokens"
            else:
                continue
            self.observations.append(MaskMismatch(request, first + drafts, drafts, found))
            return

    # -- drafter ------------------------------------------------------------------------------------------------

    def _propose(
        self, step: Step, starts: dict[str, int], sampled: dict[str, list[int]], *, fits: bool
    ) -> None:
        """The drafter's pass; it is skipped, and drafts are zeros, when the longest sequence leaves it no room."""
        if self.looks_ahead and fits:
            for request in starts:
                self._gather(
                    request, self.batch.requests[request].computed + 1, step.scheduled[request], "drafter"
                )
        if fits:
            self.drafts = {
                request: self._draft(
                    request, starts[request] + step.scheduled[request], step, sampled[request]
                )
                for request in starts
            }
        else:
            self.drafts = self._drafts_without_room(starts)
        if self.drafts is None and self.traits.drops_drafts and self.engine.async_scheduling:
            self.batch.keep_old_drafts(starts, self.num_spec)
        else:
            self.batch.device_drafts, self.batch.drafted_rows = self.drafts, len(starts)
        # With asynchronous scheduling the host needs them for grammars only (`_copy_draft_token_ids_to_cpu`).
        self.drafts_are_told = step.structured or not self.engine.async_scheduling

    def _drafts_without_room(self, rows: Iterable[str]) -> dict[str, list[int]] | None:
        rule = self.traits.drafts_without_room
        if rule == "zeros" or (
            rule == "zeros if async" and self.engine.async_scheduling and self.looks_ahead
        ):
            return {request: [0] * self.num_spec for request in rows}
        return None

    def _draft(self, request: str, end: int, step: Step, sampled: list[int]) -> list[int]:
        cached = self.batch.requests[request]
        if not sampled:
            return [wrong_token(0)] * self.num_spec if self.looks_ahead else []
        first = end - len(step.drafts.get(request, ())) + len(sampled)
        if self.looks_ahead:
            return cached.reference.drafts(first, self.num_spec)
        return cached.reference.matched(first, self.num_spec)

    def take_drafts(self) -> dict[str, list[int]] | None:
        """Drafts of the last step that sampled, per row (what `take_draft_token_ids` returns)."""
        return self.drafts if self.drafts_are_told else None

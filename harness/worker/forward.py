"""What both model runners do alike: KV memory, a connector's transfers, the target's answers under masks.

The runners differ in their bookkeeping (`batch_v1`, `batch_v2`) and in what they do when; what a step reads and writes
follows from the same rules, which are here. What a step needs it must find where the SchedulerOutput says; what it
meets it reports. Not modelled: the drafter's own KV entries (ledger 41838), which decide acceptance but never the
output.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from harness.groups import attended_from, groups_of, looks_ahead, scale_of
from harness.model import Reference, mix
from harness.peers.mover import Mover
from harness.scenario import Engine, Mamba
from harness.step import Step
from harness.worker import masks
from harness.worker.batch import Batch
from harness.worker.encoder import EncoderOutputs
from harness.worker.external import StubMemory
from harness.worker.masks import Rows
from harness.worker.observation import (
    Breach,
    KvMismatch,
    MaskMismatch,
    Observation,
)
from harness.worker.prompt_logprobs import Row
from harness.worker.shadow import KvShadow, Slots
from harness.worker.states import Move, States
from harness.worker.traits import Traits, TraitsV2


@dataclass(frozen=True, slots=True)
class Execution:
    """What a step gave: sampled tokens per request (empty where the sample is discarded) and observations."""

    sampled: dict[str, list[int]]
    observations: tuple[Observation, ...]


class Forward:
    """One worker's memory for one execution."""

    batch: Batch
    grammars_limit_drafts: ClassVar[bool] = False
    """Whether drafts that a grammar does not accept are rejected, whatever the masks say."""

    def __init__(
        self, engine: Engine, references: Mapping[str, Reference], traits: Traits | TraitsV2
    ) -> None:
        self.engine = engine
        speculative = engine.speculative
        self.num_spec = speculative.num_speculative_tokens if speculative else 0
        self.looks_ahead = looks_ahead(engine)
        self.groups = groups_of(engine)
        sizes = [engine.block_size * scale_of(group) for group in self.groups]
        self.kv = KvShadow(engine.num_gpu_blocks, sizes)
        self.states = States(engine)
        self.encoder = EncoderOutputs(engine, traits, lambda: self.batch)
        self.pooled: dict[str, int] = {}
        """A pooling model's answers of the last step."""
        self.prompt_logprobs: dict[str, list[Row]] = {}
        """Those of the prompts that the last step has completed."""
        self.drafts: dict[str, list[int]] | None = None
        self.masks_are_strided = traits.masks_are_strided
        self._starts: dict[str, int] = {}
        self._inputs: dict[str, list[int]] = {}
        self._outside = StubMemory(engine, self.kv, references, lambda seen: self.observations.append(seen))
        self.mover = Mover(self._outside) if engine.connector else None
        self.spoiled: set[str] = set()
        """Rows of the step in progress that attend to what a failed load left."""
        self.adrift: set[str] = set()
        """Rows of the step in progress that a mask made say another token than the request's own."""

    @property
    def observations(self) -> list[Observation]:
        """What the call in progress has met so far; the list that a RunnerFailure leaves behind."""
        return self.batch.observations

    def execute(self, step: Step, rows: Mapping[str, Rows] | None = None) -> Execution:
        """Both calls of a step in a row."""
        self.forward(step)
        seen = tuple(self.observations)
        sampled = self.sample(step, rows or {})
        return Execution(sampled, (*seen, *self.observations))

    def forward(self, step: Step) -> None:
        """Runs a step up to its logits. RunnerFailure where the real runner raises; `observations` say why."""
        raise NotImplementedError

    def sample(self, step: Step, rows: Mapping[str, Rows]) -> dict[str, list[int]]:
        """Samples under the grammars' masks and drafts: tokens per request, none where the sample is discarded.

        `rows` holds masks of requests (see `masks`). RunnerFailure and `observations` as in `forward`, afresh.
        """
        raise NotImplementedError

    def take_drafts(self) -> dict[str, list[int]] | None:
        """Drafts of the last step that sampled, per row (what `take_draft_token_ids` returns); None where it tells
        none."""
        return self.drafts

    def _check_total(self, step: Step, *, fails: bool) -> None:
        if step.total != sum(step.scheduled.values()):
            message = f"total_num_scheduled_tokens is {step.total}, the sum is {sum(step.scheduled.values())}"
            self.batch.report(Breach("wrong-total", message, fails=fails))

    def _check_tables(self, step: Step) -> None:
        """Every row that brings blocks brings them for each group. A runner takes its own number of tables, in order,
        and raises where there are too few.
        """
        brought = [(row.request, row.block_ids) for row in step.new]
        brought += [(row.request, row.new_block_ids) for row in step.cached if row.new_block_ids is not None]
        for request, tables in brought:
            if len(tables) != len(self.groups):
                message = f"{request} is sent {len(tables)} block tables for {len(self.groups)} groups"
                few = len(tables) < len(self.groups)
                self.batch.report(Breach("tables-differ", message, request, few))

    def _zero(self, blocks: Sequence[int]) -> None:
        beyond = [block for block in blocks if not 0 <= block < self.engine.num_gpu_blocks]
        if beyond:
            message = f"block {beyond[0]} is to be zeroed, which the cache does not have"
            raise self.batch.fail(Breach("block-beyond-cache", message, "", True))
        self.kv.zero(blocks)

    # -- connector ----------------------------------------------------------------------------------------------

    def _begin_transfers(self, step: Step) -> None:
        """KVConnectorModelRunnerMixin, and V2's ActiveKVConnector: loads start before the forward pass, or after it."""
        if self.mover is None:
            return
        if step.orders is None:
            message = f"step {step.index} comes without metadata for the connector"
            raise self.batch.fail(Breach("no-connector-metadata", message, "", True))
        self.mover.begin(step.iteration)
        if step.loads_first:
            self.mover.start(step.orders)

    def _end_transfers(self, step: Step) -> None:
        """The forward pass is over; what is over with it is told."""
        if self.mover is None or step.orders is None:
            return
        if not step.loads_first:
            self.mover.start(step.orders)
        self.mover.finish()

    # -- target -------------------------------------------------------------------------------------------------

    def _move_states(self, moves: Mapping[str, Move | None]) -> None:
        """Copies states between places of their requests' tables."""
        self.kv.copy(
            [
                tuple(self._states(request, table, place, place) for place in move)
                for request, move in moves.items()
                if move is not None
                for table, kind in zip(self.batch.requests[request].tables, self.groups, strict=False)
                if isinstance(kind, Mamba)
            ]
        )

    def _forward(self, step: Step, starts: dict[str, int], inputs: dict[str, list[int]]) -> None:
        """In an attention layer every request writes before any reads; a Mamba layer reads each state before it
        writes it."""
        for request, start in starts.items():
            self._read(request, start, states=True)
        for request, start in starts.items():
            self._write(request, start, inputs[request], len(step.drafts.get(request, ())))
        if self._outside.has_failed:
            self._spread(starts, inputs)
        for request, start in starts.items():
            self._read(request, start, states=False)

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
                for group in range(len(self.groups)):
                    self.kv.spoil(self._slots(request, group, start, start + len(inputs[request])))

    def _attends_to_spoiled(self, request: str, start: int) -> bool:
        return any(
            self.kv.is_spoiled(self._slots(request, group, attended_from(kind, start), start))
            for group, kind in enumerate(self.groups)
        )

    def _write(self, request: str, start: int, tokens: list[int], drafts: int) -> None:
        cached = self.batch.requests[request]
        contents = np.array(self._contents(cached.reference, start, tokens), dtype=np.uint64)
        contents ^= np.uint64(cached.reference.salt)
        for group, (table, kind) in enumerate(zip(cached.tables, self.groups, strict=False)):
            if isinstance(kind, Mamba):
                written, place = contents[-1 - drafts :], self.states.target(request)
                slots = self._states(request, table, place, place + drafts)
            else:
                slots, written = self._slots(request, group, start, start + len(tokens)), contents
            wrong = np.flatnonzero(slots < self.kv.block_size)
            if len(wrong):
                position = start + int(wrong[0])
                what = self.kv.describe(int(slots[wrong[0]]))
                message = f"{request} writes position {position} of group {group} to a {what}"
                self.observations.append(Breach("write-" + what.replace(" ", "-"), message, request))
            self.kv.write(group, slots, written)

    def _slots(self, request: str, group: int, start: int, stop: int) -> Slots:
        """Slots of positions [start, stop) of a group."""
        table = self.batch.requests[request].tables[group]
        return self._checked(request, self.kv.slots(group, table, start, stop))

    def _states(self, request: str, table: list[int], first: int, last: int) -> Slots:
        """Slots of the states in places first to last of a block table."""
        places = range(first, last + 1)
        return self._checked(request, np.concatenate([self.kv.state(table, place) for place in places]))

    def _checked(self, request: str, slots: Slots) -> Slots:
        beyond = slots[slots >= len(self.kv.contents)]
        if len(beyond):
            block = int(beyond[0]) // self.kv.block_size
            message = f"{request} uses block {block}, which the cache does not have"
            raise self.batch.fail(Breach("block-beyond-cache", message, request, True))
        return slots

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
        for group, (table, kind) in enumerate(zip(cached.tables, self.groups, strict=False)):
            if isinstance(kind, Mamba) is not states:
                continue
            first = start - 1 if states else attended_from(kind, start)
            if not 0 <= first < start:
                continue
            if states:
                place = self.states.source(request)
                slots = self._states(request, table, place, place)
            else:
                slots = self._slots(request, group, first, start)
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

    def _stale_token(self, request: str, start: int, tokens: Sequence[int]) -> Breach | None:
        """The first of the tokens that no drafter proposed which is not the request's own. Not asked of a spoiled row:
        what it sampled last is as wrong as what it attends to."""
        reference = self.batch.requests[request].reference
        if request in self.spoiled:
            return None
        for position, token in enumerate(tokens, start):
            if token != reference.token(position):
                what = "a token that it does not know" if token < 0 else f"token {token}"
                return Breach("stale-token", f"{request} is fed {what} at position {position}", request)
        return None

    def _verified(self, request: str, position: int, drafts: Sequence[int], rows: Rows | None) -> list[int]:
        """What the target says from `position` on, as far as the masks let it: the drafts that are right, and one
        token more.
        """
        reference = self.batch.requests[request].reference
        sampled: list[int] = []
        for draft in (*drafts, None):
            true = reference.token(position + len(sampled))
            sampled.append(true if rows is None else masks.sampled(rows[len(sampled)], true))
            if sampled[-1] != true:
                self.adrift.add(request)
            if draft != sampled[-1]:
                break
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

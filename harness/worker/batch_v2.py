"""The V2 model runner's bookkeeping: one slot a request, on the device, which keeps its own counts.

The order of operations and the rules are those of `gpu/model_runner.py`: finished and preempted requests leave; new
requests take a slot with all their tokens (a request that was preempted comes as new); block ids are appended. Where a
request stands, its last token and its drafts are in its slot, so that skipping a step is harmless. The scheduler's
count feeds a copy on the host only: which rows prefill, which items they gather, and the longest sequence.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from harness.groups import groups_of, scale_of
from harness.model import Reference
from harness.scenario import Engine
from harness.step import CachedRow, NewRow, Step
from harness.worker.batch import Batch
from harness.worker.observation import Breach
from harness.worker.traits import NEWEST_V2, TraitsV2

STALE = -2
"""Stands for a token of which the runner has what another step, or another request, left there."""
NO_DRAFT = -1
"""What stands in a slot for drafts that were not proposed; no embedding has it."""
_ROW_ALIGNMENT = 128
"""Tokens; block tables are as wide as a multiple of it."""


def _row_capacity(max_model_len: int, block_size: int) -> int:
    """Blocks that a request's row has room for in a group with blocks of that size."""
    blocks, alignment = -(-max_model_len // block_size), _ROW_ALIGNMENT // block_size
    return -(-blocks // alignment) * alignment


@dataclass(slots=True)
class Slot:
    """A request's state. `prefill` are the tokens that it came with; `counted` is the scheduler's count."""

    reference: Reference
    items: tuple[tuple[int, int, str], ...]
    stripped: set[int]
    tables: list[list[int]]
    prefill: tuple[int, ...]
    computed: int
    counted: int
    total: int
    """Tokens known: those that it came with, and those sampled since."""
    drafts: list[int]
    last: int = STALE
    """The token sampled last."""


class BatchV2(Batch):
    """What the runner remembers between steps."""

    def __init__(
        self, references: Mapping[str, Reference], engine: Engine, traits: TraitsV2 = NEWEST_V2
    ) -> None:
        super().__init__(references)
        self.traits = traits
        self.engine = engine
        self._slots: dict[str, Slot] = {}
        speculative = engine.speculative
        self._num_spec = speculative.num_speculative_tokens if speculative else 0
        self._counts_run_ahead = engine.async_scheduling and speculative is not None
        sizes = [engine.block_size * scale_of(group) for group in groups_of(engine)]
        self._row_capacities = [_row_capacity(engine.max_model_len, size) for size in sizes]

    @property
    def requests(self) -> dict[str, Slot]:
        return self._slots

    def update(self, step: Step) -> None:
        """Applies a step's state part; also for a step without tokens."""
        for request in (*step.finished, *step.preempted):
            self.requests.pop(request, None)
        for new in step.new:
            self._add(new)
        for cached in step.cached:
            self._update(cached)
        for request, inputs in step.item_updates.items():
            if request not in self.requests:
                message = f"encoder inputs of {request} are updated, but the worker does not know it"
                raise self.fail(Breach("unknown-request", message, request, True))
            stripped = self.requests[request].stripped
            for index, with_data in inputs.items():
                (stripped.discard if with_data else stripped.add)(index)
        self._check_rows(step)

    def _add(self, row: NewRow) -> None:
        if row.prefill is None or len(row.prefill) < len(row.prompt):
            message = f"{row.request} is sent without all of its tokens (prefill_token_ids)"
            raise self.fail(Breach("tokens-not-sent", message, row.request, True))
        self.requests.pop(row.request, None)
        if len(self.requests) >= self.engine.max_num_seqs:
            message = f"{row.request} finds no free slot: {sorted(self.requests)} have them"
            raise self.fail(Breach("no-free-slot", message, row.request, True))
        reference = self.check_identity(row)
        self.requests[row.request] = slot = Slot(
            reference=reference,
            items=row.items,
            stripped=set(row.stripped),
            tables=[[] for _ in row.block_ids],
            prefill=row.prefill,
            computed=row.computed,
            counted=row.computed,
            total=len(row.prefill),
            drafts=[0] * self._num_spec,
        )
        self._append(slot, row.request, row.block_ids)

    def _update(self, row: CachedRow) -> None:
        slot = self.requests.get(row.request)
        if slot is None:
            message = f"{row.request} is sent as known, but the worker does not know it"
            raise self.fail(Breach("unknown-request", message, row.request, True))
        slot.counted = row.computed
        # The longest sequence, by which attention kernels are launched, is computed from the scheduler's count.
        ahead = row.computed - slot.computed
        if ahead < 0 or (ahead and not self._counts_run_ahead):
            message = f"{row.request}: the scheduler counts {row.computed} computed tokens, the device {slot.computed}"
            self.observations.append(Breach("counts-differ", message, row.request))
        self._append(slot, row.request, row.new_block_ids or ())

    def _append(self, slot: Slot, request: str, block_ids: tuple[tuple[int, ...], ...]) -> None:
        rows = zip(slot.tables, block_ids, self._row_capacities, strict=False)
        for group, (table, blocks, capacity) in enumerate(rows):
            table.extend(blocks)
            if len(table) > capacity:
                message = f"{request} has {len(table)} blocks in group {group}; a row has {capacity}"
                self.report(Breach("table-overflow", message, request, self.traits.tables_are_bounded))

    def _check_rows(self, step: Step) -> None:
        unknown = sorted(step.scheduled.keys() - self.requests.keys())
        if unknown:
            message = f"scheduled, but the worker does not know them: {unknown}"
            raise self.fail(Breach("rows-differ", message, unknown[0], True))
        sent = {new.request for new in step.new} | {cached.request for cached in step.cached}
        idle = sorted(sent - step.scheduled.keys())
        if idle:
            self.observations.append(Breach("rows-differ", f"sent, but not scheduled: {idle}", idle[0]))

    def prefills(self, request: str) -> bool:
        """Whether the host takes a row for an unfinished prefill."""
        slot = self.requests[request]
        return slot.counted < len(slot.prefill)

    def inputs(self, step: Step, request: str, *, copied: bool) -> list[int]:
        """Token ids that the step feeds for a request. `copied`: some row of the step is an unfinished prefill, so that
        the tokens that requests came with are copied at all.
        """
        slot = self.requests[request]
        count, drafts = step.scheduled[request], len(step.drafts.get(request, ()))
        end, prefill = slot.computed + count, len(slot.prefill)
        tokens = [STALE] * count
        if copied:
            known = slot.prefill[slot.computed : end]
            tokens[: len(known)] = known
        if end > prefill:
            if end - drafts - 1 >= prefill:
                tokens[count - drafts - 1] = slot.last
            if drafts:
                tokens[count - drafts :] = self.made(request, slot.drafts, drafts)
        return tokens

    def keep(self, step: Step, request: str, sampled: list[int]) -> None:
        """The device's counts after a step; what was rejected is not computed."""
        slot = self.requests[request]
        slot.computed += step.scheduled[request]
        if sampled:
            slot.computed -= len(step.drafts.get(request, ())) + 1 - len(sampled)
            slot.total += len(sampled)
            slot.last = sampled[-1]

"""The V1 model runner's bookkeeping: cached requests and the persistent batch, updated from SchedulerOutputs.

The order of operations and the rules are GPUModelRunner._update_states' and _prepare_input_ids'; where releases differ,
`traits` says how. Finished requests leave; rows that are not scheduled leave but keep their state; new requests come;
cached requests are updated (the scheduler's count is authoritative, blocks are appended, or replaced on resumption);
then rows. With async scheduling the last sampled token and the drafts are known on the device only, for rows that were
in the very last batch.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from harness.model import Reference, wrong_token
from harness.step import CachedRow, NewRow, Step
from harness.worker.batch import Batch
from harness.worker.observation import Breach
from harness.worker.token_rows import TokenRows
from harness.worker.traits import NEWEST, Traits

UNRESOLVED = -1
"""A token that exists on the device only (async scheduling), as in the real runner's CPU rows."""


@dataclass(slots=True)
class CachedRequest:
    """The runner's CachedRequestState; `row` stands for the request's line in `token_ids_cpu`, without drafts."""

    reference: Reference
    prompt: tuple[int, ...]
    items: tuple[tuple[int, int, str], ...]
    stripped: tuple[int, ...]
    tables: list[list[int]]
    computed: int
    outputs: list[int] = field(default_factory=list)
    row: list[int] = field(default_factory=list)
    prev_num_draft_len: int = 0
    last_stage: int = 0
    """Outputs that the last stage of a pipeline knows, which samples them; the first waits until they are sent."""


class BatchV1(Batch):
    """What the runner remembers between steps."""

    def __init__(
        self,
        references: Mapping[str, Reference],
        *,
        async_scheduling: bool,
        pipeline: bool = False,
        traits: Traits = NEWEST,
    ) -> None:
        super().__init__(references)
        self.traits = traits
        self.pipeline = pipeline
        """Whether inputs are fed by a first stage that does not sample: it knows what the scheduler sends back."""
        self.async_scheduling = async_scheduling
        self._requests: dict[str, CachedRequest] = {}
        self.returned: set[str] = set()
        """Rows that the step in progress has put into the batch."""
        self.token_rows = TokenRows()
        """What is left in rows by those that had them before; kept only where the runner feeds it (`drops_drafts`)."""
        self.rows: dict[str, None] = {}
        """Request ids of the persistent batch, in row order."""
        self.prev_sampled: dict[str, list[int]] = {}
        """What the last executed step sampled on the device, for rows that are still in the batch."""
        self.device_drafts: dict[str, list[int]] | None = None
        self.drafted_rows = 0
        """How many rows the device's drafts were made for."""
        self.prev_rows: list[str] = []
        """Rows of the last step, in the order of their lines; kept where drafts are found by it (`drops_drafts`)."""
        self.corrections: dict[str, int] = {}
        """Drafts that the runner's CPU side counts as accepted, per row, until the device has told."""
        self.starts: dict[str, int] = {}
        """First position of the last step, per row: the device's own count."""

    @property
    def requests(self) -> dict[str, CachedRequest]:
        return self._requests

    def update(self, step: Step) -> Step:
        """Applies a step's state part; also for a step without tokens. Gives the step that is left to run."""
        self.corrections = {}
        for request in step.finished:
            self.requests.pop(request, None)
            self._remove_row(request)
        resumed = {row.request for row in step.cached if row.resumed}
        for request in [r for r in self.rows if r not in step.scheduled or r in resumed]:
            self._remove_row(request)
        to_add = [self._add_new(row) for row in step.new]
        dropped = set()
        for row in step.cached:
            if self._update_cached(row):
                to_add.append(row.request)
                continue
            if self.traits.drops_drafts:
                self.token_rows.draft(row.request, step.drafts.get(row.request, ()))
                if self.async_scheduling and self.device_drafts is None:
                    dropped.add(row.request)
        self.returned = set(to_add)
        for request in to_add:
            cached = self.requests[request]
            cached.row = [*cached.prompt, *cached.outputs]
            self.rows[request] = None
            if self.traits.drops_drafts:
                self.token_rows.add(request, cached.row)
        self.token_rows.condense()
        for request in self.rows:
            counted = request not in self.returned or self.traits.returning_drafts_are_counted
            self.requests[request].prev_num_draft_len = len(step.drafts.get(request, ())) if counted else 0
        if self.rows.keys() != step.scheduled.keys():
            strays = sorted(self.rows.keys() ^ step.scheduled.keys())
            raise self.fail(
                Breach("rows-differ", f"scheduled without data, or the reverse: {strays}", strays[0], True)
            )
        return _without_drafts(step, dropped)

    def _remove_row(self, request: str) -> None:
        self.rows.pop(request, None)
        self.prev_sampled.pop(request, None)
        self.token_rows.remove(request)

    def _add_new(self, row: NewRow) -> str:
        known, reference = self.requests.get(row.request), self.references[row.request]
        if known is not None and known.reference is not reference:
            self._remove_row(row.request)  # a session's next turn takes the place of what is known of it
        elif known is not None:
            # The real runner takes it for a streaming update and goes silently wrong.
            message = (
                f"{row.request} is sent as new, but the worker knows it and was not told that it finished"
            )
            self.observations.append(Breach("new-request-known", message, row.request))
        self.check_identity(row)
        self.requests[row.request] = CachedRequest(
            reference=reference,
            prompt=row.prompt,
            items=row.items,
            stripped=row.stripped,
            tables=[list(blocks) for blocks in row.block_ids],
            computed=row.computed,
        )
        return row.request

    def _update_cached(self, row: CachedRow) -> bool:
        """Applies the scheduler's view of a known request; True if its row must be added to the batch."""
        cached = self.requests.get(row.request)
        if cached is None:
            message = f"{row.request} is sent as known, but the worker does not know it"
            raise self.fail(Breach("unknown-request", message, row.request, True))
        in_batch = row.request in self.rows
        cached.computed = row.computed
        if cached.prev_num_draft_len and self.async_scheduling and in_batch:
            accepted = cached.prev_num_draft_len
            if self.traits.counts_are_optimistic:
                self.corrections[row.request] = accepted
            else:
                if row.request not in self.prev_sampled:
                    message = f"{row.request} has verified drafts in a step that sampled nothing for it"
                    raise self.fail(Breach("drafts-without-a-sample", message, row.request, True))
                accepted = len(self.prev_sampled[row.request]) - 1
                cached.computed -= cached.prev_num_draft_len - accepted
            cached.outputs.extend([UNRESOLVED] * accepted)
        if self.pipeline:
            cached.last_stage = min(cached.last_stage, row.num_output)
            self._append_sent(cached, row, in_batch)
        elif row.num_output < len(cached.outputs):
            del cached.outputs[row.num_output :]
            if in_batch:
                end = len(cached.prompt) + row.num_output
                cached.row = [*cached.row[:end], *[UNRESOLVED] * (end - len(cached.row))]
                if self.traits.drops_drafts:
                    self.token_rows.cut(row.request, end)
        self._update_tables(cached, row, in_batch)
        if in_batch:
            return False
        if self.async_scheduling and row.num_output > 0:
            if row.all_tokens is None:
                message = (
                    f"{row.request} returns to the batch, but its tokens (all_token_ids) do not come with it"
                )
                raise self.fail(Breach("tokens-not-resent", message, row.request, True))
            cached.outputs = list(row.all_tokens[-row.num_output :])
        return True

    @staticmethod
    def _append_sent(cached: CachedRequest, row: CachedRow, in_batch: bool) -> None:
        known = len(cached.prompt) + len(cached.outputs)
        end = row.computed + len(row.new_tokens)
        if end > known:
            cached.outputs.extend(row.new_tokens[known - end :])
        if in_batch:
            cached.row[row.computed : end] = row.new_tokens

    def _update_tables(self, cached: CachedRequest, row: CachedRow, in_batch: bool) -> None:
        if not row.resumed:
            for table, blocks in zip(cached.tables, row.new_block_ids or (), strict=False):
                table.extend(blocks)
        elif in_batch or row.new_block_ids is None:
            message = f"{row.request} resumes without a block table of its own"
            raise self.fail(Breach("resumed-without-blocks", message, row.request, True))
        else:
            cached.tables = [list(blocks) for blocks in row.new_block_ids]

    def start(self, request: str) -> int:
        """First position that the step computes.

        A row whose last step verified drafts goes on where the device stopped (its own start plus what it sampled),
        whatever the scheduler believes; every other row starts at the scheduler's count.
        """
        sampled = self.prev_sampled.get(request)
        if request in self.corrections and sampled:
            return self.starts[request] + len(sampled)
        return self.requests[request].computed

    def settle(self, starts: dict[str, int]) -> None:
        """After the forward: the CPU side takes back the drafts that were rejected; the drafter sees that count."""
        for request, optimistic in self.corrections.items():
            sampled = self.prev_sampled.get(request)
            if sampled:
                self.requests[request].computed -= optimistic - (len(sampled) - 1)
        self.starts = starts

    def inputs(self, step: Step, request: str) -> list[int]:
        """Token ids that the step feeds for a request; UNRESOLVED where the runner would feed a stale entry."""
        cached = self.requests[request]
        drafts = step.drafts.get(request, ())
        count = step.scheduled[request]
        row = [*cached.row, *drafts]
        if drafts and self.traits.drops_drafts and request in self.returned:
            # Nobody writes them into the row: what its last user has left there is fed instead.
            row = [*cached.row, *self.token_rows.read(request, len(cached.row), len(drafts))]
        tokens = row[cached.computed : cached.computed + count]
        tokens += [UNRESOLVED] * (count - len(tokens))
        sampled = self.prev_sampled.get(request)
        if sampled:
            tokens[count - 1 - len(drafts)] = sampled[-1]
            if drafts and self.device_drafts is not None:
                made = self.device_drafts.get(request, [])
                tokens[count - len(drafts) :] = self.made(request, made, len(drafts))
        return tokens

    def consume_drafts(self, step: Step) -> None:
        """Up to 0.13 the device's drafts are gone once they are fed, and stay if nobody is fed one. They are found by
        the row that a request had in the last step, whoever they were made for."""
        fed = [r for r in self.prev_rows if r in self.prev_sampled and step.drafts.get(r)]
        if not self.traits.drops_drafts or not fed or self.device_drafts is None:
            return
        beyond = [r for r in fed if self.prev_rows.index(r) >= self.drafted_rows]
        if beyond:
            message = f"{beyond[0]} is to be fed drafts of an older step, which had {self.drafted_rows} rows"
            raise self.fail(Breach("old-drafts-fed", message, beyond[0], True))
        self.device_drafts = None

    def keep_old_drafts(self, rows: Iterable[str], count: int) -> None:
        """No drafts were made: what an earlier step has left is taken for them; wrong for all rows."""
        if self.device_drafts is not None:
            self.device_drafts = {request: [wrong_token(0)] * count for request in rows}

    def num_known(self, request: str) -> int:
        """Tokens that the runner knows where it samples; a step that ends before them has nothing to sample."""
        cached = self.requests[request]
        return len(cached.prompt) + (cached.last_stage if self.pipeline else len(cached.outputs))

    def keep(self, sampled: dict[str, list[int]]) -> None:
        """What the runner keeps of a step's samples; requests whose sample is discarded have none."""
        for request, tokens in sampled.items():
            if self.pipeline:
                self.requests[request].last_stage += len(tokens)
            elif tokens:
                kept = [UNRESOLVED] if self.async_scheduling else tokens
                self.requests[request].outputs.extend(kept)
                self.requests[request].row.extend(kept)
                if self.traits.drops_drafts:
                    self.token_rows.append(request, kept)
        if self.traits.drops_drafts:
            self.prev_rows = self.token_rows.in_order()
        if self.async_scheduling:
            self.prev_sampled = {request: tokens for request, tokens in sampled.items() if tokens}


def _without_drafts(step: Step, requests: Collection[str]) -> Step:
    """The step without some requests' drafts."""
    lost = {request: len(step.drafts.get(request, ())) for request in requests}
    if not any(lost.values()):
        return step
    return replace(
        step,
        scheduled={request: count - lost.get(request, 0) for request, count in step.scheduled.items()},
        total=step.total - sum(lost.values()),
        drafts={request: ids for request, ids in step.drafts.items() if request not in lost},
    )

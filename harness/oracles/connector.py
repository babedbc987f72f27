"""O17: the connector protocol."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from harness import compat
from harness.groups import attended_from, groups_of
from harness.oracles import block_use
from harness.oracles.base import Oracle
from harness.peers.external import External
from harness.peers.orders import LoadOrder
from harness.step import Step
from harness.worker.observation import Observation, SentMismatch


class ConnectorProtocol(Oracle):
    """O17: blocks belong to a transfer until its end is told, and the connector's hooks are called as they say.

    Promised by KVConnectorBase_V1's docstrings. Hooks: `update_state_after_alloc` names the tokens that
    `get_num_new_matched_tokens` has answered, with blocks for all of them; `request_finished` is called once for each
    request. Transfers: from an asynchronous load's order until the scheduler is told of its end, also if the request is
    aborted, its blocks stay the request's own, the request is not scheduled, and no step writes them, neither a later
    one nor one that is in flight when the load begins: a load is not ordered with the steps (`defer_block_free`, from
    0.24). For the same reason no step zeroes what is read of them, until it is used (from 0.26). After
    `request_finished` has returned True, the blocks stay the request's own, and hold what it computed,
    until the send's end is told. When the scheduler has been told of a failed load, and recomputes, nothing that was
    computed with it counts any more (`_handle_invalid_blocks`). A client's abort that arrives during a step counts
    before the step's result (`_process_aborts_queue`), so that nothing is kept for a consumer that has gone.
    An encoder-cache connector is told of each request's end once, too, where the scheduler tells it (from 0.26).

    Ledger: 32255, 34484, 45357, 45357-zero, 18485, 29987.
    """

    family: ClassVar[str] = "O17"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._written: dict[int, frozenset[int]] = {}
        """Step index -> blocks that the step writes; for steps in flight."""
        self._unused: dict[str, LoadOrder] = {}
        """By request, asynchronous loads of which no step has used anything."""
        self._heard = 0
        """How many of the hooks' protests have been told."""
        self._heard_of_store = 0
        """The same of the encoder-cache connector's."""

    def dispatched(self, step: Step) -> None:
        external = self.world.external
        if external is None:
            return
        flying = {flight.step.index for flight in self.world.flights}
        self._written = {index: blocks for index, blocks in self._written.items() if index in flying}
        for load in step.orders.loads if step.orders else ():
            if load.asynchronous:
                self._starts(step, load)
        self._zeroes(step, external)
        written = frozenset(
            block.block_id
            for _, _, held in block_use.written(self.world, step)
            for block in held
            if not block.is_null
        )
        disowned = self._check()
        for load in external.loads.values():
            if load.request in disowned:
                continue  # that others write its blocks is consequence
            if load.request in step.scheduled:
                self.report(
                    "scheduled-while-loading",
                    "Scheduler.schedule",
                    f"step {step.index} computes for {load.request}, whose load is not over",
                    load.request,
                )
            if lost := written & load.destinations(external.sizes):
                self.report(
                    "load-destination-written",
                    "Scheduler.schedule",
                    f"step {step.index} writes blocks {sorted(lost)}, into which the load of {load.request} is going",
                    load.request,
                )
        self._written[step.index] = written

    def _zeroes(self, step: Step, external: External) -> None:
        """What a load has brought, or is bringing. What failed is zeroed before it is computed, and so it should."""
        self._unused = {
            request: load
            for request, load in self._unused.items()
            if request not in step.scheduled and self.world.lives[request].live and not load.failed
        } | external.loads
        held = self._holdings() if self._unused and step.zeroed else {}
        for request, load in self._unused.items():
            brought = self._attended(load, external.sizes)
            if request not in external.loads:
                brought &= held.get(request, set())
            if lost := brought & set(step.zeroed):
                self.report(
                    "load-destination-zeroed",
                    "SchedulerOutput.new_block_ids_to_zero",
                    f"step {step.index} zeroes blocks {sorted(lost)}, into which the load of {request} is going or has "
                    "gone",
                    request,
                )

    def _attended(self, load: LoadOrder, sizes: Sequence[int]) -> set[int]:
        """Destinations of which the request's next step reads something: less than all behind a window."""
        blocks: set[int] = set()
        for kind, table, size in zip(groups_of(self.world.engine), load.tables, sizes, strict=True):
            first = max(load.start, attended_from(kind, load.stop))
            blocks |= set(table[first // size : -(-load.stop // size)] if first < load.stop else ())
        return blocks - {0}

    def _holdings(self) -> dict[str, set[int]]:
        held: dict[str, set[int]] = {}
        for request, blocks in self.world.holders():
            held.setdefault(request, set()).update(block.block_id for block in blocks)
        return held

    def executed(self, step: Step, observations: Sequence[Observation]) -> None:
        for seen in observations:
            if isinstance(seen, SentMismatch):
                self.report(
                    "sent-other-content",
                    "request_finished",
                    f"the send of {seen.request}, over in step {step.index}: position {seen.position} is {seen.found}",
                    seen.request,
                )

    def delivered(self, step: Step, outputs: Sequence[Any]) -> None:
        external = self.world.external
        if external is not None:
            self._ends(step, outputs)
        for request in sorted(external.failed) if external else ():
            state = self.world.scheduler.requests.get(request)
            if state is None or state.status.name != "RUNNING":
                continue
            if state.num_output_placeholders and state.num_computed_tokens < state.num_prompt_tokens:
                self.report(
                    "failed-load-not-undone",
                    "Scheduler._handle_invalid_blocks",
                    f"{request}, a load of which failed, is back at {state.num_computed_tokens} of "
                    f"{state.num_prompt_tokens} prompt tokens; outputs in flight: {state.num_output_placeholders}",
                    request,
                )

    def _ends(self, step: Step, outputs: Sequence[Any]) -> None:
        for output in outputs:
            request = output.request_id
            sends = self.world.references[request].request.send is not None
            if output.finish_reason is not None and request in self.world.aborting and sends:
                self.report(
                    "completed-though-aborted",
                    "_process_aborts_queue",
                    f"step {step.index} completes {request}, whose blocks then wait for a consumer, though its "
                    "client's abort had arrived",
                    request,
                )

    def settled(self) -> None:
        if self.world.external is not None:
            self._check()
        store = self.world.encoder_store
        if store is not None:
            for protest in store.protests[self._heard_of_store :]:
                self.report(protest.kind, protest.hook, protest.message, protest.request)
            self._heard_of_store = len(store.protests)

    def drained(self) -> None:
        store = self.world.encoder_store
        if store is not None and compat.encoder_connector_hears_ends():
            untold = sorted(self.world.lives.keys() - set(store.finished))
            if untold:
                message = f"the encoder-cache connector never heard the end of {untold}"
                self.report("finish-not-told", "ECConnectorBase.request_finished", message, *untold)
        external = self.world.external
        untold = sorted(self.world.lives.keys() - set(external.finished)) if external else []
        if untold:
            self.report(
                "finish-not-told",
                "request_finished",
                f"the connector never heard the end of {untold}",
                *untold,
            )

    def _check(self) -> set[str]:
        """What the hooks met, and who holds the blocks of transfers: the requests that hold theirs no longer."""
        external = self.world.external
        assert external is not None
        for protest in external.protests[self._heard :]:
            self.report(protest.kind, protest.hook, protest.message, protest.request)
        self._heard = len(external.protests)
        if not external.loads and not external.sends:
            return set()
        held = self._holdings()
        transfers = [
            ("load-destination-freed", load.request, load.destinations(external.sizes))
            for load in external.loads.values()
        ]
        transfers += [("send-source-freed", send.request, send.sources()) for send in external.sends.values()]
        return {
            request for kind, request, blocks in transfers if not self._holds(kind, request, blocks, held)
        }

    def _holds(self, kind: str, request: str, blocks: Iterable[int], held: dict[str, set[int]]) -> bool:
        lost = sorted(set(blocks) - held.get(request, set()))
        if lost:
            message = f"blocks {lost} of {request} are no longer its own, and its transfer is not over"
            state = "ended" if not self.world.lives[request].live else "live"
            self.report(kind, f"{state} request", message, request)
        return not lost

    def _starts(self, step: Step, load: LoadOrder) -> None:
        assert self.world.external is not None
        destinations = load.destinations(self.world.external.sizes)
        for index, written in self._written.items():
            if shared := written & destinations:
                self.report(
                    "load-into-block-in-flight",
                    "BlockPool",
                    f"with step {step.index} begins the load of {load.request} into blocks {sorted(shared)}, which "
                    f"step {index}, in flight, still writes",
                    load.request,
                )

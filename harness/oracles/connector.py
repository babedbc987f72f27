"""O17: the connector protocol."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from harness import compat
from harness.oracles import block_use
from harness.oracles.base import Oracle
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
    0.24). After `request_finished` has returned True, the blocks stay the request's own, and hold what it computed,
    until the send's end is told. When the scheduler has been told of a failed load, and recomputes, nothing that was
    computed with it counts any more (`_handle_invalid_blocks`). A client's abort that arrives during a step counts
    before the step's result (`_process_aborts_queue`), so that nothing is kept for a consumer that has gone.
    An encoder-cache connector is told of each request's end once, too, where the scheduler tells it (from 0.26).

    Ledger: 32255, 34484, 45357, 18485, 29987.
    """

    family: ClassVar[str] = "O17"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._written: dict[int, frozenset[int]] = {}
        """Step index -> blocks that the step writes; for steps in flight."""
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
            if lost := written & load.destinations(self.world.engine.block_size):
                self.report(
                    "load-destination-written",
                    "Scheduler.schedule",
                    f"step {step.index} writes blocks {sorted(lost)}, into which the load of {load.request} is going",
                    load.request,
                )
        self._written[step.index] = written

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
        held: dict[str, set[int]] = {}
        for request, blocks in self.world.holders():
            held.setdefault(request, set()).update(block.block_id for block in blocks)
        size = self.world.engine.block_size
        transfers = [
            ("load-destination-freed", load.request, load.destinations(size))
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
        destinations = load.destinations(self.world.engine.block_size)
        for index, written in self._written.items():
            if shared := written & destinations:
                self.report(
                    "load-into-block-in-flight",
                    "BlockPool",
                    f"with step {step.index} begins the load of {load.request} into blocks {sorted(shared)}, which "
                    f"step {index}, in flight, still writes",
                    load.request,
                )

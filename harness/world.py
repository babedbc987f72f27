"""What oracles may know: the scenario, vLLM's live objects, and the harness's own record of what happened.

The record (who arrived, what was delivered, which steps are in flight) is kept here once, so that an oracle compares
vLLM's state with facts and not with vLLM's own bookkeeping.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness import compat, lookups
from harness.peers.encoder_store import EncoderStore
from harness.peers.external import External
from harness.peers.grammar import ScriptedGrammar
from harness.peers.orders import NOTHING, Transfers
from harness.scenario import Engine, Scenario
from harness.sessions import Session, Turns
from harness.step import Step
from harness.verdict import HarnessError


@dataclass(slots=True)
class Life:
    """One request's life as its client sees it."""

    request: str
    outputs: list[int] = field(default_factory=list)
    """Of the current turn, in a session."""
    ended: str | None = None
    """Finish reason in vLLM's words, or `abort`; `closed` for a session that was parked when its client closed it."""
    session: Session | None = None
    last_before: int = -1
    """Index of the last step before it: what that one computes for an id is of a life before."""

    @property
    def live(self) -> bool:
        return self.ended is None

    @property
    def parked(self) -> bool:
        """Whether it is a session that waits for its client."""
        return self.live and self.session is not None and self.session.parked


@dataclass(slots=True)
class Flight:
    """A step that is dispatched and whose result has not reached the scheduler."""

    step: Step
    ready: int
    """Iteration from which on its result is ready."""
    sampled: dict[str, list[int]] = field(default_factory=dict)
    """As far as it is known: a device tells only with its result."""
    transfers: Transfers = NOTHING
    """What its result says about the connector's transfers."""
    encoded: tuple[str, ...] = ()
    """Hashes of the items that it encodes, if an encoder-cache connector wants to know."""
    result: Callable[[], Any] | None = None

    def output(self) -> Any:
        """vLLM's ModelRunnerOutput; waits for the device if there is one."""
        if self.result is None:
            raise HarnessError(f"step {self.step.index} has no result")
        output, self.result = self.result(), None
        self.result = lambda: output
        self.sampled = dict(zip(output.req_ids, map(list, output.sampled_token_ids), strict=False))
        return output


@dataclass(slots=True)
class Act:
    """Something that an operator did to the engine, when it is done."""

    what: str
    """`reset` or `paused`."""
    mode: str
    """The cache that was reset (`prefix` or `encoder`), or the mode of the pause."""
    answer: bool = False
    """What a reset returned; False if vLLM warns of it, and it is not done, or if a connector's transfers forbid it, as
    they can forbid what a pause clears."""
    running: bool = False
    """A reset of running requests, too."""
    clears: bool = False
    """A pause that clears the caches."""
    begun: tuple[str, ...] = ()
    """Requests in progress when a pause began: their clients had received tokens. None once somebody has resumed."""


class World:
    """One execution's shared facts."""

    def __init__(
        self,
        scenario: Scenario,
        turns: Mapping[str, Turns],
        core: Any,
        grammars: Mapping[str, ScriptedGrammar],
    ) -> None:
        self.scenario = scenario
        self._truths = turns
        """Of every request, under a name of its own."""
        self.turns = dict(turns)
        """By request id."""
        self.references = {request: known[0] for request, known in turns.items()}
        """The truth by request id; of a session, that of the current turn. Workers share it."""
        self.core = core
        self.grammars = grammars
        """By request id; those that are compiled."""
        self.iteration = 0
        self.lookups = lookups.tap(core.scheduler) if scenario.engine.enable_prefix_caching else []
        """Of the prefix cache since the last step, oldest first."""
        self.lives: dict[str, Life] = {}
        self.paused: str | None = None
        """Mode of the pause since the last resumption."""
        self.flights: list[Flight] = []
        """Oldest first."""
        self.quiet = False
        """Whether nothing more will happen outside: no event is to come, no grammar to be compiled."""
        self.aborting: list[str] = []
        """Aborts in the aborts queue; the input queue delivers them too, an iteration later."""
        self.executing: Flight | None = None
        """The step that the worker is running."""
        self.external = (
            External(scenario, whole_blocks=compat.loads_are_whole_blocks())
            if scenario.engine.connector
            else None
        )
        """The connector's scheduler side, and its record, if there is a connector."""
        self.encoder_store = EncoderStore(scenario) if scenario.engine.ec_connector else None
        """The same of an encoder-cache connector."""

    @property
    def engine(self) -> Engine:
        return self.scenario.engine

    @property
    def scheduler(self) -> Any:
        return self.core.scheduler

    @property
    def live(self) -> list[Life]:
        """Requests that arrived and have not ended, in order of arrival."""
        return [life for life in self.lives.values() if life.live]

    def begin(self, request: str, name: str) -> Life:
        """A request arrives; `name` is that of its turns, which is another than its id if it has that from an earlier
        one."""
        self.turns[request] = self._truths[name]
        self.references[request] = self._truths[name][0]
        self.lives.pop(request, None)  # they are in order of arrival
        last = self.flights[-1].step.index if self.flights else -1
        life = self.lives[request] = Life(request, last_before=last)
        if self.references[request].request.chunks is not None:
            life.session = Session(self.turns[request])
        return life

    def answered(self, life: Life, reason: str) -> None:
        """A request ends, or a turn of a session does."""
        session = life.session
        if session is None or reason in ("abort", "error"):
            life.ended = reason
            return
        if session.parked:
            return  # an output between turns, of which O8 speaks
        session.done += 1
        if not session.parked:
            self._next_turn(life, session)
        elif session.closed:
            life.ended = reason

    def sent(self, life: Life, session: Session) -> None:
        """A client has sent its session's next chunk."""
        session.sent += 1
        if session.done == session.sent - 1:
            self._next_turn(life, session)

    def closed(self, life: Life, session: Session) -> None:
        """A client has closed its session."""
        session.closed = True
        if session.parked:
            life.ended = "closed"

    def _next_turn(self, life: Life, session: Session) -> None:
        life.outputs.clear()
        self.references[life.request] = session.turns[session.turn]

    def flights_of(self, request: str) -> Iterator[Flight]:
        """Steps in flight that compute for a request since its last admission, newest first."""
        for flight in reversed(self.flights):
            if flight.step.index <= self.lives[request].last_before:
                return
            if request in flight.step.scheduled:
                yield flight
            if request in flight.step.admitted:
                return

    @property
    def lingering(self) -> set[str]:
        """Requests that have ended and whose blocks a transfer of the connector still holds."""
        if self.external is None:
            return set()
        transfers = {*self.external.loads, *self.external.sends}
        return {request for request in transfers if not self.lives[request].live}

    @property
    def managers(self) -> tuple[Any, ...]:
        """vLLM's SingleTypeKVCacheManager of each KV cache group."""
        return tuple(self.scheduler.kv_cache_manager.coordinator.single_type_managers)

    def holders(self) -> list[tuple[str, list[Any]]]:
        """(request id, its blocks) per KV cache group, as the cache managers hold them."""
        return [
            (request, blocks)
            for manager in self.managers
            for request, blocks in manager.req_to_blocks.items()
        ]

    @property
    def pool(self) -> Any:
        """vLLM's BlockPool."""
        return self.scheduler.kv_cache_manager.block_pool

"""Drives vLLM's own engine loop over a scenario: virtual clock, events, futures with scripted delays.

The loop is `EngineCore`'s: `step_fn` (`step` or `step_with_batch_queue`), `post_step`, `_process_aborts_queue`, called
in the order of `EngineCoreProc.run_busy_loop`: first the input queue, then a step. We supply the executor behind it.
With `interleaving="free"` the same calls are made in orders that the contract allows and today's loop does not make.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from harness import build, record, submission
from harness.control import Operator
from harness.executor import Executor
from harness.interleaving import FreeLoop
from harness.model import Reference
from harness.oracles import ALL, Oracle
from harness.peers.grammar import Grammars
from harness.scenario import (
    DEFAULT_DELAY,
    Abort,
    Arrive,
    Close,
    Continue,
    Scenario,
    id_in,
    image_hash,
    request_id,
)
from harness.sessions import turns
from harness.step import Step, copy_step
from harness.trace import Compiled, Occurred, Trace, Violated
from harness.verdict import HarnessError, Violation
from harness.worker.interface import Kind, Worker
from harness.worker.observation import RunnerFailure
from harness.worker.stub import StubWorker
from harness.worker.tandem import Tandem
from harness.world import Flight, World

MAX_ITERATIONS = 20_000
"""Beyond any legal execution: MAX_REQUESTS * MAX_MODEL_LEN tokens, one a step, come to 12,288."""


EVENTS = (
    "arrived",
    "aborted",
    "controlled",
    "dispatched",
    "executed",
    "delivered",
    "raised",
    "settled",
    "drained",
)
"""What oracles are fed; see harness.oracles.base."""


def _worker(kind: Kind, scenario: Scenario, references: Mapping[str, Reference]) -> Worker:
    if kind is Kind.STUB:
        return StubWorker(scenario.engine, references)
    from harness.worker.device.worker import DeviceWorker  # torch, and vLLM's runner

    device = DeviceWorker(scenario, references)
    if kind is Kind.DEVICE:
        return device
    return Tandem(StubWorker(scenario.engine, references), device)


def _listens(oracle: Oracle, event: str) -> bool:
    """Whether the oracle does anything at an event; most see two or three of them."""
    return getattr(type(oracle), event) is not getattr(Oracle, event)


class Stopped(BaseException):
    """A fatal violation was reported; unwinds through vLLM's frames to `Run.execute`.

    No Exception: vLLM catches those to dump its whole configuration into the log, which costs more than the run.
    """


class Run:
    """One execution. Raises build.Rejected if vLLM refuses the configuration, HarnessError for our own faults."""

    def __init__(
        self, scenario: Scenario, oracles: Iterable[type[Oracle]] = ALL, kind: Kind = Kind.STUB
    ) -> None:
        build.refuse_what_is_lacking(scenario)
        self.scenario = scenario
        known = {request_id(index): turns(scenario, index) for index in range(len(scenario.requests))}
        self.grammars = Grammars({request: first for request, (first, *_) in known.items()})
        self.core = build.engine_core(scenario.engine, Executor(self), self.grammars)
        self.world = World(scenario, known, self.core, self.grammars.ready)
        if self.world.external is not None:
            self.core.scheduler.connector.external = self.world.external
        if self.world.encoder_store is not None:
            self.core.scheduler.ec_connector.store = self.world.encoder_store
        self.worker = _worker(kind, scenario, self.world.references)
        self.trace = Trace()
        self.operator = Operator(
            self.world,
            self.worker,
            self.trace,
            self._guarded,
            lambda act: self._each("controlled", act),
            self._abort_applied,
        )
        self.violations: dict[str, Violation] = {}
        """By fingerprint; the first of each."""
        self.oracles = [oracle(self.world, self._heard) for oracle in oracles]
        self._listeners = {
            event: [getattr(oracle, event) for oracle in self.oracles if _listens(oracle, event)]
            for event in EVENTS
        }
        self.arriving: Flight | None = None
        """The flight whose result vLLM has just taken, until its update is seen."""
        self.steps = 0
        self._fatal = False
        self._due = 0
        self._next_event = 0
        self._free_loop = FreeLoop(self.world, self.take, self._updated)

    # -- the loop -----------------------------------------------------------------------------------------------

    def execute(self) -> None:
        """Runs the scenario to its end, or to the first fatal violation."""
        self._due = self.scenario.timeline[0].delay if self.scenario.timeline else 0
        try:
            while self._more():
                self._compilations()
                self._events()
                if self._busy():
                    self._step()
                self._each("settled")
                self._stop_if_fatal()
                self.world.iteration += 1
                if self.world.iteration > MAX_ITERATIONS:
                    raise HarnessError(f"no end after {MAX_ITERATIONS} iterations, and no oracle spoke")
            self._each("drained")
        except Stopped:
            return
        except RunnerFailure as failure:
            # In tandem the device may end, in a later call, a step that the stub has found fault with and gone on.
            if not self.violations:
                raise HarnessError(f"the stub failed and no oracle spoke: {failure}") from failure
        except HarnessError:
            raise
        except Exception as error:
            raise HarnessError(f"{type(error).__name__} in the harness: {error}") from error

    def _more(self) -> bool:
        """Whether anything is left to do; jumps over time in which nothing can happen."""
        timeline = self.scenario.timeline
        over = self._next_event >= len(timeline)
        self.world.quiet = over and not self.grammars.pending
        if self._busy() or self.world.aborting:
            return True
        self.operator.notify_idle()
        self._stop_if_fatal()
        if over:
            return False
        self.world.iteration = max(self.world.iteration, self._due)
        return True

    def _compilations(self) -> None:
        """Grammars whose compilation ends with this iteration."""
        for request, failed in self.grammars.advance(self.world.iteration):
            self.trace.add(Compiled(self.world.iteration, request, failed))

    def _busy(self) -> bool:
        """`EngineCoreProc.has_work`."""
        return bool(self.core.scheduler.has_requests() or self.world.flights)

    def _events(self) -> None:
        """The input queue: aborts that the aborts queue has held, then what the timeline brings.

        As in `_process_input_queue`, an idle engine says so before each; one that had work does not until the next
        iteration.
        """
        idle = not self._busy()
        for request in self.world.aborting:
            self._guarded(self.core.abort_requests, [request])
            self._abort_applied(request)
        self.world.aborting.clear()
        timeline = self.scenario.timeline
        while self._next_event < len(timeline) and self._due <= self.world.iteration:
            idle = self._notify_if(idle)
            event = timeline[self._next_event]
            self._next_event += 1
            if self._next_event < len(timeline):
                self._due += timeline[self._next_event].delay
            if isinstance(event, Arrive):
                self._arrive(event)
            elif isinstance(event, Abort):
                self._abort(event)
            elif isinstance(event, Continue | Close):
                self._input(event)
            else:
                self.operator.act(event)
                self._stop_if_fatal()
        self._notify_if(idle)

    def _notify_if(self, idle: bool) -> bool:
        """Tells the operator, if the engine is idle, and was from the beginning; says whether."""
        idle = idle and not self._busy()
        if idle:
            self.operator.notify_idle()
            self._stop_if_fatal()
        return idle

    def _arrive(self, event: Arrive) -> None:
        request = id_in(self.scenario, event.request)
        self.trace.add(Occurred(self.world.iteration, "arrive", request))
        life = self.world.begin(request, request_id(event.request))
        # Arrival order decides ties; two arrivals in one iteration differ by their place in the timeline.
        arrival = float(self._next_event)
        submitted = submission.request(
            self.scenario,
            event.request,
            self.world.references[request],
            arrival,
            self.core.request_block_hasher,
            self.worker.item_data,
        )
        if submitted.use_structured_output:  # as EngineCore.preprocess_add_request does
            self._guarded(self.core.structured_output_manager.grammar_init, submitted)
            self._compilations()
        self._guarded(self.core.add_request, submitted)
        self._each("arrived", life)

    def _input(self, event: Continue | Close) -> None:
        """A session's client sends a chunk, or that there are no more; it does neither once the session is over."""
        life = self.world.lives[request_id(event.request)]
        session = life.session
        if session is None or not life.live:
            return
        closes = isinstance(event, Close)
        self.trace.add(Occurred(self.world.iteration, "close" if closes else "continue", life.request))
        update = submission.update(
            self.scenario,
            event.request,
            None if closes else session.turns[session.sent],
            float(self._next_event),
            self.core.request_block_hasher,
        )
        self._guarded(self.core.add_request, update)
        if not closes:
            self.world.sent(life, session)
            return
        self.world.closed(life, session)
        if not life.live:
            self._each("aborted", life)

    def _abort(self, event: Abort) -> None:
        request = id_in(self.scenario, event.request)
        self.trace.add(Occurred(self.world.iteration, "abort", request, event.in_step))
        if event.in_step:
            self.core.aborts_queue.put_nowait([request])
            self.world.aborting.append(request)
        else:
            self._guarded(self.core.abort_requests, [request])
            self._abort_applied(request)

    def _abort_applied(self, request: str) -> None:
        life = self.world.lives[request]
        if life.live:
            life.ended = "abort"
        self._each("aborted", life)

    def _step(self) -> None:
        self.core.step_counter = self.world.iteration  # a data-parallel rank's, in a wave that never ends
        if self.scenario.engine.interleaving == "free":
            self._guarded(self._free_loop.step)
            return
        self.arriving = None
        outputs, executed = self._guarded(self.core.step_fn)
        self._updated(outputs)
        self._guarded(self.core.post_step, executed)

    # -- the seams ----------------------------------------------------------------------------------------------

    def dispatch(self, scheduler_output: Any) -> Flight:
        """A step leaves for the worker: oracles, trace, worker."""
        step = copy_step(scheduler_output, self.steps, self.world.iteration)
        self.steps += 1
        delays = self.scenario.step_delays or (DEFAULT_DELAY,)
        flight = Flight(step, self.world.iteration + delays[step.index % len(delays)])
        if self.world.encoder_store is not None:
            flight.encoded = tuple(self._encoded(step))
        if self.world.external is not None and step.orders is not None:
            self.world.external.started(step.orders, step.iteration)
        self.trace.add(record.dispatched(self.world, step))
        self._each("dispatched", step)
        self.world.lookups.clear()
        self._stop_if_fatal()
        self.world.executing = flight
        try:
            observations = self.worker.execute_model(step, scheduler_output)
        except RunnerFailure:
            self._each("executed", step, self.worker.observations)
            self._stop_if_fatal()
            raise
        flight.transfers = self.worker.transfers
        self._each("executed", step, observations)
        self._stop_if_fatal()
        self.world.executing = None
        self.world.flights.append(flight)
        if not step.total or self.scenario.engine.runner_type == "pooling":
            self.sample(flight, None)
        return flight

    def sample(self, flight: Flight, grammar_output: Any) -> None:
        """The worker's second call for a step."""
        if grammar_output is not None:
            self.trace.add(record.masked(self.world, flight, grammar_output))
        try:
            flight.result = self.worker.sample_tokens(flight.step, grammar_output)
        except RunnerFailure:
            self._each("executed", flight.step, self.worker.observations)
            self._stop_if_fatal()
            raise
        flight.transfers = self.worker.transfers  # a V2 runner asks its connector after sampling
        self._each("executed", flight.step, self.worker.observations)
        self._stop_if_fatal()
        flight.sampled = self.worker.sampled(flight.step)

    def take(self, flight: Flight) -> Any:
        """The engine loop takes a result; blocks change hands only after that."""
        self.arriving = flight
        if self.world.external is not None and flight.transfers.invalid:
            holders = ((request, [b.block_id for b in blocks]) for request, blocks in self.world.holders())
            self.world.external.taken(flight.transfers, holders)
        return flight.output()

    def _updated(self, outputs: Any) -> None:
        """`update_from_output` has returned, if a result was taken at all."""
        if self.world.aborting and self.core.aborts_queue.empty():
            for request in self.world.aborting:
                self._abort_applied(request)
            self.world.aborting.clear()
        flight, self.arriving = self.arriving, None
        if flight is None:
            return
        self.world.flights.remove(flight)
        if self.world.external is not None:
            self.world.external.told(flight.transfers)
        if self.world.encoder_store is not None:
            self.world.encoder_store.told(flight.encoded)
        delivered = [output for client in (outputs or {}).values() for output in client.outputs]
        # vLLM ends requests whose grammars fail in the order of a set, which is another one in every process.
        ranks = {request: rank for rank, request in enumerate(self.world.lives)}
        delivered.sort(key=lambda output: ranks.get(output.request_id, -1))
        for output in delivered:
            life = self.world.lives.get(output.request_id)
            if life is not None and life.live:
                life.outputs.extend(output.new_token_ids)
                if output.finish_reason is not None:
                    self.world.answered(life, str(output.finish_reason))
        self.trace.add(record.delivered(self.world, flight, delivered))
        self._each("delivered", flight.step, delivered)
        self._stop_if_fatal()

    def _encoded(self, step: Step) -> Iterator[str]:
        """Hashes of the items that a step encodes; what does not exist is O13's."""
        for request, indices in step.encoder_inputs.items():
            items = self.world.references[request].items
            yield from (image_hash(items[index][2]) for index in indices if 0 <= index < len(items))

    # -- oracles ------------------------------------------------------------------------------------------------

    def _guarded(self, call: Any, *arguments: Any) -> Any:
        """Calls vLLM; an exception of its own is O1's."""
        try:
            return call(*arguments)
        except (Stopped, HarnessError, RunnerFailure):
            raise
        except Exception as error:
            self._each("raised", error)
            self._stop_if_fatal()
            raise

    def _each(self, event: str, *arguments: Any) -> None:
        for listener in self._listeners[event]:
            listener(*arguments)
            if self._fatal:
                return  # what others would say of the same moment is consequence

    def _heard(self, violation: Violation) -> None:
        if violation.fingerprint not in self.violations:
            self.violations[violation.fingerprint] = violation
            self.trace.add(Violated(self.world.iteration, violation.fingerprint, violation.message))
        self._fatal = self._fatal or violation.fatal

    def _stop_if_fatal(self) -> None:
        if self._fatal:
            raise Stopped

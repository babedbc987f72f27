"""What an operator does to the engine: resets, pauses, resumptions, by EngineCoreProc's own methods.

A pause that finds work completes when the engine has become idle: the loop then calls `notify_idle`, as
`EngineCoreProc._process_input_queue` does. Where the prefix cache was cleared, the worker's KV memory is made
unwritten: weights change, or memory is given back, and nothing of it may be read again.

Beside transfers of a KV connector vLLM refuses to clear the cache ("not supported yet"): a call fails, and no more.
Up to 0.30 a pause that waits fails in the engine's loop instead; that it dies there is not called a finding either.
To refuse it where nobody holds a block, for steps in flight, is one.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from harness.scenario import Control, Pause, Reset
from harness.trace import Occurred, Trace
from harness.worker.interface import Worker
from harness.world import Act, World

Guarded = Callable[..., Any]
"""Calls vLLM's code; an exception is O1's."""

_REFUSED = object()
"""What a call returns that fails because of a connector's transfers."""


class Operator:
    """One execution's. `told` hears of each act once it is done; `ended` of each request that a pause aborts."""

    def __init__(
        self,
        world: World,
        worker: Worker,
        trace: Trace,
        guarded: Guarded,
        told: Callable[[Act], None],
        ended: Callable[[str], None],
    ) -> None:
        self._world = world
        self._worker = worker
        self._trace = trace
        self._guarded = guarded
        self._told = told
        self._ended = ended
        self._pending: list[tuple[Act, Future[Any]]] = []

    def act(self, event: Control) -> None:
        """An event of the timeline happens."""
        if isinstance(event, Reset):
            self._reset(event)
        elif isinstance(event, Pause):
            self._pause(event)
        else:
            self._trace.add(Occurred(self._world.iteration, "resume"))
            self._world.paused = None
            for pause, _ in self._pending:
                pause.begun = ()  # nobody waits for these any more
            self._guarded(self._world.core.resume_scheduler)

    def notify_idle(self) -> None:
        """The engine has nothing to do: pauses complete."""
        if not self._pending:
            return
        core = self._world.core
        dies = self._ask(core._notify_idle_state_callbacks) is _REFUSED
        if dies:
            core._idle_state_callbacks.clear()
        pending, self._pending = self._pending, []
        for act, future in pending:
            if future.done():
                self._completed(act, self._ask(future.result))
            elif dies:
                self._completed(act, _REFUSED)
            else:
                self._pending.append((act, future))

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """vLLM's answer, or _REFUSED."""
        if self._world.external is None:
            return self._guarded(call, *arguments)
        return self._guarded(self._unless_refused, call, *arguments)

    def _unless_refused(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except RuntimeError as error:
            if "requests waiting for remote KV transfer, which is not supported yet" not in str(error):
                raise
            if not any(blocks for _, blocks in self._world.holders()):
                raise  # nobody holds a block: no transfer is the reason
            return _REFUSED

    def _reset(self, event: Reset) -> None:
        core = self._world.core
        act = Act("reset", event.cache)
        if event.cache == "prefix":
            act.running = event.reset_running_requests
            act.answer = self._ask(core.reset_prefix_cache, event.reset_running_requests) is True
        elif core.scheduler.has_unfinished_requests():
            act.answer = False  # where vLLM warns, nothing is promised: a careful operator waits
        else:
            self._guarded(core.reset_encoder_cache)
            act.answer = True
        if event.cache == "prefix" and act.answer:
            self._worker.forget()
        self._done(act)

    def _pause(self, event: Pause) -> None:
        core, world = self._world.core, self._world
        act = Act(
            "pause",
            event.mode,
            clears=event.clear_cache,
            # A session ends when its client says so, unless it is aborted.
            begun=tuple(
                life.request
                for life in world.live
                if life.outputs and (event.mode == "abort" or life.session is None)
            ),
        )
        self._trace.add(Occurred(world.iteration, "pause", detail=act.mode))
        world.paused = event.mode
        future = self._ask(core.pause_scheduler, event.mode, event.clear_cache)
        while not core.output_queue.empty():
            _, outputs = core.output_queue.get_nowait()
            for output in outputs.outputs:
                self._ended(output.request_id)
        if isinstance(future, Future):
            self._pending.append((act, future))
        else:
            self._completed(act, future)

    def _completed(self, act: Act, answer: object) -> None:
        """A pause is complete, or cannot clear the caches; requests are held in either case."""
        act.what, act.answer = "paused", answer is not _REFUSED
        if act.clears and act.answer:
            self._worker.forget()
        self._done(act)

    def _done(self, act: Act) -> None:
        detail = f"{act.mode}{' and running requests' * act.running}{' and caches' * act.clears}"
        self._trace.add(Occurred(self._world.iteration, act.what, detail=detail, done=bool(act.answer)))
        self._told(act)

"""The executor seam: what `EngineCore` calls in place of processes with a model, and the futures that it waits for."""

from typing import Any, Protocol

from harness.verdict import HarnessError
from harness.worker.interface import Worker
from harness.world import Flight, World


class Dispatcher(Protocol):
    """Who runs a step and wants to know when its result is taken."""

    world: World
    worker: Worker

    def take(self, flight: Flight) -> Any:
        """The engine loop takes the flight's result: vLLM's ModelRunnerOutput."""

    def dispatch(self, scheduler_output: Any) -> Flight:
        """Starts the step."""

    def sample(self, flight: Flight, grammar_output: Any) -> None:
        """Ends the step; its result can be asked for."""


class _Future:
    """What the executor returns: a result, and a scripted moment at which it seems to be there."""

    def __init__(self, run: Dispatcher, flight: Flight | None) -> None:
        self._run = run
        self._flight = flight

    def done(self) -> bool:
        return self._flight is None or self._flight.ready <= self._run.world.iteration

    def add_done_callback(self, callback: Any) -> None:
        """The loop up to 0.13 logs failures through it; a failing worker raises at dispatch instead."""

    def result(self, timeout: float | None = None) -> Any:
        if self._flight is None:
            return None
        return self._run.take(self._flight)


class Executor:
    """The executor seam: what EngineCore calls in place of a process with a model."""

    supported_tasks = ("generate", "embed")
    """What a pooling request may ask for is among it."""

    def __init__(self, run: Dispatcher) -> None:
        self._run = run
        self._pending: Flight | None = None

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """Runs the step. As in the V1 runner, the result of a step with tokens comes from `sample_tokens`, but for a
        pooling model's, which samples nothing."""
        if self._pending is not None:
            raise HarnessError("execute_model was called twice without sample_tokens")
        flight = self._run.dispatch(scheduler_output)
        if flight.result is None:
            self._pending = flight
            future = _Future(self._run, None)
        else:
            future = _Future(self._run, flight)
        return future if non_block else future.result()

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """The pending step's output."""
        if self._pending is None:
            raise HarnessError("sample_tokens was called with nothing pending")
        flight, self._pending = self._pending, None
        self._run.sample(flight, grammar_output)
        future = _Future(self._run, flight)
        return future if non_block else future.result()

    def reset_mm_cache(self) -> None:
        self._run.worker.reset_mm_cache()

    def reset_encoder_cache(self) -> None:
        self._run.worker.reset_encoder_cache()

    def collective_rpc(self, method: str) -> list[Any]:
        """A pause waits for the device before it completes (from 0.29); here its results have been taken."""
        if method != "synchronize_device":
            raise HarnessError(f"EngineCore calls {method} on its workers, which no worker here answers")
        return [None]

    def take_draft_token_ids(self) -> Any:
        """The drafts of the last step; None before the first."""
        from vllm.v1.outputs import DraftTokenIds

        drafts = self._run.worker.take_drafts()
        return None if drafts is None else DraftTokenIds(*drafts)

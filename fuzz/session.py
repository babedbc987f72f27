"""One worker's fuzzing: executes scenarios, keeps those with new state features, records findings as they come.

Everything that must outlive the process is written at once: counters and the scenario in work into memory shared with
the parent, findings and corpus entries into files by rename. A violation never ends the process; a HarnessError is
counted, kept with its scenario, and never a finding.
"""

import contextlib
import os
import time
from collections import deque
from pathlib import Path
from typing import NoReturn

import msgspec

from fuzz import feedback
from fuzz.board import Board
from fuzz.corpus import Corpus, write
from fuzz.engines.base import Engine
from fuzz.sampler import Sampler
from harness.codec import ScenarioError
from harness.execute import Result, execute
from harness.scenario import Scenario, content_hash
from harness.verdict import Level, Verdict, Violation

EXCHANGE_SECONDS = 5.0
"""How often a worker among several looks for what the others found."""
MAX_FAULTS = 20
"""Scenarios kept that met a HarnessError, a worker."""


class Found(msgspec.Struct, frozen=True):
    """A violation as a worker saw it first; the file `finds/<fingerprint>.json`."""

    fingerprint: str
    violation: Violation
    scenario: Scenario
    executions: int
    seconds: float
    worker: int


class Limits(msgspec.Struct, frozen=True):
    """When a worker ends: seconds of fuzzing or executions, whichever comes first; None is no limit."""

    seconds: float | None = None
    executions: int | None = None


class Session:
    """Implements engines.base.Run. `seeds` are executed first."""

    def __init__(
        self,
        out: Path,
        board: Board,
        limits: Limits,
        features: frozenset[str],
        *,
        worker: int = 0,
        seed: int = 0,
        seeds: tuple[Scenario, ...] = (),
        shared: bool = False,
        hazards: bool = False,
    ) -> None:
        self.features = features
        self.worker_seed = seed
        self.log = str(out / "work" / f"worker{worker}-")
        self._out, self._board, self._limits = out, board, limits
        self._worker, self._shared, self._hazards = worker, shared, hazards
        self._corpus = Corpus(out / "corpus")
        self._queue: deque[Scenario] = deque(seeds)
        self._seen: set[int] = set()
        self._found: set[str] = set()
        self._sampler = Sampler()
        self._parent = os.getppid()
        self._encode = msgspec.json.Encoder().encode
        self._next_exchange = time.monotonic()
        self._sampled_before = board.samples_vllm, board.samples

    def explore(self, engine: Engine) -> None:
        """Runs the engine to the end of the session."""
        if not self._board.started:
            self._board.started = time.monotonic()
        self._sampler.start()
        engine.explore(self)

    def execute(self, scenario: Scenario) -> tuple[frozenset[int], bool]:
        board = self._board
        board.begin(self._encode(scenario))
        board.executions += 1
        try:
            result = execute(scenario)
        except (
            Exception
        ) as error:  # a HarnessError, or one that escaped the guards around vLLM's calls: ours, too
            self._fault(scenario, error)
            return frozenset(), False
        board.steps += result.steps
        if result.verdict is Verdict.REJECTED:
            board.rejected += 1
        if result.violations:
            self._record(scenario, result)
        numbers = feedback.features(result.trace)
        new = not numbers <= self._seen
        if new:
            self._seen |= numbers
            board.features = len(self._seen)
            self._corpus.add(scenario)
            board.corpus = len(self._corpus)
        vllm, total = self._sampled_before
        board.finish(vllm + self._sampler.vllm, total + self._sampler.total)
        return numbers, new

    def foreign(self) -> Scenario | None:
        if self._shared and time.monotonic() >= self._next_exchange:
            self._next_exchange = time.monotonic() + EXCHANGE_SECONDS
            with contextlib.suppress(ScenarioError):  # a file that someone else put there or removed
                self._queue.extend(self._corpus.fresh())
        return self._queue.popleft() if self._queue else None

    def over(self) -> bool:
        board, limits = self._board, self._limits
        return bool(
            board.stop
            or (limits.executions is not None and board.executions >= limits.executions)
            or (limits.seconds is not None and time.monotonic() - board.started >= limits.seconds)
            or os.getppid() != self._parent
        )

    def end(self) -> NoReturn:
        self._sampler.stop()
        self._board.ended = True
        os._exit(0)

    def _record(self, scenario: Scenario, result: Result) -> None:
        for violation in result.violations:
            name = violation.fingerprint
            if name in self._found or (violation.level is Level.HAZARD and not self._hazards):
                continue
            self._found.add(name)
            path = self._out / "work" / "finds" / f"{name}.json"
            if path.exists():
                continue
            seconds = time.monotonic() - self._board.started
            found = Found(name, violation, scenario, int(self._board.executions), seconds, self._worker)
            write(path, self._encode(found))

    def _fault(self, scenario: Scenario, error: Exception) -> None:
        self._board.faults += 1
        if self._board.faults <= MAX_FAULTS:
            folder = self._out / "harness-errors"
            folder.mkdir(exist_ok=True)
            note = {"error": f"{type(error).__name__}: {error}", "scenario": scenario}
            write(
                folder / f"{content_hash(scenario)}.json", msgspec.json.format(self._encode(note), indent=1)
            )

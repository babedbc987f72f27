"""One `run`: workers fuzz a target, findings are finished as they come, and a summary is left.

The parent imports vLLM once and forks everything from there: workers (restarted when they die or hang; what they had in
work is kept as a suspect) and, one at a time, a fresh process for each distinct finding (finding.finish). It executes
nothing itself but a warm-up. What workers find is decided by seeds and limits alone, so that one worker with a limit of
executions finds the same things every time; finishing never feeds back.
"""

import gc
import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import msgspec
from msgspec.structs import replace

from fuzz import feedback
from fuzz.corpus import load
from fuzz.engines.base import engine
from fuzz.finding import SHRINK_SECONDS, Finding, finish
from fuzz.job import Job
from fuzz.progress import Progress
from fuzz.session import Found, Limits, Session
from fuzz.worker import Worker
from harness import planting
from harness.scenario import Scenario
from harness.target import Platform, Target, TargetError, activate
from harness.verdict import HarnessError

TICK_SECONDS = 0.2
STOP_SECONDS = 5.0
"""How long a worker may take to notice that it should end."""
RESTART_SEEDS = 1_000_003
"""A restarted worker explores anew, far from the seeds of the others."""
FINISH_SECONDS = 4 * SHRINK_SECONDS
"""A finisher that takes longer hangs."""
MANY_FINDINGS = 6
"""From here on findings get a fifth of the seconds for shrinking each."""


class Settings(msgspec.Struct, frozen=True):
    """A campaign. `out` must be empty or missing."""

    target: Target
    out: Path
    engine: str = "atheris"
    seed: int = 0
    workers: int = 1
    limits: Limits = Limits()
    features: frozenset[str] = frozenset()
    corpus: Path | None = None
    hazards: bool = False


class Summary(msgspec.Struct, frozen=True):
    """What `run --json` prints."""

    vllm: str
    plant: str | None
    """The bug that was planted into it, if one was."""
    engine: str
    seed: int
    workers: int
    executions: int
    seconds: float
    executions_per_s: float
    steps: int
    share_in_vllm: float
    coverage: int
    edges: int
    corpus: int
    rejected: int
    harness_errors: int
    restarts: int
    findings: tuple[Finding, ...]


def warm(target: Target, platform: Platform = Platform.NONE) -> None:
    """Imports the target's scheduler into this process and plants the target's bug, if it names one.

    TargetError if that vLLM cannot be imported, or if the plant does not fit it.
    """
    activate(target, platform)
    logging.disable(logging.CRITICAL)
    try:
        import vllm.v1.core.sched.scheduler
        import vllm.v1.engine.core  # noqa: F401
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise TargetError(
            f"vLLM {target.spec} cannot be imported: {reason}; repair or fetch it again"
        ) from error
    planting.uproot()
    if target.plant is not None:
        planting.plant(target.plant)


class Campaign:
    """Start with `run`."""

    def __init__(self, settings: Settings, progress: Progress) -> None:
        self._settings, self._progress = settings, progress
        self._seeds = tuple(load(settings.corpus)) if settings.corpus else ()
        self._engine = engine(settings.engine)
        self._workers: list[Worker] = []
        self._seen: set[str] = set()
        self._queue: list[Found] = []
        self._finisher: tuple[Job, Found] | None = None
        self._finished: list[Finding] = []
        self._faults: list[str] = []
        """Errors of ours outside executions, one line each."""
        self._stopping = 0.0

    def run(self) -> Summary:
        """Fuzzes to the limits, finishes what was found. TargetError, OSError, HarnessError if it cannot start."""
        settings, say = self._settings, self._progress.say
        out = settings.out
        for name in ("work/finds", "findings", "corpus"):
            (out / name).mkdir(parents=True, exist_ok=True)
        say(f"importing vLLM {settings.target.label} ...")
        began = time.monotonic()
        warm(settings.target)
        from harness import presence
        from harness.execute import execute

        if lacking := sorted(presence.lacking().keys() & settings.features):
            say(f"this vLLM lacks, and scenarios leave out: {', '.join(lacking)}")
            self._settings = settings = replace(settings, features=settings.features - frozenset(lacking))
        execute(Scenario(format=1))
        gc.collect()
        gc.freeze()  # what is shared with the workers stays shared, and their collections stay short
        say(f"imported in {time.monotonic() - began:.0f} s; fuzzing into {out}")
        try:
            with _interrupts(self._stop), self._progress:
                for index in range(min(settings.workers, _most(settings))):
                    self._workers.append(Worker(index, out, self._body, self._fault))
                self._watch()
        finally:
            for worker in self._workers:
                worker.kill()
            if self._finisher:
                self._finisher[0].kill()
        return self._summary()

    def _watch(self) -> None:
        while any([worker.poll() for worker in self._workers]):
            self._collect()
            self._progress.show(self._numbers())
            if self._stopping and time.monotonic() > self._stopping + STOP_SECONDS:
                for worker in self._workers:
                    worker.kill()
            time.sleep(TICK_SECONDS)
        self._collect()
        if self._stopping and self._queue:
            self._progress.say(
                f"{len(self._queue)} findings are still to be finished; interrupt again to drop them"
            )
        while self._queue or self._finisher:
            self._collect()
            time.sleep(TICK_SECONDS / 4)
        self._progress.show(self._numbers(), last=True)

    def _body(self, worker: Worker) -> None:
        """What a worker's process does."""
        settings = self._settings
        executions, count = settings.limits.executions, settings.workers
        if executions is not None:
            executions = executions // count + (worker.index < executions % count)
        if self._engine.instruments:
            feedback.instrument()
        session = Session(
            settings.out,
            worker.board,
            Limits(settings.limits.seconds, executions),
            settings.features,
            worker=worker.index,
            seed=settings.seed + worker.index + worker.restarts * RESTART_SEEDS,
            seeds=self._seeds,
            shared=count > 1 or worker.restarts > 0,
            hazards=settings.hazards,
        )
        session.explore(self._engine)
        session.end()

    def _fault(self, line: str) -> None:
        """Notes an error of ours."""
        self._faults.append(line)
        self._progress.say(f"schedfuzz: {line}")

    def _stop(self) -> None:
        """Asks everyone to end; the second time, drops findings that are not finished."""
        if self._stopping:
            self._queue.clear()
            if self._finisher:
                self._finisher[0].kill()
        self._stopping = self._stopping or time.monotonic()
        for worker in self._workers:
            worker.stop()

    def _collect(self) -> None:
        """Takes what workers found, and moves finishing on."""
        for path in sorted((self._settings.out / "work" / "finds").glob("[!.]*.json")):
            if path.stem not in self._seen:
                found = msgspec.json.decode(path.read_bytes(), type=Found)
                self._seen.add(path.stem)
                self._queue.append(found)
                self._progress.say(f"found {found.fingerprint} after {found.executions} executions")
        if self._finisher is not None:
            job, found = self._finisher
            if job.poll() is None:
                return
            self._finisher = None
            meta = self._settings.out / "findings" / found.fingerprint / "meta.json"
            if meta.exists():
                self._finished.append(msgspec.json.decode(meta.read_bytes(), type=Finding))
            elif job.status == 0:
                self._fault(f"{found.fingerprint} did not come again in a fresh process; see unconfirmed/")
            elif not self._stopping:
                self._fault(f"{found.fingerprint} could not be finished: {job.why()}")
        if self._queue:
            found = self._queue.pop(0)
            seconds = SHRINK_SECONDS if len(self._seen) < MANY_FINDINGS else SHRINK_SECONDS / 5
            out, target = self._settings.out, self._settings.target
            job = Job(
                lambda: finish(out, found, target, seconds),
                out / "work" / f"finding-{found.fingerprint}.log",
                FINISH_SECONDS,
            )
            self._finisher = job, found

    def _numbers(self) -> dict[str, float]:
        boards = [worker.board for worker in self._workers]
        began = [board.started for board in boards if board.started]
        seconds = max(0.0, max((board.beat for board in boards), default=0.0) - min(began)) if began else 0.0
        executions = sum(board.executions for board in boards)
        samples = sum(board.samples for board in boards)
        return {
            "seconds": round(seconds, 2),
            "executions": executions,
            "executions_per_s": round(executions / seconds, 1) if seconds else 0.0,
            "steps": sum(board.steps for board in boards),
            "coverage": max((board.features for board in boards), default=0.0),
            "edges": max((worker.edges() for worker in self._workers), default=0),
            "corpus": sum(1 for _ in (self._settings.out / "corpus").glob("[!.]*.json")),
            "findings": len(self._seen),
            "rejected": sum(board.rejected for board in boards),
            "harness_errors": sum(board.faults for board in boards) + len(self._faults),
            "share_in_vllm": round(sum(board.samples_vllm for board in boards) / samples, 3)
            if samples
            else 0.0,
        }

    def _summary(self) -> Summary:
        settings, numbers = self._settings, self._numbers()
        if not numbers["executions"]:
            raise HarnessError("; ".join(self._faults) or "nothing was executed before the limit")
        order = sorted(self._finished, key=lambda f: (f.executions_to_find, f.fingerprint))
        return Summary(
            vllm=settings.target.version,
            plant=settings.target.plant,
            engine=settings.engine,
            seed=settings.seed,
            workers=settings.workers,
            executions=int(numbers["executions"]),
            seconds=numbers["seconds"],
            executions_per_s=numbers["executions_per_s"],
            steps=int(numbers["steps"]),
            share_in_vllm=numbers["share_in_vllm"],
            coverage=int(numbers["coverage"]),
            edges=int(numbers["edges"]),
            corpus=int(numbers["corpus"]),
            rejected=int(numbers["rejected"]),
            harness_errors=int(numbers["harness_errors"]),
            restarts=sum(worker.restarts for worker in self._workers),
            findings=tuple(order),
        )


def _most(settings: Settings) -> int:
    """No more workers than executions."""
    return settings.workers if settings.limits.executions is None else settings.limits.executions


@contextmanager
def _interrupts(stop: Callable[[], None]) -> Iterator[None]:
    """SIGINT and SIGTERM call `stop` instead of ending the process."""

    def handle(number: int, frame: FrameType | None) -> None:
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

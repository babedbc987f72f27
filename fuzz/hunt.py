"""One hunt: fuzz a vLLM that has a known bug until a finding is proven to be that bug.

A violation with one of the record's signs is a candidate. It is proof when two fresh processes agree with it: one on
the same vLLM, which has executed nothing else and shows the fingerprint again; and one on a vLLM that is free of the
bug (the release that fixed it, or the same one without the plant), which does not show it on the same scenario.
Candidates that the second one shows, too, are another bug's, and the hunt goes on.

Four kinds of process: the hunter, which imports the vLLM with the bug and executes nothing; the worker, forked from it,
which fuzzes; the judge, forked before anything is imported, which imports the other vLLM when the first candidate
comes; and, for each candidate that passed it, a witness forked from the hunter, which also shrinks. They talk in files
that appear by rename.
"""

import os
import time
from pathlib import Path

import msgspec

from fuzz import feedback
from fuzz.corpus import read, write
from fuzz.engines.base import Engine, engine
from fuzz.finding import minimise, seen
from fuzz.job import Job
from fuzz.ledger import Sign, Site
from fuzz.session import Found, Limits, Session
from fuzz.worker import Worker
from harness.codec import encode
from harness.execute import Result, execute
from harness.scenario import Scenario
from harness.target import Target, resolve
from harness.verdict import HarnessError

TICK_SECONDS = 0.1
SHRINK_SECONDS = 10.0
AFTER_SECONDS = 90.0
"""How long candidates may still be judged once the worker has ended: the judge's import, and a few executions."""
PENDING = 20
"""Candidates of one fingerprint that wait for the judge; more are not worth their files."""


class Quarry(msgspec.Struct, frozen=True):
    """What a hunt is after, and how."""

    record: str
    signs: tuple[Sign, ...]
    site: Site
    features: frozenset[str]
    engine: str = "atheris"
    seed: int = 0
    seconds: float = 600.0
    """Of the worker's own time on a core: what else the machine does must not decide what is found."""


class Trophy(msgspec.Struct, frozen=True):
    """What a hunt came back with; `result.json`. What it took, in executions and seconds of a core: the worker's."""

    record: str
    vllm: str
    plant: str | None
    quiet: str
    """Which vLLM was free of it: a release, "without the plant", the name of a mend, or empty if none is."""
    found: bool
    executions: int
    seconds: float
    seed: int
    engine: str
    features: str
    fingerprint: str = ""
    oracle: str = ""
    kind: str = ""
    anchor: str = ""
    message: str = ""
    level: str = ""
    others: int = 0
    """Candidates that proved nothing: the vLLM without the bug shows them, too, or could not say."""
    scenario: str = ""
    """File, relative to the hunt's folder, of the smallest scenario that is proof."""
    fault: str = ""
    """What went wrong with us."""


class _Session(Session):
    """Keeps every candidate instead of the first violation of each fingerprint."""

    signs: tuple[Sign, ...] = ()
    folder: Path
    count = 0
    seconds = 0.0

    def explore(self, engine: Engine) -> None:
        self._began = time.process_time()
        super().explore(engine)

    def _seconds(self) -> float:
        return time.process_time() - self._began

    def over(self) -> bool:
        self._board.spent = self._seconds()
        return super().over() or self._seconds() >= self.seconds

    def _record(self, scenario: Scenario, result: Result) -> None:
        for violation in result.violations:
            if not any(sign.matches(violation) for sign in self.signs):
                continue
            judged = len(list(self.folder.glob("*.verdict")))
            if self.count - judged >= PENDING:
                continue
            self.count += 1
            found = Found(
                violation.fingerprint, violation, scenario, int(self._board.executions), self._seconds(), 0
            )
            write(self.folder / f"{self.count:05}.json", self._encode(found))


def hunt(quarry: Quarry, out: Path) -> Trophy:
    """Hunts in this process, which must not have imported vLLM; `out` is a new folder. TargetError, HarnessError."""
    for name in ("work", "corpus", "candidates"):
        (out / name).mkdir(parents=True, exist_ok=True)
    target = _target(quarry.site.vllm, quarry.site.plant)
    quiet = _quiet(quarry.site)
    judge = None if quiet is None else Job(lambda: _judge(out, quiet), out / "work" / "judge.log")
    try:
        return _Hunt(quarry, out, target, judge).run()
    finally:
        if judge is not None:
            judge.kill()


class _Hunt:
    def __init__(self, quarry: Quarry, out: Path, target: Target, judge: Job | None) -> None:
        self._quarry, self._out, self._target, self._judge = quarry, out, target, judge
        self._faults: list[str] = []
        self._others = 0
        self._done: set[str] = set()

    def run(self) -> Trophy:
        from fuzz.campaign import warm

        warm(self._target)
        execute(Scenario(format=1))
        worker = Worker(0, self._out, self._body, self._faults.append)
        proof = None
        try:
            while proof is None and worker.poll():
                time.sleep(TICK_SECONDS)
                proof = self._proof()
            end = time.monotonic() + AFTER_SECONDS
            while proof is None and self._pending() and time.monotonic() < end:
                time.sleep(TICK_SECONDS)
                proof = self._proof()
        finally:
            worker.kill()
        board = worker.board
        if board.faults:
            self._faults.append(f"{int(board.faults)} errors of our own; see harness-errors/")
        if proof is not None:
            return self._trophy(proof.executions, proof.seconds, proof)
        return self._trophy(int(board.executions), board.spent)

    def _body(self, worker: Worker) -> None:
        chosen = engine(self._quarry.engine)
        if chosen.instruments:
            feedback.instrument()
        session = _Session(
            self._out,
            worker.board,
            Limits(),
            self._quarry.features,
            seed=self._quarry.seed + worker.restarts * 1_000_003,
        )
        session.seconds = self._quarry.seconds
        session.signs, session.folder = self._quarry.signs, self._out / "candidates"
        session.count = len(list(session.folder.glob("*.json")))
        session.explore(chosen)
        session.end()

    def _candidates(self) -> list[Path]:
        return [
            path
            for path in sorted((self._out / "candidates").glob("[!.]*.json"))
            if path.stem not in self._done
        ]

    def _pending(self) -> bool:
        return bool(self._candidates()) and (self._judge is None or self._judge.poll() is None)

    def _proof(self) -> Found | None:
        """The first candidate that both processes agree with, if there is one by now."""
        if self._judge is not None and self._judge.poll() is not None:
            self._note(f"the judge: {self._judge.why()}")
            return None
        for path in self._candidates():
            verdict = path.with_suffix(".verdict")
            if self._judge is not None and not verdict.exists():
                return None
            self._done.add(path.stem)
            if self._judge is not None and verdict.read_text() != "quiet":
                self._others += 1
                continue
            found = msgspec.json.decode(path.read_bytes(), type=Found)
            witness = Job(
                lambda found=found: self._witness(found),  # type: ignore[misc]
                self._out / "work" / "witness.log",
                6 * SHRINK_SECONDS,
            )
            witness.wait()
            if (self._out / "scenario.json").exists():
                return found
            self._note(f"{found.fingerprint} did not come again in a fresh process")
        return None

    def _note(self, fault: str) -> None:
        if fault not in self._faults:
            self._faults.append(fault)

    def _witness(self, found: Found) -> None:
        """In a fresh process: sees the fingerprint again, and shrinks the scenario."""
        if seen(found.scenario, found.fingerprint) is None:
            return
        smallest, _, _ = minimise(found.scenario, found.fingerprint, SHRINK_SECONDS)
        write(self._out / "smallest.json", encode(smallest))
        write(self._out / "scenario.json", encode(found.scenario))

    def _smallest(self, found: Found) -> str:
        """The name of the smallest scenario that is proof: a shrunk one may have come to show another bug."""
        smallest = self._out / "smallest.json"
        if self._judge is None:
            return smallest.name
        again = self._out / "candidates" / "smallest.json"
        write(again, msgspec.json.encode(msgspec.structs.replace(found, scenario=read(smallest))))
        end = time.monotonic() + AFTER_SECONDS
        verdict = again.with_suffix(".verdict")
        while not verdict.exists() and self._judge.poll() is None and time.monotonic() < end:
            time.sleep(TICK_SECONDS)
        if verdict.exists() and verdict.read_text() == "quiet":
            return smallest.name
        return "scenario.json"

    def _trophy(self, executions: int, seconds: float, found: Found | None = None) -> Trophy:
        quarry, site = self._quarry, self._quarry.site
        common = dict(
            record=quarry.record,
            vllm=site.vllm,
            plant=site.plant,
            quiet="without the plant" if site.plant else site.mend or site.fixed or "",
            executions=executions,
            seconds=round(seconds, 1),
            seed=quarry.seed,
            engine=quarry.engine,
            features=",".join(sorted(quarry.features)),
            others=self._others,
            fault="; ".join(self._faults),
        )
        if found is None:
            return msgspec.convert({**common, "found": False}, Trophy)
        violation = found.violation
        return msgspec.convert(
            {
                **common,
                "found": True,
                "fingerprint": found.fingerprint,
                "oracle": violation.oracle,
                "kind": violation.kind,
                "anchor": violation.anchor,
                "message": violation.message,
                "level": violation.level,
                "scenario": self._smallest(found),
            },
            Trophy,
        )


def _target(vllm: str, plant: str | None = None) -> Target:
    found = resolve(vllm)
    return Target(found.spec, found.version, found.path, plant)


def _quiet(site: Site) -> Target | None:
    """The vLLM that is free of the bug."""
    if site.plant is not None or site.mend is not None:
        return _target(site.vllm, site.mend)
    return None if site.fixed is None else _target(site.fixed)


def _judge(out: Path, quiet: Target) -> None:
    """Says of each candidate whether the vLLM without the bug shows its fingerprint, too. Ends with its parent."""
    from fuzz.campaign import warm

    parent, warmed = os.getppid(), False
    folder = out / "candidates"
    while os.getppid() == parent:
        for path in sorted(folder.glob("[!.]*.json")):
            verdict = path.with_suffix(".verdict")
            if verdict.exists():
                continue
            if not warmed:
                warm(quiet)
                warmed = True
            found = msgspec.json.decode(path.read_bytes(), type=Found)
            write(verdict, _verdict(found).encode())
        time.sleep(TICK_SECONDS)


def _verdict(found: Found) -> str:
    """`quiet` if the vLLM runs the scenario to its end and does not show the fingerprint.

    One that refuses it, or meets another bug on the way, has not said anything.
    """
    try:
        result = execute(found.scenario)
    except HarnessError:
        return "fault"
    if result.rejected is not None:
        return "refused"
    if any(violation.fingerprint == found.fingerprint for violation in result.violations):
        return "shown"
    return "unclear" if any(violation.fatal for violation in result.violations) else "quiet"

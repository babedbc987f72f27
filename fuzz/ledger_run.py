"""Hunts for many records: each in a process of its own, some at a time."""

import shutil
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from fuzz.corpus import write
from fuzz.hunt import AFTER_SECONDS, Quarry, Trophy, hunt
from fuzz.job import Job
from fuzz.ledger import Record
from fuzz.ledger_report import Outcome
from fuzz.restrict import parse_features

TICK_SECONDS = 0.2
SLACK_SECONDS = 240.0 + 2 * AFTER_SECONDS
"""What a hunt takes beside its fuzzing: two imports, judging and shrinking, on a busy machine."""
BUSY = 6.0
"""The share of a core that a worker gets at least is one in so many."""


class _Search:
    """The hunts for one record, one after the other."""

    def __init__(self, record: Record, quarries: Sequence[Quarry], out: Path, every: bool) -> None:
        self.record, self._out, self._every = record, out, every
        self._left = deque(quarries)
        self._hunts: list[Trophy] = []
        self._job: Job | None = None
        self._folder = out

    def poll(self) -> Outcome | None:
        """Moves on; the outcome once there is one."""
        if self._job is not None:
            if self._job.poll() is None:
                return None
            self._hunts.append(self._trophy())
            self._job = None
        found = any(one.found for one in self._hunts)
        if not self._left or (found and not self._every):
            # The page tells of the last one: a successful one if there is any.
            hunts = tuple(sorted(self._hunts, key=lambda one: one.found))
            return Outcome(self.record.id, found, hunts, self.record.missing)
        self._start(self._left.popleft())
        return None

    def kill(self) -> None:
        if self._job is not None:
            self._job.kill()

    def _start(self, quarry: Quarry) -> None:
        self._quarry = quarry
        self._folder = folder = self._out / f"{quarry.record}-{quarry.site.name}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._job = Job(
            lambda: write(folder / "result.json", msgspec.json.encode(hunt(quarry, folder))),
            folder / "log",
            BUSY * quarry.seconds + SLACK_SECONDS,
        )

    def _trophy(self) -> Trophy:
        assert self._job is not None
        path = self._folder / "result.json"
        if path.exists():
            trophy = msgspec.json.decode(path.read_bytes(), type=Trophy)
            name = self._folder.relative_to(self._out) / trophy.scenario
            return replace(trophy, scenario=str(name)) if trophy.found else trophy
        quarry = self._quarry
        return Trophy(
            quarry.record,
            quarry.site.vllm,
            quarry.site.plant,
            "",
            False,
            0,
            0.0,
            quarry.seed,
            quarry.engine,
            ",".join(sorted(quarry.features)),
            fault=self._job.why(),
        )


def run(
    records: Sequence[Record],
    out: Path,
    engine: str,
    seed: int,
    seconds: float,
    features: frozenset[str] | None = None,
    *,
    jobs: int = 1,
    every: bool = False,
) -> Iterator[Outcome]:
    """Looks for records, `jobs` at a time; outcomes as they come. `features` override those that records name."""
    waiting = deque(
        _Search(
            record,
            [
                Quarry(
                    record.id,
                    record.sign,
                    site,
                    parse_features(record.features) if features is None else features,
                    engine,
                    seed,
                    seconds,
                )
                for site in record.site
            ],
            out,
            every,
        )
        for record in records
    )
    running: list[_Search] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(waiting.popleft())
            for search in list(running):
                if (outcome := search.poll()) is not None:
                    running.remove(search)
                    yield outcome
            time.sleep(TICK_SECONDS)
    finally:
        for search in running:
            search.kill()

"""A worker's process over its restarts: ended at its limit, started again when it dies or hangs.

What a dead worker had in work is kept as a suspect; its counters go on. A worker that dies too often is given up.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path

from fuzz.board import Board
from fuzz.corpus import write
from fuzz.job import Job

HANG_SECONDS = 60.0
"""An execution is bounded by steps and takes milliseconds; the longest legal one takes some seconds."""
MAX_RESTARTS = 10


class Worker:
    """Starts at once. `body` runs in its process and ends it; `fault` gets a line about each death."""

    def __init__(
        self, index: int, out: Path, body: Callable[["Worker"], None], fault: Callable[[str], None]
    ) -> None:
        self.index, self.board, self.restarts = index, Board(), 0
        self._out, self._body, self._fault = out, body, fault
        self._log = out / "work" / f"worker{index}.log"
        self._job, self._since = self._start(), time.monotonic()
        self._given_up = False

    def _start(self) -> Job:
        return Job(lambda: self._body(self), self._log)

    def poll(self) -> bool:
        """Whether it goes on."""
        if self._job.poll() is None:
            if time.monotonic() - max(self._since, self.board.beat) < HANG_SECONDS:
                return True
            self._job.kill()
            why = f"nothing happened for {HANG_SECONDS:.0f} s, and it was killed"
        elif self.board.ended or self.board.stop or self._given_up:
            return False
        else:
            why = self._job.why()
        self._fault(f"worker {self.index}: {why}{self._suspect()}")
        if self.restarts >= MAX_RESTARTS or self.board.stop:
            self._given_up = True
            return False
        self.restarts += 1
        self._since = time.monotonic()
        self._job = self._start()
        return True

    def stop(self) -> None:
        """Asks it to end after the execution in work."""
        self.board.stop = True

    def kill(self) -> None:
        """Ends it now."""
        self._job.kill()

    def edges(self) -> int:
        """Branches of vLLM's scheduler seen, as libFuzzer last printed; the state features in its count left out."""
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - 4096))
                found = re.findall(rb"cov: (\d+)", file.read())
        except OSError:
            return 0
        return max(0, int(found[-1]) - int(self.board.features)) if found else 0

    def _suspect(self) -> str:
        """Keeps the scenario that was in work; where, in words."""
        data = self.board.in_work()
        if not data:
            return ""
        self.board.length = 0
        folder = self._out / "suspects"
        folder.mkdir(exist_ok=True)
        path = folder / f"worker{self.index}-{self.restarts}.json"
        write(path, data)
        return f"; what it ran is in {path}"

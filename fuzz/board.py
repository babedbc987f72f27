"""A worker's counters and the scenario that it has in work, in memory shared with its parent.

Writing is a few stores, so it happens at every execution; the parent reads whatever the worker last wrote, also after
the worker was killed. The numbers are declared once, in `COUNTERS`.
"""

import mmap
import time
from typing import Any

SCENARIO_BYTES = 1 << 17
"""The largest legal scenario has about 100 kB."""

COUNTERS: tuple[tuple[str, str], ...] = (
    ("executions", "scenarios run"),
    ("steps", "schedule passes of vLLM"),
    ("rejected", "scenarios whose configuration vLLM refused"),
    ("faults", "errors of our own"),
    ("features", "state features seen"),
    ("corpus", "scenarios kept for showing a new feature"),
    ("samples_vllm", "time samples inside vLLM"),
    ("samples", "time samples"),
    ("started", "monotonic seconds at the first execution; 0 before"),
    ("beat", "monotonic seconds at the last begin or end of an execution"),
    ("spent", "seconds of a core that the worker has used, where somebody asks"),
    ("stop", "the parent asks the worker to end"),
    ("ended", "the worker reached its limit"),
    ("length", "bytes of the scenario in work; 0 when there is none"),
)


class Board:
    """Attributes named in COUNTERS read and write shared memory; make it before the fork."""

    executions: float
    steps: float
    rejected: float
    faults: float
    features: float
    corpus: float
    samples_vllm: float
    samples: float
    started: float
    beat: float
    spent: float
    stop: float
    ended: float
    length: float

    def __init__(self) -> None:
        size = 8 * len(COUNTERS)
        self._memory = mmap.mmap(-1, size + SCENARIO_BYTES)
        view = memoryview(self._memory)
        self._numbers = view[:size].cast("d")
        self._scenario = view[size:]

    def begin(self, scenario: bytes) -> None:
        """A scenario is about to run."""
        length = min(len(scenario), SCENARIO_BYTES)
        self._scenario[:length] = scenario[:length]
        self.length = length
        self.beat = time.monotonic()

    def finish(self, samples_vllm: float, samples: float) -> None:
        """It ran."""
        self.length = 0
        self.beat = time.monotonic()
        self.samples_vllm, self.samples = samples_vllm, samples

    def in_work(self) -> bytes:
        """The scenario that was begun and not finished; empty if there is none."""
        return bytes(self._scenario[: int(self.length)])


def _counter(index: int) -> Any:
    def read(self: Board) -> float:
        return self._numbers[index]

    def write(self: Board, value: float) -> None:
        self._numbers[index] = value

    return property(read, write)


for _index, (_name, _help) in enumerate(COUNTERS):
    setattr(Board, _name, _counter(_index))

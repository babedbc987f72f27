"""What a campaign says while it works: the same numbers on a terminal, in plain lines and in `stats.jsonl`.

A statistic is declared once, in `STATS`.
"""

import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

import msgspec

PLAIN_SECONDS = 5.0
"""Between plain lines, and between lines of stats.jsonl."""


class Stat(NamedTuple):
    name: str
    help: str
    form: str
    """Format of the number, for people."""


STATS: tuple[Stat, ...] = (
    Stat("seconds", "seconds of fuzzing", ".0f"),
    Stat("executions", "scenarios run", ",.0f"),
    Stat("executions_per_s", "scenarios run a second, all workers", ".0f"),
    Stat("steps", "schedule passes of vLLM", ",.0f"),
    Stat("coverage", "state features seen, of the worker that saw most", ".0f"),
    Stat("edges", "branches of vLLM's scheduler seen (engine atheris only)", ".0f"),
    Stat("corpus", "scenarios kept because they showed a new state feature", ".0f"),
    Stat("findings", "distinct violations seen", ".0f"),
    Stat("rejected", "scenarios whose configuration vLLM refused", ".0f"),
    Stat("harness_errors", "errors of our own; never findings", ".0f"),
    Stat("share_in_vllm", "share of processor time inside vLLM's code", ".2f"),
)
_ON_LINE = (
    "executions",
    "executions_per_s",
    "coverage",
    "edges",
    "corpus",
    "findings",
    "rejected",
    "harness_errors",
)


class Progress:
    """Shows numbers on `stream`; on a terminal as a table that is redrawn, else as a line every few seconds."""

    def __init__(self, stream: IO[str], stats_file: Path | None = None) -> None:
        self._stream, self._file = stream, stats_file
        self._live: Any = None
        self._next = 0.0

    def say(self, text: str) -> None:
        """A line of its own, above the table. A closed pipe ends nothing."""
        try:
            if self._live is not None:
                self._live.console.print(text, markup=False, highlight=False)
            else:
                print(text, file=self._stream, flush=True)
        except OSError:
            pass

    def __enter__(self) -> "Progress":
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            # No refresh thread: the campaign forks.
            self._live = Live(console=Console(file=self._stream), auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, numbers: dict[str, float], *, last: bool = False) -> None:
        """Call it a few times a second. OSError if stats.jsonl cannot be written."""
        if self._live is not None:
            self._live.update(_table(numbers), refresh=True)
        now = time.monotonic()
        if (now < self._next or not numbers["executions"]) and not last:
            return
        self._next = now + PLAIN_SECONDS
        if self._file is not None:
            with self._file.open("ab") as file:
                file.write(msgspec.json.encode(numbers) + b"\n")
        if self._live is None:
            self.say(line(numbers))


def line(numbers: dict[str, float]) -> str:
    """The numbers on one line."""
    forms = {stat.name: stat.form for stat in STATS}
    parts = [
        f"{name.replace('_per_s', '/s').replace('_', ' ')} {numbers[name]:{forms[name]}}" for name in _ON_LINE
    ]
    return f"[{numbers['seconds']:4.0f} s] " + "  ".join(parts)


def _table(numbers: dict[str, float]) -> Any:
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for stat in STATS:
        table.add_row(stat.name, f"{numbers[stat.name]:{stat.form}}", stat.help)
    return table

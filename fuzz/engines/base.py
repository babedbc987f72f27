"""What an engine is: it chooses scenarios and hands each to `run`, until that says that the session is over.

The session (fuzz/session.py) executes, keeps what is new and records findings; an engine neither executes nor writes.
"""

from typing import Protocol

from harness.scenario import Scenario


class Run(Protocol):
    """A worker's session, as an engine sees it."""

    features: frozenset[str]
    """Features of the language that scenarios may use."""
    worker_seed: int
    """Seeds every random choice of this worker."""
    log: str
    """Path prefix for files that the engine's library insists on writing."""

    def execute(self, scenario: Scenario) -> tuple[frozenset[int], bool]:
        """Runs a scenario; its state features, and whether any was new."""
        ...

    def foreign(self) -> Scenario | None:
        """A scenario of the user's corpus or of another worker's that this one has not seen, or None."""
        ...

    def over(self) -> bool:
        """Whether a limit is reached: then the engine returns, or calls `end`."""
        ...

    def end(self) -> None:
        """Ends the process, for engines that cannot return. Never returns."""
        ...


class Engine(Protocol):
    """A way to explore."""

    name: str
    instruments: bool
    """Whether it wants branch counters in vLLM's code."""

    def explore(self, run: Run) -> None:
        """Runs scenarios until `run.over()`."""
        ...


def engine(name: str) -> Engine:
    """The engine of that name. ValueError names those there are."""
    from fuzz.engines.atheris import AtherisEngine
    from fuzz.engines.random import RandomEngine

    engines: dict[str, Engine] = {"atheris": AtherisEngine(), "random": RandomEngine()}
    if name not in engines:
        raise ValueError(f"unknown engine {name!r}; known: {', '.join(engines)}")
    return engines[name]

"""The small interface behind which every oracle stands.

An oracle holds its own shadow state, is fed the same events as all others, and speaks through `report`. It changes
nothing. Its docstring states what it promises, where vLLM promises it, and which ledger records it can see.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from harness.step import Step
from harness.verdict import Level, Violation
from harness.worker.observation import Observation
from harness.world import Act, Life, World

Sink = Callable[[Violation], None]


class Oracle:
    """One invariant family. Subclasses override what they need to see."""

    family: ClassVar[str]

    def __init__(self, world: World, sink: Sink) -> None:
        self.world = world
        self._sink = sink

    def arrived(self, life: Life) -> None:
        """A request was handed to the scheduler."""

    def aborted(self, life: Life) -> None:
        """An abort was applied (also of a request that has ended already: `life.ended` is set then), or a client has
        closed its parked session."""

    def controlled(self, act: Act) -> None:
        """A cache was reset, or a pause has completed."""

    def dispatched(self, step: Step) -> None:
        """`schedule()` has returned; the worker has not run the step yet."""

    def executed(self, step: Step, observations: Sequence[Observation]) -> None:
        """The worker has run the step up to its logits, or has sampled, or has failed in either: once for each."""

    def delivered(self, step: Step, outputs: Sequence[Any]) -> None:
        """`update_from_output()` has returned; `outputs` are vLLM's EngineCoreOutput objects."""

    def raised(self, error: Exception) -> None:
        """An exception has left vLLM's code; nothing else is said after it. HarnessError if it is ours."""

    def settled(self) -> None:
        """An engine iteration is over."""

    def drained(self) -> None:
        """Nothing is left to do: no request lives, nothing is in flight."""

    def report(
        self,
        kind: str,
        anchor: str,
        message: str,
        *requests: str,
        level: Level = Level.VIOLATION,
        fatal: bool = True,
    ) -> None:
        """Says that the promise is broken. `anchor` must not depend on ids, counts or time."""
        self._sink(
            Violation(
                oracle=self.family,
                kind=kind,
                anchor=anchor,
                message=message,
                iteration=self.world.iteration,
                level=level,
                fatal=fatal and level is Level.VIOLATION,
                requests=requests,
                speaker=type(self).__name__,
            )
        )

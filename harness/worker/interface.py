"""What stands behind the executor seam, whichever worker it is."""

import enum
from collections.abc import Callable, Sequence, Set
from typing import Any, Protocol

from harness.peers.orders import Transfers
from harness.step import Step
from harness.worker.observation import Observation


class Kind(enum.StrEnum):
    """Which worker runs the steps.

    `STUB` knows the truth and says exactly what it met. `DEVICE` is vLLM's own model runner: what a client would see.
    `TANDEM` is both on the same SchedulerOutputs: the device's tokens drive, and any disagreement is our fault.
    """

    STUB = "stub"
    DEVICE = "device"
    TANDEM = "tandem"


Result = Callable[[], Any]
"""Gives vLLM's ModelRunnerOutput of a step; asked when the engine loop takes the result, and not before."""


class Worker(Protocol):
    """One execution's worker, called as vLLM's executor calls its own."""

    def item_data(self, identity: int, length: int) -> Any:
        """What a multimodal item carries for the encoder; never None, which stands for data that was left out."""

    def execute_model(self, step: Step, scheduler_output: Any) -> Sequence[Observation]:
        """Applies the step's state part and runs it up to its logits. RunnerFailure where the real runner would
        raise; the last observations are in `observations` then. A real runner raises what it raises."""

    def sample_tokens(self, step: Step, grammar_output: Any) -> Result:
        """Samples under the masks of vLLM's GrammarOutput, if there is one: the step's result. Also called, at once,
        for a step without tokens. RunnerFailure as in `execute_model`; `observations` are of this call."""

    @property
    def transfers(self) -> Transfers:
        """What the connector's worker side reports with the step in progress."""

    @property
    def spoiled(self) -> Set[str]:
        """Rows of the step in progress that attend to what a failed load left: what they sample is anything."""

    @property
    def adrift(self) -> Set[str]:
        """Rows of the step in progress that a mask, of an output that has ended, made say another token than the
        request's own: what is drafted after that is anything."""

    @property
    def observations(self) -> Sequence[Observation]:
        """What the step in progress has met in the last call."""

    def sampled(self, step: Step) -> dict[str, list[int]]:
        """Tokens that the step sampled, per row; empty lists for unfinished prefills. Known before the result by the
        stub only."""

    def reset_mm_cache(self) -> None:
        """What the executor passes on; no step depends on it."""

    def reset_encoder_cache(self) -> None:
        """Drops every encoder output."""

    def forget(self) -> None:
        """The whole KV cache becomes unwritten: no step may read what is there now."""

    def take_drafts(self) -> tuple[list[str], list[list[int]]] | None:
        """Request ids and drafts of the last step that had tokens; None where the scheduler is told none."""

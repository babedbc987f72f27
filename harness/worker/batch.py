"""What the bookkeeping of both model runners has in common: what it meets, and whose requests it is sent."""

from collections.abc import Collection, Mapping
from typing import Protocol

from harness.model import Reference
from harness.scenario import image_hash
from harness.step import NewRow
from harness.worker.observation import Breach, Observation, RunnerFailure


class Known(Protocol):
    """A request as a runner remembers it."""

    @property
    def reference(self) -> Reference:
        """Its truth."""

    @property
    def items(self) -> tuple[tuple[int, int, str], ...]:
        """Multimodal items as (offset, length, hash)."""

    @property
    def stripped(self) -> Collection[int]:
        """Indices of items without the data that the encoder needs."""

    @property
    def tables(self) -> list[list[int]]:
        """Block ids, one list per KV cache group."""


class Batch:
    """A runner's bookkeeping. `references` maps request ids to their truth; a session's is that of its current turn."""

    def __init__(self, references: Mapping[str, Reference]) -> None:
        self.references = references
        self.observations: list[Observation] = []

    @property
    def requests(self) -> Mapping[str, Known]:
        """By request id."""
        raise NotImplementedError

    def fail(self, breach: Breach) -> RunnerFailure:
        """Records what the real runner would raise on; raise the result."""
        self.observations.append(breach)
        return RunnerFailure(breach.message)

    def check_identity(self, row: NewRow) -> Reference:
        """A new row's truth. The real runner gathers what it is told, and applies the adapter that it is told; a wrong
        prompt needs no check here, since feeding a wrong token is seen.
        """
        reference = self.references[row.request]
        if row.items != tuple((offset, length, image_hash(item)) for offset, length, item in reference.items):
            message = f"{row.request} is sent with multimodal items that are not its client's: {row.items}"
            self.observations.append(Breach("items-changed", message, row.request))
        if row.lora != reference.request.lora:
            message = (
                f"{row.request} is sent with adapter {row.lora}, its client's is {reference.request.lora}"
            )
            self.observations.append(Breach("adapter-changed", message, row.request))
        return reference

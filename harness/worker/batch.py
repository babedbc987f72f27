"""What the bookkeeping of both model runners has in common: what it meets, and whose requests it is sent."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from harness.model import Reference, wrong_token
from harness.scenario import image_hash
from harness.step import NewRow, Step
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

    def report(self, breach: Breach) -> None:
        """Records a breach; RunnerFailure if the real runner raises on it."""
        if breach.fails:
            raise self.fail(breach)
        self.observations.append(breach)

    def fitting(self, step: Step, *, fails: bool) -> Step:
        """The step with no more drafts than leave each request one token of its own.

        A runner that does not look (`fails`) takes what lies before the request's tokens: another one's. What it makes
        of that is anybody's guess, and not modelled.
        """
        fitting: dict[str, tuple[int, ...]] = {}
        for request, drafts in step.drafts.items():
            count = step.scheduled.get(request)
            if count is not None and drafts and len(drafts) >= count:
                message = f"{request} computes {count} tokens, {len(drafts)} of them drafts"
                self.report(Breach("drafts-fill-step", message, request, fails))
                fitting[request] = drafts[: max(count - 1, 0)]
        return replace(step, drafts={**step.drafts, **fitting}) if fitting else step

    def made(self, request: str, drafts: Sequence[int], count: int) -> list[int]:
        """`count` of the drafts that the device has for a request; behind its own lie those of another one."""
        if len(drafts) < count:
            message = f"{request} verifies {count} drafts; there are {len(drafts)}"
            self.report(Breach("more-drafts-than-made", message, request))
        return [*drafts[:count], *[wrong_token(0)] * (count - len(drafts))]

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

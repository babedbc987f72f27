"""O4: encoder presence."""

from collections.abc import Sequence
from typing import ClassVar

from harness.oracles.base import Oracle
from harness.step import Step
from harness.worker.observation import EncoderMiss, Observation


class EncoderPresence(Oracle):
    """O4: every encoder output that the target or the drafter gathers is in the worker's encoder cache.

    Promised by `Scheduler._try_schedule_encoder_inputs`: what a step's window overlaps (shifted by the drafter's
    look-ahead) is scheduled in the step or cached. The runner applies the step's frees first, then encodes, then
    gathers for the target, then for the drafter; on a miss it raises and the engine dies. From 0.24 a drafter's read
    of an item that starts at or after the end of the processed range falls back to the token embedding.

    Ledger: 38907, 45347, 46315, 38551, 39543, 29750, 54284.
    """

    family: ClassVar[str] = "O4"

    def executed(self, step: Step, observations: Sequence[Observation]) -> None:
        for seen in observations:
            if isinstance(seen, EncoderMiss):
                # Two ways to go wrong: the scheduler lost what it knew, or it believes in what is not there.
                # Or it is right, and the worker was not given what it needs.
                # An EncoderDecoderCacheManager keeps no record of what is there.
                believed = seen.image in getattr(self.world.scheduler.encoder_cache_manager, "cached", ())
                sent = not seen.reason.startswith("sent without")
                self.report(
                    f"{seen.window}-read-miss",
                    "cached according to EncoderCacheManager" if believed and sent else seen.reason,
                    f"step {step.index}: the {seen.window} gathers {seen.image} for {seen.request}, which was "
                    f"{seen.reason}" + ("; the model runner raises" if seen.fails else ""),
                    seen.request,
                )

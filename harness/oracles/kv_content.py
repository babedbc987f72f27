"""O2: KV content."""

from collections.abc import Sequence
from typing import ClassVar

from harness.oracles.base import Oracle
from harness.step import Step
from harness.worker.observation import KvMismatch, Observation


class KvContent(Oracle):
    """O2: every position that a query attends to holds the key and value of exactly that prefix.

    Promised by the KV cache manager: a prefix hit returns blocks whose tokens have been computed
    (`get_computed_blocks`), and a request's block table covers its computed tokens. Seen by the shadow memory at the
    step that reads: stale, foreign, unwritten and null slots, per KV cache group, inside the window where the group
    has one.

    Ledger: 43569, 37076, 39146, 34382 and others whose symptom is wrong tokens.
    """

    family: ClassVar[str] = "O2"

    def executed(self, step: Step, observations: Sequence[Observation]) -> None:
        for seen in observations:
            if isinstance(seen, KvMismatch):
                self.report(
                    "kv-read-mismatch",
                    f"{'window' if self._windowed(seen.group) else 'full'} attention: {seen.found}",
                    f"step {step.index}: {seen.request} attends to position {seen.position} in block {seen.block} "
                    f"of group {seen.group}, which holds {seen.found}",
                    seen.request,
                )

    def _windowed(self, group: int) -> bool:
        return group > 0

"""O2: KV content."""

from collections.abc import Sequence
from typing import Any, ClassVar

from harness.oracles.base import Oracle
from harness.step import Step
from harness.worker.observation import KvMismatch, Observation


class KvContent(Oracle):
    """O2: every position that a query attends to holds the key and value of exactly that prefix.

    Promised by the KV cache manager: a prefix hit returns blocks whose tokens have been computed
    (`get_computed_blocks`), and a request's block table covers its computed tokens. Seen by the shadow memory at the
    step that reads: stale, foreign, unwritten and null slots, per KV cache group, inside the window where the group
    has one. A salt belongs to what is held (`cache_salt`: "prefix cache isolation"), and what a cleared cache held is
    gone. One report a step; its anchor says whether the request took the position from the prefix cache or computed
    it itself. A request with `skip_reading_prefix_cache` takes nothing.

    Ledger: 43569, 37076, 39146, 34382 and others whose symptom is wrong tokens.
    """

    family: ClassVar[str] = "O2"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._hits: dict[str, int] = {}
        """Tokens that each request took from the prefix cache when it was last admitted."""

    def dispatched(self, step: Step) -> None:
        admitted = {row.request: row.computed for row in step.new}
        admitted |= {row.request: row.computed for row in step.cached if row.resumed}
        self._hits |= admitted
        for request, hit in admitted.items():
            if hit and self.world.references[request].request.skip_reading_prefix_cache:
                message = (
                    f"step {step.index}: {request} takes {hit} positions from the prefix cache, and must not"
                )
                self.report("cache-read-in-spite", "skip_reading_prefix_cache", message, request)

    def executed(self, step: Step, observations: Sequence[Observation]) -> None:
        for seen in observations:
            if isinstance(seen, KvMismatch):
                hit = self._hits.get(seen.request, 0)
                taken = seen.position < hit
                self.report(
                    "kv-read-mismatch",
                    "position taken from the prefix cache" if taken else "position that the request computed",
                    f"step {step.index}: {seen.request} attends to position {seen.position} in block {seen.block} "
                    f"of group {seen.group}, which holds {seen.found}"
                    + (f"; {hit} positions were a prefix cache hit" if taken else ""),
                    seen.request,
                )
                return

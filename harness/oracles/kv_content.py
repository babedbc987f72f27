"""O2: KV content."""

from collections.abc import Sequence
from typing import Any, ClassVar

from harness.oracles.base import Oracle
from harness.scenario import Request
from harness.step import Step
from harness.worker.observation import KvMismatch, Observation
from harness.worker.shadow import SPOILED_WORDS


def reads_nothing(request: Request) -> bool:
    """Whether a request must take nothing from the prefix cache: it says so, or needs the logits of its prompt."""
    return request.skip_reading_prefix_cache or request.prompt_logprobs


class KvContent(Oracle):
    """O2: every position that a query attends to holds the key and value of exactly that prefix.

    Promised by the KV cache manager: a prefix hit returns blocks whose tokens have been computed
    (`get_computed_blocks`), and a request's block table covers its computed tokens. Seen by the shadow memory at the
    step that reads: stale, foreign, unwritten and null slots, per KV cache group, inside the window where the group
    has one. A salt belongs to what is held (`cache_salt`: "prefix cache isolation"), and what a cleared cache held is
    gone. One report a step; its anchor says whether the request took the position from the prefix cache, got it from a
    connector or computed it itself. A request with `skip_reading_prefix_cache` takes nothing from the cache. What a
    failed load left may be read until the scheduler has been told of the failure: it cannot know before, and must not
    use what comes of it (O8).

    Ledger: 43569, 37076, 39146, 34382 and others whose symptom is wrong tokens.
    """

    family: ClassVar[str] = "O2"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._hits: dict[str, int] = {}
        """Tokens that each request took from the prefix cache, or a connector, when it was last admitted."""
        self._preempted: dict[str, int] = {}
        """How often each session had been preempted when it was last admitted."""

    def dispatched(self, step: Step) -> None:
        admitted = step.admitted
        for request in admitted:
            if self._keeps_blocks(request):
                admitted[request] = 0  # a session's own
        self._hits |= admitted
        for request in admitted:
            hit = self._from_cache(request)
            if hit and reads_nothing(self.world.references[request].request):
                message = (
                    f"step {step.index}: {request} takes {hit} positions from the prefix cache, and must not"
                )
                self.report("cache-read-in-spite", "skip_reading_prefix_cache", message, request)

    def _keeps_blocks(self, request: str) -> bool:
        """Whether an admission is a session's that still has the blocks of its turns before."""
        state = self.world.scheduler.requests.get(request)
        if state is None or not self.world.references[request].request.chunks:
            return False
        before, now = self._preempted.get(request), state.num_preemptions
        self._preempted[request] = now
        return bool(before == now)

    def executed(self, step: Step, observations: Sequence[Observation]) -> None:
        for seen in observations:
            if isinstance(seen, KvMismatch):
                spoiled = seen.found == SPOILED_WORDS
                if spoiled and self._is_reported():
                    continue
                hit = self._hits.get(seen.request, 0)
                taken = seen.position < hit
                self.report(
                    "kv-read-mismatch",
                    self._origin(seen) + ", " * spoiled + seen.found * spoiled,
                    f"step {step.index}: {seen.request} attends to position {seen.position} in block {seen.block} "
                    f"of group {seen.group}, which holds {seen.found}"
                    + (f"; {hit} positions were a hit" if taken else ""),
                    seen.request,
                )
                return

    def _from_cache(self, request: str) -> int:
        """Tokens of the last admission's hit that no connector loaded."""
        external = self.world.external
        loaded = external.hits.get(request) if external else None
        return self._hits[request] if loaded is None else loaded.local

    def _origin(self, seen: KvMismatch) -> str:
        if seen.position >= self._hits.get(seen.request, 0):
            return "position that the request computed"
        external = self.world.external
        loaded = external.hits.get(seen.request) if external else None
        if loaded is not None and loaded.local <= seen.position < loaded.stop:
            return "position that the connector loaded"
        return "position taken from the prefix cache"

    def _is_reported(self) -> bool:
        """Whether the report of a failed load is on its way, with this step's result or an earlier one's."""
        flights = [*self.world.flights, *filter(None, [self.world.executing])]
        return any(flight.transfers.invalid for flight in flights)

"""O3: ownership and fences while steps read and write."""

from collections.abc import Sequence
from typing import Any, ClassVar

from harness.groups import groups_of, kind_of, reads_across
from harness.oracles import block_use
from harness.oracles.base import Oracle
from harness.scenario import image_hash
from harness.step import Step
from harness.verdict import Level


class Fences(Oracle):
    """O3: what a step reads or writes stays owned from the pass that schedules it.

    Encoder outputs: an entry that a step reads is referenced by its request when the schedule pass ends. Promised by
    EncoderCacheManager ("free only what is processed"); freeing on scheduled instead of computed tokens (up to
    0.19.1) makes the entry evictable in the very pass that schedules its read.

    KV blocks: every block of a scheduled request's table that the step reads or writes has a reference and is not in
    the free queue when the pass ends, and no two requests of a step write one block, unless both compute a
    failed load again.

    Hazards, harmless only because today's worker runs steps in order: an encoder entry that becomes evictable while a
    later step, already dispatched, still reads it (asynchronous scheduling, to 0.33); a block that a step writes while
    a step in flight still uses it for another request. vLLM fences blocks (`defer_block_free`) only where a KV
    connector's loads are not ordered with the steps, so without one there is no promise that could be broken.

    Ledger: 38907, 45347, 54284; hazards: 45357.
    """

    family: ClassVar[str] = "O3"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._users: dict[int, dict[int, str]] = {}
        """Step index -> block id -> the request that the step uses it for; for steps in flight."""
        self._told: set[str] = set()
        """Requests of which a load has failed, ever."""
        self._recomputing: dict[str, int] = {}
        """Those that have got no token since: the newest step when the failure was told."""
        self._newest = 0

    def dispatched(self, step: Step) -> None:
        if self._caches_encoder_outputs():
            self._encoder_reads(step)
        flying = {flight.step.index for flight in self.world.flights}
        self._users = {index: users for index, users in self._users.items() if index in flying}
        users: dict[int, str] = {}
        self._newest = step.index
        self._block_writes(step, users)
        self._block_reads(step, users)
        self._users[step.index] = users

    def delivered(self, step: Step, outputs: Sequence[Any]) -> None:
        self._note_recomputed(step, outputs)
        if self._caches_encoder_outputs():
            self._evictable_in_flight()

    def _note_recomputed(self, step: Step, outputs: Sequence[Any]) -> None:
        external = self.world.external
        if external is None:
            return
        self._recomputing |= dict.fromkeys(sorted(external.failed - self._told), self._newest)
        self._told |= external.failed
        for output in outputs:
            if output.new_token_ids and step.index > self._recomputing.get(output.request_id, step.index):
                del self._recomputing[output.request_id]

    def _evictable_in_flight(self) -> None:
        manager = self.world.scheduler.encoder_cache_manager
        for flight in self.world.flights:
            for request, image in self.reads(flight.step):
                if self.world.lives[request].live and image in manager.freeable:
                    self.report(
                        "encoder-evictable-in-flight",
                        "EncoderCacheManager.freeable",
                        f"{image} is evictable while step {flight.step.index}, in flight, reads it for {request}",
                        request,
                        level=Level.HAZARD,
                    )

    def _caches_encoder_outputs(self) -> bool:
        return self.world.engine.encoder is not None and not reads_across(self.world.engine)

    def reads(self, step: Step) -> list[tuple[str, str]]:
        """(request, image) for every item that overlaps the target's window of a step."""
        found: list[tuple[str, str]] = []
        computed = step.computed
        for request, count in step.scheduled.items():
            start = computed.get(request)
            if start is None:
                continue
            for offset, length, identity in self.world.references[request].items:
                if offset < start + count and offset + length > start:
                    found.append((request, image_hash(identity)))
        return found

    def _encoder_reads(self, step: Step) -> None:
        manager = self.world.scheduler.encoder_cache_manager
        for request, image in self.reads(step):
            if image in manager.freeable:
                self.report(
                    "encoder-evictable-while-read",
                    "EncoderCacheManager.freeable",
                    f"the pass that scheduled step {step.index} left {image} evictable, though the step reads it for "
                    f"{request}",
                    request,
                    fatal=False,
                )

    def _block_reads(self, step: Step, users: dict[int, str]) -> None:
        for group, request, held in block_use.read(self.world, step):
            for block in held:
                users.setdefault(block.block_id, request)
                if block.ref_cnt < 1 and not block.is_null:
                    self.report(
                        "free-block-read",
                        self._kind(group),
                        f"step {step.index}: {request} reads block {block.block_id}, which has no reference",
                        request,
                    )

    def _block_writes(self, step: Step, users: dict[int, str]) -> None:
        writers: dict[tuple[int, int], str] = {}
        for group, request, held in block_use.written(self.world, step):
            for block in held:
                if block.is_null:
                    continue
                self._reused(step, request, block.block_id)
                users[block.block_id] = request
                other = writers.setdefault((group, block.block_id), request)
                if other != request and not self._recompute_together(other, request):
                    self.report(
                        "block-written-twice",
                        self._kind(group),
                        f"step {step.index}: {other} and {request} both write block {block.block_id}",
                        other,
                        request,
                    )
                if block.ref_cnt < 1:
                    self.report(
                        "free-block-written",
                        self._kind(group),
                        f"step {step.index}: {request} writes block {block.block_id}, which has no reference",
                        request,
                    )

    def _kind(self, group: int) -> str:
        """A group's kind: which of them it is, is the scenario's affair."""
        return kind_of(groups_of(self.world.engine)[group])

    def _recompute_together(self, *requests: str) -> bool:
        """Whether all of them held a block whose load failed: each writes what they share again, and the same."""
        return self._recomputing.keys() >= set(requests)

    def _reused(self, step: Step, request: str, block: int) -> None:
        for index, users in self._users.items():
            other = users.get(block, request)
            if other != request:
                self.report(
                    "block-reused-in-flight",
                    "BlockPool",
                    f"step {step.index} writes block {block} for {request} while step {index}, in flight, uses it for "
                    f"{other}",
                    other,
                    request,
                    level=Level.HAZARD,
                )

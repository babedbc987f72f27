"""O12: the drain API."""

from typing import ClassVar

from harness import compat
from harness.oracles.base import Oracle
from harness.verdict import Level
from harness.world import Act


class Drain(Oracle):
    """O12: what the scheduler says about its work is so.

    Promised by SchedulerInterface: `get_num_unfinished_requests` counts the requests that live, but sessions that wait
    for their clients;
    `has_unfinished_requests` says whether there are any; `get_request_counts` splits them into running and waiting;
    `has_requests` is true while requests live or the worker has yet to be told of a finished one. The engine loop
    sleeps, and a pause or shutdown completes, on these words. Under PAUSED_ALL nobody is unfinished to it, under
    PAUSED_NEW only who runs or, from 0.31 on, holds blocks for a connector's load (PauseState's docstring).

    What an operator is told is so, too. `reset_prefix_cache` is true only if no block has a hash any more, and false
    only while requests, or a connector's fence, hold blocks. A completed pause leaves nothing in flight, none of the
    requests that it promised to end, and cleared caches if that was asked.

    A hazard: AsyncLLM.pause_generation is to "wait for in-flight requests to complete", but PauseState lets nobody run
    who is queued, and preempted requests are; those that the pause leaves behind go on after it.

    Ledger: 46579, 22543, 34382.
    """

    family: ClassVar[str] = "O12"

    def _has_finished(self) -> bool:
        """Whether an ended request asks for steps: the worker has not been told, or, in newer releases, a connector's
        transfer still holds its blocks."""
        lingers = bool(self.world.lingering) and compat.transfers_keep_the_engine_awake()
        return lingers or bool(self.world.scheduler.finished_req_ids)

    def settled(self) -> None:
        scheduler = self.world.scheduler
        live = self._counted()
        answers = {
            "get_num_unfinished_requests": (scheduler.get_num_unfinished_requests(), live),
            "has_unfinished_requests": (scheduler.has_unfinished_requests(), live > 0),
            "has_requests": (scheduler.has_requests(), live > 0 or self._has_finished()),
        }
        if hasattr(scheduler, "get_request_counts"):
            answers["get_request_counts"] = (sum(scheduler.get_request_counts()), len(self.world.live))
        for name, (found, expected) in answers.items():
            if found != expected:
                message = (
                    f"{name}() says {found}; {live} requests live and count, so it should say {expected}"
                )
                self.report("wrong-answer", f"Scheduler.{name}", message)
                return  # the others count the same requests

    def _counted(self) -> int:
        """Requests that live and, in a pause, that it lets finish."""
        live = [life for life in self.world.live if not life.parked]
        if self.world.paused is None:
            return len(live)
        if self.world.paused == "keep":
            return 0
        requests = self.world.scheduler.requests
        counted = {name for name, request in requests.items() if request.status.name == "RUNNING"}
        if hasattr(self.world.scheduler, "kv_holding_waiting"):
            counted |= {request for request, blocks in self.world.holders() if blocks}
        return sum(life.request in counted for life in live)

    def controlled(self, act: Act) -> None:
        if act.what == "paused":
            if act.answer:
                self._paused(act)
        elif act.mode == "encoder":
            if act.answer:
                self._encoder_cleared("reset_encoder_cache")
        elif act.answer:
            self._cleared("reset_prefix_cache")
        elif not any(blocks for _, blocks in self.world.holders()) and not self._fenced():
            message = "reset_prefix_cache() says False, though no request holds a block"
            self.report("wrong-answer", "reset_prefix_cache", message)

    def _fenced(self) -> bool:
        """Whether blocks that nobody holds may wait for steps in flight (`defer_block_free`, with a connector)."""
        return self.world.external is not None and bool(self.world.flights)

    def _paused(self, act: Act) -> None:
        if self.world.flights:
            steps = [flight.step.index for flight in self.world.flights]
            self.report(
                "pause-incomplete", "in flight", f"the pause is complete, with steps {steps} in flight"
            )
        left = [life.request for life in self.world.live if life.request in act.begun]
        if left and act.mode != "keep":
            requests = self.world.scheduler.requests
            queued = act.mode == "wait" and all(requests[one].status.name == "PREEMPTED" for one in left)
            self.report(
                "pause-incomplete",
                "wait, preempted requests" if queued else act.mode,
                f"the pause ({act.mode}) is complete, but {left}, in progress when it began, have not ended",
                *left,
                level=Level.HAZARD if queued else Level.VIOLATION,
                fatal=False,
            )
        if act.clears:
            self._cleared("pause_scheduler")
            self._encoder_cleared("pause_scheduler")

    def _cleared(self, who: str) -> None:
        pool = self.world.pool
        hashed = [block.block_id for block in pool.blocks if block.block_hash is not None]
        if hashed or len(pool.cached_block_hash_to_block):
            message = f"{who} has cleared the prefix cache, but blocks {hashed} can still be hit"
            self.report("not-cleared", f"{who}: BlockPool", message)

    def _encoder_cleared(self, who: str) -> None:
        cached = sorted(getattr(self.world.scheduler.encoder_cache_manager, "cached", ()))
        if cached:
            message = f"{who} has cleared the encoder cache, but {cached} are still taken for cached"
            self.report("not-cleared", f"{who}: EncoderCacheManager", message)

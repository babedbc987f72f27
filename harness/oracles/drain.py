"""O12: the drain API."""

from typing import ClassVar

from harness import compat
from harness.oracles.base import Oracle


class Drain(Oracle):
    """O12: what the scheduler says about its work is so.

    Promised by SchedulerInterface: `get_num_unfinished_requests` counts the requests that live;
    `has_unfinished_requests` says whether there are any; `get_request_counts` splits them into running and waiting;
    `has_requests` is true while requests live or the worker has yet to be told of a finished one. The engine loop
    sleeps, and a pause or shutdown completes, on these words.

    Ledger: 46579, 22543.
    """

    family: ClassVar[str] = "O12"

    def _has_finished(self) -> bool:
        """Whether an ended request asks for steps: the worker has not been told, or, in newer releases, a connector's
        transfer still holds its blocks."""
        lingers = bool(self.world.lingering) and compat.transfers_keep_the_engine_awake()
        return lingers or bool(self.world.scheduler.finished_req_ids)

    def settled(self) -> None:
        scheduler = self.world.scheduler
        live = len(self.world.live)
        answers = {
            "get_num_unfinished_requests": (scheduler.get_num_unfinished_requests(), live),
            "has_unfinished_requests": (scheduler.has_unfinished_requests(), live > 0),
            "has_requests": (scheduler.has_requests(), live > 0 or self._has_finished()),
        }
        if hasattr(scheduler, "get_request_counts"):
            answers["get_request_counts"] = (sum(scheduler.get_request_counts()), live)
        for name, (found, expected) in answers.items():
            if found != expected:
                message = f"{name}() says {found}; {live} requests live, so it should say {expected}"
                self.report("wrong-answer", f"Scheduler.{name}", message)

"""O11: queue membership."""

from typing import Any, ClassVar

from harness.oracles.base import Oracle

WAITING_QUEUES = ("waiting", "skipped_waiting", "kv_holding_waiting")
"""`waiting` always; `skipped_waiting` in 0.18-0.30; `kv_holding_waiting` from 0.31."""


class Queues(Oracle):
    """O11: every live request is in exactly one queue, the one that its status names, and nobody else is.

    Promised by Scheduler: `requests` maps ids to the live requests; `running` holds those with status RUNNING; the
    waiting queues hold all others.

    Ledger: 42157, 52969, 23697.
    """

    family: ClassVar[str] = "O11"

    def settled(self) -> None:
        scheduler = self.world.scheduler
        waiting = [request for queue in self._waiting() for request in queue]
        self._unique("running", list(scheduler.running))
        self._unique("waiting", waiting)
        live = {life.request for life in self.world.live}
        # Requests that have ended are known for as long as a connector's transfer holds their blocks.
        strays = sorted((set(scheduler.requests) - self.world.lingering) ^ live)
        if strays:
            self.report(
                "requests-differ",
                "Scheduler.requests",
                f"live and known requests differ in {strays}",
                *strays,
            )
        for request in scheduler.running:
            self._member(request, "running", request.status.name == "RUNNING")
        for request in waiting:
            self._member(
                request, "waiting", request.status.name not in ("RUNNING",) and not request.is_finished()
            )
        queued = {request.request_id for request in (*scheduler.running, *waiting)}
        lost = sorted(live - queued)
        if lost:
            self.report("lost-request", "Scheduler.waiting", f"{lost} live, but are in no queue", *lost)

    def _waiting(self) -> list[Any]:
        scheduler = self.world.scheduler
        return [getattr(scheduler, name) for name in WAITING_QUEUES if hasattr(scheduler, name)]

    def _unique(self, queue: str, requests: list[Any]) -> None:
        ids = [request.request_id for request in requests]
        twice = sorted({request for request in ids if ids.count(request) > 1})
        if twice:
            self.report("queued-twice", f"Scheduler.{queue}", f"{twice} are in {queue} twice", *twice)

    def _member(self, request: Any, queue: str, right: bool) -> None:
        if not right:
            message = f"{request.request_id} is in {queue} with status {request.status.name}"
            self.report(
                "wrong-queue", f"Scheduler.{queue}: {request.status.name}", message, request.request_id
            )

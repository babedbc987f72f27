"""O7: progress."""

from collections.abc import Sequence
from typing import Any, ClassVar

from harness import compat
from harness.groups import groups_of
from harness.limits import longest_prefill
from harness.oracles.base import Oracle
from harness.scenario import Request
from harness.step import Step
from harness.world import Life

IDLE_PASSES = 12
"""Passes without tokens, with nothing in flight and nothing to come, before we call it a hang. vLLM needs at most two:
one to tell the worker who finished, one because a queue was skipped in the pass before."""


def _transfer_time(request: Request) -> int:
    """Passes that a connector's script can keep a request waiting: its load once more if it fails, and its send."""
    load = request.load
    lookup = 2 * (load.undecided + load.latency + 2) if load else 0
    return lookup + (request.send or 0) + 2


class Progress(Oracle):
    """O7: once the outside world is quiet, every live request finishes.

    Two phases. Chaos: while events are still to come, nothing is judged, since an arrival or an abort may free what
    others wait for. Quiesce: `no-progress` if passes schedule nothing while requests live and nothing is in flight;
    `livelock` if passes schedule tokens but no request gets further than it ever was, for longer than recomputing
    everything once takes. The pool holds at least one request of `max_model_len` tokens (the scenario language
    ensures what vLLM checks at start-up), so that waiting for ever is never a matter of size. To wait for a
    connector's transfer is no hang as long as the script lets the transfer last, and as long as all take together.
    Every session is closed before the world is quiet, so that none waits for its client then.

    Ledger: derived-34220, 25890, 51603, 45388, 49439, 57841, 49674.
    """

    family: ClassVar[str] = "O7"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._idle = 0
        self._stale = 0
        self._waited = 0
        self._undecided = 0
        self._patience = 16 + sum(map(_transfer_time, self.world.scenario.requests))
        if (encoder := self.world.engine.ec_connector) is not None:
            self._patience += len(encoder.stored) * (encoder.latency + 1)
        self._furthest: dict[str, int] = {}
        self._scheduled = False
        self._limit = 64 + 2 * sum(
            turn.prompt_length + turn.request.max_tokens
            for turns in self.world.turns.values()
            for turn in turns
        )

    def arrived(self, life: Life) -> None:
        self._furthest.pop(life.request, None)

    def dispatched(self, step: Step) -> None:
        self._scheduled = self._scheduled or step.total > 0
        for request, start in step.computed.items():
            reached = start + step.scheduled.get(request, 0)
            if reached > self._furthest.get(request, -1):
                self._furthest[request] = reached
                self._stale = 0

    def delivered(self, step: Step, outputs: Sequence[Any]) -> None:
        if outputs:
            self._stale = 0

    def settled(self) -> None:
        live = self.world.live
        if not self.world.quiet or not live:
            self._idle = self._stale = 0
        elif self._waits_for_connector() and self._waited < self._patience:
            self._idle = 0
            self._waited += 1
        elif self._scheduled or any(flight.step.total for flight in self.world.flights):
            self._idle = self._waited = 0
            self._stale += 1
        else:
            self._idle += 1
        self._scheduled = False
        if self._idle >= IDLE_PASSES:
            message = f"{self._idle} passes scheduled nothing, and nothing is in flight; {self._waits(live)}"
            anchor = self._cause(live) or self._state(live)
            self.report("no-progress", anchor, message, *(life.request for life in live))
        elif self._stale > self._limit:
            cause = self._cause(live)
            # Who cannot move holds blocks for which others are preempted again and again: the same bug, seen otherwise.
            kind = "livelock" if cause is None else "no-progress"
            message = f"{self._stale} passes in which no request got further; {self._waits(live)}"
            self.report(kind, cause or self._state(live), message, *(life.request for life in live))

    def _waits_for_connector(self) -> bool:
        """Whether the script keeps a transfer from ending, or answered in this pass that it does not know yet."""
        if self.world.encoder_store is not None and self.world.encoder_store.lasts():
            return True
        external = self.world.external
        if external is None:
            return False
        before, self._undecided = self._undecided, external.undecided
        return self._undecided > before or external.lasts(self.world.iteration)

    def _waits(self, live: list[Life]) -> str:
        requests = self.world.scheduler.requests
        return "; ".join(
            f"{life.request} is {requests[life.request].status.name} at {requests[life.request].num_computed_tokens} "
            f"of {requests[life.request].num_tokens} tokens"
            for life in live
            if life.request in requests
        )

    def _cause(self, live: list[Life]) -> str | None:
        """What the request that should move first waits for, as far as the configuration tells."""
        if (hopeless := self._hopeless(live)) is not None:
            return hopeless
        queue = self._queue(live)
        if queue and self._items_ahead(queue[0]):
            return "before an encoder input"
        if queue and not self.world.scheduler.running and any(map(self._holds_on, live)):
            return "sessions that hold blocks until they get more"
        return None

    def _state(self, live: list[Life]) -> str:
        """The status of the request that should move first."""
        queue = self._queue(live)
        return queue[0].status.name if queue else "not in Scheduler.requests"

    def _holds_on(self, life: Life) -> bool:
        """Whether it is a session that waits for its next turn's blocks with those of its turns before."""
        request = self.world.scheduler.requests.get(life.request)
        return (
            life.session is not None
            and request is not None
            and request.status.name == "WAITING"
            and request.num_computed_tokens > 0
        )

    def _hopeless(self, live: list[Life]) -> str | None:
        """Why some request can never move, if the configuration says so."""
        queue = self._queue(live)
        why = (self._unchunkable, self._unloadable, self._unfinishable)
        return next(filter(None, (ask(request) for ask in why for request in queue)), None)

    def _unfinishable(self, request: Any) -> str | None:
        """Why a pooling model's prompt is never computed to its end, if that is so: room is kept for an output."""
        reference, longest = self.world.references[request.request_id], self.world.engine.max_model_len
        if not reference.pools or reference.prompt_length < longest:
            return None
        return (
            "the last token of a pooling prompt as long as the model"
            if request.num_computed_tokens == longest - 1
            else None
        )

    def _unloadable(self, request: Any) -> str | None:
        """Why the pool can never hold an asynchronous load, if that is so (from 0.31)."""
        external = self.world.external
        load = external and external.script(request.request_id)
        reserved = compat.blocks_reserved_for_decoding(self.world.scheduler)
        if not load or not load.load_kv_async or request.status.name not in ("WAITING", "PREEMPTED"):
            return None
        engine = self.world.engine
        needed = len(groups_of(engine)) * -(-request.num_tokens // engine.block_size)
        if reserved and needed + reserved > engine.num_gpu_blocks - 1:
            return "a load that fits the pool only without blocks reserved for a decoding step"
        return None

    def _queue(self, live: list[Life]) -> list[Any]:
        """Live requests as vLLM knows them, those that run first."""
        scheduler = self.world.scheduler
        known = [scheduler.requests[life.request] for life in live if life.request in scheduler.requests]
        return [*scheduler.running, *(request for request in known if request not in scheduler.running)]

    def _items_ahead(self, request: Any) -> list[int]:
        """Lengths of the encoder inputs that the request has not computed to their end."""
        return [
            length
            for offset, length, _ in self.world.references[request.request_id].items
            if offset + length > request.num_computed_tokens
        ]

    def _unchunkable(self, request: Any) -> str | None:
        """Why `disable_chunked_mm_input` can never let an encoder input in, if that is so."""
        engine = self.world.engine
        longest = max(self._items_ahead(request), default=0)
        if not longest or engine.encoder is None or not engine.encoder.disable_chunked_mm_input:
            return None
        lone_is_free = compat.lone_request_has_no_threshold()
        threshold = longest_prefill(engine, len(self.world.live), lone_is_free=lone_is_free)
        limit = min(threshold or engine.max_num_batched_tokens, engine.max_num_batched_tokens)
        if longest > limit:
            return "an encoder input longer than long_prefill_token_threshold"
        if longest == limit and engine.speculative is not None and engine.speculative.method != "ngram":
            return "an encoder input that fits a step only without the drafter's look-ahead"
        return None

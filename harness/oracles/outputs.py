"""O8: outputs."""

from collections.abc import Sequence
from typing import Any, ClassVar

from harness import compat
from harness.model import Reference
from harness.oracles.base import Oracle
from harness.step import Step
from harness.world import Life


class Outputs(Oracle):
    """O8: each client receives exactly what the model generates with no scheduler at all.

    The same tokens, once each, in order; one finish, with the reason that the sampling parameters imply (`check_stop`);
    nothing for a request that has ended, or whose abort was applied before the update (`_process_aborts_queue` runs
    first in every step); and, once all is done, an end for everybody. In a session each input is answered so, in turn,
    after all tokens before it but the last output (`_update_request_as_session`); nothing comes between turns.

    A client that gives items of different lengths one name may get an error for it (from 0.31).

    Ledger: 42492, 23697, 29987, 26385, 28787, 36122, 49860.
    """

    family: ClassVar[str] = "O8"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._tokens: dict[str, list[int]] = {}
        """Of the current turn, in a session."""
        self._over: dict[str, str] = {}
        self._answered: dict[str, int] = {}
        """Turns of each session that have ended."""

    def arrived(self, life: Life) -> None:
        self._over.pop(life.request, None)  # of an earlier request with its id
        self._tokens[life.request] = []
        self._answered[life.request] = 0

    def aborted(self, life: Life) -> None:
        self._over.setdefault(life.request, life.ended or "abort")

    def delivered(self, step: Step, outputs: Sequence[Any]) -> None:
        for output in outputs:
            request, tokens = output.request_id, list(output.new_token_ids)
            if request not in self._tokens or request in self._over:
                self.report(
                    "output-after-end",
                    "update_from_output",
                    f"step {step.index} delivers {tokens} for {request}, which has ended "
                    f"({self._over.get(request, 'it never arrived')})",
                    request,
                )
                continue
            if self._waits(request):
                message = (
                    f"step {step.index} delivers {tokens} for {request}, whose client has yet to say more"
                )
                self.report("output-between-turns", "update_from_output", message, request)
                continue
            self._tokens[request] += tokens
            right = self._compare(step, request)
            if output.finish_reason is not None:
                if right:
                    self._compare_end(step, request, str(output.finish_reason))
                self._ended(request, str(output.finish_reason))

    def _ended(self, request: str, reason: str) -> None:
        """The request has ended, or a session's turn, after which the next begins."""
        life = self.world.lives[request]
        if not life.live:
            self._over[request] = reason
        else:
            self._answered[request] += 1
            self._tokens[request] = []

    def _waits(self, request: str) -> bool:
        """Whether the request is a session whose inputs so far were all answered before this update."""
        session = self.world.lives[request].session
        return session is not None and self._answered[request] == session.sent

    def _reference(self, request: str) -> Reference:
        """The truth of the turn that the output belongs to."""
        return self.world.turns[request][self._answered[request]]

    def _compare(self, step: Step, request: str) -> bool:
        """Whether the tokens so far are right."""
        found = self._tokens[request]
        expected, _ = self._reference(request).expected_output()
        if found == expected[: len(found)]:
            return True
        at = next(i for i, token in enumerate(found) if i >= len(expected) or token != expected[i])
        kind = "too-many-tokens" if at >= len(expected) else "wrong-token"
        self.report(
            kind,
            "EngineCoreOutput.new_token_ids",
            f"step {step.index}: output {at} of {request} is {found[at]}, the model says "
            f"{expected[at] if at < len(expected) else 'nothing more'}",
            request,
        )
        return False

    def _compare_end(self, step: Step, request: str, found_reason: str) -> None:
        if found_reason == "error" and self._may_fail(request):
            return
        expected, reason = self._reference(request).expected_output()
        found = self._tokens[request]
        if found != expected:
            message = f"step {step.index}: {request} ends after {len(found)} of {len(expected)} tokens"
            self.report("ended-early", f"finish_reason {found_reason}", message, request)
        elif found_reason != reason:
            message = (
                f"step {step.index}: {request} ends with {found_reason!r}; its parameters say {reason!r}"
            )
            self.report("wrong-finish-reason", f"{found_reason} for {reason}", message, request)

    def _may_fail(self, request: str) -> bool:
        """Whether a load of its failed, and the policy is that it ends so (`kv_load_failure_policy`), or an item of its
        has the name of one with another length (`_reject_on_encoder_cache_embed_mismatch`)."""
        if compat.refuses_other_lengths() and self._shares_a_name(request):
            return True
        connector, external = self.world.engine.connector, self.world.external
        if connector is None or external is None:
            return False
        return connector.kv_load_failure_policy == "fail" and request in external.failed

    def _shares_a_name(self, request: str) -> bool:
        """Whether a request that has arrived, or it itself, has an item of one name and another length."""
        mine = {(item, length) for _, length, item in self.world.references[request].items}
        return any(
            item == other and length != another
            for arrived in self._tokens
            for _, another, other in self.world.references[arrived].items
            for item, length in mine
        )

    def drained(self) -> None:
        missing = sorted(self._tokens.keys() - self._over.keys())
        if missing:
            self.report(
                "never-finished", "Scheduler.has_requests", f"all is done, but {missing} got no end", *missing
            )

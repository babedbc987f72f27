"""O10: counters."""

from collections.abc import Sequence
from typing import Any, ClassVar

from harness.oracles.base import Oracle
from harness.step import Step


class Counters(Oracle):
    """O10: a request's counters equal what has been scheduled, sampled and delivered.

    Promised by Request's field comments: `num_output_placeholders` counts outputs that are scheduled and not back;
    `num_in_flight_tokens` (from 0.24) tokens of steps whose result is not processed; with nothing in flight a running
    request has computed all its tokens but the last one at most, and exactly those once it decodes.
    `output_token_ids` holds what the client received, in a session since its last input was taken.

    Ledger: 48245, 49860, 57562, 36752, 42492.
    """

    family: ClassVar[str] = "O10"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._admitted: dict[str, int] = {}
        """Index of the step that each request began with, or went on with after a preemption."""
        self._decodes: dict[str, int] = {}
        """Requests that have got a token since then: how often each had been preempted."""

    def dispatched(self, step: Step) -> None:
        for request in step.admitted:
            self._admitted[request] = step.index
            self._decodes.pop(request, None)
        for request in step.scheduled:
            state = self.world.scheduler.requests.get(request)
            if state is not None and state.num_output_placeholders < 0:
                self._wrong("num_output_placeholders", f"is {state.num_output_placeholders}", request)

    def delivered(self, step: Step, outputs: Sequence[Any]) -> None:
        for output in outputs:
            request = output.request_id
            state = self.world.scheduler.requests.get(request)
            if state is not None and output.new_token_ids and step.index >= self._admitted.get(request, 0):
                self._decodes[request] = state.num_preemptions

    def settled(self) -> None:
        for life in self.world.live:
            state = self.world.scheduler.requests.get(life.request)
            if state is not None:
                self._in_flight(state)
                if (
                    state.status.name == "RUNNING"
                    and self._decodes.get(life.request) == state.num_preemptions
                ):
                    self._decoding(state)
                if list(state.output_token_ids) != life.outputs:
                    self._wrong(
                        "output_token_ids",
                        f"holds {len(state.output_token_ids)} tokens, {len(life.outputs)} were delivered",
                        life.request,
                    )

    def _in_flight(self, state: Any) -> None:
        request = state.request_id
        flying = sum(flight.step.scheduled.get(request, 0) for flight in self.world.flights)
        counted = getattr(state, "num_in_flight_tokens", None)
        if counted is not None and counted != flying:
            self._wrong("num_in_flight_tokens", f"is {counted}, but {flying} tokens are in flight", request)
        if flying:
            return
        if state.num_output_placeholders:
            self._wrong(
                "num_output_placeholders",
                f"is {state.num_output_placeholders} with nothing in flight",
                request,
            )
        # A whole prompt may be on its way from a connector; its last token is computed again.
        most = state.num_tokens - (state.status.name != "WAITING_FOR_REMOTE_KVS")
        if not 0 <= state.num_computed_tokens <= most:
            self._wrong(
                "num_computed_tokens",
                f"is {state.num_computed_tokens} of {state.num_tokens} tokens with nothing in flight",
                request,
            )

    def _decoding(self, state: Any) -> None:
        """A request that has output of its present run: both counters follow from what is in flight."""
        request = state.request_id
        flights = list(self.world.flights_of(request))
        computed = state.num_tokens - 1 + sum(flight.step.scheduled[request] for flight in flights)
        if state.num_computed_tokens != computed:
            self._wrong(
                "num_computed_tokens", f"is {state.num_computed_tokens}, should be {computed}", request
            )
        if self.world.engine.async_scheduling:
            placeholders = sum(
                1 + len(flight.step.drafts.get(request, ()))
                for flight in flights
                if flight.sampled.get(request)
            )
            if state.num_output_placeholders != placeholders:
                self._wrong(
                    "num_output_placeholders",
                    f"is {state.num_output_placeholders}, but {placeholders} outputs are in flight",
                    request,
                )

    def _wrong(self, counter: str, what: str, request: str) -> None:
        self.report("counter-drift", f"Request.{counter}", f"{counter} of {request} {what}", request)

"""O9: limits."""

from typing import ClassVar

from harness.groups import states_are_cached
from harness.oracles.base import Oracle
from harness.step import Step


class Limits(Oracle):
    """O9: no step goes beyond the configured limits.

    Promised by SchedulerConfig's field docstrings: tokens per step (`max_num_batched_tokens`), requests per step
    (`max_num_seqs`), tokens per request and step (`long_prefill_token_threshold`, while others are there too), and by
    ModelConfig: no position at or past `max_model_len`, so no more blocks than that needs. With asynchronous
    scheduling, no step for a request that is sure to reach `max_tokens` with what is in flight.

    Ledger: 27922, 10730, 23347.
    """

    family: ClassVar[str] = "O9"

    def dispatched(self, step: Step) -> None:
        engine = self.world.engine
        if step.total > engine.max_num_batched_tokens:
            self._exceeded("max_num_batched_tokens", f"step {step.index} has {step.total} tokens")
        if len(step.scheduled) > engine.max_num_seqs:
            self._exceeded("max_num_seqs", f"step {step.index} has {len(step.scheduled)} requests")
        for request, start in step.computed.items():
            count = step.scheduled.get(request, 0)
            if start + count > engine.max_model_len:
                self._exceeded(
                    "max_model_len", f"step {step.index}: {request} computes up to {start + count}", request
                )
            threshold = engine.long_prefill_token_threshold
            if 0 < threshold < count and len(self.world.live) > 1:
                self._exceeded(
                    "long_prefill_token_threshold",
                    f"step {step.index}: {request} computes {count} tokens",
                    request,
                )
            self._sure_end(step, request)
        most = -(-engine.max_model_len // engine.block_size)
        if states_are_cached(engine) and engine.speculative is not None:
            most += engine.speculative.num_speculative_tokens  # a state for each draft
        for request, blocks in self.world.holders():
            if len(blocks) > most:
                self._exceeded(
                    "blocks", f"{request} holds {len(blocks)} blocks in a group; {most} suffice", request
                )

    def _exceeded(self, limit: str, message: str, *requests: str) -> None:
        self.report("limit-exceeded", limit, f"{message}; the limit is {limit}", *requests)

    def _sure_end(self, step: Step, request: str) -> None:
        life = self.world.lives.get(request)
        if life is None or self.world.engine.speculative is not None:
            return
        state = self.world.scheduler.requests.get(request)
        if state is None or state.num_preemptions:
            return
        flying = sum(len(flight.sampled.get(request, ())) for flight in self.world.flights)
        if len(life.outputs) + flying >= self.world.references[request].request.max_tokens:
            self.report(
                "scheduled-past-max-tokens",
                "Scheduler.schedule",
                f"step {step.index} computes for {request}, whose {flying} tokens in flight reach max_tokens",
                request,
            )

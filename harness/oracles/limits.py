"""O9: limits."""

from typing import ClassVar

from harness import compat
from harness.groups import groups_of, states_are_cached
from harness.limits import drafts_after, longest_prefill, watermark_blocks
from harness.oracles.base import Oracle
from harness.scenario import Full
from harness.step import Step


class Limits(Oracle):
    """O9: no step goes beyond the configured limits.

    Promised by SchedulerConfig's field docstrings: tokens per step (`max_num_batched_tokens`), requests per step
    (`max_num_seqs`), tokens per request and step (`long_prefill_token_threshold`; from 0.31 only while others are
    there), and by ModelConfig: no position at or past `max_model_len`, so no more blocks than that needs. With async
    scheduling, no step for a request that is sure to reach `max_tokens` with what is in flight.

    An admission leaves `watermark` of all blocks free if others run already, and with `scheduler_reserve_full_isl` room
    for the whole prompt. RUNNING has at most `max_num_active_seqs` requests. A step needs at most `max_loras` adapters
    (LoRAConfig: "in a single batch"). The worker is told to draft as many tokens as
    `num_speculative_tokens_per_batch_size` says. Nothing is promised of `prefill_schedule_interval` that a backlog does
    not end; O7 hears if it starves somebody.

    Ledger: 27922, 10730, 23347.
    """

    family: ClassVar[str] = "O9"

    def dispatched(self, step: Step) -> None:
        engine = self.world.engine
        if step.total > engine.max_num_batched_tokens:
            self._exceeded("max_num_batched_tokens", f"step {step.index} has {step.total} tokens")
        if len(step.scheduled) > engine.max_num_seqs:
            self._exceeded("max_num_seqs", f"step {step.index} has {len(step.scheduled)} requests")
        running = len(self.world.scheduler.running)
        if running > (engine.max_num_active_seqs or engine.max_num_seqs):
            limit = "max_num_active_seqs" if engine.max_num_active_seqs else "max_num_seqs"
            self._exceeded(limit, f"after step {step.index} {running} requests run")
        loras = {self.world.references[request].request.lora for request in step.scheduled} - {0}
        if len(loras) > engine.max_loras:
            self._exceeded("max_loras", f"step {step.index} needs the adapters {sorted(loras)}")
        self._admissions(step)
        self._drafts(step)
        lone_is_free = compat.lone_request_has_no_threshold()
        threshold = longest_prefill(engine, len(self.world.live), lone_is_free=lone_is_free)
        for request, start in step.computed.items():
            count = step.scheduled.get(request, 0)
            if start + count > engine.max_model_len:
                self._exceeded(
                    "max_model_len", f"step {step.index}: {request} computes up to {start + count}", request
                )
            if 0 < threshold < count:
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

    def _admissions(self, step: Step) -> None:
        """Looks at the last request that the pass has admitted: nobody took a block after it."""
        engine, free = self.world.engine, self.world.pool.get_num_free_blocks()
        last = next(reversed(step.scheduled), None)
        new = {row.request for row in step.new}
        if last is None or last not in step.admitted:
            return
        if len(self.world.scheduler.running) > 1 and free < watermark_blocks(engine):
            self._exceeded(
                "watermark", f"step {step.index} admits {last} and leaves {free} blocks free", last
            )
        reserves = getattr(self.world.scheduler, "scheduler_reserve_full_isl", False)
        # A load that begins after the admission takes blocks without a place in the step.
        if reserves and last in new and set(groups_of(engine)) == {Full()} and engine.connector is None:
            held = sum(len(blocks) for request, blocks in self.world.holders() if request == last)
            missing = -(-self.world.references[last].prompt_length // engine.block_size) - held
            if missing > free:
                message = (
                    f"step {step.index} admits {last}, whose prompt lacks {missing} blocks; {free} are free"
                )
                self._exceeded("scheduler_reserve_full_isl", message, last)

    def _drafts(self, step: Step) -> None:
        speculative = self.world.engine.speculative
        if speculative is None or step.to_draft is None or not step.scheduled:
            return
        if step.to_draft != drafts_after(speculative, len(step.scheduled)):
            message = (
                f"step {step.index}, of {len(step.scheduled)} requests, is to draft {step.to_draft} tokens"
            )
            self._exceeded("num_speculative_tokens_per_batch_size", message)

    def _exceeded(self, limit: str, message: str, *requests: str) -> None:
        self.report("limit-exceeded", limit, f"{message}; the limit is {limit}", *requests)

    def _sure_end(self, step: Step, request: str) -> None:
        life = self.world.lives.get(request)
        if life is None or self.world.engine.speculative is not None:
            return
        if request not in self.world.scheduler.requests:
            return  # O13 says so
        if self.world.references[request].pools:
            self._past_prompt(step, request)
            return
        if request in step.admitted:
            return  # what is in flight is of a session's turn before, or of before a preemption
        flying = sum(len(flight.sampled.get(request, ())) for flight in self.world.flights_of(request))
        if len(life.outputs) + flying >= self.world.references[request].request.max_tokens:
            self.report(
                "scheduled-past-max-tokens",
                "Scheduler.schedule",
                f"step {step.index} computes for {request}, whose {flying} tokens in flight reach max_tokens",
                request,
            )

    def _past_prompt(self, step: Step, request: str) -> None:
        if step.computed[request] >= self.world.references[request].prompt_length:
            self.report(
                "scheduled-past-prompt",
                "Scheduler.schedule",
                f"step {step.index} computes for {request} past its prompt, of which a pooling model says nothing",
                request,
            )

"""A worker that obeys the V1 model runner's contract and knows the truth.

Its bookkeeping is `batch_v1`; here are the encoder cache, KV memory, the target model and the drafter, in the real
runner's order: new blocks are zeroed, freed encoder outputs leave, state, encoder, the target's gather, forward (every
request writes before any request reads, as layer by layer on the device); and, in the runner's second call, sampling
under the grammars' masks, then the drafter's gather with corrected counts. What the stub needs it must find where the
SchedulerOutput says; what it meets it reports.

The target samples what the reference model says, if the mask lets it; the drafter is right as often as the scenario's
script says. Not modelled: the drafter's own KV entries (ledger 41838), which decide acceptance but never the output.
"""

from collections.abc import Iterable, Mapping

from harness.model import Reference, wrong_token
from harness.scenario import Engine
from harness.step import Step
from harness.worker.batch_v1 import UNRESOLVED, BatchV1
from harness.worker.forward import Forward
from harness.worker.masks import Rows
from harness.worker.observation import Breach
from harness.worker.prompt_logprobs import PromptLogprobs
from harness.worker.states import Move, States
from harness.worker.traits import Traits


class StubV1(Forward):
    """One worker for one execution. `references` maps request ids to their truth."""

    def __init__(self, engine: Engine, references: Mapping[str, Reference], traits: Traits) -> None:
        super().__init__(engine, references, traits)
        self.traits = traits
        self.states = States(engine, resumed_are_forgotten=traits.resumed_states_are_forgotten)
        self.batch: BatchV1 = BatchV1(
            references,
            async_scheduling=engine.async_scheduling,
            pipeline=engine.pipeline_parallel_size > 1,
            traits=traits,
        )
        self._prompts = PromptLogprobs(traits)
        self.drafts_are_told = False
        self._stale: set[str] = set()
        """Requests that the step in progress has fed a token that is not theirs."""
        self._untold: list[Breach] = []
        self._step: Step
        """The step in progress, as the batch runs it."""

    def forward(self, step: Step) -> None:
        self.batch.observations = []
        self._starts, self._inputs, self._untold = {}, {}, []
        self._zero(step.zeroed)
        self.kv.copy_blocks(step.copies)
        self.encoder.free(step)
        self.spoiled.clear()
        self.adrift.clear()
        self._check_tables(step)
        self._step = step = self.batch.update(step)
        self._prompts.update(step, self.batch)
        if step.total == 0:
            self._begin_transfers(step)
            self._end_transfers(step)
            return
        self._check_total(step, fails=True)
        # Asynchronously an index before all tokens raises, one into another row's does not: it depends on the line.
        self._step = step = self.batch.fitting(step, fails=False)
        starts = {request: self.batch.start(request) for request in self.batch.rows}
        inputs = {request: self.batch.inputs(step, request) for request in self.batch.rows}
        self.batch.consume_drafts(step)
        self.encoder.load(step)
        self.encoder.run(step)
        for request in self.batch.rows:
            self.encoder.gather(
                request, self.batch.requests[request].computed, step.scheduled[request], "target"
            )
        self.encoder.merge()
        self._embed(step, inputs)
        if self.states.cached:
            self._place_states(step)
        self._begin_transfers(step)  # too late for a state that is moved
        self._forward(step, starts, inputs)
        self._find_stale(step, starts, inputs)
        self._end_transfers(step)
        self._starts, self._inputs = starts, inputs

    def _find_stale(self, step: Step, starts: Mapping[str, int], inputs: Mapping[str, list[int]]) -> None:
        known = {request: len(inputs[request]) - len(step.drafts.get(request, ())) for request in starts}
        found = [self._stale_token(one, starts[one], inputs[one][: known[one]]) for one in starts]
        stale = [breach for breach in found if breach is not None]
        self._stale = {breach.request for breach in stale}
        # Beside another fault of the step it is a consequence, and told only if that one does not end the engine.
        self._untold = stale if self.observations else []
        if not self._untold:
            self.observations.extend(stale)

    def sample(self, step: Step, rows: Mapping[str, Rows]) -> dict[str, list[int]]:
        self.batch.observations = [*self._untold]
        self.pooled, self.prompt_logprobs = {}, {}
        step = self._step
        if step.total == 0:
            return {}
        starts = self._starts
        if self.engine.runner_type == "pooling":
            self._pool()
            return {}
        self.prompt_logprobs = self._prompts.told(step, self.batch, self._fed)
        sampled = {request: self._sample(step, request, rows.get(request)) for request in starts}
        # The CPU's idea of the longest sequence still counts every draft as accepted.
        longest = max(self.batch.requests[request].computed + step.scheduled[request] for request in starts)
        if self.states.cached and self.num_spec:
            self._move_states(
                {request: self._verified_state(step, request, sampled[request]) for request in starts}
            )
        self.batch.settle(starts)
        self.batch.keep(sampled)
        if self.num_spec:
            self._propose(step, starts, sampled, fits=longest + self.num_spec <= self.engine.max_model_len)
        return sampled

    def _pool(self) -> None:
        """`GPUModelRunner._pool`: what it makes of a prompt is told with the step that ends it."""
        for request, tokens in self._inputs.items():
            cached = self.batch.requests[request]
            if cached.computed + len(tokens) == len(cached.prompt):
                self.pooled[request] = self._fed(request)[-1]

    def _fed(self, request: str) -> list[int]:
        """Fingerprints of the positions that the step has computed."""
        reference = self.batch.requests[request].reference
        return self._contents(reference, self._starts[request], self._inputs[request])

    def _place_states(self, step: Step) -> None:
        """`mamba_utils.preprocess_mamba`."""
        self.states.begin(step, self.batch.returned)
        self._move_states(
            {
                request: self.states.place(
                    request, self.batch.requests[request].computed, step.scheduled[request]
                )
                for request in self.batch.rows
            }
        )

    def _verified_state(self, step: Step, request: str, sampled: list[int]) -> Move | None:
        """`mamba_utils.postprocess_mamba`: a sample that is discarded counts as one."""
        drafts = len(step.drafts.get(request, ()))
        running = self.batch.requests[request].computed + step.scheduled[request] - drafts
        return self.states.verified(request, running, max(1, len(sampled)))

    def _embed(self, step: Step, inputs: dict[str, list[int]]) -> None:
        """A placeholder that no device token has replaced. It gets to the device only if the step has other tokens
        that the host must send (`_prepare_input_ids`); else what is left there from the last step is embedded."""
        sent = step.total - sum(map(len, step.drafts.values())) > len(self.batch.prev_sampled)
        for request, tokens in inputs.items():
            if sent and UNRESOLVED in tokens and not self.traits.placeholders_are_clamped:
                message = f"{request} is fed a placeholder (-1), which no embedding has"
                raise self.batch.fail(Breach("placeholder-fed", message, request, True))

    def _sample(self, step: Step, request: str, rows: Rows | None) -> list[int]:
        """Tokens that the step samples; empty if it ends inside what is known already (an unfinished prefill)."""
        cached, start, tokens = self.batch.requests[request], self._starts[request], self._inputs[request]
        drafts = len(step.drafts.get(request, ()))
        last = start + len(tokens) - drafts
        if cached.computed + len(tokens) < self.batch.num_known(request):
            return []
        if request in self.spoiled:
            return [wrong_token(cached.reference.token(last))]
        proposed = tokens[len(tokens) - drafts :] if drafts else ()
        sampled = self._verified(request, last, proposed, rows)
        if cached.reference.request.grammar is not None and request not in self._stale:
            self._check_mask(request, last - len(cached.prompt), len(sampled), rows)
        if last + len(sampled) > self.engine.max_model_len:
            message = f"{request} samples up to position {last + len(sampled)}, past max_model_len"
            raise self.batch.fail(Breach("sampled-past-model-length", message, request, True))
        return sampled

    # -- drafter ------------------------------------------------------------------------------------------------

    def _propose(
        self, step: Step, starts: dict[str, int], sampled: dict[str, list[int]], *, fits: bool
    ) -> None:
        """The drafter's pass; it is skipped, and drafts are zeros, when the longest sequence leaves it no room."""
        if self.looks_ahead and fits:
            for request in starts:
                self.encoder.gather(
                    request, self.batch.requests[request].computed + 1, step.scheduled[request], "drafter"
                )
            self.encoder.merge()
        if fits:
            self.drafts = {
                request: self._draft(
                    request, starts[request] + step.scheduled[request], step, sampled[request]
                )
                for request in starts
            }
        else:
            self.drafts = self._drafts_without_room(starts)
        if self.drafts is None and self.traits.drops_drafts and self.engine.async_scheduling:
            self.batch.keep_old_drafts(starts, self.num_spec)
        else:
            self.batch.device_drafts, self.batch.drafted_rows = self.drafts, len(starts)
        # With asynchronous scheduling the host needs them for grammars only (`_copy_draft_token_ids_to_cpu`).
        self.drafts_are_told = step.structured or not self.engine.async_scheduling

    def _drafts_without_room(self, rows: Iterable[str]) -> dict[str, list[int]] | None:
        rule = self.traits.drafts_without_room
        if rule == "zeros" or (
            rule == "zeros if async" and self.engine.async_scheduling and self.looks_ahead
        ):
            return {request: [0] * self.num_spec for request in rows}
        return None

    def _draft(self, request: str, end: int, step: Step, sampled: list[int]) -> list[int]:
        cached = self.batch.requests[request]
        count = self.num_spec if step.to_draft is None else step.to_draft
        if not sampled:
            return [wrong_token(0)] * count if self.looks_ahead else []
        first = end - len(step.drafts.get(request, ())) + len(sampled)
        if self.looks_ahead:
            return cached.reference.drafts(first, self.num_spec)[:count]
        return cached.reference.matched(first, self.num_spec)[:count]

    def take_drafts(self) -> dict[str, list[int]] | None:
        return self.drafts if self.drafts_are_told else None

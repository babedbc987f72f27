"""Stub and device side by side on the same steps: the device's tokens drive, the stub checks content.

They must agree on everything that both can tell: whether the step raises, each request's sampled tokens, and, where the
scheduler is sent them, the drafts. If they do not, one of them does not do what vLLM's runner does for real: our fault
(the stub's contract, or the device's set-up), never a finding.
"""

from collections.abc import Callable, Sequence, Set
from typing import Any

from harness.peers.orders import Transfers
from harness.step import Step
from harness.verdict import HarnessError
from harness.worker.interface import Result, Worker
from harness.worker.observation import Observation, RunnerFailure
from harness.worker.prompt_logprobs import NOT_COMPUTED


class Disagreement(HarnessError):
    """Stub and device say different things about a step."""

    def __init__(self, step: Step, message: str) -> None:
        super().__init__(
            f"stub and device disagree in step {step.index} (iteration {step.iteration}): {message}"
        )
        self.step = step


class Tandem:
    """Two workers as one."""

    def __init__(self, stub: Worker, device: Worker) -> None:
        self.stub = stub
        self.device = device
        self._step: Step
        self._truth: dict[str, list[int]] = {}
        """What the last step samples, by the stub."""
        self._spoiled: Set[str] = frozenset()
        """Rows for which it may sample anything."""
        self._suspect = False
        """Whether the stub has found fault with the last step."""

    @property
    def transfers(self) -> Transfers:
        return self.stub.transfers

    @property
    def spoiled(self) -> Set[str]:
        return self.stub.spoiled

    @property
    def adrift(self) -> Set[str]:
        return self.stub.adrift

    @property
    def observations(self) -> Sequence[Observation]:
        return self.stub.observations

    def item_data(self, identity: int, length: int) -> Any:
        return self.device.item_data(identity, length)

    def execute_model(self, step: Step, scheduler_output: Any) -> Sequence[Observation]:
        self._suspect = False
        try:
            observations = self.stub.execute_model(step, scheduler_output)
        except RunnerFailure as failure:
            self._must_fail(
                step,
                failure,
                lambda: self.device.execute_model(step, scheduler_output),
                lambda: self.device.sample_tokens(step, None)(),
            )
            raise
        self._spoiled = frozenset(self.stub.spoiled)
        self._suspect = bool(observations)
        self._device(step, lambda: self.device.execute_model(step, scheduler_output), self._suspect)
        return observations

    def sampled(self, step: Step) -> dict[str, list[int]]:
        return self._truth

    def sample_tokens(self, step: Step, grammar_output: Any) -> Result:
        try:
            ours = self.stub.sample_tokens(step, grammar_output)()
        except RunnerFailure as failure:
            self._must_fail(step, failure, lambda: self.device.sample_tokens(step, grammar_output)())
            raise
        self._step, self._truth = step, self.stub.sampled(step)
        truth, spoiled = self._truth, self._spoiled
        self._suspect = suspect = self._suspect or bool(self.stub.observations)
        result = self._device(step, lambda: self.device.sample_tokens(step, grammar_output), suspect)
        if self.device.transfers != self.stub.transfers:
            raise Disagreement(
                step, f"the device reports {self.device.transfers}, the stub {self.stub.transfers}"
            )

        def compared() -> Any:
            output = self._device(step, result, suspect)
            found = dict(zip(output.req_ids, map(list, output.sampled_token_ids), strict=False))
            for request in sorted((truth | found).keys() - spoiled):
                if (said := found.get(request, [])) != truth.get(request, []):
                    raise Disagreement(
                        step, f"{request} samples {said} on the device, the stub says {truth.get(request)}"
                    )
            for what, answers in (("pools", _pooled), ("tells of its prompt", _prompts)):
                expected, given = answers(ours), answers(output)
                for request in sorted((expected.keys() | given.keys()) - spoiled):
                    if not (suspect or _agree(expected.get(request), given.get(request))):
                        raise Disagreement(
                            step,
                            f"{request} {what} {given.get(request)} on the device, the stub says "
                            f"{expected.get(request)}",
                        )
            return output

        return compared

    def reset_mm_cache(self) -> None:
        self.stub.reset_mm_cache()
        self.device.reset_mm_cache()

    def reset_encoder_cache(self) -> None:
        self.stub.reset_encoder_cache()
        self.device.reset_encoder_cache()

    def forget(self) -> None:
        self.stub.forget()
        self.device.forget()

    def take_drafts(self) -> tuple[list[str], list[list[int]]] | None:
        ours, theirs = self.stub.take_drafts(), self.device.take_drafts()
        if ours is not None and theirs is not None:
            expected, found = dict(zip(*ours, strict=True)), dict(zip(*theirs, strict=True))
            for request, tokens in found.items():
                # The drafts of an unfinished prefill are guesses about tokens that are known; nobody uses them.
                if request in self._spoiled or request in self.stub.adrift:
                    continue
                if self._truth.get(request) and tokens != expected.get(request):
                    raise Disagreement(
                        self._step,
                        f"the device drafts {tokens} for {request}, the stub {expected.get(request)}",
                    )
        return theirs

    def _must_fail(self, step: Step, failure: RunnerFailure, *calls: Callable[[], Any]) -> None:
        """The stub has raised; so must the device, in one of the calls that are left.

        Unless the stub had found fault with the step before that: what a runner does then is anybody's guess.
        """
        suspect = self._suspect or len(self.stub.observations) > 1
        try:
            for call in calls:
                call()
        except HarnessError:
            raise
        except Exception:
            return
        if not suspect:
            raise Disagreement(step, f"the stub raises ({failure}), the device does not")

    @staticmethod
    def _device(step: Step, call: Any, suspect: bool) -> Any:
        """Calls the device where the stub had no reason to raise. If it raises in a step that the stub has found fault
        with (`suspect`), the two agree, and what the stub has seen goes on."""
        try:
            return call()
        except HarnessError:
            raise
        except Exception as error:
            if suspect:
                raise RunnerFailure(f"{type(error).__name__}: {error}") from error
            raise Disagreement(
                step, f"the device raises {type(error).__name__} ({error}), the stub does not"
            ) from error


def _pooled(output: Any) -> dict[str, list[int]]:
    """A pooling model's answers in vLLM's ModelRunnerOutput."""
    answers = zip(output.req_ids, output.pooler_output or (), strict=False)
    return {request: [int(answer)] for request, answer in answers if answer is not None}


def _prompts(output: Any) -> dict[str, list[int]]:
    """The tokens of which a ModelRunnerOutput tells prompts' logprobs."""
    told = output.prompt_logprobs_dict or {}
    return {
        request: tensors.logprob_token_ids[:, 0].tolist()
        for request, tensors in told.items()
        if tensors is not None
    }


def _agree(expected: list[int] | None, given: list[int] | None) -> bool:
    """Of a row that was not computed (below 0 in the stub's words) a runner tells what its memory holds."""
    if expected is None or given is None:
        return expected is given
    pairs = zip(expected, given, strict=False)
    return len(expected) == len(given) and all(ours in (theirs, NOT_COMPUTED[0]) for ours, theirs in pairs)

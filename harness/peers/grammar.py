"""Structured output: a backend, grammars and a compiler for vLLM's own StructuredOutputManager.

The manager is real; what it would compile with (a backend and a tokenizer) and where (a thread pool) is ours, so that
compilation takes the scripted number of iterations and needs no thread. A grammar accepts, at each output position,
the reference model's token alone; after a stop token of the request it is terminated.

Importing this module imports no vLLM; using it does.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

from harness.model import VOCABULARY, Reference
from harness.worker.masks import WORD, words


class Uncompilable(ValueError):
    """What a backend raises on a specification that it cannot compile."""


class ScriptedGrammar:
    """vLLM's StructuredOutputGrammar of one request; its state is the number of outputs accepted."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        outputs, reason = reference.expected_output()
        self._last = len(outputs) if reason == "stop" else None
        self.accepted = 0

    def accept_tokens(self, request_id: str, tokens: Sequence[int]) -> bool:
        """Token by token, up to the first that is rejected, as matchers do."""
        for token in tokens:
            if self.is_terminated() or token != self._allowed():
                return False
            self.accepted += 1
        return True

    def validate_tokens(self, tokens: Sequence[int]) -> list[int]:
        """The prefix that would be accepted."""
        before = self.accepted
        self.accept_tokens("", tokens)
        count, self.accepted = self.accepted - before, before
        return list(tokens[:count])

    def rollback(self, num_tokens: int) -> None:
        self.accepted -= num_tokens

    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
        """One bit of the row: the token that is allowed now."""
        token = self._allowed()
        bit = 1 << token % WORD
        bitmask[batch_index].fill_(0)
        bitmask[batch_index, token // WORD] = bit - (1 << WORD) if bit >> (WORD - 1) else bit

    def is_terminated(self) -> bool:
        return self._last is not None and self.accepted >= self._last

    def reset(self) -> None:
        self.accepted = 0

    def _allowed(self) -> int:
        return self._reference.token(self._reference.prompt_length + self.accepted)


@functools.cache
def _classes() -> tuple[type[Any], type[Any]]:
    """(grammar, backend) as subclasses of vLLM's: a method that a release adds to its interface is missed at once."""
    from vllm.v1.structured_output.backend_types import StructuredOutputBackend, StructuredOutputGrammar

    class Grammar(ScriptedGrammar, StructuredOutputGrammar):  # type: ignore[misc]
        pass

    class Backend(StructuredOutputBackend):  # type: ignore[misc]
        def __init__(self, grammars: "Grammars") -> None:
            self._grammars = grammars

        def compile_grammar(self, request_type: Any, grammar_spec: str, **_: Any) -> Any:
            return self._grammars.compiled(grammar_spec)

        def allocate_token_bitmask(self, max_num_seqs: int) -> Any:
            import torch

            return torch.zeros((max_num_seqs, words(VOCABULARY)), dtype=torch.int32)

        def destroy(self) -> None:
            """Nothing to release."""

    return Grammar, Backend


class Compilation(NamedTuple):
    """One that has ended."""

    request: str
    failed: bool


@dataclass(slots=True)
class _Job:
    due: int
    request: str
    call: Callable[[], Any]
    future: Any


class Grammars:
    """The grammars of one execution; also the executor that a manager submits compilations to."""

    def __init__(self, references: Mapping[str, Reference]) -> None:
        self._references = references
        self._iteration = 0
        self._jobs: list[_Job] = []
        self._ended: list[Compilation] = []
        self.ready: dict[str, ScriptedGrammar] = {}
        """By request id; those that are compiled."""

    def manager(self, vllm_config: Any) -> Any:
        """vLLM's StructuredOutputManager with our backend and executor."""
        from vllm.v1.structured_output import StructuredOutputManager

        _, backend = _classes()
        manager = StructuredOutputManager(vllm_config)
        manager.backend, manager.executor = backend(self), self
        return manager

    def submit(self, function: Callable[[Any], Any], request: Any) -> Any:
        """The executor's side: a real future, done after the scripted delay."""
        script = self._references[request.request_id].request.grammar
        delay = script.delay if script is not None else 0
        job = _Job(
            self._iteration + delay, request.request_id, functools.partial(function, request), Future()
        )
        self._jobs.append(job)
        self._work()
        return job.future

    def compiled(self, request: str) -> ScriptedGrammar:
        """The backend's side. Uncompilable if the script says so."""
        reference = self._references[request]
        if reference.request.grammar is not None and reference.request.grammar.fails:
            raise Uncompilable("the scenario says that it cannot be compiled")
        grammar: ScriptedGrammar = _classes()[0](reference)
        self.ready[request] = grammar
        return grammar

    def advance(self, iteration: int) -> list[Compilation]:
        """It is `iteration` now; returns the compilations that have ended since the last call."""
        self._iteration = iteration
        self._work()
        ended, self._ended = self._ended, []
        return ended

    @property
    def pending(self) -> bool:
        """Whether a compilation has not ended yet."""
        return bool(self._jobs)

    def _work(self) -> None:
        due = [job for job in self._jobs if job.due <= self._iteration]
        self._jobs = [job for job in self._jobs if job.due > self._iteration]
        for job in due:
            try:
                job.future.set_result(job.call())
            except Uncompilable as error:
                # Without its traceback: who asks for the result without expecting this answers for what follows.
                job.future.set_exception(error.with_traceback(None))
            self._ended.append(Compilation(job.request, job.future.exception() is not None))

"""Scripted grammars accept the truth, and compilations end when the script says so."""

from types import SimpleNamespace

import numpy as np
import pytest

from harness.model import VOCABULARY
from harness.peers.grammar import Grammars, ScriptedGrammar, Uncompilable
from harness.scenario import Grammar
from harness.worker import masks
from worker.steps import references, text

REFERENCES = references(
    text(6, grammar=Grammar()),
    text(6, eos_at=2, grammar=Grammar(3)),
    text(6, eos_at=2, ignore_eos=True, grammar=Grammar(1, fails=True)),
)


def outputs(request: str, count: int) -> list[int]:
    reference = REFERENCES[request]
    return [reference.token(reference.prompt_length + at) for at in range(count)]


def test_the_truth_is_accepted_token_by_token() -> None:
    grammar = ScriptedGrammar(REFERENCES["r0"])
    assert grammar.accept_tokens("r0", outputs("r0", 2))
    assert grammar.accepted == 2
    assert not grammar.accept_tokens("r0", outputs("r0", 2))
    assert grammar.accepted == 2


def test_what_comes_before_a_wrong_token_counts() -> None:
    grammar = ScriptedGrammar(REFERENCES["r0"])
    assert not grammar.accept_tokens("r0", [*outputs("r0", 1), -1])
    assert grammar.accepted == 1


def test_validation_changes_nothing_and_rollback_takes_back() -> None:
    grammar = ScriptedGrammar(REFERENCES["r0"])
    true = outputs("r0", 3)
    assert grammar.validate_tokens([*true[:2], 5]) == true[:2]
    assert grammar.accepted == 0
    grammar.accept_tokens("r0", true)
    grammar.rollback(2)
    assert grammar.validate_tokens(true[1:]) == true[1:]
    grammar.reset()
    assert grammar.accepted == 0


def test_a_stop_token_terminates() -> None:
    grammar = ScriptedGrammar(REFERENCES["r1"])
    true = outputs("r1", 4)
    assert grammar.validate_tokens(true) == true[:3]
    assert not grammar.is_terminated()
    assert not grammar.accept_tokens("r1", true)
    assert grammar.is_terminated() and grammar.accepted == 3


def test_a_row_allows_the_next_token_alone() -> None:
    torch = pytest.importorskip("torch")
    grammar = ScriptedGrammar(REFERENCES["r0"])
    bitmask = torch.full((3, masks.words(VOCABULARY)), -1, dtype=torch.int32)
    for token in outputs("r0", 40):
        grammar.fill_bitmask(bitmask, 1)
        assert masks.allowed(bitmask.numpy()[1]).tolist() == [token]
        grammar.accept_tokens("r0", [token])
    assert np.all(bitmask.numpy()[[0, 2]] == -1)


class Compiles(Grammars):
    """Without vLLM's classes."""

    def compiled(self, request: str) -> ScriptedGrammar:
        if self._references[request].request.grammar.fails:
            raise Uncompilable(request)
        self.ready[request] = ScriptedGrammar(self._references[request])
        return self.ready[request]


def test_compilations_take_their_iterations() -> None:
    grammars = Compiles(REFERENCES)
    grammars.advance(5)
    requests = [SimpleNamespace(request_id=request) for request in REFERENCES]
    futures = [
        grammars.submit(lambda asked: grammars.compiled(asked.request_id), request) for request in requests
    ]
    assert [future.done() for future in futures] == [True, False, False]
    assert grammars.advance(5) == [("r0", False)]
    assert grammars.advance(6) == [("r2", True)]
    assert grammars.pending
    assert grammars.advance(8) == [("r1", False)]
    assert not grammars.pending
    assert futures[1].result() is grammars.ready["r1"]
    assert isinstance(futures[2].exception(), Uncompilable)


def test_an_error_of_ours_is_no_failed_compilation() -> None:
    grammars = Compiles(REFERENCES)
    with pytest.raises(ZeroDivisionError):
        grammars.submit(lambda _: 1 // 0, SimpleNamespace(request_id="r0"))

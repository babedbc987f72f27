"""O8 hears what a client gets beside tokens, if it is late, twice, wrong, or not there."""

import pytest

from harness import compat
from harness.oracles.answers import OtherAnswers
from harness.worker.traits import Traits
from oracles.faults import UPDATE, Fault, after, assert_heard, assert_quiet, faults, heard, outputs_of

pytestmark = pytest.mark.usefixtures("vllm")

ANSWER = "EngineCoreOutput.pooling_output"


def pools(change):
    """Lets `change` loose on every output of a pooling model."""

    def changed(_, result):
        for output in outputs_of(result):
            if output.pooling_output is not None:
                change(output)

    return after(changed)


def tells(change):
    """The same with outputs that have a prompt's logprobs."""

    def changed(_, result):
        for output in outputs_of(result):
            if output.new_prompt_logprobs_tensors is not None:
                change(output)

    return after(changed)


def nothing(output):
    output.pooling_output = None


def another(output):
    output.pooling_output = output.pooling_output + 1


def endless(output):
    output.finish_reason = None


def untold(output):
    output.new_prompt_logprobs_tensors = None


def cut(output):
    told = output.new_prompt_logprobs_tensors
    output.new_prompt_logprobs_tensors = told._replace(logprob_token_ids=told.logprob_token_ids[1:])


def mixed(output):
    told = output.new_prompt_logprobs_tensors
    output.new_prompt_logprobs_tensors = told._replace(logprob_token_ids=told.logprob_token_ids.flip(0))


def repeating():
    """What a request was told it is told again with its next output."""
    before = {}

    def repeat(_, result):
        for output in outputs_of(result):
            told = output.new_prompt_logprobs_tensors
            output.new_prompt_logprobs_tensors = before.setdefault(output.request_id, told)

    return after(repeat)


def wrong(what):
    return (("wrong-prompt-logprobs", what),)


FAULTS = {
    "no answer": Fault(UPDATE, pools(nothing), "pooling", (("no-pooling-output", ANSWER),)),
    "another answer": Fault(UPDATE, pools(another), "pooling", (("wrong-pooling-output", ANSWER),)),
    "no end": Fault(UPDATE, pools(endless), "pooling", (("pooling-goes-on", "update_from_output"),)),
    "missing": Fault(UPDATE, tells(untold), "prompt_logprobs", wrong("missing")),
    "rows missing": Fault(UPDATE, tells(cut), "prompt_logprobs", wrong("rows")),
    "rows of others": Fault(UPDATE, tells(mixed), "prompt_logprobs", wrong("other content")),
    "twice": Fault(UPDATE, repeating(), "prompt_logprobs", wrong("again")),
}


def test_is_quiet_on_legal_scenarios(legal):
    assert_quiet(OtherAnswers, legal)


@faults(FAULTS)
def test_hears(monkeypatch, fault):
    assert_heard(monkeypatch, OtherAnswers, fault)


@pytest.mark.parametrize(
    ("kept", "said"), [(True, []), (False, [("O8", "wrong-prompt-logprobs", "not computed")])]
)
def test_rows_that_the_release_s_runner_loses_are_heard(monkeypatch, kept, said):
    """Ledger 41411: a step without the request in the midst of its prompt."""
    monkeypatch.setattr(compat, "runner_traits", lambda: Traits(rows_keep_prompt_logprobs=kept))
    assert heard("prompt_logprobs_skipped", OtherAnswers) == said

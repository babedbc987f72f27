"""The stub gathers prompts' logprobs as the V1 runner does, and tells a pooling model's answers when it does."""

from msgspec.structs import replace

from harness.model import drawn
from harness.scenario import Scenario
from harness.worker.prompt_logprobs import NOT_COMPUTED
from harness.worker.stub_v1 import StubV1
from harness.worker.traits import NEWEST, Traits
from worker.steps import ENGINE, Reference, cached, new, references, step, stub, text

ASKED = references(text(6, prompt_logprobs=True))
R0 = ASKED["r0"]
TABLE = (1, 2, 3, 4)
OTHER = references(text(6, prompt_logprobs=True), text(5, 1))


def rows(start, stop):
    return [(R0.token(position + 1), drawn(R0.content(position))) for position in range(start, stop)]


def told(worker, *steps):
    found = []
    for one in steps:
        worker.execute(one)
        found.append(worker.prompt_logprobs)
    return found


def test_all_rows_are_told_with_the_step_that_ends_the_prompt():
    assert told(stub(ASKED), step(new(R0, TABLE), tokens=6), step(cached(6, outputs=1), tokens=1)) == [
        {"r0": rows(0, 5)},
        {},
    ]


def test_chunks_add_up_and_the_last_row_waits_for_the_last_token():
    steps = (step(new(R0, TABLE), tokens=3), step(cached(3), tokens=2), step(cached(5), tokens=1))
    assert told(stub(ASKED), *steps) == [{}, {}, {"r0": rows(0, 5)}]


def test_what_a_hit_covers_is_not_computed():
    steps = (step(new(R0, TABLE), tokens=4), step(cached(4), tokens=2))
    worker = stub(ASKED)
    worker.execute(steps[0])
    again = StubV1(ENGINE, ASKED, NEWEST)
    again.kv = worker.kv
    again.execute(step(new(R0, TABLE, computed=4), tokens=2))
    assert again.prompt_logprobs == {"r0": [*[NOT_COMPUTED] * 4, *rows(4, 5)]}


def skipped(**traits):
    """A step without the request in the midst of its prompt."""
    other = new(OTHER["r1"], (5, 6), request="r1")
    return told(
        StubV1(ENGINE, OTHER, Traits(**traits)),
        step(new(OTHER["r0"], TABLE), tokens=3),
        step(other, tokens={"r1": 5}),
        step(cached(3), cached(5, outputs=1, request="r1"), tokens={"r0": 3, "r1": 1}),
    )[-1]["r0"]


def test_rows_stay_while_the_request_waits():
    assert skipped() == rows(0, 5)


def test_up_to_0_20_they_are_lost():
    assert skipped(rows_keep_prompt_logprobs=False) == [*[NOT_COMPUTED] * 3, *rows(3, 5)]


def test_a_resumed_request_computes_its_rows_again():
    resumed = cached(0, TABLE, resumed=True)
    steps = (step(new(R0, TABLE), tokens=3), step(preempted=("r0",)), step(resumed, tokens=6))
    assert told(stub(ASKED), *steps)[-1] == {"r0": rows(0, 5)}


def test_a_pooling_model_answers_once_with_the_whole_prompt():
    engine = replace(ENGINE, runner_type="pooling")
    truth = Reference(Scenario(1, engine, (), (text(6),)), 0)
    worker = StubV1(engine, {"r0": truth}, NEWEST)
    answers = []
    for one in (step(new(truth, TABLE), tokens=4), step(cached(4), tokens=2)):
        assert worker.execute(one).sampled == {}
        answers.append(worker.pooled)
    assert answers == [{}, {"r0": truth.pooled}]

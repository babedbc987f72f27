"""The V2 runner's bookkeeping: slots, counts of its own, and what of a SchedulerOutput it does not read."""

import dataclasses

import pytest
from msgspec.structs import replace

from harness.scenario import Speculative
from harness.worker.batch_v2 import STALE
from harness.worker.observation import RunnerFailure
from worker.steps import ENGINE, batch_v2, cached, new, new_v2, picture, references, step, text

ONE = references(text(6))
R0 = ONE["r0"]
TWO = references(text(6), text(3, 1))
SEEN = references(picture(4, 4), images=(6,))
NARROW = replace(ENGINE, max_num_seqs=1)
DRAFTS = replace(ENGINE, speculative=Speculative("eagle", 2), async_scheduling=True)


def true(start, stop):
    return [R0.token(position) for position in range(start, stop)]


def started(known=ONE, engine=ENGINE, **traits):
    """A batch in which r0's prompt was computed, and its first token sampled."""
    made = batch_v2(known, engine, **traits)
    first = step(new_v2(known["r0"], (1, 2)), tokens=6)
    made.update(first)
    made.keep(first, "r0", [known["r0"].token(6)])
    return made


def kinds(made):
    return [(seen.kind, seen.fails) for seen in made.observations]


# -- who is there ------------------------------------------------------------------------------


def test_a_new_request_that_is_known_takes_its_place():
    """The V2 runner removes it first, as for a streaming update; nothing goes wrong."""
    made = started(engine=NARROW)
    made.update(step(new_v2(R0, (3, 4), outputs=1), tokens=7))
    assert kinds(made) == []
    assert (made.requests["r0"].tables, made.requests["r0"].computed) == ([[3, 4]], 0)


@pytest.mark.parametrize("left", ["finished", "preempted"])
def test_finished_and_preempted_requests_give_up_their_slots(left):
    made = started(TWO, NARROW)
    made.update(step(new_v2(TWO["r1"], (3,), request="r1"), tokens={"r1": 3}, **{left: ("r0",)}))
    assert (kinds(made), list(made.requests)) == ([], ["r1"])


@pytest.mark.parametrize(
    ("faulty", "kind"),
    [
        (step(new_v2(TWO["r1"], (3,), request="r1"), tokens={"r1": 3}), "no-free-slot"),
        (step(cached(3, request="r1"), tokens={"r1": 1}), "unknown-request"),
        (step(tokens={"r1": 1}), "rows-differ"),
        (step(new(R0, (3, 4)), tokens=6), "tokens-not-sent"),
        (
            step(dataclasses.replace(new_v2(R0, (3, 4)), prefill=R0.tokens[:5]), tokens=6),
            "tokens-not-sent",
        ),
        (step(cached(6), tokens=1, item_updates={"r1": {0: True}}), "unknown-request"),
    ],
    ids=["no slot", "never heard of", "without data", "no tokens", "too few", "items of nobody"],
)
def test_the_runner_fails(faulty, kind):
    made = started(TWO, NARROW)
    with pytest.raises(RunnerFailure):
        made.update(faulty)
    assert kinds(made) == [(kind, True)]


def test_data_of_a_request_that_is_not_scheduled_is_a_breach():
    made = started()
    made.update(step(cached(6), tokens=0))
    assert kinds(made) == [("rows-differ", False)]


# -- blocks ------------------------------------------------------------------------------------


def test_blocks_are_only_appended():
    made = started()
    made.update(step(cached(6, (5,)), tokens=1))
    made.update(step())
    made.update(step(cached(6, (7, 8)), tokens=1))
    assert made.requests["r0"].tables == [[1, 2, 5, 7, 8]]


@pytest.mark.parametrize("bounded", [False, True])
def test_a_row_has_an_end(bounded):
    """32 tokens in blocks of 4, and rows of whole 128 tokens: 32 blocks. Beyond it, up to 0.28, is the next row."""
    made = started(tables_are_bounded=bounded)
    full = step(cached(6, tuple(range(3, 33))), tokens=1)
    made.update(full)
    assert kinds(made) == []
    one_more = step(cached(6, (33,)), tokens=1)
    if bounded:
        with pytest.raises(RunnerFailure):
            made.update(one_more)
    else:
        made.update(one_more)
    assert kinds(made) == [("table-overflow", bounded)]


# -- counts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "said", "heard"),
    [
        (ENGINE, 5, ["counts-differ"]),
        (ENGINE, 6, []),
        (ENGINE, 7, ["counts-differ"]),
        (DRAFTS, 5, ["counts-differ"]),
        (DRAFTS, 8, []),
    ],
    ids=["behind", "equal", "ahead", "async drafts, behind", "async drafts, ahead"],
)
def test_the_device_counts_for_itself(engine, said, heard):
    """The scheduler's count is an upper bound; ahead only while drafts are hoped to be right."""
    made = started(engine=engine)
    following = step(cached(said, outputs=1), tokens=1)
    made.update(following)
    assert [kind for kind, _ in kinds(made)] == heard
    assert made.inputs(following, "r0", copied=False) == true(6, 7)


def test_rejected_drafts_are_not_computed():
    made = started(engine=DRAFTS)
    following = step(cached(6), tokens=3, drafts={"r0": (-1, -1)})
    made.update(following)
    made.keep(following, "r0", true(7, 9))
    slot = made.requests["r0"]
    assert (slot.computed, slot.total, slot.last) == (8, 9, R0.token(8))


# -- tokens ------------------------------------------------------------------------------------


def test_what_the_scheduler_says_of_outputs_is_not_read():
    """Nor its tokens, nor how many there are, nor that a request resumes."""
    made = started()
    following = step(cached(6, outputs=9, resumed=True, tokens=[0] * 15), tokens=1)
    made.update(following)
    assert (kinds(made), made.inputs(following, "r0", copied=False)) == ([], true(6, 7))


def test_skipping_a_step_is_harmless():
    made = started()
    made.update(step())
    following = step(cached(6), tokens=1)
    made.update(following)
    assert made.inputs(following, "r0", copied=False) == true(6, 7)


def test_a_preempted_request_comes_with_its_outputs():
    made = batch_v2(ONE)
    first = step(new_v2(R0, (3, 4, 5), outputs=3, computed=4), tokens=5)
    made.update(first)
    assert made.prefills("r0") and made.inputs(first, "r0", copied=True) == true(4, 9)


def test_tokens_past_what_is_known_are_stale():
    made = batch_v2(ONE)
    first = step(new_v2(R0, (3, 4)), tokens=8)
    made.update(first)
    assert made.inputs(first, "r0", copied=True) == [*true(0, 6), STALE, STALE]


def test_prompts_are_copied_if_the_host_believes_that_one_is_unfinished():
    made = batch_v2(ONE)
    made.update(step(new_v2(R0, (3, 4)), tokens=4))
    assert made.inputs(step(tokens=4), "r0", copied=False) == [STALE] * 4


def test_drafts_are_in_the_slot():
    made = started(engine=DRAFTS)
    made.requests["r0"].drafts = [11, 12]
    following = step(cached(6), tokens=2, drafts={"r0": (99,)})
    assert made.inputs(following, "r0", copied=False) == [*true(6, 7), 11]


# -- items -------------------------------------------------------------------------------------


def test_data_of_items_comes_and_goes():
    made = batch_v2(SEEN)
    made.update(step(new_v2(SEEN["r0"], (1, 2, 3, 4)), tokens=14))
    made.update(step(cached(0), tokens=1, item_updates={"r0": {0: False}}))
    assert made.requests["r0"].stripped == {0}
    made.update(step(cached(0), tokens=1, item_updates={"r0": {0: True}}))
    assert made.requests["r0"].stripped == set()


def test_other_items_than_the_client_s_are_a_breach():
    made = batch_v2(SEEN)
    made.update(step(dataclasses.replace(new_v2(SEEN["r0"], (1, 2, 3, 4)), items=()), tokens=4))
    assert kinds(made) == [("items-changed", False)]

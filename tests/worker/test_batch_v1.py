"""The V1 runner's bookkeeping, row by row of contract.md: `_update_states` and `_prepare_input_ids`."""

from dataclasses import replace

import pytest

from harness.worker.batch_v1 import UNRESOLVED
from harness.worker.observation import RunnerFailure
from worker.steps import batch, cached, new, references, step, text

ONE = references(text(6))
R0 = ONE["r0"]
TWO = references(text(6), text(3, 1))


def tokens(reference, start, stop):
    return [reference.token(position) for position in range(start, stop)]


def started(known=ONE, *, asynchronous=False, computed=6, **traits):
    """A batch in which r0's prompt was computed, and its first token sampled."""
    made = batch(known, asynchronous=asynchronous, **traits)
    made.update(step(new(known["r0"], (1, 2)), tokens=computed))
    made.settle({"r0": 0})
    made.keep({"r0": [known["r0"].token(6)]})
    return made


def kinds(made):
    return [(seen.kind, seen.fails) for seen in made.observations]


# -- who is there ------------------------------------------------------------------------------


def test_a_new_request_that_is_known_is_a_breach():
    """V1 takes it for a streaming update and goes silently wrong: no failure."""
    made = started()
    made.update(step(new(R0, (3, 4)), tokens=6))
    assert kinds(made) == [("new-request-known", False)]


def test_a_new_request_after_its_end_is_another_request():
    """An id both finished and newly scheduled is two requests."""
    made = started()
    made.update(step(new(R0, (3, 4)), tokens=6, finished=("r0",)))
    assert kinds(made) == []
    assert (made.requests["r0"].tables, made.requests["r0"].outputs) == ([[3, 4]], [])


def test_a_request_with_another_adapter_than_its_clients_is_a_breach():
    """The runner applies what it is told."""
    made = batch(ONE)
    made.update(step(replace(new(R0, (1, 2)), lora=2), tokens=6))
    assert kinds(made) == [("adapter-changed", False)]


@pytest.mark.parametrize(
    ("faulty", "kind"),
    [
        (step(cached(6, request="r1"), tokens={"r1": 1}), "unknown-request"),
        (step(tokens={"r1": 1}), "rows-differ"),
        (step(cached(6), tokens=0), "rows-differ"),
        (step(cached(0, (3,), resumed=True), cached(0, request="r1"), tokens=6), "unknown-request"),
    ],
    ids=["known, never heard of", "scheduled without data", "data without tokens", "one of two unknown"],
)
def test_the_runner_fails(faulty, kind):
    made = started(TWO)
    with pytest.raises(RunnerFailure):
        made.update(faulty)
    assert kinds(made) == [(kind, True)]


def test_unknown_ids_may_finish():
    made = started()
    made.update(step(finished=("r7",)))
    assert (list(made.requests), list(made.rows)) == (["r0"], [])


def test_who_is_not_scheduled_leaves_the_batch_and_keeps_its_state():
    made = started()
    made.update(step())
    assert (list(made.rows), made.requests["r0"].outputs) == ([], tokens(R0, 6, 7))
    made.update(step(cached(6, outputs=1), tokens=1))
    assert made.inputs(step(tokens=1), "r0") == tokens(R0, 6, 7)


def test_a_step_without_tokens_applies_its_state_part():
    made = started()
    made.update(step(finished=("r0",)))
    assert (made.requests, made.rows) == ({}, {})


# -- blocks ------------------------------------------------------------------------------------


def test_blocks_are_appended_also_to_who_did_not_run_last_step():
    made = started()
    made.update(step(cached(6, (5,), outputs=1), tokens=1))
    made.update(step())
    made.update(step(cached(7, (7, 8), outputs=2), tokens=1))
    assert made.requests["r0"].tables == [[1, 2, 5, 7, 8]]


def test_blocks_are_replaced_on_resumption():
    made = started()
    made.update(step())
    made.update(step(cached(0, (7, 8), resumed=True, outputs=1), tokens=7))
    assert made.requests["r0"].tables == [[7, 8]]


def test_resumption_without_a_table_of_its_own_fails():
    """V1 asserts that there are blocks."""
    made = started()
    made.update(step())
    with pytest.raises(RunnerFailure):
        made.update(step(cached(0, resumed=True, outputs=1), tokens=7))
    assert kinds(made) == [("resumed-without-blocks", True)]


def test_no_blocks_are_none():
    made = started()
    made.update(step(cached(6, outputs=1), tokens=1))
    assert made.requests["r0"].tables == [[1, 2]]


# -- tokens ------------------------------------------------------------------------------------


def test_outputs_are_trimmed_to_what_the_scheduler_counts():
    made = started()
    made.keep({"r0": tokens(R0, 7, 9)})
    made.update(step(cached(6, outputs=1), tokens=1))
    assert made.requests["r0"].outputs == tokens(R0, 6, 7)


def test_positions_past_what_is_known_are_unresolved():
    made = started()
    made.update(step(cached(6, outputs=1), tokens=3))
    assert made.inputs(step(tokens=3), "r0") == [R0.token(6), UNRESOLVED, UNRESOLVED]


def test_sync_drafts_come_from_the_scheduler():
    made = started()
    drafted = step(cached(6, outputs=1), tokens=3, drafts={"r0": (70, 71)})
    made.update(drafted)
    assert made.inputs(drafted, "r0") == [R0.token(6), 70, 71]


# -- asynchronous: what the device knows -------------------------------------------------------


def test_async_the_last_token_is_on_the_device_for_the_very_next_step():
    made = started(asynchronous=True)
    assert made.requests["r0"].outputs == [UNRESOLVED]
    following = step(cached(6, outputs=1), tokens=1)
    made.update(following)
    assert made.inputs(following, "r0") == tokens(R0, 6, 7)


def test_async_a_request_that_comes_back_needs_its_tokens():
    made = started(asynchronous=True)
    made.update(step())
    with pytest.raises(RunnerFailure):
        made.update(step(cached(6, outputs=1), tokens=1))
    assert kinds(made) == [("tokens-not-resent", True)]


def test_async_a_request_that_comes_back_is_fed_what_is_sent():
    made = started(asynchronous=True)
    made.update(step())
    back = step(cached(6, outputs=1, tokens=tokens(R0, 0, 7)), tokens=1)
    made.update(back)
    assert made.inputs(back, "r0") == tokens(R0, 6, 7)


def test_async_a_prompt_that_comes_back_needs_nothing():
    made = batch(ONE, asynchronous=True)
    made.update(step(new(R0, (1, 2)), tokens=4))
    made.keep({"r0": []})
    made.update(step())
    made.update(step(cached(4), tokens=2))
    assert made.inputs(step(tokens=2), "r0") == tokens(R0, 4, 6)


def test_async_placeholder_drafts_are_the_device_s_own():
    made = started(asynchronous=True)
    made.device_drafts = {"r0": [70, 71]}
    drafted = step(cached(6, outputs=1), tokens=3, drafts={"r0": (-1, -1)})
    made.update(drafted)
    assert made.inputs(drafted, "r0") == [R0.token(6), 70, 71]


def test_async_placeholder_drafts_without_the_device_s_stay_unresolved():
    """A row that was not in the last batch has no drafts on the device."""
    made = started(asynchronous=True)
    made.device_drafts = {"r0": [70, 71]}
    made.update(step())
    back = step(cached(6, outputs=1, tokens=tokens(R0, 0, 7)), tokens=3, drafts={"r0": (-1, -1)})
    made.update(back)
    assert made.inputs(back, "r0") == [R0.token(6), UNRESOLVED, UNRESOLVED]


@pytest.mark.parametrize(("accepted", "start"), [(0, 7), (1, 8), (2, 9)])
def test_async_the_device_goes_on_where_it_stopped(accepted, start):
    """The scheduler's count is optimistic; it is the device that knows how many drafts were right."""
    made = started(asynchronous=True)
    made.update(step(cached(6, outputs=1), tokens=3, drafts={"r0": (-1, -1)}))
    made.settle({"r0": 6})
    made.keep({"r0": tokens(R0, 7, 8 + accepted)})
    following = step(cached(9, outputs=4), tokens=3, drafts={"r0": (-1, -1)})
    made.update(following)
    assert made.start("r0") == start
    assert made.requests["r0"].computed == 9, "the main gather sees the optimistic count"
    made.settle({"r0": start})
    assert made.requests["r0"].computed == start, "the drafter's sees the corrected one"


@pytest.mark.parametrize(("counted", "start"), [(True, 7), (False, 9)], ids=["from 0.14", "to 0.13"])
def test_async_drafts_that_a_row_comes_back_with(counted, start):
    """Both are rejected: the next step goes on behind what was sampled, or where the scheduler believes."""
    made = started(asynchronous=True, counts_are_optimistic=False, returning_drafts_are_counted=counted)
    made.update(step())
    drafts = {"r0": (-1, -1)}
    made.update(step(cached(6, outputs=1, tokens=tokens(R0, 0, 7)), tokens=3, drafts=drafts))
    made.settle({"r0": 6})
    made.keep({"r0": tokens(R0, 7, 8)})
    made.update(step(cached(9, outputs=4), tokens=3, drafts=drafts))
    assert made.start("r0") == start


def test_async_drafts_verified_without_a_sample_fail():
    """The runner looks up how many were accepted; up to 0.18 it must find the request."""
    made = started(asynchronous=True, counts_are_optimistic=False)
    drafted = step(cached(6, outputs=1), tokens=3, drafts={"r0": (-1, -1)})
    made.update(drafted)
    made.keep({"r0": []})
    with pytest.raises(RunnerFailure):
        made.update(drafted)
    assert kinds(made) == [("drafts-without-a-sample", True)]


def test_async_without_drafts_the_scheduler_s_count_holds():
    made = started(asynchronous=True)
    made.update(step(cached(6, outputs=1), tokens=1))
    assert made.start("r0") == 6


# -- a pipeline --------------------------------------------------------------------------------


def pipelined():
    """r0's prompt was computed and its first token sampled, in the last of two stages."""
    made = batch(ONE, pipeline=True)
    made.update(step(new(R0, (1, 2)), tokens=6))
    made.keep({"r0": [R0.token(6)]})
    return made


def test_the_first_stage_feeds_what_is_sent_back():
    made = pipelined()
    decode = step(replace(cached(6, outputs=1), new_tokens=(R0.token(6),)), tokens=1)
    made.update(decode)
    assert made.inputs(decode, "r0") == [R0.token(6)]


def test_the_first_stage_feeds_nothing_that_was_not_sent():
    made = pipelined()
    decode = step(cached(6, outputs=1), tokens=1)
    made.update(decode)
    assert made.inputs(decode, "r0") == [UNRESOLVED]


def test_the_last_stage_knows_what_it_has_sampled():
    """A chunk that ends with the prompt has nothing to sample there, though the first stage knows no output."""
    made = pipelined()
    made.update(step())
    again = replace(cached(0, (3, 4), outputs=1, resumed=True), new_tokens=tuple(tokens(R0, 0, 6)))
    made.update(step(again, tokens=6))
    assert (made.requests["r0"].outputs, made.num_known("r0")) == ([], 7)

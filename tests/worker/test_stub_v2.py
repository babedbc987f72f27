"""The stub obeys the V2 runner's contract: what it needs it must find, what it meets it reports."""

import dataclasses

import pytest
from msgspec.structs import replace

from harness.model import wrong_token
from harness.peers.orders import LoadOrder, Orders, Transfers
from harness.scenario import Connector
from harness.worker.observation import EncoderMiss, KvMismatch, RunnerFailure
from worker.steps import (
    EAGLE,
    ENGINE,
    NGRAM,
    ONE,
    PICTURE,
    R0,
    SEEN,
    TABLE,
    breaches,
    cached,
    new_v2,
    references,
    step,
    stub_v2,
    text,
    true,
)

WINDOW = replace(ENGINE, sliding_window=3)


# -- target ------------------------------------------------------------------------------------


def test_a_prompt_in_two_chunks_and_a_decode():
    worker = stub_v2(ONE)
    assert worker.execute(step(new_v2(R0, TABLE), tokens=4)).sampled == {"r0": []}
    assert worker.execute(step(cached(4), tokens=2)).sampled == {"r0": true(R0, 6, 7)}
    execution = worker.execute(step(cached(6, outputs=1), tokens=1))
    assert (execution.sampled, execution.observations) == ({"r0": true(R0, 7, 8)}, ())


def test_a_preempted_request_goes_on():
    worker = stub_v2(ONE)
    worker.execute(step(new_v2(R0, (1, 2)), tokens=6))
    again = step(new_v2(R0, (5, 6), outputs=1), tokens=7, preempted=("r0",))
    execution = worker.execute(again)
    assert (execution.sampled, execution.observations) == ({"r0": true(R0, 7, 8)}, ())


def test_a_step_without_tokens_samples_nothing():
    worker = stub_v2(ONE)
    worker.execute(step(new_v2(R0, TABLE), tokens=6))
    assert worker.execute(step(finished=("r0",))).sampled == {}
    assert worker.batch.requests == {}


@pytest.mark.parametrize(
    ("faulty", "kinds"),
    [
        (step(new_v2(R0, (1, 0)), tokens=6), ["write-null-block"]),
        (step(new_v2(R0, (1,)), tokens=6), ["write-missing-block"]),
        (step(new_v2(R0, (1, 2)), tokens=6, total=7), ["wrong-total"]),
        (step(new_v2(R0, (1, 2)), tokens=8), ["stale-token"]),
    ],
    ids=["null block", "missing block", "wrong total", "past what is known"],
)
def test_what_the_runner_does_silently_is_a_breach(faulty, kinds):
    assert breaches(stub_v2(ONE).execute(faulty)) == kinds


def test_a_prefix_hit_must_be_there():
    execution = stub_v2(ONE).execute(step(new_v2(R0, (7, 8), computed=4), tokens=2))
    assert execution.observations == (KvMismatch("r0", 0, 0, 7, "unwritten"),)


def test_a_sample_past_the_model_length_goes_on_in_the_next_request_s_row():
    known = references(text(32))
    execution = stub_v2(known).execute(step(new_v2(known["r0"], tuple(range(1, 9))), tokens=32))
    assert breaches(execution) == ["sampled-past-model-length"]


# -- encoder -----------------------------------------------------------------------------------


def test_a_miss_of_the_target_fails():
    worker = stub_v2(SEEN)
    with pytest.raises(RunnerFailure):
        worker.execute(step(new_v2(PICTURE, TABLE), tokens=14))
    assert worker.observations == [EncoderMiss("r0", "image-0", "target", "never encoded")]


def test_only_unfinished_prefills_gather():
    """Also if their window reached an item, as no legal step's does."""
    worker = stub_v2(SEEN)
    worker.execute(step(new_v2(PICTURE, TABLE), tokens=14, encode={"r0": (0,)}))
    worker.batch.requests["r0"].items = ((14, 6, "image-7"),)
    assert breaches(worker.execute(step(cached(14), tokens=1))) == []


def test_a_free_takes_effect_before_the_gather_of_its_own_step():
    worker = stub_v2(SEEN)
    worker.execute(step(new_v2(PICTURE, TABLE), tokens=8, encode={"r0": (0,)}))
    with pytest.raises(RunnerFailure):
        worker.execute(step(cached(8), tokens=4, free=("image-0",)))
    assert worker.observations == [EncoderMiss("r0", "image-0", "target", "evicted")]


def test_an_item_without_data_is_not_encoded():
    worker = stub_v2(SEEN)
    with pytest.raises(RunnerFailure):
        worker.execute(
            step(new_v2(PICTURE, TABLE), tokens=14, encode={"r0": (0,)}, item_updates={"r0": {0: False}})
        )
    assert [seen.reason for seen in worker.observations] == ["sent without the data that its encoder needs"]


@pytest.mark.parametrize("falls_back", [False, True], ids=["to 0.23", "from 0.24"])
@pytest.mark.parametrize("skip", [False, True])
def test_the_drafter_looks_one_token_ahead(falls_back, skip):
    """[1, 5) reaches the image at 4; also in a step whose drafts nobody needs."""
    worker = stub_v2(SEEN, EAGLE, drafter_falls_back=falls_back)
    chunk = step(new_v2(PICTURE, TABLE), tokens=4, skip_drafts=skip)
    if falls_back:
        assert worker.execute(chunk).observations == ()
    else:
        with pytest.raises(RunnerFailure):
            worker.execute(chunk)
        assert worker.observations == [EncoderMiss("r0", "image-0", "drafter", "never encoded")]


# -- drafts ------------------------------------------------------------------------------------


def drafting(*acceptance, engine=EAGLE, length=6, **traits):
    """A worker whose r0 has just sampled its first token; the worker and the truth."""
    known = references(text(length, acceptance=acceptance))
    worker = stub_v2(known, engine, **traits)
    worker.execute(step(new_v2(known["r0"], tuple(range(1, 9))), tokens=length))
    return worker, known["r0"]


@pytest.mark.parametrize("right", [0, 1, 2])
def test_the_scheduler_learns_how_many_drafts_there_are_and_no_more(right):
    worker, reference = drafting(right)
    assert worker.take_drafts() == {"r0": [-1, -1]}
    execution = worker.execute(step(cached(6), tokens=3, drafts={"r0": (-1, -1)}))
    assert (execution.sampled, execution.observations) == ({"r0": true(reference, 7, 8 + right)}, ())
    assert worker.batch.requests["r0"].computed == 7 + right


def test_the_search_repeats_the_last_token_where_it_finds_nothing():
    worker, reference = drafting(0, engine=NGRAM)
    assert worker.take_drafts() == {"r0": [-1, -1]}
    assert worker.batch.requests["r0"].drafts == true(reference, 6, 7) * 2


def test_drafts_before_the_first_step_are_of_nobody():
    assert stub_v2(ONE, EAGLE).take_drafts() == {}


def test_the_drafter_has_room_at_the_end_of_the_model():
    worker, _ = drafting(2, length=31)
    assert worker.take_drafts() == {"r0": [-1, -1]}


def test_skipped_drafts_must_not_be_verified():
    known = references(text(6))
    worker = stub_v2(known, EAGLE)
    worker.execute(step(new_v2(R0, TABLE), tokens=6, skip_drafts=True))
    assert worker.take_drafts() == {"r0": []}
    with pytest.raises(RunnerFailure):
        worker.execute(step(cached(6), tokens=3, drafts={"r0": (-1, -1)}))
    assert [seen.kind for seen in worker.observations] == ["placeholder-fed"]


def test_padding_of_a_step_that_begins_in_the_prefill_is_rejected():
    """The last token of a prompt, padded to the size of a step with drafts; they would be right."""
    worker = stub_v2(ONE, EAGLE)
    worker.execute(step(new_v2(R0, TABLE), tokens=5))
    worker.batch.requests["r0"].drafts = true(R0, 6, 8)
    execution = worker.execute(step(cached(5), tokens=3, drafts={"r0": (-1, -1)}))
    assert (execution.sampled, execution.observations) == ({"r0": true(R0, 6, 7)}, ())
    assert worker.batch.requests["r0"].computed == 6


def test_drafts_only_is_a_failure():
    worker, _ = drafting(2)
    with pytest.raises(RunnerFailure):
        worker.execute(step(cached(6), tokens=2, drafts={"r0": (-1, -1)}))
    assert [(seen.kind, seen.fails) for seen in worker.observations] == [("drafts-fill-step", True)]


@pytest.mark.parametrize(("count", "drafts"), [(2, 2), (1, 2)])
def test_up_to_0_28_drafts_only_is_a_breach(count, drafts):
    worker, _ = drafting(2, drafts_are_bounded=False)
    execution = worker.execute(step(cached(6), tokens=count, drafts={"r0": (-1,) * drafts}))
    assert breaches(execution) == ["drafts-fill-step"]


def test_more_drafts_than_there_are_is_a_breach_in_every_release():
    worker, _ = drafting(2)
    execution = worker.execute(step(cached(6), tokens=4, drafts={"r0": (-1, -1, -1)}))
    assert breaches(execution) == ["more-drafts-than-made"]


def test_padding_that_ends_in_the_prefill_is_not_fed():
    """Drafts that nobody made, but the prompt's own tokens stand in their place."""
    known = references(text(10))
    worker = stub_v2(known, EAGLE)
    worker.execute(step(new_v2(known["r0"], TABLE), tokens=4, skip_drafts=True))
    execution = worker.execute(step(cached(4), tokens=3, drafts={"r0": (-1, -1)}))
    assert (execution.sampled, execution.observations) == ({"r0": []}, ())


@pytest.mark.parametrize(("tables", "fails"), [(((1, 2),), True), (((1, 2), (3, 4), (5, 6)), False)])
def test_block_tables_for_another_number_of_groups(tables, fails):
    worker = stub_v2(ONE, WINDOW)
    if fails:
        with pytest.raises(RunnerFailure):
            worker.execute(step(new_v2(R0, *tables), tokens=6))
    else:
        assert worker.execute(step(new_v2(R0, *tables), tokens=6)).sampled == {"r0": true(R0, 6, 7)}


def test_async_counts_run_ahead():
    """The scheduler goes on as if both drafts were right; the device knows better, and all is well."""
    worker, reference = drafting(0, 2, engine=replace(EAGLE, async_scheduling=True))
    hopeful = {"r0": (-1, -1)}
    first = worker.execute(step(cached(6), tokens=3, drafts=hopeful))
    assert first.sampled == {"r0": true(reference, 7, 8)}
    second = worker.execute(step(cached(9), tokens=3, drafts=hopeful))
    assert (second.sampled, second.observations) == ({"r0": true(reference, 8, 11)}, ())


def ordered(*loads, tokens=0, rows=(), **rest):
    return dataclasses.replace(step(*rows, tokens=tokens), orders=Orders(loads=loads), **rest)


def test_a_load_that_fails_spoils_what_its_row_samples_and_is_told_when_that_is_done():
    worker = stub_v2(ONE, replace(ENGINE, connector=Connector()))
    load = LoadOrder("r0", 0, 4, ((1, 2),), False, 0, (1,))
    made = ordered(load, tokens=2, rows=(new_v2(R0, (1, 2), computed=4),))
    worker.forward(made)
    assert [seen.found for seen in worker.observations] == ["what a failed load left"]
    assert worker.mover.transfers == Transfers(invalid=frozenset({1}))
    assert worker.sample(made, {}) == {"r0": [wrong_token(R0.token(6))]}
    assert worker.mover.transfers.invalid == {1}


@pytest.mark.parametrize("tokens", [0, 6])
def test_an_asynchronous_load_is_over_with_the_step_but_not_before_its_samples(tokens):
    worker = stub_v2(references(text(6), text(8)), replace(ENGINE, connector=Connector()))
    load = LoadOrder("r1", 0, 4, ((3, 4),), True, 0, ())
    made = ordered(load, tokens=tokens, rows=(new_v2(R0, (1, 2)),) if tokens else (), loads_first=False)
    worker.forward(made)
    assert worker.mover.transfers.received == (() if tokens else ("r1",))
    worker.sample(made, {})
    assert worker.mover.transfers.received == ("r1",)

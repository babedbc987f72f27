"""The stub obeys the V1 runner's contract: what it needs it must find, what it meets it reports."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from harness.model import EOS, VOCABULARY, wrong_token
from harness.peers.orders import LoadOrder, Orders, SendOrder
from harness.scenario import Chunked, Connector, Encoder, Full, Grammar, Mamba, Request, Resized, Text
from harness.step import copy_step
from harness.verdict import HarnessError
from harness.worker import masks
from harness.worker.observation import (
    EncoderMiss,
    EncoderSize,
    KvMismatch,
    MaskMismatch,
    RunnerFailure,
    SentMismatch,
)
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
    new,
    picture,
    references,
    step,
    stub,
    text,
    true,
)

WINDOW = replace(ENGINE, sliding_window=3)
CHUNKED = replace(ENGINE, kv_cache_groups=(Chunked(4), Full()))
MAMBA = replace(ENGINE, kv_cache_groups=(Full(), Mamba()), enable_prefix_caching=False)
ACROSS = replace(ENGINE, encoder=Encoder(is_encoder_decoder=True))
RENAMED = references(
    picture(4, 4), Request(prompt=(Text(1, 0, 4), Resized(0, 6), Text(0, 4, 4)), max_tokens=4), images=(3,)
)
"""Two items of one name: r0's is 3 long, r1's 6."""


# -- target ------------------------------------------------------------------------------------


def test_a_prompt_and_a_decode():
    worker = stub(ONE)
    assert worker.execute(step(new(R0, TABLE), tokens=6)).sampled == {"r0": true(R0, 6, 7)}
    execution = worker.execute(step(cached(6, outputs=1), tokens=1))
    assert (execution.sampled, execution.observations) == ({"r0": true(R0, 7, 8)}, ())


def test_the_sample_of_an_unfinished_prefill_is_discarded():
    worker = stub(ONE)
    execution = worker.execute(step(new(R0, TABLE), tokens=4))
    assert (execution.sampled, execution.observations) == ({"r0": []}, ())
    assert worker.execute(step(cached(4), tokens=2)).sampled == {"r0": true(R0, 6, 7)}


def test_a_step_without_tokens_samples_nothing():
    worker = stub(ONE)
    worker.execute(step(new(R0, TABLE), tokens=6))
    assert worker.execute(step(finished=("r0",))).sampled == {}
    assert worker.batch.requests == {}


@pytest.mark.parametrize(
    ("faulty", "kinds"),
    [
        (step(new(R0, (1, 0)), tokens=6), ["write-null-block"]),
        (step(new(R0, (1,)), tokens=6), ["write-missing-block"]),
        (step(new(R0, (1, 2)), tokens=8), ["stale-token"]),
    ],
    ids=["null block", "missing block", "past what is known"],
)
def test_what_the_runner_does_silently_is_a_breach(faulty, kinds):
    assert breaches(stub(ONE).execute(faulty)) == kinds


@pytest.mark.parametrize("total", [5, 7])
def test_a_wrong_total_fails(total):
    worker = stub(ONE)
    with pytest.raises(RunnerFailure):
        worker.execute(step(new(R0, (1, 2)), tokens=6, total=total))
    assert [(seen.kind, seen.fails) for seen in worker.observations] == [("wrong-total", True)]


@pytest.mark.parametrize(
    ("gross", "kind"),
    [
        (step(new(R0, (1, 99)), tokens=6), "block-beyond-cache"),
        (step(new(R0, (1, 2)), tokens=6, encode={"r0": (0,)}), "unknown-encoder-input"),
        (step(new(R0, (1, 2)), tokens=6, encode={"r9": (0,)}), "unknown-encoder-input"),
        (step(new(R0, (1, 2)), tokens=6, zeroed=(16,)), "block-beyond-cache"),
        (step(new(R0), tokens=6), "tables-differ"),
    ],
)
def test_what_does_not_exist_fails(gross, kind):
    worker = stub(ONE)
    with pytest.raises(RunnerFailure):
        worker.execute(gross)
    assert [(seen.kind, seen.fails) for seen in worker.observations] == [(kind, True)]


def test_tables_of_groups_that_there_are_not_are_left_alone():
    worker = stub(ONE)
    worker.execute(step(new(R0, (1,), (7,)), tokens=4))
    execution = worker.execute(step(cached(4, (2,), (8,)), tokens=2))
    assert (execution.sampled, breaches(execution)) == ({"r0": true(R0, 6, 7)}, ["tables-differ"])


@pytest.mark.parametrize(
    ("computed", "table", "found"),
    [(4, (7, 6), "unwritten"), (4, (0, 6), "null block"), (4, (2, 6), "other content")],
)
def test_reads_what_a_prefix_hit_promises(computed, table, found):
    """r1 wrote block 2 with another text; nobody wrote block 7."""
    known = references(text(6), text(8, 1))
    worker = stub(known)
    worker.execute(step(new(known["r1"], (2, 3), request="r1"), tokens={"r1": 8}))
    execution = worker.execute(
        step(
            new(known["r0"], table, computed=computed),
            cached(8, (4,), request="r1", outputs=1),
            tokens={"r1": 1, "r0": 2},
        )
    )
    assert execution.observations == (KvMismatch("r0", 0, 0, table[0], found),)


def test_a_true_prefix_hit_is_right():
    known = references(text(8), text(8))
    worker = stub(known)
    worker.execute(step(new(known["r0"], (2, 3)), tokens=8))
    hit = step(new(known["r1"], (2, 5), request="r1", computed=4), tokens={"r1": 4}, finished=("r0",))
    assert worker.execute(hit).observations == ()


def test_every_request_writes_before_any_reads():
    """As layer by layer on the device: a block that another request writes in the same step is there."""
    known = references(text(8), text(8))
    rows = (new(known["r1"], (2, 5), request="r1", computed=4), new(known["r0"], (2, 3)))
    assert stub(known).execute(step(*rows, tokens={"r1": 4, "r0": 8})).observations == ()


@pytest.mark.parametrize(("lost", "seen"), [(0, []), (1, [(1, 6, "null block")])], ids=["outside", "inside"])
def test_a_sliding_window_reads_only_its_window(lost, seen):
    """Position 8 with a window of 3 attends to 6, 7 and itself; 6 and 7 lie in the second block."""
    known = references(text(9))
    worker = stub(known, WINDOW)
    worker.execute(step(new(known["r0"], (1, 2, 3), (4, 5, 6)), tokens=8))
    worker.batch.requests["r0"].tables[1][lost] = 0
    execution = worker.execute(step(cached(8), tokens=1))
    assert [(one.group, one.position, one.found) for one in execution.observations] == seen


def test_a_group_reads_its_own_blocks_only():
    known = references(text(9))
    worker = stub(known, WINDOW)
    worker.execute(step(new(known["r0"], (1, 2, 3), (4, 5, 6)), tokens=8))
    tables = worker.batch.requests["r0"].tables
    tables[1][1] = tables[0][1]
    assert [seen.group for seen in worker.execute(step(cached(8), tokens=1)).observations] == [1]


def test_a_sample_past_the_model_length_fails():
    known = references(text(32))
    worker = stub(known)
    with pytest.raises(RunnerFailure):
        worker.execute(step(new(known["r0"], tuple(range(1, 9))), tokens=32))
    assert [seen.kind for seen in worker.observations] == ["sampled-past-model-length"]


# -- encoder -----------------------------------------------------------------------------------


def whole(**rest):
    return step(new(PICTURE, TABLE), tokens=14, **rest)


def test_an_image_is_encoded_before_it_is_gathered():
    assert stub(SEEN).execute(whole(encode={"r0": (0,)})).observations == ()


def test_a_miss_of_the_target_fails():
    worker = stub(SEEN)
    with pytest.raises(RunnerFailure):
        worker.execute(whole())
    assert worker.observations == [EncoderMiss("r0", "image-0", "target", "never encoded")]


def test_a_free_takes_effect_before_the_gather_of_its_own_step():
    worker = stub(SEEN)
    worker.execute(step(new(PICTURE, TABLE), tokens=8, encode={"r0": (0,)}))
    with pytest.raises(RunnerFailure):
        worker.execute(step(cached(8), tokens=4, free=("image-0",)))
    assert worker.observations == [EncoderMiss("r0", "image-0", "target", "evicted")]


def test_an_image_may_be_freed_and_encoded_again_in_one_step():
    worker = stub(SEEN)
    worker.execute(step(new(PICTURE, TABLE), tokens=8, encode={"r0": (0,)}))
    again = step(cached(8), tokens=4, free=("image-0", "never heard of"), encode={"r0": (0,)})
    assert worker.execute(again).observations == ()


def test_no_image_in_the_window_no_lookup():
    worker = stub(SEEN)
    assert worker.execute(step(new(PICTURE, TABLE), tokens=4)).observations == ()


@pytest.mark.parametrize("lacks", ["nothing", "input", "data"])
def test_an_encoder_decoder_model_reads_what_the_first_step_encodes(lacks):
    """Per request: the same image encoded for another one is of no use. The runner looks for nothing."""
    known = references(picture(0, 4), picture(0, 4), images=(6,))
    worker = stub(known, ACROSS)
    worker.execute(step(new(known["r1"], TABLE, request="r1"), tokens={"r1": 10}, encode={"r1": (0,)}))
    row = dataclasses.replace(new(known["r0"], (5, 6, 7)), stripped=(0,) if lacks == "data" else ())
    execution = worker.execute(step(row, tokens=10, encode={} if lacks == "input" else {"r0": (0,)}))
    reasons = {"input": "never encoded", "data": "sent without the data that its encoder needs"}
    reason = reasons.get(lacks)
    missed = () if reason is None else (EncoderMiss("r0", "image-0", "target", reason, fails=False),)
    assert execution.observations == missed
    later = worker.execute(step(cached(10, outputs=1), tokens=1, free=("image-0",)))
    assert later.observations == ()


def with_shared_name(start, **traits):
    """A stub that holds three embeddings under the name of r1's item, [4, 10), and has computed r1 up to `start`."""
    worker = stub(RENAMED, **traits)
    worker.execute(step(new(RENAMED["r0"], (9, 10)), tokens=8, encode={"r0": (0,)}))
    worker.execute(step(new(RENAMED["r1"], TABLE, request="r1"), tokens={"r1": start}, finished=("r0",)))
    return worker


def test_an_output_of_another_length_is_read_as_far_as_it_goes():
    read = with_shared_name(4).execute(step(cached(4, request="r1"), tokens={"r1": 3}))
    assert read.observations == (EncoderSize("r1", "image-0", "target", 3, 6, past=False),)


@pytest.mark.parametrize(
    ("start", "tokens", "spreads", "fails"),
    [(4, 4, True, True), (6, 2, True, False), (6, 2, False, True), (7, 1, True, True)],
    ids=["three for four", "one for two", "one for two, up to 0.19", "none for one"],
)
def test_an_output_read_past_its_end_fails_or_spreads(start, tokens, spreads, fails):
    worker = with_shared_name(start, one_embedding_spreads=spreads)
    read = step(cached(start, request="r1"), tokens={"r1": tokens})
    if fails:
        with pytest.raises(RunnerFailure):
            worker.execute(read)
        found = tuple(worker.observations)
    else:
        found = worker.execute(read).observations
    assert found == (EncoderSize("r1", "image-0", "target", 3, 6, past=True),)


@pytest.mark.parametrize(
    ("tokens", "falls_back", "fails"),
    [
        (3, False, False),
        (3, True, False),
        (4, False, True),
        (4, True, False),
    ],
    ids=["one short, old", "one short, new", "look-ahead, to 0.23", "look-ahead, from 0.24"],
)
def test_the_drafter_looks_one_token_ahead(tokens, falls_back, fails):
    """[1, 1 + tokens) reaches the image at 4 with four tokens: an assertion up to 0.23, a fallback from 0.24."""
    worker = stub(SEEN, EAGLE, drafter_falls_back=falls_back)
    chunk = step(new(PICTURE, TABLE), tokens=tokens)
    if fails:
        with pytest.raises(RunnerFailure):
            worker.execute(chunk)
        assert worker.observations == [EncoderMiss("r0", "image-0", "drafter", "never encoded")]
    else:
        assert worker.execute(chunk).observations == ()


def test_ngram_does_not_look_ahead():
    assert (
        stub(SEEN, NGRAM, drafter_falls_back=False).execute(step(new(PICTURE, TABLE), tokens=4)).observations
        == ()
    )


# -- drafts ------------------------------------------------------------------------------------


def drafting(*acceptance, engine=EAGLE, length=6):
    """A worker whose r0 has just sampled its first token; the worker and the truth."""
    known = references(text(length, acceptance=acceptance))
    worker = stub(known, engine)
    worker.execute(step(new(known["r0"], tuple(range(1, 9))), tokens=length))
    return worker, known["r0"]


@pytest.mark.parametrize(
    ("acceptance", "right"),
    [((0,), 0), ((1,), 1), ((2,), 2), ((), 2)],
    ids=["none", "one", "all", "no script"],
)
def test_as_many_drafts_are_right_as_the_script_says(acceptance, right):
    worker, reference = drafting(*acceptance)
    truth = true(reference, 7, 9)
    [drafts] = worker.take_drafts().values()
    assert len(drafts) == len(truth)
    assert (
        [draft == token for draft, token in zip(drafts, truth, strict=True)].index(False) == right
        if right < 2
        else drafts == truth
    )


def test_the_script_cycles_over_drafting_steps():
    worker, reference = drafting(0, 2)
    rights = []
    at = 6
    for _ in range(4):
        [drafts] = worker.take_drafts().values()
        rights.append(sum(draft == reference.token(at + 1 + i) for i, draft in enumerate(drafts)))
        taken = step(cached(at, outputs=at - 5), tokens=3, drafts={"r0": tuple(drafts)})
        [sampled] = worker.execute(taken).sampled.values()
        assert sampled == true(reference, at + 1, at + 1 + len(sampled))
        assert len(sampled) == rights[-1] + 1, "right drafts are accepted, and one token is always sampled"
        at += len(sampled)
    assert rights == [0, 2, 0, 2]


def test_ngram_drafts_are_as_long_as_the_match():
    assert [len(drafting(n, engine=NGRAM)[0].take_drafts()["r0"]) for n in (0, 1, 2)] == [0, 2, 2]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("count", "drafts"), [(2, 2), (1, 2)])
def test_drafts_only_is_a_breach(asynchronous, count, drafts):
    """The runner samples from what lies before the request's tokens, and may raise."""
    worker, _ = drafting(2, engine=replace(EAGLE, async_scheduling=asynchronous))
    execution = worker.execute(step(cached(6, outputs=1), tokens=count, drafts={"r0": (-1,) * drafts}))
    assert breaches(execution) == ["drafts-fill-step"]


def test_async_more_drafts_than_were_made_is_a_breach():
    worker, reference = drafting(2, engine=replace(EAGLE, async_scheduling=True))
    execution = worker.execute(step(cached(6, outputs=1), tokens=4, drafts={"r0": (-1, -1, -1)}))
    assert (execution.sampled, breaches(execution)) == (
        {"r0": true(reference, 7, 10)},
        ["more-drafts-than-made"],
    )


def test_drafts_before_the_first_step_are_none():
    assert stub(ONE, EAGLE).take_drafts() is None


def test_an_unfinished_prefill_drafts_nothing_right():
    worker = stub(ONE, EAGLE)
    worker.execute(step(new(R0, TABLE), tokens=4))
    [drafts] = worker.take_drafts().values()
    assert not set(drafts) & set(true(R0, 4, 8))


@pytest.mark.parametrize(("length", "skipped"), [(30, False), (31, True)])
def test_the_drafter_is_skipped_where_the_longest_sequence_leaves_no_room(length, skipped):
    """32 positions, two drafts: after 31 tokens the second draft has none."""
    worker, _ = drafting(2, length=length)
    [drafts] = worker.take_drafts().values()
    assert (drafts == [0, 0]) is skipped


def test_a_skipped_drafter_gathers_nothing():
    """One sequence without room, and nobody's look-ahead is read."""
    known = references(picture(4, 4), text(31, 1), images=(6,))
    worker = stub(known, replace(EAGLE, num_gpu_blocks=32), drafter_falls_back=False)
    rows = (new(known["r0"], TABLE), new(known["r1"], tuple(range(5, 13)), request="r1"))
    assert worker.execute(step(*rows, tokens={"r0": 4, "r1": 31})).observations == ()


def test_async_rejected_drafts_are_forgotten():
    """The scheduler goes on as if both drafts were right; the device writes where it stopped, and all is well."""
    engine = replace(EAGLE, async_scheduling=True)
    worker, reference = drafting(0, 2, engine=engine)
    hopeful = {"r0": (-1, -1)}
    first = worker.execute(step(cached(6, outputs=1), tokens=3, drafts=hopeful))
    assert first.sampled == {"r0": true(reference, 7, 8)}
    second = worker.execute(step(cached(9, outputs=4), tokens=3, drafts=hopeful))
    assert (second.sampled, second.observations) == ({"r0": true(reference, 8, 11)}, ())


def test_what_a_connector_loads_is_there_before_anything_is_gathered():
    row = new(PICTURE, TABLE)
    loaded = dataclasses.replace(step(row, tokens=14), encoder_loads=("image-0",))
    assert stub(SEEN).execute(loaded).observations == ()


def test_what_a_connector_loads_is_dropped_as_anything_else():
    worker = stub(SEEN)
    worker.execute(dataclasses.replace(step(new(PICTURE, TABLE), tokens=6), encoder_loads=("image-0",)))
    later = dataclasses.replace(step(cached(6), tokens=8), freed_encoder=("image-0",))
    with pytest.raises(RunnerFailure):
        worker.execute(later)


# -- what the scheduler says about a request is taken at its word ---------------------------------------------


def test_a_prompt_that_is_not_the_client_s_is_fed_and_seen():
    row = new(R0, TABLE)
    changed = dataclasses.replace(row, prompt=(wrong_token(row.prompt[0]), *row.prompt[1:]))
    assert breaches(stub(ONE).execute(step(changed, tokens=6))) == ["stale-token"]


def test_items_that_are_not_the_client_s_are_seen():
    moved = dataclasses.replace(new(PICTURE, TABLE), items=((5, 6, "image-0"),))
    execution = stub(SEEN).execute(step(moved, tokens=14, encode={"r0": (0,)}))
    assert breaches(execution) == ["items-changed"]


@pytest.mark.parametrize("field", ["ec_manager_metadata"])
def test_what_no_worker_models_is_refused_and_not_forgiven(field):
    with pytest.raises(HarnessError, match=field):
        copy_step(SimpleNamespace(**{field: [1]}), 0, 0)


# -- grammars ----------------------------------------------------------------------------------

STRUCTURED = references(text(6, grammar=Grammar()))
S0 = STRUCTURED["r0"]
NEXT, AFTER, LATER = (S0.token(position) for position in (6, 7, 8))
OPEN = masks.words(VOCABULARY) * [-1]


def only(*tokens):
    """A row that allows these tokens."""
    row = np.zeros(masks.words(VOCABULARY), dtype=np.uint32)
    for token in tokens:
        row[token // 32] |= np.uint32(1 << token % 32)
    return row.view(np.int32)


@pytest.mark.parametrize(
    ("rows", "sampled", "found"),
    [
        ([only(NEXT)], NEXT, None),
        ([OPEN], NEXT, "allows every token"),
        ([only(NEXT, AFTER)], NEXT, "allows other tokens"),
        ([only(AFTER)], AFTER, "allows other tokens"),
        (None, NEXT, "missing"),
    ],
    ids=["right", "open", "too much", "another", "none"],
)
def test_a_mask_decides_what_is_sampled(rows, sampled, found):
    given = {} if rows is None else {"r0": np.array(rows, dtype=np.int32)}
    execution = stub(STRUCTURED).execute(step(new(S0, TABLE), tokens=6), given)
    assert execution.sampled == {"r0": [sampled]}
    assert execution.observations == (() if found is None else (MaskMismatch("r0", 0, 0, found),))


@pytest.mark.parametrize(
    ("drafts", "rows", "observations"),
    [
        ((AFTER, LATER), [only(AFTER), only(LATER), only(S0.token(9))], ()),
        ((AFTER, LATER), [only(AFTER), OPEN, OPEN], (MaskMismatch("r0", 2, 1, "allows every token"),)),
        ((AFTER, 5), [only(AFTER), only(LATER), OPEN], ()),
        ((5, LATER), [only(AFTER), OPEN, OPEN], ()),
    ],
    ids=["all right", "open after the first", "open after a rejection", "open after the first rejection"],
)
def test_rows_after_a_rejected_draft_do_not_matter(drafts, rows, observations):
    worker = stub(STRUCTURED, EAGLE)
    worker.execute(step(new(S0, TABLE), tokens=6), {"r0": np.array([only(NEXT)])})
    verified = step(cached(6, outputs=1), tokens=3, drafts={"r0": drafts})
    assert worker.execute(verified, {"r0": np.array(rows, dtype=np.int32)}).observations == observations


def test_past_the_end_of_the_output_no_mask_is_needed():
    known = references(text(6, eos_at=0, grammar=Grammar()))
    worker = stub(known)
    worker.execute(step(new(known["r0"], TABLE), tokens=6), {"r0": np.array([only(EOS)])})
    assert worker.execute(step(cached(6, outputs=1), tokens=1)).observations == ()


@pytest.mark.parametrize(("asynchronous", "told"), [(False, [True, True]), (True, [False, True])])
def test_with_asynchronous_scheduling_drafts_are_told_for_grammars_only(asynchronous, told):
    worker = stub(ONE, replace(EAGLE, async_scheduling=asynchronous))
    said = []
    for structured in (False, True):
        worker.execute(dataclasses.replace(step(new(R0, TABLE), tokens=6), structured=structured))
        said.append(worker.take_drafts() is not None)
        worker.execute(step(finished=("r0",)))
    assert said == told


# -- KV cache groups ---------------------------------------------------------------------------


def mismatches(execution):
    return [
        (seen.group, seen.position, seen.found)
        for seen in execution.observations
        if isinstance(seen, KvMismatch)
    ]


@pytest.mark.parametrize(
    ("computed", "local", "seen"),
    [(4, (0, 5), []), (5, (0, 5), [(0, 4, "unwritten")]), (5, (5, 0), [(0, 4, "null block")])],
    ids=["a chunk begins", "inside a chunk", "its block is null"],
)
def test_chunked_local_attention_reads_its_own_chunk_only(computed, local, seen):
    worker = stub(ONE, CHUNKED)
    worker.kv.write(1, worker.kv.slots(1, [1, 2], 0, 6), np.array(R0.contents[:6], dtype=np.uint64))
    assert mismatches(worker.execute(step(new(R0, local, (1, 2), computed=computed), tokens=1))) == seen


def test_a_state_goes_from_step_to_step():
    worker = stub(ONE, MAMBA)
    for faultless in (
        step(new(R0, (1, 2), (3,)), tokens=4),
        step(cached(4), tokens=2),
        step(cached(6, outputs=1), tokens=1),
    ):
        assert worker.execute(faultless).observations == ()


@pytest.mark.parametrize(
    ("state", "computed", "seen"),
    [
        ((3,), 0, []),
        ((3,), 4, []),
        ((3,), 3, [(1, 2, "other content")]),
        ((4,), 4, [(1, 3, "unwritten")]),
        ((0,), 4, [(1, 3, "null block")]),
        ((1,), 4, [(1, 3, "other content")]),
        ((), 4, [(1, 3, "missing block")]),
    ],
    ids=["anew", "where it stands", "behind it", "none", "the null block", "another group's", "no block"],
)
def test_a_state_stands_for_exactly_the_prefix_before_the_step(state, computed, seen):
    worker = stub(ONE, MAMBA)
    worker.execute(step(new(R0, (1, 2), (3,)), tokens=4))
    again = new(R0, (1, 2), state, computed=computed)
    found = mismatches(worker.execute(step(again, tokens=1, finished=("r0",))))
    assert [mismatch for mismatch in found if mismatch[0] == 1] == seen


def test_a_step_reads_every_state_before_it_writes_one():
    """Two requests with one state: the second must not find what the first has made of it."""
    two = references(text(6), text(6, 1))
    worker = stub(two, MAMBA)
    rows = [new(two["r0"], (1, 2), (3,)), new(two["r1"], (4, 5), (6,), request="r1")]
    worker.execute(step(*rows, tokens={"r0": 4, "r1": 4}))
    worker.batch.requests["r1"].tables[1] = [3]
    execution = worker.execute(step(cached(4), cached(4, request="r1"), tokens={"r0": 1, "r1": 1}))
    assert [seen.request for seen in execution.observations if isinstance(seen, KvMismatch)] == ["r1"]


def test_a_zeroed_block_is_empty_before_anything_is_read():
    worker = stub(ONE, MAMBA)
    worker.execute(step(new(R0, (1, 2), (3,)), tokens=4))
    assert mismatches(worker.execute(step(cached(4), tokens=1, zeroed=(3, 1)))) == [
        (1, 3, "unwritten"),
        (0, 0, "unwritten"),
    ]


# -- connector ----------------------------------------------------------------------------------

CONNECTED = replace(ENGINE, connector=Connector())


def ordered(*loads, tokens=0, rows=(), **rest):
    return dataclasses.replace(step(*rows, tokens=tokens), orders=Orders(loads=loads), **rest)


def test_a_step_without_metadata_fails_if_there_is_a_connector():
    worker = stub(ONE, CONNECTED)
    with pytest.raises(RunnerFailure):
        worker.execute(step())
    assert [seen.kind for seen in worker.observations] == ["no-connector-metadata"]


def test_a_synchronous_load_is_there_for_its_step_if_it_starts_first():
    load = LoadOrder("r0", 0, 4, ((1, 2),), False, 0, ())
    row = new(R0, (1, 2), computed=4)
    assert stub(ONE, CONNECTED).execute(ordered(load, tokens=2, rows=(row,))).observations == ()
    late = stub(ONE, CONNECTED).execute(ordered(load, tokens=2, rows=(row,), loads_first=False))
    assert [seen.found for seen in late.observations] == ["unwritten"]


def test_what_is_computed_from_a_failed_load_is_as_wrong_and_so_is_what_it_samples():
    """r1 attends to a block that r0 computes, in the same step, from what failed."""
    known = references(text(6), text(9))
    worker = stub(known, CONNECTED)
    load = LoadOrder("r0", 0, 4, ((1, 2),), False, 0, (1,))
    rows = (new(known["r0"], (1, 2), computed=4), new(known["r1"], (1, 3, 4), request="r1", computed=4))
    execution = worker.execute(ordered(load, tokens={"r0": 2, "r1": 5}, rows=rows))
    assert [(seen.request, seen.found) for seen in execution.observations] == [
        ("r0", "what a failed load left"),
        ("r1", "what a failed load left"),
    ]
    assert execution.sampled == {
        request: [wrong_token(known[request].token(end))] for request, end in (("r0", 6), ("r1", 9))
    }
    assert worker.mover.transfers.invalid == {1}
    assert worker.kv.is_spoiled(worker.kv.slots(0, [1, 2], 4, 6))


def test_a_send_finds_whether_its_blocks_still_hold_what_was_computed():
    worker = stub(ONE, CONNECTED)
    row = new(R0, (1, 2))
    send = SendOrder("r0", ((1, 2),), 6, 0)
    worker.execute(ordered(tokens=6, rows=(row,)))
    assert worker.execute(dataclasses.replace(step(), orders=Orders(sends=(send,)))).observations == ()
    worker.kv.spoil(worker.kv.slots(0, [1, 2], 5, 6))
    found = worker.execute(dataclasses.replace(step(), orders=Orders(sends=(send,)))).observations
    assert found == (SentMismatch("r0", 5, "what a failed load left"),)

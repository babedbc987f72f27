"""Drawing and changing streaming sessions."""

from random import Random

import pytest
from msgspec.structs import replace

from fuzz.edits import MAX_DELAY
from fuzz.sessions import change_chunk, hurry, insert_chunk, new_chunk, opened, with_inputs
from harness.repair import repair
from harness.scenario import (
    MAX_CHUNKS,
    MAX_EVENTS,
    Abort,
    Arrive,
    Close,
    Continue,
    Reset,
    Scenario,
    Speculative,
)
from scenarios import DIALOGUE, SMALL, more, scenario, session, text

TALK = scenario(SMALL, *DIALOGUE, events=(Arrive(0), Arrive(1), Continue(0), Continue(0, 12), Close(0, 12)))
DRAWS = range(300)


def test_a_request_is_opened_with_none_to_three_chunks():
    """Nothing else of it changes."""
    plain = text(9, 4, priority=2)
    made = [opened(Random(seed), plain, SMALL, stops=True) for seed in DRAWS]
    assert {len(one.chunks) for one in made} == {0, 1, 2, 3}
    assert all(replace(one, chunks=None) == plain for one in made)


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("speculative", [None, Speculative("eagle", 2)])
def test_a_chunk_stops_and_is_drafted_only_where_that_is_meant(stops, speculative):
    engine = replace(SMALL, speculative=speculative)
    made = [new_chunk(Random(seed), text(9, 4), engine, stops=stops) for seed in DRAWS]
    assert (
        any(one.eos_at is not None for one in made) is any(one.stop_at is not None for one in made) is stops
    )
    assert all(at is None or at < one.max_tokens for one in made for at in (one.eos_at, one.stop_at))
    scripts = {count for one in made for count in one.acceptance}
    assert scripts == (set() if speculative is None else {0, 1, 2})
    assert {one.prompt[0].length for one in made} == set(range(1, 9))  # blocks are of 4
    as_before = sum(one.max_tokens == 4 for one in made) / len(made)
    assert 0.65 < as_before < 0.85


def test_clients_send_in_order_after_the_arrival_and_close():
    requests = (session(9, 4, more(3, 4), more(3, 4)), text(6), session(3, 2))
    timeline = (Arrive(0), Arrive(1), Reset(2), Arrive(2), Abort(1, 3))
    places = set()
    for seed in DRAWS:
        events = with_inputs(Random(seed), timeline, requests)
        assert [event for event in events if event in timeline] == list(timeline)
        mine = [type(event) for event in events if getattr(event, "request", None) == 0]
        assert mine == [Arrive, Continue, Continue, Close]
        assert [type(event) for event in events if getattr(event, "request", None) == 2] == [Arrive, Close]
        assert len(events) == len(timeline) + 4
        places.add(next(at for at, event in enumerate(events) if isinstance(event, Continue)))
    assert places >= {1, 2, 3, 4, 5}


def test_a_timeline_ends_at_its_longest():
    full = (Arrive(0), *[Reset()] * (MAX_EVENTS - 1))
    assert len(with_inputs(Random(1), full, (session(9, 4, more(3, 4)),))) == MAX_EVENTS


def test_a_chunk_is_inserted_with_the_event_that_sends_it():
    """For a session, before its end; or for a request that becomes one."""
    became = 0
    for seed in DRAWS:
        made = insert_chunk(Random(seed), TALK)
        at = next(i for i in (0, 1) if made.requests[i] != TALK.requests[i])
        became += at
        before, after = TALK.requests[at].chunks or (), made.requests[at].chunks
        assert len(after) == len(before) + 1 and all(chunk in after for chunk in before)
        assert len(made.timeline) == len(TALK.timeline) + 1
        if at == 0:
            sent = [type(e) for e in made.timeline if e.request == 0]
            assert sent == [Arrive, Continue, Continue, Continue, Close]
    assert 20 < became < 80


def test_no_more_chunks_than_may_be():
    full = replace(TALK, requests=(replace(DIALOGUE[0], chunks=(more(1, 1),) * MAX_CHUNKS), DIALOGUE[1]))
    for seed in DRAWS:
        made = insert_chunk(Random(seed), full)
        assert max(len(one.chunks or ()) for one in made.requests) == MAX_CHUNKS


@pytest.mark.parametrize(
    "made",
    [
        Scenario(1, SMALL),
        replace(TALK, timeline=(*TALK.timeline, *[Reset()] * (MAX_EVENTS - len(TALK.timeline)))),
    ],
    ids=["nobody", "no room"],
)
def test_there_is_nothing_to_insert(made):
    assert insert_chunk(Random(1), made) == made


def test_one_field_of_one_chunk_changes_or_it_goes():
    fields = set()
    for seed in DRAWS:
        made = change_chunk(Random(seed), TALK)
        assert replace(made, requests=TALK.requests) == TALK and made.requests[1] == DIALOGUE[1]
        before, after = DIALOGUE[0].chunks, made.requests[0].chunks
        if len(after) < len(before):
            fields.add("none")
            continue
        changed = [
            (name, one)
            for one, other in zip(after, before, strict=True)
            for name in one.__struct_fields__
            if getattr(one, name) != getattr(other, name)
        ]
        assert len(changed) <= 1
        for name, one in changed:
            fields.add(name)
            assert one.max_tokens >= 1 and one.prompt[0].length >= 1
    assert fields == {"none", "prompt", "max_tokens", "eos_at", "stop_at", "acceptance"}


def test_an_input_hurries_or_is_late():
    delays = set()
    for seed in DRAWS:
        made = hurry(Random(seed), TALK)
        assert replace(made, timeline=TALK.timeline) == TALK
        for event, old in zip(made.timeline, TALK.timeline, strict=True):
            assert event == old or (
                isinstance(old, Continue | Close) and event == replace(old, delay=event.delay)
            )
            if event != old:
                delays.add(event.delay)
    assert delays == {0, 1, 2, 8, MAX_DELAY}
    plain = scenario(SMALL, text(5))
    assert hurry(Random(1), plain) == plain


@pytest.mark.parametrize("edit", [insert_chunk, change_chunk, hurry])
def test_the_same_draws_and_what_repair_makes_of_them(edit):
    for seed in range(50):
        made = edit(Random(seed), TALK)
        assert made == edit(Random(seed), TALK)
        assert repair(repair(made)) == repair(made)

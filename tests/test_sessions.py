"""Streaming sessions: what the turns of one are, what of them is legal, and how far a session is."""

from msgspec.structs import replace

from harness.codec import decode, encode
from harness.model import EOS
from harness.repair import repair
from harness.scenario import (
    MAX_EVENTS,
    Abort,
    Arrive,
    Chunk,
    Close,
    Connector,
    Continue,
    Grammar,
    Pause,
    Reset,
    Resume,
    Scenario,
    Text,
)
from harness.sessions import Session, all_turns, longest, turns
from harness.worker.device.answers import unified
from scenarios import DIALOGUE, SMALL, more, session, text


def repaired(*requests, events, engine=SMALL):
    return repair(Scenario(1, engine, (), requests, events))


def test_a_turn_begins_with_all_tokens_but_the_last_output():
    first, second, third = turns(Scenario(1, SMALL, (), DIALOGUE), 0)
    outputs, reason = first.expected_output()
    assert (len(outputs), reason) == (4, "length")
    assert second.tokens[:12] == first.tokens[:12]
    assert (second.prompt_length, third.prompt_length) == (15, 24)
    assert second.expected_output()[0] != outputs
    assert third.expected_output() == ([third.token(24), EOS], "stop")


def test_turns_do_not_share_what_they_learn():
    first, second, _ = turns(Scenario(1, SMALL, (), DIALOGUE), 0)
    token = second.token(20)
    first.token(30)
    assert second.token(20) == token


def test_a_session_is_parked_when_all_is_answered():
    state = Session(turns(Scenario(1, SMALL, (), DIALOGUE), 0), sent=2)
    assert (state.parked, state.turn) == (False, 0)
    state.done = 2
    assert (state.parked, state.turn) == (True, 1)


def test_repair_closes_every_session_that_is_open_at_the_end():
    three = (session(3, 2), session(3, 2), session(3, 2))
    events = (Arrive(0), Arrive(1), Arrive(2), Abort(1), Close(2), Pause())
    assert repaired(*three, events=events).timeline == (*events, Resume(), Close(0))


def test_repair_keeps_what_a_client_can_send():
    events = (Continue(0), Arrive(0), Continue(0), Close(0), Continue(0), Close(0), Abort(0))
    legal = repaired(session(3, 2, more(2, 2), more(2, 2)), events=events)
    assert legal.timeline == (Arrive(0), Continue(0), Close(0), Abort(0))
    assert len(legal.requests[0].chunks) == 1


def test_repair_drops_inputs_of_what_is_no_session():
    legal = repaired(text(3), events=(Arrive(0), Continue(0, 2), Close(0, 3), Reset(1)))
    assert legal.timeline == (Arrive(0), Reset(6))


def test_repair_leaves_room_for_the_ends_of_sessions():
    events = (Arrive(0), *[Reset()] * (MAX_EVENTS - 1))
    legal = repaired(session(3, 2), events=events)
    assert len(legal.timeline) == MAX_EVENTS and legal.timeline[-1] == Close(0)


def test_repair_fits_chunks_into_the_model_length():
    long = session(30, 8, more(20, 4), more(1, 1))
    events = (Arrive(0), Continue(0), Continue(0), Close(0))
    legal = repaired(long, events=events)
    assert [chunk.prompt[0].length for chunk in legal.requests[0].chunks] == [10]
    assert longest(legal.requests[0], ()) >= SMALL.max_model_len


def test_repair_lets_sessions_go_without_connector_and_grammar():
    chunks = (more(2, 2),)
    events = (Arrive(0), Continue(0), Close(0))
    connected = repaired(text(3, chunks=chunks), events=events, engine=replace(SMALL, connector=Connector()))
    assert connected.requests[0].chunks is None and connected.timeline == (Arrive(0),)
    assert repaired(text(3, chunks=chunks, grammar=Grammar()), events=events).requests[0].grammar is None


def test_chunks_are_written_and_read():
    made = repaired(*DIALOGUE, events=(Arrive(0), Continue(0, 3), Continue(0), Close(0)))
    assert decode(encode(made)) == made
    assert b'"chunks"' not in encode(repaired(text(3), events=(Arrive(0),)))


def test_one_script_for_each_prompt_of_all_turns():
    """Two sessions with the same inputs: the second is answered as the first."""
    one = session(9, 4, more(3, 4, eos_at=1), acceptance=(1,))
    other = session(9, 4, Chunk((Text(3, 0, 3),), 4, stop_at=2), eos_at=3)
    alike = unified(Scenario(1, SMALL, (), (one, other)))
    assert alike.requests[0] == one and alike.requests[1] == one
    assert list(all_turns(alike)) == ["r0, turn 0", "r0, turn 1", "r1, turn 0", "r1, turn 1"]

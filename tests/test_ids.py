"""Ids that clients use again, which front ends up to 0.13 take as they are."""

from random import Random

import pytest
from msgspec.structs import replace

from conftest import ask, need
from fuzz.edits import select_requests
from fuzz.ids import reuse_id
from harness import build
from harness.codec import validate
from harness.execute import execute
from harness.repair import repair
from harness.scenario import Abort, Arrive, Connector, Engine, Grammar, Request, Scenario, id_in
from scenarios import SMALL, scenario, session, text

EVENTS = (Arrive(0), Abort(0, 2), Arrive(1))
AGAIN = scenario(SMALL, text(5, 6), text(9, 4, 1, same_id_as=0), events=EVENTS)
"""The second request has the first one's id, and arrives right after its abort."""
IN_FLIGHT = replace(AGAIN, engine=replace(SMALL, async_scheduling=True))
GIVEN_TO_ANOTHER = "O8-wrong-token-14b7bfe8"


def test_both_have_one_id():
    assert [id_in(AGAIN, index) for index in range(2)] == ["r0", "r0"]


@pytest.mark.parametrize(
    "events",
    [
        (Arrive(0), Arrive(1)),
        (Arrive(0), Abort(0, 2, in_step=True), Arrive(1)),
        (Arrive(0), Arrive(1), Abort(0)),
    ],
    ids=["no abort", "perhaps not yet", "too early"],
)
def test_an_id_is_free_once_its_request_is_aborted(events):
    legal = repair(replace(AGAIN, timeline=events)).timeline
    assert Arrive(1) not in legal
    assert legal == tuple(event for event in events if event != Arrive(1))


def test_an_id_may_be_used_a_third_time_and_in_any_order():
    three = (text(5, 6), text(9, 4, 1, same_id_as=0), text(7, 4, 2, same_id_as=0))
    events = (Arrive(2), Abort(2), Arrive(0), Abort(0, 1), Arrive(1))
    validate(Scenario(1, SMALL, (), three, events))


@pytest.mark.parametrize(
    ("engine", "first", "second"),
    [
        (replace(SMALL, connector=Connector()), text(5), text(5, same_id_as=0)),
        (SMALL, text(5, grammar=Grammar()), text(5, same_id_as=0)),
        (SMALL, session(5, 3), text(5, same_id_as=0)),
        (SMALL, text(5, same_id_as=1), text(5)),
        (SMALL, text(5), text(5, same_id_as=1)),
        (SMALL, text(5), text(5, same_id_as=7)),
    ],
    ids=["connector", "grammar", "session", "mirrored", "itself", "nobody"],
)
def test_only_plain_requests_share_an_id(engine: Engine, first: Request, second: Request):
    made = repair(Scenario(1, engine, (), (first, second), EVENTS))
    mirrored = first.same_id_as == 1
    assert made.requests[1].same_id_as is None
    assert made.requests[0].same_id_as == (1 if mirrored else None)


def test_ids_follow_their_requests():
    swapped = select_requests(AGAIN, [1, 0])
    assert [request.same_id_as for request in swapped.requests] == [1, None]
    assert select_requests(replace(AGAIN, timeline=(Arrive(1),)), [1]).requests[0].same_id_as is None


def test_the_draw_is_legal_and_mostly_stays():
    plain = scenario(SMALL, text(5, 6), text(9, 4, 1), text(7, 4, 2))
    made = [repair(reuse_id(Random(seed), plain)) for seed in range(50)]
    for one in made:
        validate(one)
        assert sum(isinstance(event, Arrive) for event in one.timeline) == 3
        assert sum(request.same_id_as is not None for request in one.requests) == 1


@pytest.mark.usefixtures("vllm")
def test_a_front_end_that_makes_ids_unique_rejects_it():
    assert "adds something random" in (execute(AGAIN).rejected or "")


@pytest.mark.usefixtures("vllm")
def test_the_newest_scheduler_would_still_give_a_frame_to_another(monkeypatch):
    monkeypatch.setattr(build, "refuse_what_is_lacking", lambda _: None)
    assert execute(AGAIN).violations == ()
    assert [violation.fingerprint for violation in execute(IN_FLIGHT).violations][:1] == [GIVEN_TO_ANOTHER]


def test_where_clients_choose_ids_a_frame_is_given_to_another():
    need("0.13.0")
    shown = ask("0.13.0", (AGAIN, IN_FLIGHT)).shown
    assert [one.fingerprints for one in shown] == [[], [GIVEN_TO_ANOTHER]]

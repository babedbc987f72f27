"""O15 hears requests that wait for somebody's client."""

import pytest
from msgspec.structs import replace

from harness.execute import execute
from harness.oracles import ALL
from harness.oracles.starvation import Starvation
from harness.scenario import Arrive, Close
from oracles.faults import assert_quiet
from scenarios import SMALL, scenario, session, text

pytestmark = pytest.mark.usefixtures("vllm")

ALONE = replace(SMALL, max_num_seqs=1)
PARKED = scenario(ALONE, session(6, 2), text(6, 2, 1), events=(Arrive(0), Arrive(1, 8), Close(0, 12)))


def hazards(made):
    found = execute(made, dict.fromkeys(ALL)).violations
    return [violation.kind for violation in found if violation.oracle == "O15"]


def test_is_quiet_on_legal_scenarios(legal):
    assert_quiet(Starvation, legal)


def test_hears_who_waits_for_a_parked_session(vllm):
    counted = tuple(map(int, vllm.split(".")[:2])) >= (0, 25)  # before that, a parked session has no place
    assert hazards(PARKED) == ["held-up-by-parked-sessions"] * counted


def test_does_not_mind_where_there_is_room_or_the_client_comes_soon():
    assert hazards(replace(PARKED, engine=replace(ALONE, max_num_seqs=2))) == []
    soon = scenario(ALONE, session(6, 2), text(6, 2, 1), events=(Arrive(0), Arrive(1, 4), Close(0, 1)))
    assert hazards(soon) == []

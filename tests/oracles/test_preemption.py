"""O15 hears a preemption that gives nothing back."""

import pytest
from msgspec.structs import replace

from harness import planting
from harness.oracles.preemption import Preemption
from harness.scenario import Arrive, Connector, Load, Reset
from oracles.faults import assert_quiet, heard
from scenarios import TIGHT, scenario, text

pytestmark = pytest.mark.usefixtures("vllm")

FENCED = replace(TIGHT, async_scheduling=True, connector=Connector("kv_consumer"))
CROWD = scenario(FENCED, text(15, 24), text(14, 24, 1), text(13, 24, 2, load=Load(4, True)))
"""Twelve blocks for three requests of ten each, with a step in flight whenever blocks run out."""


def test_is_quiet_on_legal_scenarios(legal):
    assert_quiet(Preemption, legal)


def test_hears_a_victim_whose_blocks_are_fenced():
    assert heard(CROWD, Preemption) == []
    with planting.planted("49674"):
        assert heard(CROWD, Preemption) == [("O15", "preempted-in-vain", "Scheduler.schedule")]


def test_does_not_mind_where_nothing_is_fenced():
    free = replace(CROWD, engine=replace(FENCED, connector=None))
    with planting.planted("49674"):
        assert heard(free, Preemption) == []


def test_a_reset_preempts_and_means_it(monkeypatch):
    """With the bug mended for which such a reset raises (ledger derived-reset), or the execution would end there."""
    reset = replace(
        CROWD, requests=CROWD.requests[:1], timeline=(Arrive(0), Reset(5, reset_running_requests=True))
    )
    with planting.planted("mend-reset"):
        assert heard(reset, Preemption) == []
        monkeypatch.setattr(Preemption, "controlled", lambda oracle, act: None)
        assert heard(reset, Preemption) == [("O15", "preempted-in-vain", "Scheduler.schedule")]

"""O17 hears when blocks leave a transfer too early, and when hooks are called as their docstrings rule out."""

import pytest
from msgspec.structs import replace

from harness.execute import execute
from harness.oracles.connector import ConnectorProtocol
from harness.scenario import Abort, Arrive, Load
from oracles.faults import SCHEDULE, UPDATE, Fault, after, assert_heard, assert_quiet, faults
from scenarios import CONNECTED, RACE, scenario, text

pytestmark = pytest.mark.usefixtures("vllm")

ABORTED = scenario(
    CONNECTED,
    text(13, load=Load(10, True, 9)),
    text(9, 4, 1),
    events=(Arrive(0), Arrive(1), Abort(0, 2)),
)
"""r0 is aborted while its load is going on."""


def free_at_once(original, scheduler, request, delay_free_blocks=False):
    """Up to 0.15.1 (ledger 32255): the blocks of an aborted load go back to the pool."""
    return original(scheduler, request, delay_free_blocks=False)


def free_sent(scheduler, _):
    """The blocks of an ended request go, though the connector sends them."""
    for request in list(scheduler.requests.values()):
        if request.is_finished():
            scheduler.kv_cache_manager.free(request)


def give_loading_block(scheduler, _):
    """A block that is being loaded gets a second owner, whose step writes it."""
    table = scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks
    if {"r0", "r1"} <= table.keys():
        table["r1"][-1] = table["r0"][0]


def ask_for_more(original, connector, request, blocks, num_external_tokens):
    """The scheduler makes up a token."""
    return original(connector, request, blocks, num_external_tokens + bool(num_external_tokens))


FREED = (("load-destination-freed", "ended request"),)
FAULTS = {
    "an aborted load's blocks are freed": Fault("Scheduler._free_request", free_at_once, ABORTED, FREED),
    "a send's blocks are freed": Fault(
        UPDATE, after(free_sent), "connector_send", (("send-source-freed", "ended request"),)
    ),
    "a step writes what is being loaded": Fault(
        SCHEDULE,
        after(give_loading_block),
        "connector_async",
        (("load-destination-written", "Scheduler.schedule"),),
    ),
    "another number of tokens": Fault(
        "ScriptedConnector.update_state_after_alloc",
        ask_for_more,
        "connector_sync",
        (("other-tokens-than-answered", "update_state_after_alloc"),),
    ),
    "the end is not told": Fault(
        "Scheduler._connector_finished",
        lambda *_: (False, None),
        "connector_sync",
        (("finish-not-told", "request_finished"),),
    ),
}


def test_is_quiet_on_legal_scenarios(legal):
    assert_quiet(ConnectorProtocol, legal)


@faults(FAULTS)
def test_hears(monkeypatch, fault):
    assert_heard(monkeypatch, ConnectorProtocol, fault)


def test_hears_that_a_load_begins_in_a_block_that_a_step_in_flight_writes(monkeypatch):
    """Ledger 45357: blocks of a request that has ended while its next step is in flight, without a fence."""
    fault = Fault(
        "Scheduler._request_blocks_can_be_freed",
        lambda *_: True,
        RACE,
        (("load-into-block-in-flight", "BlockPool"),),
    )
    assert_heard(monkeypatch, ConnectorProtocol, fault)


def test_hears_that_a_failed_load_is_not_undone():
    """Ledger 34484, in 0.33.0 still: with asynchronous scheduling the next step is in flight already."""
    engine = replace(CONNECTED, async_scheduling=True)
    result = execute(scenario(engine, text(13, load=Load(10, failed=(1,)))))
    assert [(v.oracle, v.kind, v.anchor) for v in result.violations] == [
        ("O17", "failed-load-not-undone", "Scheduler._handle_invalid_blocks")
    ]

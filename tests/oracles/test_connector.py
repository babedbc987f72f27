"""O17 hears when blocks leave a transfer too early, and when hooks are called as their docstrings rule out."""

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from harness.execute import execute
from harness.oracles.connector import ConnectorProtocol
from harness.scenario import Abort, Arrive, Load
from oracles.faults import SCHEDULE, UPDATE, Fault, after, assert_heard, assert_quiet, before, faults, skipped
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


def zero_loading_block(_, output):
    """Up to 0.25.1 (ledger 45357-zero)."""
    if loads := output.kv_connector_metadata.orders.loads:
        output.new_block_ids_to_zero = [loads[0].tables[-1][0]]


def ask_for_more(original, connector, request, blocks, num_external_tokens):
    """The scheduler makes up a token."""
    return original(connector, request, blocks, num_external_tokens + bool(num_external_tokens))


def allocate_again(original, connector, request, blocks, num_external_tokens):
    """The hook is called once more while the load goes on."""
    original(connector, request, blocks, num_external_tokens)
    if num_external_tokens:
        original(connector, request, blocks, 0)


def lose_blocks(original, connector, request, blocks, num_external_tokens):
    """The hook gets one block, whatever is to be loaded."""
    ids = tuple(table[:1] for table in blocks.get_block_ids())
    original(connector, request, SimpleNamespace(get_block_ids=lambda: ids), num_external_tokens)


def end_twice(original, scheduler, *arguments, **keywords):
    original(scheduler, *arguments, **keywords)
    return original(scheduler, *arguments, **keywords)


def other_blocks(original, connector, request, block_ids):
    """What is sent are the request's blocks in another order."""
    return original(connector, request, [table[::-1] for table in block_ids])


def take_for_loaded(scheduler):
    """Up to the scheduler every load is over at once."""
    for request in scheduler.requests.values():
        if request.status.name == "WAITING_FOR_REMOTE_KVS":
            scheduler.finished_recving_kv_req_ids.add(request.request_id)


GONE = scenario(CONNECTED, text(13, 1, send=4), events=(Arrive(0), Abort(0, in_step=True)))
"""r0's client goes in the step that completes it."""
HOOK = "update_state_after_alloc"
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
    "a step zeroes what is being loaded": Fault(
        SCHEDULE,
        after(zero_loading_block),
        "connector_async",
        (("load-destination-zeroed", "SchedulerOutput.new_block_ids_to_zero"),),
    ),
    "another number of tokens": Fault(
        "ScriptedConnector.update_state_after_alloc",
        ask_for_more,
        "connector_sync",
        (("other-tokens-than-answered", "update_state_after_alloc"),),
    ),
    "a hook while a load goes on": Fault(
        f"ScriptedConnector.{HOOK}", allocate_again, "connector_async", (("allocated-while-loading", HOOK),)
    ),
    "blocks too few": Fault(
        f"ScriptedConnector.{HOOK}", lose_blocks, "connector_sync", (("blocks-missing", HOOK),)
    ),
    "blocks too few for an asynchronous load": Fault(
        f"ScriptedConnector.{HOOK}", lose_blocks, "connector_async", (("blocks-missing", HOOK),)
    ),
    "a load taken for done": Fault(
        SCHEDULE,
        before(take_for_loaded),
        "connector_async",
        (
            ("allocated-while-loading", HOOK),
            ("scheduled-while-loading", "Scheduler.schedule"),
            ("load-destination-written", "Scheduler.schedule"),
        ),
    ),
    "an end told twice": Fault(
        "Scheduler._connector_finished",
        end_twice,
        "connector_send",
        (("finished-twice", "request_finished"),),
    ),
    "other blocks sent": Fault(
        "ScriptedConnector.request_finished_all_groups",
        other_blocks,
        "connector_send",
        (("sent-other-content", "request_finished"),),
    ),
    "an abort during the step is not looked at": Fault(
        "EngineCoreProc._process_aborts_queue",
        skipped,
        GONE,
        (("completed-though-aborted", "_process_aborts_queue"),),
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

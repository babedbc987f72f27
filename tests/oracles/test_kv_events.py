"""O14 hears when a replay of the event stream would not know what the prefix cache holds."""

import pytest

from harness.oracles.kv_events import KvEvents
from oracles.faults import Fault, after, assert_heard, assert_quiet, faults

pytestmark = pytest.mark.usefixtures("vllm")

TAKE = "BlockPool.take_events"


def without(name):
    """Events of that name are lost."""
    return after(
        lambda _, events: events.__setitem__(slice(None), [e for e in events if type(e).__name__ != name])
    )


def removed_at_once(_, events):
    """What is stored is removed again, but for the block pool."""
    from vllm.distributed.kv_events import BlockRemoved

    for event in [e for e in events if type(e).__name__ == "BlockStored"]:
        events.append(BlockRemoved(event.block_hashes, event.medium, group_idx=event.group_idx))


FAULTS = {
    "a removal is lost": Fault(
        TAKE, without("BlockRemoved"), "events", (("stored-not-held", "KVEventBatch"),)
    ),
    "a block is not told": Fault(
        TAKE,
        without("BlockStored"),
        "events",
        (("held-untold", "KVEventBatch"),),
    ),
    "removed too early": Fault(
        TAKE, after(removed_at_once), "events", (("removed-while-held", "KVEventBatch"),)
    ),
}


def test_is_quiet_on_legal_scenarios(legal):
    assert_quiet(KvEvents, legal)


@faults(FAULTS)
def test_hears(monkeypatch, fault):
    assert_heard(monkeypatch, KvEvents, fault)

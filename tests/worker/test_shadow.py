"""The shadow memory: slots of a block table, what was written to them, and by which group."""

import numpy as np
import pytest

from harness.worker.shadow import KvShadow

TABLE = [3, 1]


@pytest.fixture
def memory():
    return KvShadow(num_blocks=8, sizes=(4, 4))


def contents(*values):
    return np.array(values, dtype=np.uint64)


@pytest.mark.parametrize(
    ("table", "start", "stop", "slots"),
    [
        (TABLE, 0, 4, [12, 13, 14, 15]),
        (TABLE, 3, 6, [15, 4, 5]),
        (TABLE, 7, 9, [7, -1]),
        (TABLE, 8, 13, [-1] * 5),
        ([], 0, 2, [-1, -1]),
        ([3, 0], 4, 6, [0, 1]),
        (TABLE, 2, 2, []),
    ],
    ids=["first block", "across blocks", "past the table", "beyond it", "no table", "null block", "nothing"],
)
def test_slots(memory, table, start, stop, slots):
    assert memory.slots(0, table, start, stop).tolist() == slots


def test_what_was_written_is_there(memory):
    slots = memory.slots(0, TABLE, 2, 6)
    memory.write(0, slots, contents(10, 11, 12, 13))
    assert memory.mismatches(0, slots, contents(10, 11, 12, 13)).tolist() == []
    assert memory.mismatches(0, slots, contents(10, 99, 12, 98)).tolist() == [1, 3]


def test_a_group_does_not_read_another_s_block(memory):
    slots = memory.slots(0, TABLE, 0, 2)
    memory.write(0, slots, contents(10, 11))
    assert memory.mismatches(1, slots, contents(10, 11)).tolist() == [0, 1]


def test_the_last_write_stays(memory):
    memory.write(0, np.array([5, 5]), contents(1, 2))
    assert memory.mismatches(0, np.array([5]), contents(2)).tolist() == []


def test_a_missing_entry_is_not_written(memory):
    memory.write(0, np.array([-1, 5]), contents(1, 2))
    assert np.flatnonzero(memory.contents).tolist() == [5]


def test_zeroed_blocks_hold_nothing(memory):
    memory.write(0, memory.slots(0, TABLE, 0, 8), contents(*range(1, 9)))
    memory.zero([1, 5])
    assert memory.mismatches(0, memory.slots(0, TABLE, 0, 8), contents(*range(1, 9))).tolist() == [4, 5, 6, 7]


def test_a_state_is_in_the_first_block(memory):
    assert memory.state(TABLE).tolist() == [12]
    assert memory.state([]).tolist() == [-1]


@pytest.mark.parametrize(
    ("slot", "found"),
    [(-1, "missing block"), (2, "null block"), (9, "unwritten"), (5, "other content")],
)
def test_a_wrong_slot_is_named(memory, slot, found):
    """The null block is wrong even if it holds the right thing: it is everybody's."""
    memory.write(0, np.array([5, 2]), contents(1, 7))
    assert memory.mismatches(0, np.array([slot]), contents(7)).tolist() == [0]
    assert memory.describe(slot) == found


def test_groups_address_blocks_by_their_own_sizes():
    mixed = KvShadow(num_blocks=4, sizes=(4, 2))
    assert mixed.slots(0, TABLE, 2, 6).tolist() == [14, 15, 4, 5]
    assert mixed.slots(1, TABLE, 1, 5).tolist() == [13, 4, 5, -1]


def test_a_copy_is_of_the_whole_block(memory):
    memory.write(0, memory.slots(0, [3], 0, 4), contents(1, 2, 3, 4))
    memory.copy_blocks([(3, 5), (2, 3)])
    assert memory.mismatches(0, memory.slots(0, [5], 0, 4), contents(1, 2, 3, 4)).tolist() == []
    assert memory.describe(12) == "unwritten"


def test_before_the_first_position_there_is_no_slot(memory):
    assert memory.slots(0, [7], -2, 2).tolist() == [-1, -1, 28, 29]
    assert memory.slots(0, [7], -2, 0).tolist() == [-1, -1]


def test_a_missing_block_is_not_spoiled(memory):
    """Slot -1 is nobody's, and not the last one of the cache."""
    memory.spoil(memory.slots(0, [7], 0, 4))
    assert memory.is_spoiled(memory.slots(0, [7], 3, 4))
    assert not memory.is_spoiled(memory.slots(0, [], 0, 4))

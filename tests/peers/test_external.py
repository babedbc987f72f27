"""The scheduler's side answers what the script says, orders what follows, and notes what vLLM does."""

import pytest

from harness.peers.external import External
from harness.peers.orders import LoadOrder, Transfers
from harness.scenario import Arrive, Connector, Engine, Load, Request, Scenario, Text

TABLE = ((5, 6, 7, 8),)


def external(load=None, send=None, **rest):
    engine = Engine(block_size=4, connector=Connector())
    request = Request((Text(0, 0, 14),), load=load, send=send)
    return External(Scenario(1, engine, (), (request,), (Arrive(0),)), **rest)


def kinds(outside):
    return [protest.kind for protest in outside.protests]


@pytest.mark.parametrize(("computed", "answer"), [(0, (10, True)), (8, (2, True)), (12, (0, False))])
def test_finds_what_is_beyond_the_local_hit(computed, answer):
    assert external(Load(10, True)).lookup("r0", computed, 14) == answer


def test_finds_nothing_without_a_script():
    assert external().lookup("r0", 4, 14) == (0, False)


def test_does_not_know_yet():
    outside = external(Load(10, undecided=2))
    assert [outside.lookup("r0", 0, 14)[0] for _ in range(3)] == [None, None, 10]
    assert outside.undecided


@pytest.mark.parametrize(("tokens", "total", "found"), [(10, 14, 8), (14, 14, 14), (14, 15, 12), (3, 14, 0)])
def test_loads_of_whole_blocks_end_with_a_block_or_with_the_request(tokens, total, found):
    outside = external(Load(tokens, True), whole_blocks=True)
    assert outside.lookup("r0", 0, total) == (found, found > 0)


def test_orders_a_load_once():
    outside = external(Load(10, True, 3, failed=(0, 1, 4)))
    outside.lookup("r0", 4, 14)
    outside.allocated("r0", TABLE, 6)
    (order,) = outside.orders().loads
    assert (order.start, order.stop, order.latency, order.failed) == (4, 10, 3, (6, 7))
    assert order.destinations((4,)) == {6, 7}
    assert outside.orders().loads == ()
    assert outside.loads == {"r0": order}
    outside.told(Transfers(received=("r0",)))
    assert outside.loads == {}


def test_only_the_first_load_fails():
    outside = external(Load(10, failed=(0,)))
    for _ in range(2):
        outside.lookup("r0", 0, 14)
        outside.allocated("r0", TABLE, 10)
    assert [order.failed for order in outside.orders().loads] == [(5,), ()]
    assert outside.loads == {}


def test_blocks_for_other_tokens_order_nothing():
    outside = external(Load(10))
    outside.lookup("r0", 0, 14)
    outside.allocated("r0", TABLE, 0)
    assert (outside.orders().loads, kinds(outside), outside.hits["r0"].stop) == ((), [], 0)


def test_protests():
    outside = external(Load(10, True))
    outside.lookup("r0", 0, 14)
    outside.allocated("r0", TABLE, 9)
    outside.lookup("r0", 0, 14)
    outside.allocated("r0", ((5,),), 10)
    outside.lookup("r0", 0, 14)
    outside.allocated("r0", TABLE, 10)
    outside.allocated("r0", TABLE, 0)
    outside.end("r0", TABLE, 0)
    outside.end("r0", TABLE, 0)
    assert kinds(outside) == [
        "other-tokens-than-answered",
        "blocks-missing",
        "allocated-while-loading",
        "finished-twice",
    ]


def test_sends_what_it_holds_unless_it_is_loading():
    outside = external(Load(10, True), send=2)
    assert not outside.end("r0", ((), ()), 13)
    outside = external(Load(10, True), send=2)
    outside.lookup("r0", 0, 14)
    outside.allocated("r0", TABLE, 10)
    assert not outside.end("r0", TABLE, 0)
    outside = external(send=2)
    assert outside.end("r0", TABLE, 13)
    (order,) = outside.orders().sends
    assert (order.tokens, order.latency, order.sources()) == (13, 2, {5, 6, 7, 8})


def test_lasts_as_long_as_the_script_says():
    outside = external(send=2)
    outside.end("r0", TABLE, 13)
    outside.started(outside.orders(), 7)
    assert [outside.lasts(iteration) for iteration in (7, 8, 9)] == [True, True, False]


def test_notes_who_holds_a_failed_block():
    outside = external()
    outside.taken(Transfers(invalid=frozenset({6})), [("r0", (5, 6)), ("r1", (7,))])
    assert outside.failed == {"r0"}


def test_a_state_has_one_block_which_a_load_writes_whole():
    load = LoadOrder("r0", 8, 10, ((5, 6, 7), (9,), (0, 0, 4)), True, 0, ())
    assert load.destinations((4, 512, 4)) == {7, 9, 4}

"""The worker's side moves what it is ordered to, when the script says so."""

from harness.peers.mover import Mover
from harness.peers.orders import NOTHING, LoadOrder, Orders, SendOrder, Transfers


class Memory:
    """Notes what moves."""

    def __init__(self) -> None:
        self.moved: list[str] = []

    def load(self, order):
        self.moved.append(f"load {order.request}")

    def send(self, order):
        self.moved.append(f"send {order.request}")


def load(asynchronous, latency=0, failed=()):
    return LoadOrder("r0", 0, 8, ((1, 2),), asynchronous, latency, failed)


def steps(mover, memory, orders, count):
    """(what has moved so far, what is reported) after each of `count` steps; the orders come with the first."""
    seen = []
    for now in range(count):
        mover.begin(now)
        mover.start(orders if now == 0 else Orders())
        report = mover.finish()
        seen.append((list(memory.moved), report))
    return seen


def mover():
    memory = Memory()
    return Mover(memory), memory


def test_a_synchronous_load_is_there_at_once_and_reports_nothing():
    assert steps(*mover(), Orders((load(False),)), 2) == [(["load r0"], NOTHING)] * 2


def test_an_asynchronous_load_is_there_and_reported_with_its_last_step():
    over = Transfers(received=("r0",))
    assert steps(*mover(), Orders((load(True, 2),)), 4) == [
        ([], NOTHING),
        ([], NOTHING),
        (["load r0"], over),
        (["load r0"], NOTHING),
    ]


def test_a_failure_is_reported_once_with_the_step_that_notices_it():
    assert [report for _, report in steps(*mover(), Orders((load(False, 0, (2,)),)), 2)] == [
        Transfers(invalid=frozenset({2})),
        NOTHING,
    ]
    assert [report for _, report in steps(*mover(), Orders((load(True, 1, (2,)),)), 2)] == [
        NOTHING,
        Transfers(received=("r0",), invalid=frozenset({2})),
    ]


def test_a_send_reads_at_its_end():
    orders = Orders(sends=(SendOrder("r0", ((1, 2),), 8, 1),))
    assert steps(*mover(), orders, 2) == [([], NOTHING), (["send r0"], Transfers(sent=("r0",)))]

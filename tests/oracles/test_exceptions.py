"""O1 hears what vLLM raises, by function and line, and nothing of what we raise ourselves."""

import pytest

from harness import build, submission
from harness.execute import execute
from harness.executor import Executor
from harness.oracles.exceptions import Exceptions
from harness.oracles.queues import Queues
from harness.verdict import HarnessError
from harness.worker.stub_v1 import StubV1
from oracles.faults import SCHEDULE, UPDATE, assert_quiet, before, heard, plant
from scenarios import LEGAL

pytestmark = pytest.mark.usefixtures("vllm")


def test_is_quiet_on_legal_scenarios(legal):
    assert_quiet(Exceptions, legal)


@pytest.mark.parametrize(
    ("where", "disturb", "anchor"),
    [
        (
            SCHEDULE,
            lambda scheduler: scheduler.kv_cache_manager.block_pool.get_new_blocks(1 << 20),
            "vllm.v1.core.block_pool:BlockPool.get_new_blocks:ValueError:raise ValueError(",
        ),
        (
            UPDATE,
            lambda scheduler: scheduler._preempt_request(next(iter(scheduler.waiting)), 0.0),
            "vllm.v1.core.sched.scheduler:Scheduler._preempt_request:AssertionError:"
            "assert request.status == RequestStatus.RUNNING, (",
        ),
    ],
    ids=["in schedule", "in update_from_output"],
)
def test_hears_what_vllm_raises(monkeypatch, where, disturb, anchor):
    plant(monkeypatch, where, before(disturb))
    [(oracle, kind, found)] = heard("abort_waiting", Exceptions)
    assert (oracle, kind) == ("O1", "exception")
    assert found.startswith(anchor)


def broken(*_):
    raise ValueError("ours")


@pytest.mark.parametrize(
    ("ours", "method"),
    [
        (StubV1, "_sample"),
        (Queues, "dispatched"),
        (Queues, "settled"),
        (submission, "request"),
    ],
    ids=["stub", "oracle in vLLM's call", "oracle after it", "our part of an arrival"],
)
def test_our_own_exceptions_are_no_findings(monkeypatch, ours, method):
    monkeypatch.setattr(ours, method, broken)
    with pytest.raises(HarnessError, match="ours"):
        execute(LEGAL["plain"])


def test_what_vllm_misses_in_our_executor_is_no_finding(monkeypatch):
    monkeypatch.delattr(Executor, "sample_tokens")
    with pytest.raises(HarnessError, match="sample_tokens"):
        execute(LEGAL["plain"])


def test_what_our_engine_core_lacks_is_no_finding(monkeypatch):
    make = build.engine_core

    def incomplete(*arguments):
        core = make(*arguments)
        del core.aborts_queue
        return core

    monkeypatch.setattr(build, "engine_core", incomplete)
    with pytest.raises(HarnessError, match="aborts_queue"):
        execute(LEGAL["plain"])

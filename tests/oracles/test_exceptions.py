"""O1 hears what vLLM raises, by function and line, and nothing of what we raise ourselves."""

import pytest

from harness.execute import execute
from harness.oracles.exceptions import Exceptions
from harness.scenario import Scenario
from harness.verdict import HarnessError
from harness.worker.stub_v1 import StubV1
from oracles.checks import assert_quiet
from scenarios import LEGAL


def test_is_quiet_on_legal_scenarios(legal):
    assert_quiet("O1", legal)


def test_hears_an_exception_out_of_the_scheduler(hear, plant):
    """Not a made-up error: vLLM's own bookkeeping trips over an entry that is gone."""

    def forget(schedule, scheduler, *rest):
        output = schedule(scheduler, *rest)
        for request in output.num_scheduled_tokens:
            scheduler.requests.pop(request)
        return output

    plant("Scheduler._make_cached_request_data", lambda original, self, *rest: original(self, *rest)[0:0])
    [violation] = hear(LEGAL["plain"], Exceptions)
    assert (violation.oracle, violation.kind) == ("O1", "exception")

"""The one pure call on which everything else is built: a scenario goes in, a verdict comes out.

`target.activate` must have put a vLLM on the path of this process; vLLM is imported at the first call.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from harness import build, compat
from harness.engine import Run
from harness.oracles import ALL, VISIBLE, Oracle
from harness.scenario import Scenario
from harness.trace import Trace
from harness.verdict import Verdict, Violation, verdict_of
from harness.worker.device.answers import unified
from harness.worker.device.support import cannot_run
from harness.worker.interface import Kind


@dataclass(frozen=True, slots=True)
class Result:
    """What an execution concluded. `violations` holds the first of each fingerprint, hazards included, in order."""

    verdict: Verdict
    violations: tuple[Violation, ...]
    trace: Trace
    steps: int
    rejected: str | None = None
    """vLLM's own words, if it refused the configuration; ours, if the worker cannot run the scenario."""


def execute(
    scenario: Scenario, oracles: Iterable[type[Oracle]] | None = None, worker: Kind = Kind.STUB
) -> Result:
    """Runs a scenario once. HarnessError for our own faults, which are never findings.

    Without a choice of oracles all speak, and those of `VISIBLE` on a device: the others would have to know more than a
    device tells. Workers but the stub need a target that was activated for a device's platform, and run
    `unified(scenario)`.
    """
    if worker is not Kind.STUB:
        if (reason := cannot_run(scenario)) is not None:
            return Result(Verdict.REJECTED, (), Trace(), 0, reason)
        scenario = unified(scenario)
    if oracles is None:
        oracles = VISIBLE if worker is Kind.DEVICE else ALL
    with compat.model_runner(scenario.engine.model_runner):
        try:
            run = Run(scenario, oracles, worker)
        except build.Rejected as refusal:
            return Result(Verdict.REJECTED, (), Trace(), 0, str(refusal))
        run.execute()
    violations = tuple(run.violations.values())
    return Result(verdict_of(list(violations)), violations, run.trace, run.steps)

"""Whether the stub is the runner: many scenarios in tandem, and a table of what came of it.

A disagreement is never a finding about vLLM. It says that the stub's contract, or the device's set-up, is wrong for
this release; its scenario is kept.
"""

import time
from collections import Counter
from pathlib import Path
from random import Random

import msgspec

from fuzz.corpus import write
from fuzz.generate import generate
from fuzz.mutate import mutate
from fuzz.uses import uses
from harness.codec import encode
from harness.execute import Result, execute
from harness.scenario import Scenario, content_hash
from harness.verdict import HarnessError
from harness.worker.interface import Kind
from harness.worker.tandem import Disagreement

MUTATED = 0.5
"""Half of the scenarios are generated, the rest are children of them: both are what campaigns execute."""


class Faithfulness(msgspec.Struct):
    """What a tandem run showed; `fidelity --json` prints it."""

    vllm: str
    device: str
    seed: int
    scenarios: int = 0
    steps: int = 0
    seconds: float = 0.0
    verdicts: dict[str, int] = msgspec.field(default_factory=dict)
    fingerprints: dict[str, int] = msgspec.field(default_factory=dict)
    """Scenarios that showed each finding or hazard: there the stub spoke, and the device did not contradict."""
    features: dict[str, int] = msgspec.field(default_factory=dict)
    """Scenarios that had each feature."""
    disagreements: list[str] = msgspec.field(default_factory=list)
    errors: list[str] = msgspec.field(default_factory=list)

    @property
    def ms_per_step(self) -> float:
        """Of the whole: scheduler, both workers, oracles, and making a runner for each scenario."""
        return 1000 * self.seconds / max(self.steps, 1)


def measure(report: Faithfulness, count: int, features: frozenset[str], keep: Path | None) -> Faithfulness:
    """Runs `count` scenarios in tandem; those with disagreements go to the folder `keep`."""
    rng = Random(report.seed)
    parent: Scenario | None = None
    tally: dict[str, Counter[str]] = {name: Counter() for name in ("verdicts", "fingerprints", "features")}
    began = time.monotonic()
    for _ in range(count):
        if parent is None or rng.random() >= MUTATED:
            scenario = generate(rng, features)
        else:
            scenario = mutate(rng, parent, features)[0]
        parent = scenario
        report.scenarios += 1
        tally["features"].update(uses(scenario))
        result = _run(scenario, report, keep)
        if result is not None:
            report.steps += result.steps
            tally["verdicts"][result.verdict.value] += 1
            tally["fingerprints"].update({violation.fingerprint for violation in result.violations})
    report.seconds = round(time.monotonic() - began, 1)
    report.verdicts, report.fingerprints, report.features = (
        dict(sorted(counter.items())) for counter in tally.values()
    )
    return report


def _run(scenario: Scenario, report: Faithfulness, keep: Path | None) -> Result | None:
    try:
        return execute(scenario, worker=Kind.TANDEM)
    except HarnessError as error:
        kind = report.disagreements if isinstance(error, Disagreement) else report.errors
        kind.append(f"{content_hash(scenario)}: {error}")
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            write(keep / f"{content_hash(scenario)}.json", encode(scenario))
        return None


def tell(report: Faithfulness) -> str:
    """The report for people."""
    lines = [
        f"vLLM {report.vllm} on {report.device}, seed {report.seed}: {report.scenarios} scenarios, "
        f"{report.steps} steps, {report.seconds:.0f} s ({report.ms_per_step:.1f} ms/step)",
        f"disagreements: {len(report.disagreements)}; other errors of our own: {len(report.errors)}",
    ]
    for title, counts in (
        ("verdicts", report.verdicts),
        ("features", report.features),
        ("findings and hazards", report.fingerprints),
    ):
        lines.append(f"{title}: " + ", ".join(f"{name} {count}" for name, count in counts.items()))
    return "\n".join(lines + report.disagreements + report.errors)

"""What one scenario shows, and whether it always shows the same."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from fuzz.corpus import shown
from harness.execute import execute
from harness.scenario import Scenario
from harness.target import Target
from harness.verdict import HarnessError, Level, Verdict, Violation
from harness.worker.interface import Kind

HASH_SEEDS = ("1", "2")
"""Of the processes that a determinism check starts; the command itself has 0."""


class Seen(msgspec.Struct, frozen=True):
    """A violation or hazard, as `replay --json` prints it."""

    fingerprint: str
    oracle: str
    kind: str
    level: str
    anchor: str
    message: str
    iteration: int


class Outcome(msgspec.Struct, frozen=True):
    """One file's replay. `violations` holds hazards, too."""

    file: str
    verdict: str
    violations: tuple[Seen, ...] = ()
    trace_hash: str = ""
    steps: int = 0
    note: str = ""
    """Why the scenario was rejected, or what went wrong with us."""


def outcome(file: Path, scenario: Scenario, worker: Kind = Kind.STUB) -> Outcome:
    """Runs a scenario once. A HarnessError is an outcome, too."""
    name = str(file).encode("utf-8", "backslashreplace").decode()
    try:
        result = execute(scenario, worker=worker)
    except HarnessError as error:
        return Outcome(name, Verdict.HARNESS_ERROR, note=str(error))
    return Outcome(
        name,
        result.verdict,
        tuple(map(_seen, result.violations)),
        result.trace.digest(),
        result.steps,
        result.rejected or "",
    )


def _seen(violation: Violation) -> Seen:
    return Seen(
        violation.fingerprint,
        violation.oracle,
        violation.kind,
        violation.level,
        violation.anchor,
        violation.message,
        violation.iteration,
    )


def line(one: Outcome) -> str:
    """An outcome for people."""
    lines = [f"{shown(one.file)}: {one.verdict}" + (f": {one.note}" if one.note else "")]
    for seen in one.violations:
        level = "" if seen.level == Level.VIOLATION else f" ({seen.level})"
        lines.append(f"  {seen.fingerprint}{level} at iteration {seen.iteration}: {seen.message}")
    if one.trace_hash:
        lines.append(f"  {one.steps} steps, trace {one.trace_hash[:16]}")
    return "\n".join(lines)


def check(
    outcomes: Sequence[Outcome], scenarios: Sequence[Scenario], files: Sequence[Path], target: Target
) -> list[str]:
    """Runs everything again: here, and in processes with other hash seeds. One line a file that differs.

    HarnessError if such a process fails.
    """
    expected = [one.trace_hash for one in outcomes]
    tries = {
        "again in the same process": [outcome(f, s).trace_hash for f, s in zip(files, scenarios, strict=True)]
    }
    for seed in HASH_SEEDS:
        command = [sys.executable, "-m", "fuzz.cli", "replay", "--json", *target.options, "--"]
        done = subprocess.run(
            command + [str(file) for file in files],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=False,
        )
        try:
            tries[f"with PYTHONHASHSEED={seed}"] = [one["trace_hash"] for one in json.loads(done.stdout)]
        except ValueError:
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no output"]
            raise HarnessError(f"the process for the determinism check failed: {last[0]}") from None
    return [
        f"{shown(file)}: not deterministic: {how} the trace is {found[:16]}, not {wanted[:16]}"
        for how, hashes in tries.items()
        for file, wanted, found in zip(files, expected, hashes, strict=True)
        if wanted != found
    ]

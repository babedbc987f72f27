"""From "a worker saw a violation" to what a person gets: confirmed, classified, shrunk, explained, with a test.

`finish` runs in a fresh process (fuzz/job.py) that has executed nothing else: that it sees the same fingerprint there,
without instrumentation, is the confirmation. A finding that does not come again is never reported as one: it goes to
`unconfirmed/`, as a fault of ours. The files of a finding appear by the rename of their folder.
"""

import shlex
import shutil
import time
from pathlib import Path

import msgspec
from msgspec.structs import replace

from fuzz.corpus import write
from fuzz.emit import emit, test_name
from fuzz.explain import explain
from fuzz.ledger import ids_for
from fuzz.session import Found
from fuzz.shrink import MAX_TRIES, shrink
from fuzz.uses import uses
from harness.codec import encode
from harness.execute import execute
from harness.scenario import Scenario
from harness.target import Target
from harness.verdict import HarnessError, Level, Violation

SHRINK_SECONDS = 20.0
"""Two to seven hundred tries of about 10 ms are typical."""


class Finding(msgspec.Struct, frozen=True):
    """`meta.json`, and an element of `run --json`'s findings. Paths are relative to the working directory."""

    fingerprint: str
    oracle: str
    kind: str
    level: str
    reachable: str
    """`engine`: today's engine loop gets there; `free`: only a freer interleaving within the contract does."""
    ledger: tuple[str, ...]
    executions_to_find: int
    seconds_to_find: float
    scenario: str
    minimal: str
    test: str
    message: str
    anchor: str
    shrink_tries: int
    shrink_stopped: str
    vllm: str = ""
    """What `--vllm` must say to see it again."""
    plant: str | None = None
    """What `--plant` must say."""


def seen(scenario: Scenario, fingerprint: str) -> Violation | None:
    """The violation of that fingerprint that an execution shows; None also when our own code fails on it."""
    try:
        result = execute(scenario)
    except HarnessError:
        return None
    return next((v for v in result.violations if v.fingerprint == fingerprint), None)


def first(scenario: Scenario) -> Violation | None:
    """The first violation that an execution shows, else the first hazard. HarnessError for our own faults."""
    found = execute(scenario).violations
    return min(found, key=lambda violation: violation.level is not Level.VIOLATION, default=None)


def minimise(scenario: Scenario, fingerprint: str, seconds: float) -> tuple[Scenario, int, str]:
    """The smallest scenario found within `seconds` that shows the fingerprint, tries, and why shrinking stopped."""
    end = time.monotonic() + seconds
    done = shrink(
        scenario,
        lambda candidate: seen(candidate, fingerprint) is not None,
        max_tries=MAX_TRIES,
        deadline=lambda: time.monotonic() > end,
    )
    return done.scenario, done.tries, done.stopped.value


def finish(out: Path, found: Found, target: Target, shrink_seconds: float = SHRINK_SECONDS) -> None:
    """Writes `findings/<fingerprint>/`, or `unconfirmed/<fingerprint>/` if the finding does not come again."""
    fingerprint, version = found.fingerprint, target.version
    if seen(found.scenario, fingerprint) is None:
        folder = out / "unconfirmed" / fingerprint
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / "scenario.json", encode(found.scenario))
        note = msgspec.json.format(msgspec.json.encode(found.violation), indent=1)
        write(folder / "meta.json", note + b"\n")
        return
    start, reachable = found.scenario, "engine"
    if start.engine.interleaving != "engine":
        tame = replace(start, engine=replace(start.engine, interleaving="engine"))
        if seen(tame, fingerprint):
            start = tame
        else:
            reachable = "free"
    minimal, tries, stopped = minimise(start, fingerprint, shrink_seconds)
    result = execute(minimal)
    violation = next(v for v in result.violations if v.fingerprint == fingerprint)
    ledger = ids_for(violation, version, uses(minimal))
    folder = out / "findings" / fingerprint
    draft = out / "work" / f"finding-{fingerprint}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    folder.parent.mkdir(exist_ok=True)
    name = f"{test_name(violation)}.py"
    meta = Finding(
        fingerprint=fingerprint,
        oracle=violation.oracle,
        kind=violation.kind,
        level=violation.level.value,
        reachable=reachable,
        ledger=ledger,
        executions_to_find=found.executions,
        seconds_to_find=round(found.seconds, 3),
        scenario=str(folder / "scenario.json"),
        minimal=str(folder / "minimal.json"),
        test=str(folder / name),
        message=violation.message,
        anchor=violation.anchor,
        shrink_tries=tries,
        shrink_stopped=stopped,
        vllm=target.spec,
        plant=target.plant,
    )
    (draft / "scenario.json").write_bytes(encode(found.scenario))
    (draft / "minimal.json").write_bytes(encode(minimal))
    told = explain(minimal, result, vllm=target.quoted, file=shlex.quote(meta.minimal))
    (draft / "explanation.txt").write_text(told, encoding="utf-8")
    (draft / name).write_text(emit(minimal, violation, vllm=target.label, ledger=ledger), encoding="utf-8")
    (draft / "meta.json").write_bytes(msgspec.json.format(msgspec.json.encode(meta), indent=1) + b"\n")
    draft.replace(folder)

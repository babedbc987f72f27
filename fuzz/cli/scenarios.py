"""Commands about single scenarios."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fuzz.cli.app import app
from fuzz.cli.targets import chosen_target
from fuzz.console import (
    BadInput,
    Console,
    Status,
    check_writable,
    complain,
    fix_hash_seed,
)
from fuzz.options import (
    AsJson,
    DeviceName,
    DeviceOption,
    One,
    PlantOption,
    RunnerOption,
    Vllm,
    WorkerName,
    WorkerOption,
)

if TYPE_CHECKING:
    from harness.scenario import Scenario
    from harness.target import Target
    from harness.verdict import Violation


@app.command()
def replay(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Scenarios (JSON).")],
    vllm: Vllm = None,
    plant: PlantOption = None,
    json: AsJson = False,
    check_determinism: Annotated[
        bool,
        typer.Option(
            "--check-determinism",
            help="Run each file twice here and once in two processes with other hash seeds, and compare the traces.",
        ),
    ] = False,
    worker: WorkerOption = WorkerName.STUB,
    device: DeviceOption = DeviceName.CPU,
    runner: RunnerOption = None,
) -> int:
    """Run scenarios once each and say what the oracles say. Hazards do not change the exit status.

    Example: schedfuzz replay out/first/findings/*/minimal.json --vllm 0.19.0
    """
    if check_determinism and worker is not WorkerName.STUB:
        raise BadInput("--check-determinism: compares runs of the stub; leave out --worker")
    if check_determinism and runner is not None:
        raise BadInput("--check-determinism: runs the files as they are; leave out --runner")
    fix_hash_seed()
    console = Console()
    from fuzz.campaign import warm
    from fuzz.corpus import read
    from fuzz.edits import with_runner
    from fuzz.replay import check, line, outcome
    from harness.target import Platform
    from harness.worker.interface import Kind

    scenarios = [with_runner(read(path), runner) for path in files]
    target = chosen_target(vllm, plant)
    kind = Kind(worker)
    warm(target, Platform.NONE if kind is Kind.STUB else Platform(device))
    outcomes = [outcome(path, scenario, kind) for path, scenario in zip(files, scenarios, strict=True)]
    different = check(outcomes, scenarios, files, target) if check_determinism else []
    if json:
        console.json(outcomes)
    else:
        for one in outcomes:
            console.print(line(one))
    for problem in different:
        complain(problem)
    if different or any(one.verdict == "harness-error" for one in outcomes):
        return Status.OUR_FAULT
    return Status.FINDINGS if any(one.verdict == "violation" for one in outcomes) else Status.CLEAN


@app.command()
def explain(file: One, vllm: Vllm = None, plant: PlantOption = None) -> int:
    """Tell step by step what a scenario makes vLLM do.

    Example: schedfuzz explain out/first/findings/O4-x/minimal.json --vllm 0.19.0
    """
    fix_hash_seed()
    console = Console()
    from shlex import quote

    from fuzz.corpus import shown
    from fuzz.explain import explain as tell

    scenario, target = _ready(file, vllm, plant)
    from harness.execute import execute

    result = execute(scenario)
    console.print(tell(scenario, result, vllm=target.quoted, file=quote(shown(file))).rstrip("\n"))
    return Status.FINDINGS if result.verdict == "violation" else Status.CLEAN


@app.command()
def shrink(
    file: One,
    output: Annotated[
        Path | None, typer.Option("-o", metavar="OUT", help="Where to write it (default: standard output).")
    ] = None,
    vllm: Vllm = None,
    plant: PlantOption = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Stop after so many seconds.")] = 60.0,
) -> int:
    """Shrink a scenario to the smallest that shows the same violation. Exit status 0 when that worked.

    Example: schedfuzz shrink found.json -o minimal.json --vllm 0.19.0
    """
    fix_hash_seed()
    console = Console()
    from fuzz.corpus import write
    from fuzz.finding import minimise
    from harness.codec import encode

    scenario, target = _ready(file, vllm, plant, output)
    fingerprint = _violation(file, scenario, target).fingerprint
    minimal, tries, stopped = minimise(scenario, fingerprint, seconds)
    if output is None:
        console.print(encode(minimal).decode().rstrip("\n"))
    else:
        write(output, encode(minimal))
    print(f"{fingerprint}: {tries} tries, ended by {stopped}", file=sys.stderr)
    return Status.CLEAN


@app.command()
def emit(
    file: One,
    output: Annotated[Path, typer.Option("-o", metavar="OUT", help="The pytest file to write.")],
    vllm: Vllm = None,
    plant: PlantOption = None,
) -> int:
    """Write a pytest case that fails where the scenario's violation is. Exit status 0 when that worked.

    Example: schedfuzz emit minimal.json -o tests/regressions/test_x.py --vllm 0.19.0
    """
    fix_hash_seed()
    Console()
    from fuzz.corpus import write
    from fuzz.emit import emit as source
    from fuzz.ledger import ids_for
    from fuzz.uses import uses

    scenario, target = _ready(file, vllm, plant, output)
    violation = _violation(file, scenario, target)
    ledger = ids_for(violation, target.version, uses(scenario))
    write(output, source(scenario, violation, vllm=target.label, ledger=ledger).encode())
    return Status.CLEAN


def _ready(
    file: Path, vllm: str | None, plant: str | None, output: Path | None = None
) -> tuple["Scenario", "Target"]:
    """The scenario, and the target, imported; everything that the user gave is checked first, cheapest first."""
    from fuzz.campaign import warm
    from fuzz.corpus import read

    scenario = read(file)
    if output is not None:
        check_writable(output)
    target = chosen_target(vllm, plant)
    warm(target)
    return scenario, target


def _violation(file: Path, scenario: "Scenario", target: "Target") -> "Violation":
    """What a scenario shows. BadInput if that is nothing."""
    from fuzz.corpus import shown
    from fuzz.finding import first

    violation = first(scenario)
    if violation is None:
        raise BadInput(
            f"{shown(file)}: shows no violation on vLLM {target.label}; give another scenario or --vllm"
        )
    return violation

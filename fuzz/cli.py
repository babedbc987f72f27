"""The command line. Decides what the user asked for, calls the part that does it, and prints the answer.

Exit statuses of all commands: 0 clean, 1 findings, 2 bad input, 3 a fault of our own. vLLM and everything heavy is
imported inside commands, so that `--help` answers at once.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fuzz.console import (
    BadInput,
    Console,
    Status,
    answer,
    check_writable,
    complain,
    first_free,
    fix_hash_seed,
    leave,
)
from fuzz.options import (
    AsJson,
    CorpusOption,
    EngineName,
    EngineOption,
    Executions,
    FeaturesOption,
    Hazards,
    One,
    Out,
    RunSeconds,
    Seed,
    TargetsAction,
    Vllm,
    Workers,
)

if TYPE_CHECKING:
    from harness.scenario import Scenario
    from harness.target import Target
    from harness.verdict import Violation

app = typer.Typer(
    name="schedfuzz",
    help="Finds, shrinks, explains and replays bugs in vLLM's V1 scheduler.\n\n"
    "Exit status: 0 clean, 1 findings, 2 bad input, 3 a fault of schedfuzz.\n\n"
    "Example: schedfuzz run --vllm 0.19.0 --seconds 60",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command()
def run(
    vllm: Vllm = None,
    seconds: RunSeconds = None,
    executions: Executions = None,
    workers: Workers = 1,
    engine: EngineOption = EngineName.ATHERIS,
    features: FeaturesOption = "all",
    seed: Seed = 0,
    corpus: CorpusOption = None,
    out: Out = None,
    hazards: Hazards = False,
    json: AsJson = False,
) -> int:
    """Fuzz a vLLM: find, confirm, shrink and explain violations.

    Example: schedfuzz run --vllm 0.19.0 --seconds 60 --seed 1 --out out/first
    """
    fix_hash_seed()
    console = Console()
    from fuzz.campaign import Campaign, Settings
    from fuzz.corpus import shown
    from fuzz.generate import parse_features
    from fuzz.progress import Progress
    from fuzz.report import tell
    from fuzz.session import Limits
    from harness.target import resolve

    try:
        chosen = parse_features(features)
    except ValueError as error:
        raise BadInput(f"--features: {error}") from None
    if seconds is None and executions is None:
        seconds = 60.0
    folder = out or first_free(Path("out"), "run")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{shown(folder)}: --out exists and is no empty folder; remove it or choose another")
    target = resolve(vllm, complain)
    progress = Progress(sys.stderr if json else console.out, folder / "stats.jsonl")
    settings = Settings(
        target=target,
        out=folder,
        engine=engine.value,
        seed=seed,
        workers=workers,
        limits=Limits(seconds, executions),
        features=chosen,
        corpus=corpus,
        hazards=hazards,
    )
    summary = Campaign(settings, progress).run()
    if json:
        console.json(summary)
    else:
        console.print(tell(summary, folder, target.spec))
    if any(finding.level == "violation" for finding in summary.findings):
        return Status.FINDINGS
    if summary.harness_errors:
        complain(f"{summary.harness_errors} errors of schedfuzz itself; see {shown(folder)}")
        return Status.OUR_FAULT
    return Status.FINDINGS if summary.findings else Status.CLEAN


@app.command()
def replay(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Scenarios (JSON).")],
    vllm: Vllm = None,
    json: AsJson = False,
    check_determinism: Annotated[
        bool,
        typer.Option(
            "--check-determinism",
            help="Run each file twice here and once in two processes with other hash seeds, and compare the traces.",
        ),
    ] = False,
) -> int:
    """Run scenarios once each and say what the oracles say. Hazards do not change the exit status.

    Example: schedfuzz replay out/first/findings/*/minimal.json --vllm 0.19.0
    """
    fix_hash_seed()
    console = Console()
    from fuzz.campaign import warm
    from fuzz.corpus import read
    from fuzz.replay import check, line, outcome
    from harness.target import resolve

    scenarios = [read(path) for path in files]
    target = resolve(vllm, complain)
    warm(target)
    outcomes = [outcome(path, scenario) for path, scenario in zip(files, scenarios, strict=True)]
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
def explain(file: One, vllm: Vllm = None) -> int:
    """Tell step by step what a scenario makes vLLM do.

    Example: schedfuzz explain out/first/findings/O4-x/minimal.json --vllm 0.19.0
    """
    fix_hash_seed()
    console = Console()
    from shlex import quote

    from fuzz.corpus import shown
    from fuzz.explain import explain as tell

    scenario, target = _ready(file, vllm)
    from harness.execute import execute

    result = execute(scenario)
    console.print(tell(scenario, result, vllm=quote(target.spec), file=quote(shown(file))).rstrip("\n"))
    return Status.FINDINGS if result.verdict == "violation" else Status.CLEAN


@app.command()
def shrink(
    file: One,
    output: Annotated[
        Path | None, typer.Option("-o", metavar="OUT", help="Where to write it (default: standard output).")
    ] = None,
    vllm: Vllm = None,
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

    scenario, target = _ready(file, vllm, output)
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
) -> int:
    """Write a pytest case that fails where the scenario's violation is. Exit status 0 when that worked.

    Example: schedfuzz emit minimal.json -o tests/regressions/test_x.py --vllm 0.19.0
    """
    fix_hash_seed()
    Console()
    from fuzz.corpus import write
    from fuzz.emit import emit as source
    from fuzz.ledger import ids_for

    scenario, target = _ready(file, vllm, output)
    violation = _violation(file, scenario, target)
    ledger = ids_for(violation, target.version)
    write(output, source(scenario, violation, vllm=target.version, ledger=ledger).encode())
    return Status.CLEAN


@app.command()
def targets(
    action: Annotated[TargetsAction, typer.Argument(help="What to do.")] = TargetsAction.LIST,
    versions: Annotated[
        list[str] | None, typer.Argument(metavar="[VERSION]...", help="Releases to fetch.")
    ] = None,
) -> int:
    """List the vLLM releases we support, or fetch some into the cache.

    Example: schedfuzz targets fetch 0.19.0 0.33.0
    """
    from harness.target import SUPPORTED, cache_dir, cached, fetch

    if action is TargetsAction.LIST:
        if versions:
            raise BadInput("targets list: takes no versions; did you mean: targets fetch")
        here = {target.version for target in cached()}
        print(f"cache: {cache_dir()}")
        for version in SUPPORTED:
            print(f"{version:10}{'in the cache' if version in here else 'not fetched'}")
        return Status.CLEAN
    if not versions:
        raise BadInput("targets fetch: no version given; see: schedfuzz targets list")
    unknown = [version for version in versions if version not in SUPPORTED]
    if unknown:
        raise BadInput(f"vLLM {unknown[0]} is not supported; choose one of: {' '.join(SUPPORTED)}")
    for version in versions:
        print(f"{version}: {fetch(version, complain, full=True)}")
    return Status.CLEAN


def _ready(file: Path, vllm: str | None, output: Path | None = None) -> tuple["Scenario", "Target"]:
    """The scenario, and the target, imported; everything that the user gave is checked first, cheapest first."""
    from fuzz.campaign import warm
    from fuzz.corpus import read
    from harness.target import resolve

    scenario = read(file)
    if output is not None:
        check_writable(output)
    target = resolve(vllm, complain)
    warm(target)
    return scenario, target


def _violation(file: Path, scenario: "Scenario", target: "Target") -> "Violation":
    """What a scenario shows. BadInput if that is nothing."""
    from fuzz.corpus import shown
    from fuzz.finding import first

    violation = first(scenario)
    if violation is None:
        raise BadInput(
            f"{shown(file)}: shows no violation on vLLM {target.version}; give another scenario or --vllm"
        )
    return violation


def main() -> None:
    """Entry point of the console script. Never shows a traceback for what the user gave."""
    leave(answer(lambda: app(standalone_mode=False)))


if __name__ == "__main__":
    main()

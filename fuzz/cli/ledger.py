"""The command that looks for known bugs."""

from pathlib import Path
from typing import Annotated

import typer

from fuzz.cli.app import app
from fuzz.console import BadInput, Console, Status, check_writable, first_free, fix_hash_seed
from fuzz.options import AsJson, EngineName, EngineOption, Out, Seed


@app.command()
def ledger(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Records to look for (default: all).")
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, help="Of a core, for fuzzing in each place at most.")
    ] = 600.0,
    engine: EngineOption = EngineName.ATHERIS,
    seed: Seed = 0,
    features: Annotated[
        str | None,
        typer.Option(
            "--features", metavar="a,b,...|all", help="Features to use instead of those that a record names."
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, max=64, help="Records to look for at a time.")] = 1,
    every: Annotated[
        bool,
        typer.Option("--every", help="Look in every place that a record names, not only until it is found."),
    ] = False,
    out: Out = None,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="Add results and proofs to those there (corpus/ledger)."),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="FILE",
            help="Write what --keep or our repository holds as a page, and look for nothing.",
        ),
    ] = None,
    json: AsJson = False,
) -> int:
    """Look for known bugs, on the releases that have them or planted into others, by fuzzing.

    Exit status 0 when all chosen records were found.

    Example: schedfuzz ledger 38907 45347 --seconds 60 --out out/ledger
    """
    fix_hash_seed()
    console = Console()
    from fuzz.corpus import write
    from fuzz.ledger import FOLDER, chosen
    from fuzz.ledger_report import keep as put
    from fuzz.ledger_report import line, page, results
    from fuzz.ledger_run import run
    from fuzz.restrict import parse_features

    try:
        wanted = chosen(ids or ())
        override = None if features is None else parse_features(features)
    except ValueError as error:
        raise BadInput(f"ledger: {error}") from None
    if report is not None:
        check_writable(report)
        write(report, page(results(keep or FOLDER)).encode())
        return Status.CLEAN
    folder = out or first_free(Path("out"), "ledger")
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for outcome in run(wanted, folder, engine.value, seed, seconds, override, jobs=jobs, every=every):
        outcomes.append(outcome)
        put(keep or folder, outcome, folder)
        if not json:
            console.print(line(outcome))
    if json:
        console.json(outcomes)
    else:
        console.print(
            f"{sum(one.found for one in outcomes)} of {len(outcomes)} found; everything is in {folder}"
        )
    return Status.CLEAN if all(one.found for one in outcomes) else Status.FINDINGS

"""Commands that fuzz."""

import sys
from pathlib import Path

from fuzz.cli.app import app
from fuzz.cli.targets import chosen_target
from fuzz.console import BadInput, Console, Status, complain, first_free, fix_hash_seed
from fuzz.options import (
    AsJson,
    CorpusOption,
    EngineName,
    EngineOption,
    Executions,
    FeaturesOption,
    Hazards,
    Out,
    PlantOption,
    RunSeconds,
    Seed,
    Vllm,
    Workers,
)


@app.command()
def run(
    vllm: Vllm = None,
    plant: PlantOption = None,
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
    from fuzz.progress import Progress
    from fuzz.report import tell
    from fuzz.restrict import parse_features
    from fuzz.session import Limits

    try:
        chosen = parse_features(features)
    except ValueError as error:
        raise BadInput(f"--features: {error}") from None
    if seconds is None and executions is None:
        seconds = 60.0
    folder = out or first_free(Path("out"), "run")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{shown(folder)}: --out exists and is no empty folder; remove it or choose another")
    target = chosen_target(vllm, plant)
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
        console.print(tell(summary, folder, target.quoted))
    if any(finding.level == "violation" for finding in summary.findings):
        return Status.FINDINGS
    if summary.harness_errors:
        complain(f"{summary.harness_errors} errors of schedfuzz itself; see {shown(folder)}")
        return Status.OUR_FAULT
    return Status.FINDINGS if summary.findings else Status.CLEAN

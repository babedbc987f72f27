"""Commands that run vLLM's own model runner."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fuzz.cli.app import app
from fuzz.console import BadInput, Console, Status, complain, fix_hash_seed
from fuzz.options import (
    AsJson,
    DeviceName,
    DeviceOption,
    FeaturesOption,
    RunnerOption,
    Seed,
    Vllm,
)


@app.command()
def confirm(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A campaign's folder, or one with scenarios (JSON).")
    ],
    vllm: Vllm = None,
    device: DeviceOption = DeviceName.CPU,
    runner: RunnerOption = None,
    json: AsJson = False,
) -> int:
    """Run findings on vLLM's own model runner and say what a client would have seen.

    A campaign's findings run on the vLLM that they were found on, unless --vllm names another, and each gets a
    device.json beside it. Exit status 1 if one is confirmed.

    Example: schedfuzz confirm out/first --vllm 0.19.0
    """
    fix_hash_seed()
    console = Console()
    from fuzz.campaign import warm
    from fuzz.confirm import Status as Seen
    from fuzz.confirm import confirm as judge
    from fuzz.confirm import found_on, found_with, line, suspects
    from fuzz.corpus import read
    from harness.target import Platform, resolve

    for path, _ in suspects(folder):
        read(path)
    target = resolve(vllm or found_on(folder), complain)
    if vllm is None:
        target = replace(target, plant=found_with(folder))
    warm(target, Platform(device))
    said = judge(folder, target, Platform(device), runner)
    if json:
        console.json(said)
    else:
        for one in said:
            console.print(line(one))
    return Status.FINDINGS if any(one.status == Seen.CONFIRMED for one in said) else Status.CLEAN


@app.command()
def fidelity(
    vllm: Vllm = None,
    executions: Annotated[int, typer.Option(min=1, help="Scenarios to run.")] = 2000,
    seed: Seed = 0,
    features: FeaturesOption = "all",
    device: DeviceOption = DeviceName.CPU,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where scenarios with disagreements go (default: nowhere)."),
    ] = None,
    json: AsJson = False,
) -> int:
    """Run stub and model runner side by side on many scenarios. Exit status 3 if they ever disagree.

    Example: schedfuzz fidelity --vllm 0.33.0 --executions 200
    """
    fix_hash_seed()
    console = Console()
    from fuzz.campaign import warm
    from fuzz.fidelity import Faithfulness, measure, tell
    from fuzz.restrict import parse_features
    from harness import presence
    from harness.target import Platform, resolve

    try:
        chosen = parse_features(features)
    except ValueError as error:
        raise BadInput(f"--features: {error}") from None
    target = resolve(vllm, complain)
    warm(target, Platform(device))
    chosen -= presence.lacking().keys()
    report = measure(Faithfulness(target.version, device.value, seed), executions, chosen, out)
    if json:
        console.json(report)
    else:
        console.print(tell(report))
    return Status.OUR_FAULT if report.disagreements or report.errors else Status.CLEAN

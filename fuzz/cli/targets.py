"""Commands about the cache of vLLM releases."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from fuzz.cli.app import app
from fuzz.console import BadInput, Console, Status, complain, fix_hash_seed
from fuzz.options import AsJson, TargetsAction

if TYPE_CHECKING:
    from harness.target import Target


def chosen_target(vllm: str | None, plant: str | None) -> "Target":
    """What `--vllm` and `--plant` mean together."""
    from harness.planting import find
    from harness.target import resolve

    if plant is not None:
        find(plant)
    return replace(resolve(vllm, complain), plant=plant)


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


@app.command()
def features(
    versions: Annotated[
        list[str] | None,
        typer.Argument(metavar="[VERSION]...", help="Releases or source trees (default: the newest)."),
    ] = None,
    json: AsJson = False,
) -> int:
    """Show which features of scenarios run on which release, with the stub and on vLLM's own model runner.

    Example: schedfuzz features 0.12.0 0.33.0
    """
    fix_hash_seed()
    console = Console()
    from fuzz.availability import table
    from harness.target import SUPPORTED, resolve

    found = table([resolve(version, complain) for version in versions or [SUPPORTED[-1]]])
    if json:
        console.json(found)
        return Status.CLEAN
    reasons: dict[str, None] = {}
    width = max(map(len, found)) + 1
    for feature, releases in found.items():
        cells = []
        for version, workers in releases.items():
            marks = "".join(mark if workers[worker] == "yes" else "-" for worker, mark in _MARKS)
            cells.append(f"{version} {marks}")
            for worker, _ in _MARKS:
                if workers[worker] != "yes":
                    reasons[f"{feature}, {version}, {worker}: {workers[worker]}"] = None
        console.print(f"{feature:{width}}" + "  ".join(cells))
    console.print("S: with the stub; D: on vLLM's own model runner; -: not")
    for reason in reasons:
        console.print(reason)
    return Status.CLEAN


@app.command()
def drift(
    spec: Annotated[
        str | None,
        typer.Argument(metavar="[SPEC]", help="A release or a source tree (default: the installed vLLM)."),
    ] = None,
    json: AsJson = False,
) -> int:
    """Show what a vLLM has otherwise than the newest release we support, of what schedfuzz relies on.

    Nothing is imported or run. Exit status 1 if there is anything: read what each line names before you trust a
    campaign on that vLLM. Older releases differ, too; what they do otherwise is known.

    Example: schedfuzz drift ../vllm
    """
    from harness.drift import drift as changes
    from harness.drift import snapshot
    from harness.target import resolve, root_of

    target = resolve(spec, complain)
    found = changes(root_of(target) / "vllm")
    if json:
        Console().json({"target": target.spec, "against": snapshot().version, "changes": found})
    else:
        for change in found:
            print(change)
        print(f"{target.spec}: {len(found) or 'no'} changes against vLLM {snapshot().version}")
    return Status.FINDINGS if found else Status.CLEAN


_MARKS = (("stub", "S"), ("device", "D"))

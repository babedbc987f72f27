"""Commands about the cache of vLLM releases."""

from typing import Annotated

import typer

from fuzz.cli.app import app
from fuzz.console import BadInput, Status, complain
from fuzz.options import TargetsAction


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

"""Options and arguments of the command line, each declared once with its help."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class EngineName(StrEnum):
    ATHERIS = "atheris"
    RANDOM = "random"


class WorkerName(StrEnum):
    STUB = "stub"
    DEVICE = "device"
    TANDEM = "tandem"


class DeviceName(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


class RunnerName(StrEnum):
    V1 = "v1"
    V2 = "v2"


class TargetsAction(StrEnum):
    LIST = "list"
    FETCH = "fetch"


Vllm = Annotated[
    str | None,
    typer.Option(
        "--vllm",
        metavar="SPEC",
        help="'installed', a release such as 0.19.0, or the path of a source tree. "
        "Default: the installed vLLM if there is one, else the newest release we support.",
    ),
]
PlantOption = Annotated[
    str | None,
    typer.Option(
        "--plant",
        metavar="ID",
        help="Plant a known bug, in memory, into this vLLM: the id of a ledger record (docs/ledger.md).",
    ),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON value on standard output, nothing else there.")
]
One = Annotated[Path, typer.Argument(metavar="FILE", help="A scenario (JSON).")]
RunSeconds = Annotated[
    float | None,
    typer.Option("--seconds", min=0.1, help="End after so many seconds of fuzzing (default: 60)."),
]
Executions = Annotated[int | None, typer.Option(min=1, help="End after so many executions.")]
Workers = Annotated[int, typer.Option(min=1, max=256, help="Processes that fuzz.")]
EngineOption = Annotated[EngineName, typer.Option("--engine", help="What chooses the scenarios.")]
FeaturesOption = Annotated[
    str, typer.Option("--features", metavar="a,b,...|all", help="Features of the scenario language to use.")
]
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seeds every random choice.")]
CorpusOption = Annotated[
    Path | None, typer.Option("--corpus", metavar="DIR", help="Scenarios to start from (default: none).")
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Empty or new folder for what is found (default: out/run-N)."),
]
Hazards = Annotated[bool, typer.Option("--hazards", help="Report hazards, too.")]
WorkerOption = Annotated[
    WorkerName,
    typer.Option(
        "--worker",
        help="What runs the steps: the stub, which says exactly what it met; vLLM's own model runner, which shows what "
        "a client would see; or both, which must agree.",
    ),
]
DeviceOption = Annotated[DeviceName, typer.Option("--device", help="Where vLLM's own model runner runs.")]
RunnerOption = Annotated[
    RunnerName | None,
    typer.Option(
        "--runner", help="Another of vLLM's model runners than the scenario says (v2 from 0.23 on)."
    ),
]

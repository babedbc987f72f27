"""What a finding looks like on a device: the same scenario on vLLM's own model runner, watched as a client watches.

Each one runs in a process of its own (fuzz/job.py), so that one that hangs or takes the device down with it ends
nothing else.
"""

import enum
import functools
import tempfile
from pathlib import Path

import msgspec

from fuzz.corpus import files, read, shown, write
from fuzz.edits import with_runner
from fuzz.finding import seen
from fuzz.job import Job
from harness.codec import ScenarioError
from harness.execute import execute
from harness.scenario import Scenario
from harness.target import Platform, Target
from harness.verdict import HarnessError, Verdict
from harness.worker.device.answers import unified
from harness.worker.interface import Kind

SECONDS = 120.0
"""A device needs 5 ms a step, and 20 s at most until its first (imports, CUDA's start)."""
ANSWER = "device.json"


class Status(enum.StrEnum):
    """What the device showed."""

    CONFIRMED = "confirmed on device"
    NOT_VISIBLE = "not visible on this device"
    NOT_SUPPORTED = "not supported"


class Confirmation(msgspec.Struct, frozen=True):
    """The content of `device.json`, and an element of `confirm --json`."""

    file: str
    fingerprint: str
    """Of the finding; empty if the file came without one."""
    status: str
    saw: str
    """What a client would have seen of this scenario, or why the device could not run it. Of a scenario that shows two
    bugs it is the first symptom, whichever bug it belongs to."""
    device: str
    vllm: str
    steps: int = 0


def suspects(folder: Path) -> list[tuple[Path, str]]:
    """The scenarios to confirm with their fingerprints: a campaign's findings, or the scenario files of a folder.

    ScenarioError if there are none.
    """
    findings = sorted((folder / "findings").glob("*/minimal.json")) or sorted(folder.glob("*/minimal.json"))
    if findings:
        return [(path, path.parent.name) for path in findings]
    if (folder / "minimal.json").is_file():
        return [(folder / "minimal.json", folder.resolve().name)]
    plain = [path for path in files(folder) if path.name != ANSWER]
    if not plain:
        raise ScenarioError(f"{shown(folder)}: no findings and no scenarios there; give a campaign's folder")
    return [(path, "") for path in plain]


def found_on(folder: Path) -> str | None:
    """The vLLM on which a campaign found what is in its folder, as `--vllm` names it; None if the folder does not
    say.
    """
    meta = _meta(folder)
    return meta.vllm if meta else None


def found_with(folder: Path) -> str | None:
    """The bug that was planted into the vLLM on which a campaign found what is in its folder."""
    meta = _meta(folder)
    return meta.plant if meta else None


class _Meta(msgspec.Struct, frozen=True):
    vllm: str
    plant: str | None = None


def _meta(folder: Path) -> _Meta | None:
    """Where a folder's findings come from, if all say so, and the same."""
    metas = set()
    for path, _ in suspects(folder):
        try:
            metas.add(msgspec.json.decode(path.with_name("meta.json").read_bytes(), type=_Meta))
        except (OSError, msgspec.MsgspecError):
            return None
    return metas.pop() if len(metas) == 1 else None


def judge(
    path: Path, fingerprint: str, scenario: Scenario, target: Target, platform: Platform
) -> Confirmation:
    """Runs the scenario on the device in this process. HarnessError for faults of our own."""
    answer = functools.partial(
        Confirmation, str(path), fingerprint, device=platform.value, vllm=target.version
    )
    changed = unified(scenario) != scenario
    if fingerprint and changed and seen(unified(scenario), fingerprint) is None:
        why = "requests with one prompt are scripted to get different answers, which no network gives"
        return answer(status=Status.NOT_SUPPORTED, saw=why)
    result = execute(scenario, worker=Kind.DEVICE)
    if result.verdict is Verdict.REJECTED:
        return answer(status=Status.NOT_SUPPORTED, saw=f"vLLM refuses: {result.rejected}")
    if not result.violations:
        saw = "all requests got the right tokens, once, and ended"
        return answer(status=Status.NOT_VISIBLE, saw=saw, steps=result.steps)
    first = result.violations[0]
    saw = f"{_SYMPTOM[first.oracle]}: {first.message}"
    return answer(status=Status.CONFIRMED, saw=saw, steps=result.steps)


_SYMPTOM = {"O1": "the engine dies", "O7": "a hang", "O8": "a wrong answer"}
"""By the family of VISIBLE that spoke."""


def confirm(
    folder: Path,
    target: Target,
    platform: Platform,
    model_runner: str | None = None,
    seconds: float = SECONDS,
) -> list[Confirmation]:
    """Judges everything in a folder, writes `device.json` beside each finding of a campaign.

    `model_runner` is another than the scenarios say.

    The target must be warm in this process. ScenarioError for what cannot be read, HarnessError if one ends otherwise.
    """
    chosen = [(path, fp, with_runner(read(path), model_runner)) for path, fp in suspects(folder)]
    return [_apart(path, fp, scenario, target, platform, seconds) for path, fp, scenario in chosen]


def _apart(
    path: Path, fingerprint: str, scenario: Scenario, target: Target, platform: Platform, seconds: float
) -> Confirmation:
    with tempfile.TemporaryDirectory(prefix="schedfuzz-confirm-") as work:
        answer = Path(work, ANSWER)

        def body() -> None:
            try:
                said = judge(path, fingerprint, scenario, target, platform)
            except HarnessError as error:
                answer.with_suffix(".error").write_text(str(error), encoding="utf-8")
                return
            answer.write_bytes(msgspec.json.encode(said))

        job = Job(body, Path(work, "log"), seconds)
        job.wait()
        if answer.with_suffix(".error").exists():
            raise HarnessError(f"{shown(path)}: {answer.with_suffix('.error').read_text(encoding='utf-8')}")
        if answer.exists():
            said = msgspec.json.decode(answer.read_bytes(), type=Confirmation)
        elif job.timed_out:
            saw = f"a hang: no answer within {seconds:.0f} s"
            said = Confirmation(str(path), fingerprint, Status.CONFIRMED, saw, platform, target.version)
        elif job.status is not None and job.status < 0:
            saw = f"the process dies: {job.why()}"
            said = Confirmation(str(path), fingerprint, Status.CONFIRMED, saw, platform, target.version)
        else:
            raise HarnessError(f"{shown(path)}: {job.why()}")
    if fingerprint:
        write(path.with_name(ANSWER), msgspec.json.format(msgspec.json.encode(said), indent=1) + b"\n")
    return said


def line(one: Confirmation) -> str:
    """A confirmation for people."""
    name = one.fingerprint or shown(one.file)
    return f"{name}: {one.status} ({one.device}, vLLM {one.vllm})\n  {one.saw}"

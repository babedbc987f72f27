"""From a folder to answers about its findings: what is judged, what is written, and what an end of the device means."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from fuzz import confirm
from fuzz.confirm import Confirmation, Status, found_on, suspects
from harness.codec import ScenarioError, encode
from harness.scenario import Scenario
from harness.target import Platform, Target
from harness.verdict import HarnessError
from scenarios import LEGAL
from test_cli import schedfuzz

PLAIN = encode(LEGAL["plain"])
TARGET = Target("0.33.0", "0.33.0", None)


def put(path: Path, content: bytes = PLAIN) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "folder", [".", "findings", "findings/O1-x"], ids=["campaign", "findings", "a finding"]
)
def test_findings_are_judged_under_their_fingerprints(tmp_path: Path, folder: str) -> None:
    """And nothing else of a campaign's folder: its corpus is no suspect, nor is an earlier answer."""
    finding = put(tmp_path / "findings" / "O1-x" / "minimal.json")
    put(finding.with_name("original.json"))
    put(finding.with_name("device.json"), b"{}")
    put(tmp_path / "corpus" / "0123.json")
    put(tmp_path / "progress.json", b"{}")
    assert suspects(tmp_path / folder) == [(finding, "O1-x")]


def test_a_folder_of_scenarios_is_judged_without_fingerprints(tmp_path: Path) -> None:
    files = [put(tmp_path / f"{name}.json") for name in "ab"]
    put(tmp_path / "device.json", b"{}")
    put(tmp_path / "notes.txt")
    assert suspects(tmp_path) == [(files[0], ""), (files[1], "")]


def test_an_empty_folder_has_nothing_to_judge(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="no findings and no scenarios"):
        suspects(tmp_path)


@pytest.mark.parametrize(
    ("metas", "vllm"),
    [
        ([b'{"vllm": "0.19.0"}', b'{"vllm": "0.19.0", "anchor": "x"}'], "0.19.0"),
        ([b'{"vllm": "0.19.0"}', b'{"vllm": "0.20.2"}'], None),
        ([b'{"vllm": "0.19.0"}', None], None),
        ([b'{"vllm": "0.19.0"}', b'{"anchor": "x"}'], None),
        ([b'{"vllm": "0.19.0"}', b'{"vllm'], None),
    ],
    ids=["all the same", "two", "a file is missing", "one does not say", "one is broken"],
)
def test_findings_say_which_vllm_they_were_found_on(
    tmp_path: Path, metas: list[bytes | None], vllm: str | None
) -> None:
    for name, meta in zip(("O1-x", "O8-y"), metas, strict=True):
        path = put(tmp_path / "findings" / name / "minimal.json")
        if meta is not None:
            put(path.with_name("meta.json"), meta)
    assert found_on(tmp_path) == vllm


def judged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, judge: Any, seconds: float = 60.0
) -> list[Confirmation]:
    """What `confirm` says where a judge of ours, in its process, takes the device's place."""
    monkeypatch.setattr(confirm, "judge", judge)
    return confirm.confirm(folder, TARGET, Platform.CPU, seconds=seconds)


def answered(
    path: Path, fingerprint: str, scenario: Scenario, target: Target, platform: Platform
) -> Confirmation:
    return Confirmation(
        str(path), fingerprint, Status.NOT_VISIBLE, "nothing", platform.value, target.version, 3
    )


def test_the_answer_about_a_finding_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [put(tmp_path / "findings" / name / "minimal.json") for name in ("O1-x", "O8-y")]
    said = judged(tmp_path, monkeypatch, answered)
    assert [one.fingerprint for one in said] == ["O1-x", "O8-y"]
    for path, one in zip(paths, said, strict=True):
        assert json.loads(path.with_name("device.json").read_bytes()) == {
            "file": str(path),
            "fingerprint": one.fingerprint,
            "status": "not visible on this device",
            "saw": "nothing",
            "device": "cpu",
            "vllm": "0.33.0",
            "steps": 3,
        }
    assert suspects(tmp_path) == [(paths[0], "O1-x"), (paths[1], "O8-y")]


def test_a_plain_folder_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "a.json")
    [said] = judged(tmp_path, monkeypatch, answered)
    assert (said.file, said.fingerprint) == (str(path), "")
    assert list(tmp_path.iterdir()) == [path]


def test_a_hang_and_a_crash_are_what_a_client_would_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in a process of its own, so that the next finding is judged all the same."""
    for name in ("O1-dies", "O7-hangs", "O8-fine"):
        put(tmp_path / "findings" / name / "minimal.json")

    def judge(path: Path, fingerprint: str, *rest: Any) -> Confirmation:
        if fingerprint == "O1-dies":
            os.kill(os.getpid(), signal.SIGKILL)
        while fingerprint == "O7-hangs":
            signal.pause()
        return answered(path, fingerprint, *rest)

    said = judged(tmp_path, monkeypatch, judge, seconds=5.0)
    assert [one.status for one in said] == [Status.CONFIRMED, Status.CONFIRMED, Status.NOT_VISIBLE]
    assert said[0].saw.startswith("the process dies: ") and "SIGKILL" in said[0].saw
    assert said[1].saw == "a hang: no answer within 5 s"
    assert all((path / "device.json").exists() for path in (tmp_path / "findings").iterdir())


@pytest.mark.parametrize(
    "error", [HarnessError("stub and device"), KeyError("stub and device")], ids=["known", "unknown"]
)
def test_faults_of_ours_are_no_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    path = put(tmp_path / "findings" / "O1-x" / "minimal.json")

    def judge(*_: Any) -> Confirmation:
        raise error

    with pytest.raises(HarnessError, match=f"{path}: .*stub and device"):
        judged(tmp_path, monkeypatch, judge)
    assert not path.with_name("device.json").exists()


# -- the front door; nothing here needs a vLLM -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["confirm", "."], "no findings and no scenarios"),
        (["confirm", "nowhere"], "nowhere"),
        (["confirm", "broken", "--vllm", "nowhere"], "broken/a.json"),
        (["confirm", ".", "--device", "tpu"], "tpu"),
        (["fidelity", "--features", "magic"], "magic"),
        (["fidelity", "--executions", "0"], "--executions"),
        (["replay", "broken/a.json", "--check-determinism", "--worker", "device"], "--check-determinism"),
        (["replay", "broken/a.json", "--worker", "both"], "both"),
        (["replay", "broken/a.json", "--runner", "v2", "--check-determinism"], "--runner"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_status_2(arguments: list[str], says: str, tmp_path: Path) -> None:
    put(tmp_path / "broken" / "a.json", b"{")
    done = schedfuzz(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("schedfuzz: ") and done.stderr.count("\n") == 1
    assert says in done.stderr


@pytest.mark.parametrize("command", ["confirm", "fidelity"])
def test_the_commands_have_an_example(command: str) -> None:
    done = schedfuzz(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Example: schedfuzz {command} " in done.stdout

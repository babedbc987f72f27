"""The front door of the device worker: what a user types, what comes out, and the exit status."""

import getpass
import json
import tempfile
from pathlib import Path

import pytest

from conftest import need
from harness.codec import encode
from harness.target import Target
from harness.worker.device.support import cannot_run
from scenarios import KNOWN_TRUE, LEGAL, LEGAL_V2, SAME_PROMPTS
from test_cli import schedfuzz

from .conftest import PLATFORM, on_cpu

pytestmark = pytest.mark.device

LOOK_AHEAD = Path(__file__).parents[2] / "corpus" / "regressions" / "drafter-reads-image-at-chunk-end.json"
DRAFTER_MISS = "O4-drafter-read-miss-aea77521"
CUT_DECODE = "O1-exception-bac762cf"


def campaign(folder: Path, **findings: bytes) -> Path:
    """A folder as `schedfuzz run` leaves it, as far as `confirm` reads it."""
    for fingerprint, minimal in findings.items():
        (folder / "findings" / fingerprint).mkdir(parents=True)
        (folder / "findings" / fingerprint / "minimal.json").write_bytes(minimal)
    return folder


@on_cpu
def test_a_confirmed_finding(tmp_path: Path) -> None:
    """On the vLLM that the campaign found it on."""
    need("0.19.0")
    folder = campaign(tmp_path, **{DRAFTER_MISS: LOOK_AHEAD.read_bytes()})
    (folder / "findings" / DRAFTER_MISS / "meta.json").write_text('{"vllm": "0.19.0"}')
    done = schedfuzz("confirm", folder)
    assert (done.returncode, done.stderr) == (1, "")
    name, saw = done.stdout.splitlines()
    assert name == f"{DRAFTER_MISS}: confirmed on device (cpu, vLLM 0.19.0)"
    assert "the engine dies" in saw and "Encoder cache miss" in saw
    said = json.loads((folder / "findings" / DRAFTER_MISS / "device.json").read_bytes())
    assert said["fingerprint"] == DRAFTER_MISS
    assert (said["status"], said["device"], said["vllm"]) == ("confirmed on device", "cpu", "0.19.0")
    assert said["saw"] == saw.strip()


def test_findings_that_no_client_sees(chosen: Target, tmp_path: Path) -> None:
    """The vLLM and the device under test; from 0.24 on the runner's drafter forgives."""
    folder = campaign(tmp_path, **{DRAFTER_MISS: LOOK_AHEAD.read_bytes(), CUT_DECODE: encode(SAME_PROMPTS)})
    done = schedfuzz("confirm", folder, "--vllm", chosen.spec, "--device", PLATFORM, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert {one["fingerprint"]: one["status"] for one in said} == {
        DRAFTER_MISS: "not visible on this device",
        CUT_DECODE: "not supported",
    }
    for one in said:
        assert json.loads(Path(one["file"]).with_name("device.json").read_bytes()) == one


@on_cpu
def test_nothing_is_left_among_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("0.33.0")
    kept = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(kept))  # torch's own, which takes long to fill
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert schedfuzz("replay", LOOK_AHEAD, "--worker", "device", "--vllm", "0.33.0").returncode == 0
    assert list(tmp_path.glob("schedfuzz-*")) == []


@on_cpu
def test_the_v2_runner_answers_as_the_reference_does(tmp_path: Path) -> None:
    need("0.33.0")
    for name, scenario in LEGAL.items():
        broken = any(f"{name}, V2" == known for known, _ in KNOWN_TRUE["0.33.0"])
        if cannot_run(scenario) is not None or f"{name}, V2" not in LEGAL_V2 or broken:
            continue
        (tmp_path / f"{name}.json").write_bytes(encode(scenario))
    options = ("--worker", "device", "--runner", "v2", "--vllm", "0.33.0")
    done = schedfuzz("replay", *tmp_path.iterdir(), *options, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert {one["verdict"] for one in json.loads(done.stdout)} == {"ok"}


def test_fidelity_counts_what_it_ran(chosen: Target, tmp_path: Path) -> None:
    options = ("--vllm", chosen.spec, "--device", PLATFORM, "--seed", "3", "--out", tmp_path)
    done = schedfuzz("fidelity", "--executions", "5", *options, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert (report["vllm"], report["device"], report["seed"]) == (chosen.version, PLATFORM, 3)
    assert (report["scenarios"], report["disagreements"], report["errors"]) == (5, [], [])
    assert sum(report["verdicts"].values()) == 5
    assert report["steps"] > 5 and report["seconds"] > 0
    assert report["features"] and max(report["features"].values()) <= 5
    assert list(tmp_path.iterdir()) == []

"""What a vLLM that we do not know has changed is told in words."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import need
from harness import drift, target

NEWEST = target.SUPPORTED[-1]


@pytest.fixture(scope="module")
def package() -> Path:
    try:
        target.check(NEWEST)
    except target.TargetError as error:
        pytest.skip(f"{error} (make test fetches what the tests need)")
    return target.root_of(target.resolve(NEWEST)) / "vllm"


@pytest.fixture
def changed(package: Path, tmp_path: Path) -> Path:
    """A copy, of what we rely on only."""
    for entry in drift.entries():
        copy = tmp_path / "vllm" / entry.file
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(package / entry.file, copy)
    return tmp_path / "vllm"


def edit(package: Path, file: str, before: str, after: str) -> None:
    path = package / file
    text = path.read_text()
    assert text.count(before) >= 1
    path.write_text(text.replace(before, after, 1))


def test_the_newest_release_is_the_one_that_we_know(package: Path) -> None:
    """Else run scripts/adopt.py, after everything that it would write has been read."""
    assert drift.snapshot() == drift.take(package, NEWEST)
    assert drift.drift(package) == []


def test_every_reason_names_files_that_there_are() -> None:
    root = Path(drift.__file__).parent.parent
    for entry in drift.entries():
        named = [word.strip(",:;") for word in entry.by.split() if "/" in word]
        assert all((root / name).exists() for name in named), entry.by


@pytest.mark.parametrize(
    ("file", "before", "after", "told"),
    [
        (
            "v1/core/sched/output.py",
            "    total_num_scheduled_tokens: int",
            "    total_num_scheduled_tokens: int\n    surprise: int = 0",
            "SchedulerOutput (v1/core/sched/output.py) has new fields: surprise; harness/step.py copies",
        ),
        (
            "v1/core/sched/scheduler.py",
            "def finish_requests(\n        self, request_ids:",
            "def finish_requests(\n        self, ids:",
            "Scheduler.finish_requests (v1/core/sched/scheduler.py) has no parameters request_ids any more and has new "
            "parameters: ids; ",
        ),
        (
            "v1/engine/core.py",
            "def post_step(",
            "def after_step(",
            "EngineCore.post_step (v1/engine/core.py) is gone; ",
        ),
        (
            "v1/worker/mamba_utils.py",
            "curr_state_idx = num_blocks - 1 - num_speculative_blocks",
            "curr_state_idx = num_blocks - 1",
            "preprocess_mamba (v1/worker/mamba_utils.py) has other code; harness/worker/states.py",
        ),
    ],
    ids=["field", "parameter", "gone", "body"],
)
def test_a_change_is_a_sentence(changed: Path, file: str, before: str, after: str, told: str) -> None:
    edit(changed, file, before, after)
    (sentence,) = drift.drift(changed)
    assert sentence.startswith(told)


def test_comments_and_docstrings_are_no_change(changed: Path) -> None:
    edit(
        changed,
        "v1/worker/mamba_utils.py",
        '"""Copy the mamba state',
        '"""Another text, copy the mamba state',
    )
    edit(changed, "v1/engine/core.py", "def post_step(", "# a comment\n    def post_step(")
    assert drift.drift(changed) == []


def test_what_cannot_be_read_is_gone(changed: Path) -> None:
    (changed / "v1/request.py").write_text("class Request(:\n")
    (changed / "config/kv_transfer.py").unlink()
    assert [sentence.split(";")[0] for sentence in drift.drift(changed)] == [
        "Request.__init__ (v1/request.py) is gone",
        "Request (v1/request.py) is gone",
        "RequestStatus (v1/request.py) is gone",
        "KVTransferConfig (config/kv_transfer.py) is gone",
    ]


@pytest.mark.usefixtures("package")
def test_the_command_tells_and_its_status_says_whether_there_is_anything() -> None:
    def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fuzz.cli", "drift", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    same = ran(NEWEST)
    assert (same.returncode, same.stdout) == (0, f"{NEWEST}: no changes against vLLM {NEWEST}\n")
    need("0.24.0")
    other = ran("0.24.0", "--json")
    assert other.returncode == 1, other.stderr
    told = json.loads(other.stdout)
    assert told["against"] == NEWEST
    assert len(told["changes"]) > 10


def test_the_command_says_what_it_cannot_read() -> None:
    command = [sys.executable, "-m", "fuzz.cli", "drift", "0.0.1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "0.0.1" in done.stderr

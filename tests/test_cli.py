"""The front door: what a user types, what comes out on which channel, and the exit status."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harness.codec import encode
from harness.scenario import Arrive, Request, Scenario
from harness.target import SUPPORTED, Target, TargetError, fetch, resolve

COMMANDS = (
    "run",
    "ledger",
    "replay",
    "explain",
    "shrink",
    "emit",
    "confirm",
    "fidelity",
    "targets",
    "features",
)
SCENARIO = Scenario(format=1, requests=(Request(max_tokens=3),), timeline=(Arrive(0),))


def schedfuzz(*arguments: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> Any:
    return subprocess.run(
        [sys.executable, "-m", "fuzz.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, "PYTHONHASHSEED": "0", "COLUMNS": "100", **(env or {})},
    )


@pytest.fixture(scope="module")
def old() -> Target:
    try:
        return Target("0.19.0", "0.19.0", fetch("0.19.0"))
    except TargetError as error:
        pytest.skip(f"vLLM 0.19.0 is not in the cache and cannot be fetched: {error}")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example(command: str) -> None:
    done = schedfuzz(command, "--help")
    assert done.returncode == 0
    assert f"Example: schedfuzz {command} " in done.stdout
    assert not done.stderr


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    began = time.monotonic()
    done = schedfuzz("--help")
    assert time.monotonic() - began < 1.5, "0.2 s on an idle machine"
    assert all(command in done.stdout for command in COMMANDS)
    code = (
        "import fuzz.cli, sys; print([m for m in ('torch', 'vllm', 'atheris', 'numpy') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


GOOD: dict[str, Any] = json.loads(encode(SCENARIO))


def changed(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


def request(**changes: Any) -> bytes:
    return changed(requests=[{**GOOD["requests"][0], **changes}])


BROKEN: dict[str, bytes | Callable[[Path], object]] = {
    "empty": b"",
    "blank": b" \n\t\n",
    "truncated": encode(SCENARIO)[:-20],
    "truncated at one byte": b"{",
    "truncated in a string": b'{"form',
    "null": b"null",
    "a number": b"17",
    "a string": b'"scenario"',
    "a list": b"[]",
    "no object members": b"{}",
    "text": b"this is not JSON",
    "several lines of text": b"one\ntwo\nthree\n",
    "python": b"{'format': 1}",
    "a comment": b'{"format": 1} // done',
    "two values": b'{"format": 1}{"format": 1}',
    "trailing comma": b'{"format": 1,}',
    "NaN": b'{"format": NaN}',
    "yaml": b"format: 1\n",
    "pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07bui\x94.",
    "gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\x56",
    "zero bytes": b"\x00" * 100,
    "control characters": b'{"format": 1, "engine": "\x1b[31m\x07"}',
    "utf-16": encode(SCENARIO).decode().encode("utf-16"),
    "utf-16 without mark": encode(SCENARIO).decode().encode("utf-16-le"),
    "utf-32": encode(SCENARIO).decode().encode("utf-32"),
    "utf-8 with mark": b"\xef\xbb\xbf" + encode(SCENARIO),
    "latin-1 in a string": b'{"format": 1, "engine": {"policy": "f\xe9fs"}}',
    "invalid utf-8": b'{"format": 1, "\xff\xfe": 2}',
    "deep lists": b"[" * 100_000,
    "deep objects": b'{"format":' * 5_000 + b"1" + b"}" * 5_000,
    "deep inside": changed(engine=json.loads("[" * 40 + "]" * 40)),
    "huge": b" " * (2 << 20),
    "huge number": b'{"format": ' + b"9" * 5_000 + b"}",
    "huge exponent": b'{"format": 1e999999}',
    "format of tomorrow": changed(format=2),
    "format as text": changed(format="1"),
    "format missing": json.dumps({k: v for k, v in GOOD.items() if k != "format"}).encode(),
    "unknown field": changed(extra=1),
    "unknown engine field": changed(engine={"max_num_sequences": 4}),
    "unknown field with line breaks": changed(**{"a\nb\r\nc\u2028d": 1}),
    "engine as a list": changed(engine=[]),
    "number as text": changed(engine={"max_num_seqs": "4"}),
    "float for a count": changed(engine={"max_num_seqs": 4.5}),
    "truth for a count": changed(engine={"max_num_seqs": True}),
    "too large": changed(engine={"max_num_seqs": 10**30}),
    "negative": changed(engine={"max_num_batched_tokens": -1}),
    "zero": request(max_tokens=0),
    "block size between": changed(engine={"block_size": 5}),
    "unknown policy": changed(engine={"policy": "lifo"}),
    "policy with line breaks": changed(engine={"policy": "fcfs\n\nTraceback"}),
    "too few blocks": changed(engine={"num_gpu_blocks": 2}),
    "unknown part": request(prompt=[["video", 0]]),
    "image that is not there": request(prompt=[["image", 3]]),
    "empty prompt": request(prompt=[]),
    "too many requests": changed(requests=[{}] * 1000),
    "event for a request that is not there": changed(timeline=[{"event": "arrive", "request": 9}]),
    "unknown event": changed(timeline=[{"event": "explode", "request": 0}]),
    "arrives twice": changed(timeline=[{"event": "arrive", "request": 0}] * 2),
    "abort before arrival": changed(timeline=[{"event": "abort", "request": 0}]),
    "a folder": lambda path: path.mkdir(),
    "missing": lambda path: None,
    "dangling link": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "a fifo": lambda path: os.mkfifo(path),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "unreadable": lambda path: path.symlink_to("/proc/self/mem"),
    "no permission": lambda path: (path.write_bytes(encode(SCENARIO)), path.chmod(0)),
}


def test_broken_files_are_one_clear_line_and_status_2(tmp_path: Path) -> None:
    assert len(BROKEN) >= 50
    paths = {}
    for name, content in BROKEN.items():
        if name == "no permission" and os.geteuid() == 0:
            continue  # root may read everything
        path = paths[name] = tmp_path / f"{name}.json"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            content(path)
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda path: schedfuzz("replay", path), paths.values())
    for (name, path), done in zip(paths.items(), results, strict=True):
        assert done.returncode == 2, (name, done)
        assert done.stdout == "", name
        assert done.stderr.count("\n") == 1 and done.stderr.endswith("\n"), (name, done.stderr)
        assert done.stderr.startswith(f"schedfuzz: {path}: "), (name, done.stderr)
        assert ";" in done.stderr and len(done.stderr) < 800, (name, done.stderr)
        assert "Traceback (most" not in done.stderr


def test_names_that_break_lines_stay_on_one(tmp_path: Path) -> None:
    for name in ("a\nb.json", "\x1b[31mred.json", os.fsdecode(b"\xff.json")):
        (tmp_path / name).write_bytes(b"{")
        done = schedfuzz("replay", tmp_path / name)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "\x1b" not in done.stderr


def test_nothing_runs_when_one_of_several_files_is_broken(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_bytes(encode(SCENARIO))
    bad.write_bytes(b"{")
    done = schedfuzz("replay", good, bad, good, "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert str(bad) in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "--seconds", "soon"], "--seconds"),
        (["run", "--executions", "0"], "--executions"),
        (["run", "--features", "text,magic"], "unknown feature 'magic'"),
        (["run", "--engine", "afl"], "afl"),
        (["run", "--vllm", "0.1.0"], "not supported"),
        (["run", "--vllm", "/no/such/tree"], "no such vLLM"),
        (["run", "--out", "/dev/null", "--vllm", SUPPORTED[0]], "/dev/null"),
        (["replay"], "FILE"),
        (["explain", "/no/such/file.json"], "/no/such/file.json"),
        (["targets", "fetch"], "no version given"),
        (["targets", "fetch", "1.2.3"], "1.2.3 is not supported"),
        (["targets", "list", "0.19.0"], "takes no versions"),
        (["fly"], "fly"),
    ],
)
def test_bad_arguments_are_one_line_and_status_2(arguments: list[str], says: str, tmp_path: Path) -> None:
    done = schedfuzz(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("schedfuzz: ") and done.stderr.count("\n") == 1
    assert says in done.stderr


def test_targets_list_names_every_release(tmp_path: Path) -> None:
    done = schedfuzz("targets", env={"SCHEDFUZZ_CACHE": str(tmp_path)})
    assert done.returncode == 0
    for version in SUPPORTED:
        assert f"{version:10}not fetched" in done.stdout


def test_a_folder_with_something_in_it_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    done = schedfuzz("run", "--vllm", SUPPORTED[0], "--out", tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_vllm_that_is_broken_at_import_is_one_clear_line(tmp_path: Path) -> None:
    scheduler = tmp_path / "vllm/v1/core/sched/scheduler.py"
    scheduler.parent.mkdir(parents=True)
    for folder in ("vllm", "vllm/v1", "vllm/v1/core", "vllm/v1/core/sched", "vllm/platforms"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "vllm/platforms/interface.py").write_text("class UnspecifiedPlatform: pass\n")
    (tmp_path / "vllm/platforms/__init__.py").write_text("from vllm.platforms import interface\n")
    scheduler.write_text("import no_such_module\n")
    file = tmp_path / "scenario.json"
    file.write_bytes(encode(SCENARIO))
    for arguments in (["replay", file, "--json"], ["run", "--json", "--out", tmp_path / "out"]):
        done = schedfuzz(*arguments, "--vllm", tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_replay_prints_one_json_value_in_the_order_of_its_arguments(old: Target, tmp_path: Path) -> None:
    files = []
    for tokens in (3, 1, 2):
        files.append(tmp_path / f"{tokens}.json")
        files[-1].write_bytes(
            encode(Scenario(1, requests=(Request(max_tokens=tokens),), timeline=(Arrive(0),)))
        )
    done = schedfuzz("replay", *files, "--vllm", old.spec, "--json", "--check-determinism")
    assert (done.returncode, done.stderr) == (0, "")
    outcomes = json.loads(done.stdout)
    assert [one["file"] for one in outcomes] == list(map(str, files))
    assert all(one["verdict"] == "ok" and one["violations"] == [] for one in outcomes)
    assert len({one["trace_hash"] for one in outcomes}) == 3


@pytest.mark.slow
def test_another_model_runner_than_the_file_says(old: Target, newest: str, tmp_path: Path) -> None:
    """The same scenario, which a release may lack; without preemption both runners schedule alike."""
    file = tmp_path / "scenario.json"
    file.write_bytes(encode(SCENARIO))

    def replayed(*options: str) -> Any:
        done = schedfuzz("replay", file, "--json", *options)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)[0]

    refused = replayed("--runner", "v2", "--vllm", old.spec)
    assert refused["verdict"] == "rejected" and "this vLLM has no v2_runner" in refused["note"]
    assert replayed("--runner", "v2", "--vllm", newest) == replayed("--vllm", newest)


def test_resolve_is_what_the_commands_use() -> None:
    # A release that the cache lacks must not be fetched to say that a file is broken.
    with pytest.raises(TargetError):
        resolve("0.0.1")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ledger", "38906"), "ledger: no checked ledger record is called '38906'"),
        (("ledger", "38907", "--features", "mn"), "ledger: unknown feature 'mn'"),
        (("run", "--plant", "38906"), "no planted bug is called '38906'; choose one of:"),
    ],
)
def test_known_bugs_that_nobody_knows(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = schedfuzz(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"schedfuzz: {said}") and done.stderr.count("\n") == 1

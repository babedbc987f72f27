"""Campaigns: real ones on a release with known bugs, and the supervision of workers with bodies that misbehave."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import fuzz.finding
import fuzz.session
import fuzz.worker
from fuzz.board import COUNTERS, Board
from fuzz.generate import FEATURES, parse_features
from fuzz.job import FAILED, Job
from fuzz.progress import STATS, Progress, line
from fuzz.session import Found, Limits, Session
from fuzz.worker import Worker
from harness.codec import decode, encode
from harness.execute import Result
from harness.scenario import Arrive, Request, Scenario
from harness.target import Target, TargetError, fetch
from harness.trace import Trace
from harness.verdict import HarnessError, Level, Verdict, Violation, verdict_of

SCENARIO = Scenario(format=1, requests=(Request(max_tokens=3),), timeline=(Arrive(0),))
EXECUTABLE = Path(sys.executable).with_name("schedfuzz")
FINDING_FIELDS = {
    "fingerprint",
    "oracle",
    "kind",
    "level",
    "reachable",
    "ledger",
    "executions_to_find",
    "seconds_to_find",
    "scenario",
    "minimal",
    "test",
}


@pytest.fixture(scope="module")
def old() -> Target:
    try:
        return Target("0.19.0", "0.19.0", fetch("0.19.0"))
    except TargetError as error:
        pytest.skip(f"vLLM 0.19.0 is not in the cache and cannot be fetched: {error}")


def start(*arguments: str | Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [str(EXECUTABLE), "run", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*arguments: str | Path) -> tuple[int, dict[str, Any], str]:
    process = start(*arguments, "--json")
    out, err = process.communicate(timeout=300)
    return process.returncode, json.loads(out), err


# -- real campaigns --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_short_campaign_finds_and_finishes_the_known_bugs(old: Target, tmp_path: Path) -> None:
    out = tmp_path / "out"
    corner = "async,chunked_prefill,mm,preemption,prefix_cache,spec"
    chosen = ("--features", corner, "--executions", "300", "--seed", "1")
    status, summary, err = run("--vllm", old.spec, *chosen, "--out", out)
    assert status == 1, err
    assert (summary["vllm"], summary["engine"], summary["seed"]) == ("0.19.0", "atheris", 1)
    assert summary["executions"] == 300 and summary["steps"] > 300
    assert summary["harness_errors"] == summary["restarts"] == 0, err
    assert 0.2 < summary["share_in_vllm"] < 1
    assert summary["corpus"] == len(list((out / "corpus").glob("*.json"))) > 10
    assert {finding["oracle"] for finding in summary["findings"]} >= {"O3", "O4"}
    for finding in summary["findings"]:
        assert set(finding) >= FINDING_FIELDS
        assert finding["level"] == "violation" and finding["reachable"] in ("engine", "free")
        folder = out / "findings" / finding["fingerprint"]
        assert json.loads((folder / "meta.json").read_bytes()) == finding
        small, large = Path(finding["minimal"]).read_bytes(), Path(finding["scenario"]).read_bytes()
        assert encode(decode(small)) == small and len(small) <= len(large)
        assert finding["fingerprint"] in (folder / "explanation.txt").read_text()
        compile(Path(finding["test"]).read_text(), finding["test"], "exec")
    lines = (out / "stats.jsonl").read_text().splitlines()
    assert set(json.loads(lines[-1])) == {stat.name for stat in STATS}
    assert json.loads(lines[-1])["executions"] == 300


@pytest.mark.slow
def test_a_seed_and_a_number_of_executions_decide_what_is_found(old: Target, tmp_path: Path) -> None:
    seen = []
    for name in ("one", "two"):
        out = tmp_path / name
        _, summary, _ = run("--vllm", old.spec, "--executions", "150", "--seed", "7", "--out", out)
        findings = [(f["fingerprint"], f["executions_to_find"]) for f in summary["findings"]]
        minimal = [Path(f["minimal"]).read_bytes() for f in summary["findings"]]
        corpus = sorted(path.name for path in (out / "corpus").iterdir())
        seen.append((findings, minimal, corpus, summary["steps"], summary["coverage"], summary["edges"]))
    assert seen[0] == seen[1]


@pytest.mark.slow
def test_two_workers_without_libfuzzer_within_given_features_from_a_corpus(
    old: Target, tmp_path: Path
) -> None:
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    corpus.mkdir()
    (corpus / "seed.json").write_bytes(encode(SCENARIO))
    status, summary, err = run(
        *("--vllm", old.spec, "--engine", "random", "--workers", "2", "--executions", "101"),
        *("--features", "text,abort", "--corpus", corpus, "--out", out),
    )
    assert status in (0, 1), err
    assert summary["executions"] == 101 and summary["workers"] == 2 and summary["edges"] == 0
    for path in (out / "corpus").glob("*.json"):
        engine = decode(path.read_bytes()).engine
        assert engine.encoder is None and engine.speculative is None and not engine.async_scheduling


@pytest.mark.slow
def test_an_interrupt_ends_the_campaign_and_what_was_found_is_kept(old: Target, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start("--vllm", old.spec, "--seconds", "300", "--seed", "1", "--out", out)
    deadline = time.monotonic() + 120
    while not list((out / "findings").glob("*/meta.json")) and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    text, err = process.communicate(timeout=100)
    assert process.returncode == 1, err
    assert "schedfuzz replay" in text and "Traceback" not in err


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_counted(old: Target, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start("--vllm", old.spec, "--seconds", "6", "--seed", "1", "--out", out, "--json")
    deadline = time.monotonic() + 120
    while not list((out / "corpus").glob("*.json")) and time.monotonic() < deadline:
        time.sleep(0.1)
    children = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True
    )
    os.kill(int(children.stdout.split()[0]), signal.SIGKILL)
    text, err = process.communicate(timeout=200)
    assert process.returncode == 1, err
    summary = json.loads(text)
    assert summary["restarts"] == 1 and summary["harness_errors"] == 1
    assert "worker 0: it was killed by SIGKILL" in err


def test_a_broken_file_in_the_corpus_is_one_line_before_anything_runs(old: Target, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    process = start("--vllm", old.spec, "--corpus", tmp_path, "--out", tmp_path / "out", "--json")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert str(tmp_path / "bad.json") in err and err.count("\n") == 1
    assert not (tmp_path / "out").exists()


# -- a session, with an execution that is made up --------------------------------------------------------------------


def violation(kind: str, level: Level = Level.VIOLATION) -> Violation:
    return Violation("O1", kind, "somewhere", "it broke", 0, level)


def result(*violations: Violation) -> Result:
    return Result(verdict_of(list(violations)), violations, Trace(), 5)


class NoSampler:
    vllm = total = 0

    def start(self) -> None: ...

    def stop(self) -> None: ...


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    (tmp_path / "work/finds").mkdir(parents=True)
    monkeypatch.setattr(fuzz.session, "Sampler", NoSampler)
    return Session(tmp_path, Board(), Limits(executions=10), frozenset(FEATURES))


def test_a_finding_is_recorded_once_and_a_hazard_not_at_all(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = result(violation("loud"), violation("latent", Level.HAZARD))
    monkeypatch.setattr(fuzz.session, "execute", lambda scenario: both)
    session.execute(SCENARIO)
    session.execute(Scenario(format=1))
    (file,) = (tmp_path / "work/finds").iterdir()
    found = msgspec.json.decode(file.read_bytes(), type=Found)
    assert (found.fingerprint, found.scenario, found.executions) == (
        violation("loud").fingerprint,
        SCENARIO,
        1,
    )


def test_our_own_errors_are_kept_apart(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(scenario: Scenario) -> Result:
        raise HarnessError("the stub is wrong")

    monkeypatch.setattr(fuzz.session, "execute", fail)
    assert session.execute(SCENARIO) == (frozenset(), False)
    assert not list((tmp_path / "work/finds").iterdir())
    (kept,) = (tmp_path / "harness-errors").iterdir()
    assert "the stub is wrong" in kept.read_text()
    assert not session.over()


def test_a_session_is_over_at_its_limit(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz.session, "execute", lambda scenario: result())
    for _ in range(10):
        assert not session.over()
        session.execute(SCENARIO)
    assert session.over()


def test_a_finding_that_does_not_come_again_is_not_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz.finding, "execute", lambda scenario: result())
    one = violation("flaky")
    target = Target("0.19.0", "0.19.0", None)
    fuzz.finding.finish(tmp_path, Found(one.fingerprint, one, SCENARIO, 1, 0.1, 0), target)
    assert (tmp_path / "unconfirmed" / one.fingerprint / "scenario.json").read_bytes() == encode(SCENARIO)
    assert not (tmp_path / "findings").exists()


@pytest.mark.parametrize("tame_shows_it", [True, False])
def test_reachable_says_which_interleaving_shows_it(
    tame_shows_it: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = violation("race")

    def fake(scenario: Scenario) -> Result:
        shows = tame_shows_it or scenario.engine.interleaving == "free"
        return result(one) if shows else result()

    monkeypatch.setattr(fuzz.finding, "execute", fake)
    free = msgspec.structs.replace(
        SCENARIO, engine=msgspec.structs.replace(SCENARIO.engine, interleaving="free")
    )
    found = Found(one.fingerprint, one, free, 1, 0.1, 0)
    fuzz.finding.finish(tmp_path, found, Target("0.19.0", "0.19.0", None))
    meta = json.loads((tmp_path / "findings" / one.fingerprint / "meta.json").read_bytes())
    assert meta["reachable"] == ("engine" if tame_shows_it else "free")
    interleaving = decode(Path(meta["minimal"]).read_bytes()).engine.interleaving
    assert interleaving == ("engine" if tame_shows_it else "free")


# -- processes -------------------------------------------------------------------------------------------------------


def wait(worker: Worker) -> None:
    deadline = time.monotonic() + 30
    while worker.poll():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_job_ends_with_its_call_and_logs_its_errors(tmp_path: Path) -> None:
    def fail() -> None:
        print("on its way")
        raise ValueError("no good")

    for call, status in ((lambda: None, 0), (fail, FAILED)):
        job = Job(call, tmp_path / "log")
        while job.poll() is None:
            time.sleep(0.01)
        assert job.status == status
    assert job.why() == f"it ended with status {FAILED}: ValueError: no good"
    assert "on its way" in (tmp_path / "log").read_text()


def test_a_job_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    job = Job(lambda: time.sleep(60), tmp_path / "log", seconds=0.1)
    while job.poll() is None:
        time.sleep(0.01)
    assert job.status == -signal.SIGKILL and job.why() == "it took too long and was killed"


def test_a_worker_that_dies_is_started_again_and_its_scenario_kept(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    faults: list[str] = []

    def body(worker: Worker) -> None:
        worker.board.executions += 1
        if worker.restarts < 2:
            worker.board.begin(encode(SCENARIO))
            os.kill(os.getpid(), signal.SIGKILL)
        worker.board.ended = True

    worker = Worker(3, tmp_path, body, faults.append)
    wait(worker)
    assert worker.restarts == 2 and worker.board.executions == 3
    assert [fault.split(";")[0] for fault in faults] == ["worker 3: it was killed by SIGKILL"] * 2
    for suspect in (tmp_path / "suspects").iterdir():
        assert decode(suspect.read_bytes()) == SCENARIO


def test_a_worker_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.setattr(fuzz.worker, "HANG_SECONDS", 0.3)
    faults: list[str] = []

    def body(worker: Worker) -> None:
        if not worker.restarts:
            time.sleep(60)
        worker.board.ended = True

    worker = Worker(0, tmp_path, body, faults.append)
    wait(worker)
    assert worker.restarts == 1 and "nothing happened for" in faults[0]


def test_a_worker_that_always_dies_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    faults: list[str] = []

    def body(worker: Worker) -> None:
        raise RuntimeError("cannot start")

    worker = Worker(0, tmp_path, body, faults.append)
    wait(worker)
    assert not worker.poll()
    assert worker.restarts == fuzz.worker.MAX_RESTARTS and len(faults) == worker.restarts + 1
    assert faults[0].endswith("RuntimeError: cannot start")


def test_the_board_survives_its_writer(tmp_path: Path) -> None:
    board = Board()

    def write() -> None:
        board.begin(b"scenario")
        for name, _ in COUNTERS[:7]:
            setattr(board, name, 7)
        os.kill(os.getpid(), signal.SIGKILL)

    job = Job(write, tmp_path / "log")
    while job.poll() is None:
        time.sleep(0.01)
    assert board.in_work() == b"scenario"
    assert [getattr(board, name) for name, _ in COUNTERS[:7]] == [7] * 7


def test_progress_speaks_plain_lines_to_a_file(tmp_path: Path) -> None:
    numbers = {stat.name: 1234.0 for stat in STATS}
    with (tmp_path / "log").open("w") as stream, Progress(stream, tmp_path / "stats.jsonl") as progress:
        for _ in range(10):
            progress.show(numbers)
        progress.show(numbers, last=True)
    assert (tmp_path / "log").read_text() == 2 * (line(numbers) + "\n"), "the first and the last"
    assert len((tmp_path / "stats.jsonl").read_text().splitlines()) == 2


def test_features_are_names_or_all() -> None:
    assert parse_features("all") == frozenset(FEATURES)
    assert Verdict.OK == "ok"

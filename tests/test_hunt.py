"""A hunt finds what is there, proves it, and takes nothing else for it."""

import json
from pathlib import Path

import pytest

from conftest import need
from fuzz.corpus import read
from fuzz.hunt import Quarry, hunt
from fuzz.job import Job
from fuzz.ledger import Record, Sign, Site, chosen
from fuzz.ledger_report import Outcome, keep, line, page, results
from fuzz.restrict import parse_features
from test_cli import schedfuzz

SECONDS = 600.0
"""After which a hunt is taken for stuck. Fuzzing is bounded in time on a core, and nothing else in time here."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long judging and shrinking take on a busy machine decides nothing."""
    monkeypatch.setattr("fuzz.hunt.AFTER_SECONDS", SECONDS)
    monkeypatch.setattr("fuzz.hunt.SHRINK_SECONDS", SECONDS)


def hunted(quarry: Quarry, folder: Path) -> dict[str, object]:
    """A hunt in a process of its own, as `schedfuzz ledger` starts it."""
    import msgspec

    answer = folder / "answer.json"
    job = Job(
        lambda: answer.write_bytes(msgspec.json.encode(hunt(quarry, folder / "hunt"))) and None,
        folder / "log",
        SECONDS,
    )
    job.wait()
    assert answer.exists(), job.why()
    return dict(json.loads(answer.read_bytes()))


def test_a_planted_bug_is_found_and_proven(tmp_path: Path) -> None:
    need("0.33.0")
    (record,) = chosen(["27922"])
    site = Site("0.33.0", plant="27922")
    found = hunted(Quarry("27922", record.sign, site, parse_features("async"), "random", 1, 60.0), tmp_path)
    assert found["found"] and not found["fault"]
    assert (found["oracle"], found["kind"]) == ("O9", "scheduled-past-max-tokens")
    smallest = tmp_path / "hunt" / str(found["scenario"])
    assert len(read(smallest).requests) == 1
    for plant, status in ((("--plant", "27922"), 1), ((), 0)):
        done = schedfuzz("replay", smallest, "--vllm", "0.33.0", *plant)
        assert done.returncode == status, done.stdout


def test_what_the_other_vllm_shows_too_proves_nothing(tmp_path: Path) -> None:
    """An item as long as a step hangs 0.33.0 with and without this plant."""
    need("0.33.0")
    signs = (Sign("O7", anchor="*without the drafter's look-ahead"),)
    site = Site("0.33.0", plant="12545")
    found = hunted(
        Quarry("x", signs, site, parse_features("mm,spec,chunked_prefill"), "random", 1, 15.0), tmp_path
    )
    assert not found["found"] and int(str(found["others"])) > 0 and not found["fault"]


def test_results_gather_and_are_told(tmp_path: Path) -> None:
    record: Record = chosen(["38907"])[0]
    folder = tmp_path / "kept"
    keep(folder, Outcome("38907", False, (), "x"), tmp_path)
    keep(folder, Outcome("45347", False, (), "y"), tmp_path)
    keep(folder, Outcome("38907", False, (), "z"), tmp_path)
    assert [(one.record, one.missing) for one in results(folder)] == [("38907", "z"), ("45347", "y")]
    assert line(results(folder)[0]) == "38907: not looked for: z"
    assert f"| 38907 | {record.says} | - |" in page(results(folder))
    assert "0 of 43 were found" in page(results(folder))

"""What docs/findings says about the newest release is so: open findings still show, mended ones do not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCENARIOS = ROOT / "corpus" / "regressions"
EXPECTED = {
    "priority-victim-leaves-uncomputed-encoder-entry": {
        "0.20.2": "O4-target-read-miss-bc115a09",
        "0.33.0": "O4-target-read-miss-bc115a09",
    },
    "padded-decode-cut-by-prefill-threshold": {"0.20.2": None, "0.33.0": "O1-exception-bac762cf"},
    "hash-of-a-block-that-the-victim-never-wrote": {"0.33.0": "O2-kv-read-mismatch-358f2615"},
    "adjacent-items-in-a-small-encoder-cache": {
        "0.20.2": "O7-no-progress-b3c2dcec",
        "0.33.0": None,
    },
    "item-longer-than-prefill-threshold": {"0.20.2": None, "0.33.0": "O7-no-progress-8249e9b1"},
    "item-as-long-as-budget-with-look-ahead": {
        "0.20.2": "O7-no-progress-5362a372",
        "0.33.0": "O7-no-progress-5362a372",
    },
    "window-blocks-freed-on-optimistic-count": {
        "0.20.2": None,
        "0.24.0": "O2-kv-read-mismatch-295046e4",
        "0.33.0": None,
    },
    "encoder-output-evictable-while-read": {"0.20.2": None, "0.33.0": None},
    "drafter-reads-image-at-chunk-end": {
        "0.20.2": "O4-drafter-read-miss-aea77521",
        "0.24.0": None,
        "0.33.0": None,
    },
}


def replay(version: str) -> dict[str, set[str]]:
    files = [str(SCENARIOS / f"{name}.json") for name in EXPECTED]
    done = subprocess.run(
        [sys.executable, "-m", "fuzz.cli", "replay", *files, "--vllm", version, "--json"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    found = {}
    for row in json.loads(done.stdout):
        shown = {
            violation["fingerprint"] for violation in row["violations"] if violation["level"] == "violation"
        }
        found[Path(row["file"]).stem] = shown
    return found


@pytest.mark.parametrize("version", ["0.20.2", "0.24.0", "0.33.0"])
def test_each_finding_shows_where_its_page_says(version):
    found = replay(version)
    for name, releases in EXPECTED.items():
        if version in releases:
            expected = {releases[version]} - {None}
            assert found[name] == expected, (name, version)


def test_every_kept_scenario_is_expected_somewhere():
    assert {path.stem for path in SCENARIOS.glob("*.json")} == set(EXPECTED)

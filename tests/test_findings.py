"""What docs/findings says is so: open findings still show, mended ones do not, and on a device a client sees them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from conftest import need

ROOT = Path(__file__).parent.parent
SCENARIOS = ROOT / "corpus" / "regressions"
LOST = "O11-lost-request-f1796fd6"
"""Who is in no queue is not counted either."""
EXPECTED = {
    "pooling-prompt-as-long-as-the-model": {
        "0.20.2": "O7-no-progress-0b2d7294",
        "0.24.0": "O7-no-progress-0b2d7294",
        "0.33.0": None,
    },
    "reset-loses-prompt-logprobs": {
        "0.20.2": "O1-exception-bd1285b7",
        "0.24.0": "O1-exception-bd1285b7",
        "0.33.0": "O8-wrong-prompt-logprobs-819c1335",
    },
    "window-short-after-alignment": {"0.20.2": None, "0.24.0": None, "0.33.0": None},
    "second-full-group-keeps-a-longer-hit": {
        "0.20.2": "O3-block-written-twice-1e157b32",
        "0.24.0": "O3-block-written-twice-1e157b32",
        "0.33.0": None,
    },
    "a-third-state-in-flight": {"0.20.2": None, "0.24.0": None, "0.33.0": "O7-livelock-8858999d"},
    "copies-that-the-pool-has-no-room-for": {"0.33.0": "O7-no-progress-085fac0b"},
    "asynchronous-drafts-without-a-mask": {
        "0.20.2": "O16-mask-allows-every-token-eadf5c2b",
        "0.24.0": None,
        "0.33.0": None,
    },
    "drafts-without-a-mask-after-a-pause": dict.fromkeys(
        ("0.20.2", "0.24.0", "0.33.0"), "O16-mask-allows-every-token-eadf5c2b"
    ),
    "hit-without-a-state-beside-a-connector": {"0.24.0": "O2-kv-read-mismatch-358f2615", "0.33.0": None},
    "failed-load-not-recomputed-by-the-v2-runner": dict.fromkeys(
        ("0.24.0", "0.33.0"), "O2-kv-read-mismatch-83edf930"
    ),
    "reset-leaves-slots-of-the-v2-runner": {"0.24.0": "O13-no-free-slot-09791b6b", "0.33.0": None},
    "grammar-that-does-not-compile": {
        "0.20.2": "O1-exception-45fd120c",
        "0.24.0": "O1-exception-45fd120c",
        "0.33.0": None,
    },
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
    "resumed-request-without-item-data": {"0.24.0": None, "0.33.0": "O4-target-read-miss-a09e8681"},
    "draft-placeholders-embedded": {
        "0.20.2": "O13-placeholder-fed-d34d05f4",
        "0.24.0": "O13-placeholder-fed-d34d05f4",
        "0.33.0": None,
    },
    "rejected-drafts-taken-back-twice": {"0.20.2": None, "0.33.0": None},
    "drafts-of-an-older-step": {"0.20.2": None, "0.33.0": None},
    "drafts-of-a-returning-row-stay-counted": {
        "0.20.2": "O13-placeholder-fed-d34d05f4",
        "0.24.0": "O13-placeholder-fed-d34d05f4",
        "0.33.0": None,
    },
    "reset-discards-a-token-not-yet-sampled": {
        "0.20.2": "O8-wrong-token-14b7bfe8",
        "0.24.0": None,
        "0.33.0": None,
    },
    "reset-discards-frames-by-tokens": {
        "0.20.2": None,
        "0.24.0": "O8-wrong-token-14b7bfe8",
        "0.33.0": None,
    },
    "min-tokens-beyond-model-length": {
        "0.20.2": "O7-no-progress-94d9668c",
        "0.24.0": "O7-no-progress-94d9668c",
        "0.33.0": None,
    },
    "pause-does-not-wait-for-the-preempted": {"0.20.2": None, "0.24.0": None, "0.33.0": None},
    "block-of-a-failed-load-stays-cached": {
        "0.20.2": "O2-kv-read-mismatch-ac3bba5f",
        "0.33.0": "O2-kv-read-mismatch-ac3bba5f",
    },
    "failed-load-reserves-blocks-against-itself": {
        "0.20.2": None,
        "0.24.0": "O7-no-progress-085fac0b",
        "0.33.0": "O7-no-progress-085fac0b",
    },
    "load-beside-blocks-reserved-for-decoding": {"0.24.0": None, "0.33.0": "O7-no-progress-20c1b3ae"},
    "synchronous-load-fails-with-a-step-in-flight": {
        "0.20.2": "O17-failed-load-not-undone-0352806b",
        "0.33.0": "O17-failed-load-not-undone-0352806b",
    },
    "window-short-of-a-recomputed-last-token": {
        "0.20.2": "O2-kv-read-mismatch-dbc1f3be",
        "0.33.0": "O2-kv-read-mismatch-dbc1f3be",
    },
    "null-block-hashed": {"0.20.2": None, "0.33.0": None},
    "state-cached-where-no-step-ended": {
        "0.20.2": "O2-kv-read-mismatch-358f2615",
        "0.24.0": "O2-kv-read-mismatch-358f2615",
        "0.33.0": None,
    },
    "pipeline-admits-an-adapter-too-many": {
        "0.20.2": "O1-exception-454bef8e",
        "0.24.0": "O1-exception-454bef8e",
        "0.33.0": None,
    },
    "pipeline-reset-repeats-a-token-in-flight": {
        "0.20.2": "O8-wrong-token-14b7bfe8",
        "0.24.0": "O8-wrong-token-14b7bfe8",
        "0.33.0": None,
    },
    "pipeline-preemption-samples-without-a-mask": {
        "0.20.2": None,
        "0.24.0": "O16-mask-missing-779bd791",
        "0.33.0": None,
    },
    "items-of-one-block-in-a-small-encoder-cache": {
        "0.20.2": "O7-no-progress-b3c2dcec",
        "0.24.0": "O7-no-progress-b3c2dcec",
        "0.33.0": None,
    },
    "chunk-with-a-length-of-its-own": {
        "0.20.2": "O9-scheduled-past-max-tokens-3f4dc713",
        "0.24.0": "O9-scheduled-past-max-tokens-3f4dc713",
        "0.33.0": None,
    },
    "turn-ends-with-a-step-in-flight": {
        "0.20.2": "O8-output-between-turns-b411b278",
        "0.24.0": "O8-output-between-turns-b411b278",
        "0.33.0": None,
    },
    "turn-ends-before-its-last-draft": {
        "0.20.2": "O1-exception-6adb1bcc",
        "0.24.0": "O1-exception-6adb1bcc",
        "0.33.0": None,
    },
    "preempted-session-is-lost": {
        "0.20.2": LOST,
        "0.24.0": LOST,
        "0.33.0": None,
    },
    "sessions-hold-what-others-need": {
        "0.20.2": "O7-no-progress-de915666",
        "0.24.0": "O7-no-progress-de915666",
        "0.33.0": "O7-no-progress-de915666",
    },
    "reset-beside-a-parked-session": {
        "0.20.2": "O1-exception-161f29a9",
        "0.24.0": "O1-exception-161f29a9",
        "0.33.0": "O1-exception-161f29a9",
    },
    "pause-beside-a-session-without-blocks": {"0.33.0": "O12-wrong-answer-a321acaa"},
    "state-ahead-of-its-session": {
        "0.24.0": "O13-session-prompt-differs-8e3d1874",
        "0.33.0": "O2-kv-read-mismatch-295046e4",
    },
}
HAZARDS = {"pause-does-not-wait-for-the-preempted": "O12-pause-incomplete-07572518"}
"""What a page is about that is no violation; on every release that `EXPECTED` names."""
STUB = {
    "0.12.0": {
        "rejected-drafts-taken-back-twice": "O13-stale-token-6441eb63",
        "drafts-of-an-older-step": "O13-old-drafts-fed-b0db482b",
        "drafts-of-a-returning-row-stay-counted": "O2-kv-read-mismatch-295046e4",
        "null-block-hashed": "O1-exception-a500c39e",
    }
}
"""On releases that only the tests of the device need."""
SEEN = {
    "0.12.0": {
        "draft-placeholders-embedded": "O1-exception-0a29c780",
        "rejected-drafts-taken-back-twice": "O8-wrong-token-14b7bfe8",
        "drafts-of-an-older-step": "O1-exception-cf2eda11",
        "drafts-of-a-returning-row-stay-counted": "O8-wrong-token-14b7bfe8",
        "reset-discards-a-token-not-yet-sampled": "O8-wrong-token-14b7bfe8",
        "min-tokens-beyond-model-length": "O7-no-progress-94d9668c",
        "null-block-hashed": "O1-exception-a500c39e",
    },
    "0.28.0": {"resumed-request-without-item-data": None, "draft-placeholders-embedded": None},
    "0.29.0": {"resumed-request-without-item-data": "O1-exception-5e740330"},
    "0.33.0": {
        "resumed-request-without-item-data": "O1-exception-5e740330",
        "draft-placeholders-embedded": None,
        "rejected-drafts-taken-back-twice": None,
    },
}
"""What a client sees on vLLM's own model runner (V1), of the findings that tandem runs have brought."""


def replay(
    version: str, names: Iterable[str] = EXPECTED, worker: str = "stub", hazards: bool = False
) -> dict[str, set[str]]:
    """Fingerprints of violations, and of hazards if they are asked for, by scenario."""
    files = [str(SCENARIOS / f"{name}.json") for name in names]
    options = ["--vllm", version, "--worker", worker, "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "fuzz.cli", "replay", *files, *options],
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
            violation["fingerprint"]
            for violation in row["violations"]
            if hazards or violation["level"] == "violation"
        }
        found[Path(row["file"]).stem] = shown
    return found


@pytest.mark.parametrize("version", ["0.20.2", "0.24.0", "0.33.0"])
def test_each_finding_shows_where_its_page_says(version):
    found = replay(version)
    for name, releases in EXPECTED.items():
        if version in releases:
            named = releases[version]
            expected = named if isinstance(named, set) else {named} - {None}
            assert found[name] == expected, (name, version)


@pytest.mark.parametrize("version", ["0.20.2", "0.24.0", "0.33.0"])
def test_a_hazard_shows_where_its_page_says(version):
    found = replay(version, HAZARDS, hazards=True)
    assert found == {name: {hazard} for name, hazard in HAZARDS.items() if version in EXPECTED[name]}


@pytest.mark.device
@pytest.mark.parametrize("version", STUB)
def test_stub_and_device_agree_on_an_old_finding(version):
    need(version)
    for name, fingerprint in STUB[version].items():
        assert replay(version, [name], "tandem") == {name: {fingerprint}}


@pytest.mark.device
@pytest.mark.parametrize("version", SEEN)
def test_what_a_client_sees(version):
    need(version)
    found = replay(version, SEEN[version], "device")
    for name, fingerprint in SEEN[version].items():
        if fingerprint is None:
            assert found[name] == set(), name
        else:
            assert fingerprint in found[name], name


def test_every_kept_scenario_is_expected_somewhere():
    assert {path.stem for path in SCENARIOS.glob("*.json")} == set(EXPECTED)

"""Stub and runner agree in releases old and new: each in a process of its own, through the front door."""

import json
from pathlib import Path

import pytest

from conftest import need
from harness.codec import encode
from scenarios import LEGAL
from test_cli import schedfuzz

from .conftest import on_cpu

pytestmark = [pytest.mark.device, on_cpu]

CHOSEN = (
    "prefix",
    "sliding_window",
    "spec_preemption",
    "spec_ngram",
    "spec_async_mtp",
    "mm_spec_async",
    "free",
    "grammar_async",
    "grammar_spec",
)


@pytest.mark.parametrize("version", ["0.12.0", "0.19.0", "0.24.0", "0.32.0"])
def test_tandem(version: str, tmp_path: Path) -> None:
    need(version)
    for name in CHOSEN:
        (tmp_path / f"{name}.json").write_bytes(encode(LEGAL[name]))
    done = schedfuzz("replay", *tmp_path.iterdir(), "--worker", "tandem", "--vllm", version, "--json")
    outcomes = {Path(one["file"]).stem: one for one in json.loads(done.stdout)}
    notes = {name: one["note"] for name, one in outcomes.items() if one["note"]}
    assert (notes, done.stderr) == ({}, "")
    assert done.returncode in (0, 1), "1 is a finding of the stub's, which the runner has not contradicted"
    assert outcomes.keys() == set(CHOSEN) and all(one["steps"] > 3 for one in outcomes.values())

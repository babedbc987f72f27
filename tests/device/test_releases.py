"""Stub and runner agree in releases old and new: each in a process of its own, through the front door."""

import json
from pathlib import Path

import pytest

from conftest import need
from harness.codec import encode
from scenarios import LEGAL, LEGAL_V2
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
ON_V2 = tuple(f"{name}, V2" for name in CHOSEN)
REFUSED = {"0.12.0": ON_V2, "0.19.0": ON_V2, "0.24.0": ("spec_ngram, V2",)}
"""Releases before 0.23 have no V2 runner that we can run, those before 0.32 no n-gram search for it."""


@pytest.mark.parametrize("version", ["0.12.0", "0.19.0", "0.24.0", "0.32.0"])
def test_tandem(version: str, tmp_path: Path) -> None:
    need(version)
    for name in CHOSEN:
        (tmp_path / f"{name}.json").write_bytes(encode(LEGAL[name]))
    for name in ON_V2:
        (tmp_path / f"{name}.json").write_bytes(encode(LEGAL_V2[name]))
    done = schedfuzz("replay", *tmp_path.iterdir(), "--worker", "tandem", "--vllm", version, "--json")
    outcomes = {Path(one["file"]).stem: one for one in json.loads(done.stdout)}
    refused = {name for name, one in outcomes.items() if one["verdict"] == "rejected"}
    assert refused == {name for name in outcomes if name in REFUSED.get(version, ())}
    notes = {name: one["note"] for name, one in outcomes.items() if one["note"] and name not in refused}
    assert (notes, done.stderr) == ({}, "")
    assert done.returncode in (0, 1), "1 is a finding of the stub's, which the runner has not contradicted"
    assert outcomes.keys() == {*CHOSEN, *ON_V2}
    assert all(one["steps"] > 3 for name, one in outcomes.items() if name not in refused)

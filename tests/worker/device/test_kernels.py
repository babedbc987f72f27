"""Our stand-ins do what vLLM's Triton kernels do, which Triton's interpreter runs on a CPU (`interpreted.py`)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from conftest import need
from scenarios import LEGAL_V2

pytestmark = pytest.mark.device

CHILD = Path(__file__).with_name("interpreted.py")
V2 = ("chunked", "sliding_window", "spec_eagle", "spec_preemption", "mm_spec_async", "groups_mamba")
"""Scenarios that make the V2 runner launch every kernel that has a stand-in, but the one for grammars."""
MASKED = "grammar_spec_async"
"""Launches that one, which Triton's interpreter runs in 0.24, and in 0.33 refuses ("mask has unsupported dtype")."""


@pytest.mark.parametrize(
    ("version", "scenarios", "kernels"),
    [("0.12.0", (), 3), ("0.24.0", (*V2, MASKED), 25), ("0.33.0", V2, 25)],
)
def test_stand_ins_do_what_the_kernels_do(version: str, scenarios: tuple[str, ...], kernels: int) -> None:
    """0.12.0 has the oldest kernels, and no V2 runner for a CPU."""
    pytest.importorskip("triton", reason="Triton, whose interpreter runs the kernels, is not installed")
    need(version)
    done = subprocess.run(
        [sys.executable, str(CHILD), version],
        input=b"".join(msgspec.json.encode(LEGAL_V2[f"{name}, V2"]) + b"\n" for name in scenarios),
        capture_output=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(CHILD.parents[3])},
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-4000:]
    said = json.loads(done.stdout)
    assert said["shown"] == []
    launched = {kernel: found for kernel, found in said["kernels"].items() if found[0]}
    assert len(launched) == kernels
    for kernel, (launches, different) in launched.items():
        assert launches >= 3, kernel
        assert not different, kernel

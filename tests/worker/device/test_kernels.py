"""Our stand-ins do what vLLM's Triton kernels do, which Triton's interpreter runs on a CPU (`interpreted.py`)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import need

pytestmark = pytest.mark.device

CHILD = Path(__file__).with_name("interpreted.py")
ROOT = CHILD.parents[3]
COMMON = {
    "rejection_greedy_sample_kernel",
    "eagle_prepare_inputs_padded_kernel",
    "eagle_prepare_next_token_padded_kernel",
}
KERNELS = {
    "0.12.0": COMMON,
    "0.24.0": COMMON | {"_compute_slot_mapping_kernel", "eagle_step_slot_mapping_metadata_kernel"},
    "0.33.0": COMMON | {"ComputeSlotMappingKernel.kernel", "eagle_step_slot_mapping_metadata_kernel"},
}
"""What each release has: another one each time that names or parameters have changed."""


@pytest.mark.parametrize("version", KERNELS)
def test_stand_ins_do_what_the_kernels_do(version: str) -> None:
    pytest.importorskip("triton", reason="Triton, whose interpreter runs the kernels, is not installed")
    need(version)
    done = subprocess.run(
        [sys.executable, str(CHILD), version],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout) == {name: [] for name in KERNELS[version]}

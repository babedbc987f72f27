"""Which features run where: feature x release x worker."""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping

from fuzz.generate import FEATURES
from harness.target import Target
from harness.verdict import HarnessError
from harness.worker.device.support import UNSUPPORTED

# A release takes a process: importing it is the only way to know what it has.
_ASK = """
import json, logging, sys
from harness import presence, target
logging.disable(logging.CRITICAL)
target.activate(target.resolve(sys.argv[1]))
print(json.dumps(dict(presence.lacking())))
"""


def lacking(target: Target) -> Mapping[str, str]:
    """What a target lacks, feature by feature, in words. HarnessError if its process fails."""
    done = subprocess.run(
        [sys.executable, "-c", _ASK, target.spec], capture_output=True, text=True, check=False
    )
    try:
        answer: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = done.stderr.strip().splitlines()[-1:] or ["no answer"]
        raise HarnessError(f"vLLM {target.spec} does not say what it lacks: {last[0]}") from None
    return answer


def table(targets: Iterable[Target]) -> dict[str, dict[str, dict[str, str]]]:
    """feature -> release -> worker -> "yes", or why not."""
    answers = {target.version: lacking(target) for target in targets}
    return {
        feature: {
            version: {
                "stub": missing.get(feature, "yes"),
                "device": missing.get(feature, UNSUPPORTED.get(feature, "yes")),
            }
            for version, missing in answers.items()
        }
        for feature in FEATURES
    }

"""One vLLM release in a process of its own: scenarios on standard input, what they showed on standard output.

    python child.py VERSION [PLANT] < scenarios.jsonl

The first line of the answer is about the release; then comes one line for each scenario, and, with a plant, one more
for each, with the bug planted. vLLM's own messages go to standard error.
"""

import dataclasses
import json
import sys

from harness import compat, planting, presence, target
from harness.codec import decode
from harness.execute import execute
from harness.scenario import Scenario


def main() -> None:
    """Answers everything that standard input holds."""
    answers, sys.stdout = sys.stdout, sys.stderr
    target.activate(target.resolve(sys.argv[1]))
    import vllm

    release = {
        "version": vllm.__version__,
        "traits": dataclasses.asdict(compat.runner_traits()),
        "lacking": dict(presence.lacking()),
        "traits_v2": {}
        if "v2_runner" in presence.lacking()
        else dataclasses.asdict(compat.runner_traits_v2()),
    }
    print(json.dumps(release), file=answers)
    scenarios = [decode(line) for line in sys.stdin.buffer]
    for plant in (None, *sys.argv[2:]):
        if plant is not None:
            planting.plant(plant)
        for scenario in scenarios:
            print(json.dumps(shown(scenario)), file=answers)


def shown(scenario: Scenario) -> dict[str, object]:
    """What an execution shows."""
    result = execute(scenario)
    return {
        "verdict": result.verdict,
        "violations": [[v.fingerprint, v.oracle, v.kind, v.anchor, v.level] for v in result.violations],
        "digest": result.trace.digest(),
    }


if __name__ == "__main__":
    main()

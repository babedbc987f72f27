"""One vLLM release in a process of its own: scenarios on standard input, what they showed on standard output.

    python child.py VERSION < scenarios.jsonl

The first line of the answer is about the release; then comes one line for each scenario. vLLM's own messages go to
standard error.
"""

import dataclasses
import json
import sys

from harness import compat, presence, target
from harness.codec import decode
from harness.execute import execute


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
    for line in sys.stdin.buffer:
        result = execute(decode(line))
        shown = {
            "verdict": result.verdict,
            "violations": [[v.fingerprint, v.oracle, v.kind, v.anchor, v.level] for v in result.violations],
            "digest": result.trace.digest(),
        }
        print(json.dumps(shown), file=answers)


if __name__ == "__main__":
    main()

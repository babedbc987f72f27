"""What generated tests call: a test fails if one fingerprint shows on the vLLM under test, and only then.

Which vLLM: the one that this process has imported; else what the environment variable SCHEDFUZZ_VLLM names; else the
installed one; else the newest release that the cache has, or that we support. Whatever prevents an answer (no such
vLLM, a scenario that cannot be read, a fault of ours) is a `HarnessError`, never an assertion that fails.
"""

import os
import sys

from harness import target
from harness.codec import ScenarioError, decode
from harness.execute import execute
from harness.target import SUPPORTED, Target, TargetError
from harness.verdict import HarnessError, Verdict, Violation

VARIABLE = "SCHEDFUZZ_VLLM"

__all__ = ["VARIABLE", "assert_absent", "under_test"]


def assert_absent(scenario_json: str, fingerprint: str) -> None:
    """Executes a scenario; AssertionError if it shows the fingerprint, a skip if this vLLM refuses its configuration.

    Other findings of the same execution are printed (pytest shows that with -rP) and do not matter.
    """
    __tracebackhide__ = True
    vllm = under_test()
    try:
        scenario = decode(scenario_json.encode())
    except (ScenarioError, UnicodeEncodeError) as error:
        raise HarnessError(f"this test's scenario cannot be read: {error}") from error
    result = execute(scenario)
    if result.verdict is Verdict.REJECTED:
        import pytest

        pytest.skip(f"vLLM {vllm} refuses this configuration: {result.rejected}")
    for violation in result.violations:
        if violation.fingerprint == fingerprint:
            raise AssertionError(_report(violation, vllm))
    for violation in result.violations:
        print(f"vLLM {vllm}, another finding: {violation.fingerprint}: {violation.message}")


def under_test() -> str:
    """Activates the vLLM under test unless one is imported already; returns what SCHEDFUZZ_VLLM may say to get it."""
    spec = os.environ.get(VARIABLE) or None
    if "vllm" in sys.modules and spec is None:
        return str(getattr(sys.modules["vllm"], "__version__", "installed"))
    try:
        chosen = target.resolve(spec) if spec is not None else _default()
        target.activate(chosen)
    except TargetError as error:
        raise HarnessError(f"no vLLM to test: {error}") from error
    return chosen.spec


def _default() -> Target:
    """The installed vLLM, else the newest in the cache, else the newest supported release, which is fetched."""
    try:
        return target.resolve("installed")
    except TargetError:
        for version in reversed(SUPPORTED):
            try:
                target.check(version)
            except TargetError:
                continue
            return target.resolve(version)
    return target.resolve(None)


def _report(violation: Violation, vllm: str) -> str:
    lines = [
        f"vLLM {vllm} shows {violation.fingerprint}, at iteration {violation.iteration}:",
        f"  {violation.message}",
    ]
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if test:
        lines.append(f"to see it again: {VARIABLE}={vllm} python -m pytest '{test}'")
    lines.append(f"step by step: save the scenario, then: schedfuzz explain scenario.json --vllm {vllm}")
    return "\n".join(lines)

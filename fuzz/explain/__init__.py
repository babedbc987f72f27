"""An execution told to a person: the configuration that matters, the requests, then what happened, step by step.

Plain text, the same for the same arguments. It is written from the scenario and the trace alone, so that it tells
what was recorded and nothing that somebody concluded afterwards; the violations stand where they were seen.
"""

from collections.abc import Iterator

from fuzz.explain.promise import promise
from fuzz.explain.scenario import configuration, items, request
from fuzz.explain.story import story
from fuzz.explain.words import count
from harness.execute import Result
from harness.scenario import Scenario
from harness.verdict import Level, Verdict

__all__ = ["MAX_LINES", "explain", "promise"]

MAX_LINES = 600
"""Lines of the story: ten times what a shrunk finding takes. From the middle of a longer one, lines are left out."""


def explain(scenario: Scenario, result: Result, *, vllm: str, file: str = "minimal.json") -> str:
    """Tells an execution of `scenario`, ending in a newline.

    `vllm` is what a shell takes after `--vllm` to get the same vLLM again, `file` the scenario's file.
    """
    shown = items(scenario)
    happened = list(story(scenario, result, shown))
    if len(happened) > MAX_LINES:
        left_out = len(happened) - MAX_LINES
        happened[MAX_LINES // 2 : MAX_LINES // 2 + left_out] = [f"  ... {left_out} lines left out ..."]
    lines = [
        *_summary(result, vllm),
        "",
        "Configuration (all else has its default)",
        *configuration(scenario),
        "",
        "Requests (positions in tokens; [a, b) is a up to, not including, b)",
        *(request(scenario, index, shown) for index in range(len(scenario.requests))),
        "",
        "What happened",
        *happened,
        "",
        "To see it again",
        f"  schedfuzz replay {file} --vllm {vllm}",
    ]
    return "\n".join(lines) + "\n"


def _summary(result: Result, vllm: str) -> Iterator[str]:
    if result.verdict is Verdict.REJECTED:
        yield f"vLLM {vllm} refuses this configuration: {result.rejected}"
    elif not result.violations:
        yield f"vLLM {vllm} keeps every promise that we check, in {count(result.steps, 'step')}"
    for violation in result.violations:
        hazard = " (a hazard: harmless only because today's worker runs steps in order)"
        yield f"{violation.fingerprint} on vLLM {vllm}{hazard if violation.level is Level.HAZARD else ''}"
        yield f"  {violation.message}"

"""What a campaign found, for people."""

import shlex
from pathlib import Path

from fuzz.campaign import Summary
from harness.target import Target


def tell(summary: Summary, out: Path, vllm: str) -> str:
    """The summary, and each finding with its explanation and the command that shows it again.

    `vllm` is what a shell takes after `--vllm` to get the same vLLM.
    """
    lines: list[str] = []
    for finding in summary.findings:
        explanation = Path(finding.minimal).with_name("explanation.txt").read_text(encoding="utf-8")
        known = f", known as {', '.join(finding.ledger)}" if finding.ledger else ""
        lines += [
            "",
            f"=== {finding.fingerprint}",
            f"{finding.level}, reachable by {_REACH[finding.reachable]}{known}; found after "
            f"{finding.executions_to_find} executions ({finding.seconds_to_find:.1f} s), "
            f"shrunk in {finding.shrink_tries} tries",
            "",
            explanation.rstrip("\n"),
            "",
            f"  scenario  {finding.scenario}",
            f"  minimal   {finding.minimal}",
            f"  test      {finding.test}",
            f"  replay    schedfuzz replay {shlex.quote(finding.minimal)} --vllm {vllm}",
        ]
    count = len(summary.findings)
    label = Target("", summary.vllm, None, summary.plant).label
    lines += [
        "",
        f"{count} distinct finding{'' if count == 1 else 's'} in vLLM {label}: {summary.executions} executions, "
        f"{summary.steps} steps in {summary.seconds:.0f} s ({summary.executions_per_s:.0f}/s), "
        f"{summary.share_in_vllm:.0%} of the time inside vLLM; {summary.harness_errors} errors of our own",
        f"everything is in {out}",
    ]
    return "\n".join(lines)


_REACH = {"engine": "vLLM's engine loop", "free": "a freer interleaving only"}

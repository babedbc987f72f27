"""Whether the stub is the runner: many scenarios in tandem, and a table of what came of it.

A disagreement is never a finding about vLLM. It says that the stub's contract, or the device's set-up, is wrong for
this release; its scenario is kept.
"""

import time
from collections import Counter
from pathlib import Path
from random import Random

import msgspec

from fuzz.corpus import write
from fuzz.generate import generate
from fuzz.mutate import mutate
from harness.codec import encode
from harness.execute import Result, execute
from harness.groups import has_block_sizes, has_mamba, states_are_cached
from harness.limits import scheduler_fields as limits_of
from harness.scenario import Abort, Engine, Image, Pause, Reset, Scenario, content_hash
from harness.verdict import HarnessError
from harness.worker.interface import Kind
from harness.worker.tandem import Disagreement

MUTATED = 0.5
"""Half of the scenarios are generated, the rest are children of them: both are what campaigns execute."""


class Faithfulness(msgspec.Struct):
    """What a tandem run showed; `fidelity --json` prints it."""

    vllm: str
    device: str
    seed: int
    scenarios: int = 0
    steps: int = 0
    seconds: float = 0.0
    verdicts: dict[str, int] = msgspec.field(default_factory=dict)
    fingerprints: dict[str, int] = msgspec.field(default_factory=dict)
    """Scenarios that showed each finding or hazard: there the stub spoke, and the device did not contradict."""
    features: dict[str, int] = msgspec.field(default_factory=dict)
    """Scenarios that had each feature."""
    disagreements: list[str] = msgspec.field(default_factory=list)
    errors: list[str] = msgspec.field(default_factory=list)

    @property
    def ms_per_step(self) -> float:
        """Of the whole: scheduler, both workers, oracles, and making a runner for each scenario."""
        return 1000 * self.seconds / max(self.steps, 1)


def measure(report: Faithfulness, count: int, features: frozenset[str], keep: Path | None) -> Faithfulness:
    """Runs `count` scenarios in tandem; those with disagreements go to the folder `keep`."""
    rng = Random(report.seed)
    parent: Scenario | None = None
    tally: dict[str, Counter[str]] = {name: Counter() for name in ("verdicts", "fingerprints", "features")}
    began = time.monotonic()
    for _ in range(count):
        if parent is None or rng.random() >= MUTATED:
            scenario = generate(rng, features)
        else:
            scenario = mutate(rng, parent, features)[0]
        parent = scenario
        report.scenarios += 1
        tally["features"].update(features_of(scenario))
        result = _run(scenario, report, keep)
        if result is not None:
            report.steps += result.steps
            tally["verdicts"][result.verdict.value] += 1
            tally["fingerprints"].update({violation.fingerprint for violation in result.violations})
    report.seconds = round(time.monotonic() - began, 1)
    report.verdicts, report.fingerprints, report.features = (
        dict(sorted(counter.items())) for counter in tally.values()
    )
    return report


def _run(scenario: Scenario, report: Faithfulness, keep: Path | None) -> Result | None:
    try:
        return execute(scenario, worker=Kind.TANDEM)
    except HarnessError as error:
        kind = report.disagreements if isinstance(error, Disagreement) else report.errors
        kind.append(f"{content_hash(scenario)}: {error}")
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            write(keep / f"{content_hash(scenario)}.json", encode(scenario))
        return None


def features_of(scenario: Scenario) -> list[str]:
    """Names of what a scenario has that a plain one has not, in the words of docs/fidelity.md."""
    engine, events = scenario.engine, scenario.timeline
    images = any(isinstance(part, Image) for request in scenario.requests for part in request.prompt)
    has = {
        "chunked prefill": engine.enable_chunked_prefill,
        "long prefill threshold": engine.long_prefill_token_threshold > 0,
        "prefix caching": engine.enable_prefix_caching,
        "priority": engine.policy == "priority",
        "aborts": any(isinstance(event, Abort) for event in events),
        "async scheduling": engine.async_scheduling,
        "free interleaving": engine.interleaving == "free",
        "V2 runner": engine.model_runner == "v2",
        "sliding window": engine.sliding_window > 0,
        "mixed groups": bool(engine.kv_cache_groups),
        "Mamba": has_mamba(engine),
        "cached Mamba states": states_are_cached(engine),
        "block sizes": has_block_sizes(engine),
        "multimodal": images,
        "grammar": any(request.grammar for request in scenario.requests),
        "forced resets": any(isinstance(e, Reset) and e.reset_running_requests for e in events),
        "encoder resets": any(isinstance(e, Reset) and e.cache == "encoder" for e in events),
        "pauses": any(isinstance(e, Pause) for e in events),
        "pipeline": engine.pipeline_parallel_size > 1,
        "pooling": engine.runner_type == "pooling",
        "prompt logprobs": any(request.prompt_logprobs for request in scenario.requests),
        "LoRA": any(request.lora for request in scenario.requests),
        "other limits": limits_of(engine) != limits_of(Engine()),
        "min_tokens": any(request.min_tokens for request in scenario.requests),
        "encoder-cache connector": engine.ec_connector is not None,
        "connector": engine.connector is not None,
        "loads": any(request.load for request in scenario.requests),
        "failing loads": any(request.load and request.load.failed for request in scenario.requests),
        "sends": any(request.send is not None for request in scenario.requests),
    }
    if engine.speculative is not None:
        has[engine.speculative.method] = True
        has[f"{engine.speculative.method} + async"] = engine.async_scheduling
        has["multimodal + spec"] = images
        has["dynamic drafts"] = bool(engine.speculative.num_speculative_tokens_per_batch_size)
    return [name for name, there in has.items() if there]


def tell(report: Faithfulness) -> str:
    """The report for people."""
    lines = [
        f"vLLM {report.vllm} on {report.device}, seed {report.seed}: {report.scenarios} scenarios, "
        f"{report.steps} steps, {report.seconds:.0f} s ({report.ms_per_step:.1f} ms/step)",
        f"disagreements: {len(report.disagreements)}; other errors of our own: {len(report.errors)}",
    ]
    for title, counts in (
        ("verdicts", report.verdicts),
        ("features", report.features),
        ("findings and hazards", report.fingerprints),
    ):
        lines.append(f"{title}: " + ", ".join(f"{name} {count}" for name, count in counts.items()))
    return "\n".join(lines + report.disagreements + report.errors)

"""`python -m fuzz.bench`: how fast executions are, and where the time goes.

A fixed set of generated scenarios (seed 0, all features), with all oracles, instrumentation and state features on, as
in a campaign; mutation and libFuzzer's own work are not in it (`run --json` reports the share with them).
"""

import argparse
import gc
import time
from random import Random

from fuzz import feedback
from fuzz.console import Status, leave
from fuzz.generate import FEATURES, generate
from fuzz.sampler import VLLM, Sampler

SCENARIOS = 1000
ROWS = 25
"""Lines of the profile; the rest is summed up."""
WANTED_SHARE = 0.4


def main() -> None:
    """Prints the measurement. Exit status 0 whatever the numbers are: they depend on the machine."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.bench", description=__doc__)
    parser.add_argument("--vllm", metavar="SPEC", help="as for schedfuzz run")
    parser.add_argument("--scenarios", type=int, default=SCENARIOS, metavar="N")
    parser.add_argument(
        "--oracles", action="store_true", help="what each oracle costs, as docs/oracles.md has it"
    )
    options = parser.parse_args()

    from fuzz.campaign import warm
    from harness.target import resolve

    target = resolve(options.vllm)
    warm(target)
    from harness.execute import execute

    rng = Random(0)
    scenarios = [generate(rng, frozenset(FEATURES)) for _ in range(options.scenarios)]
    if options.oracles:
        from fuzz.oracle_costs import costs, rows

        print("\n".join(rows(costs(scenarios))))
        return
    branches = feedback.instrument()
    for scenario in scenarios[:20]:
        execute(scenario)
    gc.collect()
    gc.freeze()
    sampler = Sampler()
    steps = 0
    seen: set[int] = set()
    began, worked = time.perf_counter(), time.process_time()
    sampler.start()
    for scenario in scenarios:
        result = execute(scenario)
        steps += result.steps
        seen |= feedback.features(result.trace)
    sampler.stop()
    seconds, worked = time.perf_counter() - began, time.process_time() - worked

    print(f"vLLM {target.version}: {len(scenarios)} generated scenarios, {branches} functions instrumented")
    print(f"executions/s   {len(scenarios) / seconds:8.1f}")
    print(f"steps/s        {steps / seconds:8.1f}   ({steps / len(scenarios):.1f} steps an execution)")
    print(f"ms/execution   {1000 * seconds / len(scenarios):8.2f}   ({worked / seconds:.0%} of a processor)")
    print(f"state features {len(seen):8d}   of {feedback.SIZE}")
    print(f"share in vLLM  {sampler.share:8.3f}   (wanted: at least {WANTED_SHARE})")
    print(f"\nwhere the time goes ({sampler.total} samples)")
    by_package: dict[str, int] = {}
    for (package, _), count in sampler.counts.items():
        by_package[package] = by_package.get(package, 0) + count
    for package, count in sorted(by_package.items(), key=lambda item: -item[1]):
        print(f"  {count / sampler.total:6.1%}  {package}")
    print()
    ours = [(place, n) for place, n in sampler.counts.most_common() if place[0] != VLLM]
    theirs = [(place, n) for place, n in sampler.counts.most_common() if place[0] == VLLM][:5]
    for title, places in (("outside vLLM", ours[:ROWS]), ("inside vLLM, the five largest", theirs)):
        print(title)
        for (package, module), count in places:
            print(f"  {count / sampler.total:6.1%}  {package}/{module}")


if __name__ == "__main__":
    main()
    leave(Status.CLEAN)

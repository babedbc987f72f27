"""Features of the scenario language that not every release has: how to see that a scenario uses one. Pure.

What a release lacks is `harness.compat.lacking`'s to say. A scenario that uses something that the target lacks is
rejected, with the reason; generators leave it out.
"""

from collections.abc import Callable, Mapping

from harness.groups import is_hybrid, states_are_cached
from harness.scenario import Scenario


def uses_v2_ngram(scenario: Scenario) -> bool:
    """An n-gram search on the V2 model runner."""
    speculative = scenario.engine.speculative
    return scenario.engine.model_runner == "v2" and speculative is not None and speculative.method == "ngram"


OPTIONAL: Mapping[str, Callable[[Scenario], bool]] = {
    "groups": lambda scenario: bool(scenario.engine.kv_cache_groups) and not is_hybrid(scenario.engine),
    "mamba_cache": lambda scenario: states_are_cached(scenario.engine),
    "v2_runner": lambda scenario: scenario.engine.model_runner == "v2",
    "v2_ngram": uses_v2_ngram,
}
"""By the name under which `fuzz.generate` knows the feature."""


def used(scenario: Scenario) -> list[str]:
    """Names of the optional features that a scenario uses."""
    return [name for name, uses in OPTIONAL.items() if uses(scenario)]

"""Features of the scenario language that not every release has: how to see that a scenario uses one. Pure.

What a release lacks is `harness.compat.lacking`'s to say. A scenario that uses something that the target lacks is
rejected, with the reason; generators leave it out.
"""

from collections.abc import Callable, Mapping

from harness.scenario import Pause, Reset, Scenario


def _pauses(scenario: Scenario) -> bool:
    return any(isinstance(event, Pause) for event in scenario.timeline)


def _resets_encoder(scenario: Scenario) -> bool:
    return any(isinstance(event, Reset) and event.cache == "encoder" for event in scenario.timeline)


def _drafts_by_batch_size(scenario: Scenario) -> bool:
    speculative = scenario.engine.speculative
    return speculative is not None and bool(speculative.num_speculative_tokens_per_batch_size)


OPTIONAL: Mapping[str, Callable[[Scenario], bool]] = {
    "groups": lambda scenario: bool(scenario.engine.kv_cache_groups),
    "pause": _pauses,
    "encoder_reset": _resets_encoder,
    "active_seqs": lambda scenario: bool(scenario.engine.max_num_active_seqs),
    "adaptive_prefill": lambda scenario: scenario.engine.long_prefill_token_threshold_adaptive,
    "unreserved_isl": lambda scenario: not scenario.engine.scheduler_reserve_full_isl,
    "watermark": lambda scenario: bool(scenario.engine.watermark),
    "prefill_interval": lambda scenario: scenario.engine.prefill_schedule_interval > 1,
    "dynamic_spec": _drafts_by_batch_size,
}
"""By the name under which `fuzz.generate` knows the feature."""


def used(scenario: Scenario) -> list[str]:
    """Names of the optional features that a scenario uses."""
    return [name for name, uses in OPTIONAL.items() if uses(scenario)]

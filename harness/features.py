"""Features of the scenario language that not every release has: how to see that a scenario uses one. Pure.

What a release lacks is `harness.presence.lacking`'s to say. A scenario that uses something that the target lacks is
rejected, with the reason; generators leave it out.
"""

from collections.abc import Callable, Mapping

from harness.groups import (
    groups_of,
    has_block_sizes,
    is_hybrid,
    reads_across,
    state_tokens,
    states_are_cached,
)
from harness.scenario import Pause, Reset, Scenario


def _pauses(scenario: Scenario) -> bool:
    return any(isinstance(event, Pause) for event in scenario.timeline)


def _resets_encoder(scenario: Scenario) -> bool:
    return any(isinstance(event, Reset) and event.cache == "encoder" for event in scenario.timeline)


def _fails_loads(scenario: Scenario) -> bool:
    connector = scenario.engine.connector
    return connector is not None and connector.kv_load_failure_policy == "fail"


def _loads_groups(scenario: Scenario) -> bool:
    return scenario.engine.connector is not None and len(groups_of(scenario.engine)) > 1


def _loads_cached_states(scenario: Scenario) -> bool:
    return scenario.engine.connector is not None and states_are_cached(scenario.engine)


def _fails_groups(scenario: Scenario) -> bool:
    return _loads_groups(scenario) and any(r.load is not None and r.load.failed for r in scenario.requests)


def uses_v2_ngram(scenario: Scenario) -> bool:
    """An n-gram search on the V2 model runner."""
    speculative = scenario.engine.speculative
    return scenario.engine.model_runner == "v2" and speculative is not None and speculative.method == "ngram"


def _drafts_by_batch_size(scenario: Scenario) -> bool:
    speculative = scenario.engine.speculative
    return speculative is not None and bool(speculative.num_speculative_tokens_per_batch_size)


def _saves_encoder_outputs(scenario: Scenario) -> bool:
    connector = scenario.engine.ec_connector
    return connector is not None and connector.ec_role == "ec_both"


def _fetches_encoder_outputs(scenario: Scenario) -> bool:
    connector = scenario.engine.ec_connector
    return connector is not None and connector.latency > 0


OPTIONAL: Mapping[str, Callable[[Scenario], bool]] = {
    "encoder_decoder": lambda scenario: reads_across(scenario.engine),
    "groups": lambda scenario: bool(scenario.engine.kv_cache_groups) and not is_hybrid(scenario.engine),
    "mamba_block_sizes": lambda scenario: (
        has_block_sizes(scenario.engine) and state_tokens(scenario.engine) > scenario.engine.block_size
    ),
    "mamba_cache": lambda scenario: states_are_cached(scenario.engine),
    "pause": _pauses,
    "encoder_reset": _resets_encoder,
    "load_failure_policy": _fails_loads,
    "hybrid_connector": _loads_groups,
    "connector_states": _loads_cached_states,
    "streaming": lambda scenario: any(request.chunks is not None for request in scenario.requests),
    "reused_ids": lambda scenario: any(request.same_id_as is not None for request in scenario.requests),
    "hybrid_failed_load": _fails_groups,
    "v2_runner": lambda scenario: scenario.engine.model_runner == "v2",
    "v2_ngram": uses_v2_ngram,
    "active_seqs": lambda scenario: bool(scenario.engine.max_num_active_seqs),
    "adaptive_prefill": lambda scenario: scenario.engine.long_prefill_token_threshold_adaptive,
    "unreserved_isl": lambda scenario: not scenario.engine.scheduler_reserve_full_isl,
    "watermark": lambda scenario: bool(scenario.engine.watermark),
    "prefill_interval": lambda scenario: scenario.engine.prefill_schedule_interval > 1,
    "dynamic_spec": _drafts_by_batch_size,
    "ec_both": _saves_encoder_outputs,
    "ec_latency": _fetches_encoder_outputs,
}
"""By the name under which `fuzz.generate` knows the feature."""


def used(scenario: Scenario) -> list[str]:
    """Names of the optional features that a scenario uses."""
    return [name for name, uses in OPTIONAL.items() if uses(scenario)]

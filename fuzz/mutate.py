"""Mutation: mutators in a row, repaired after each, within the allowed features, counted by name."""

from collections.abc import Callable
from random import Random

from fuzz import ids, limits, mutators, prompt_mutators, sessions, timeline_mutators
from fuzz.restrict import restrict
from harness.repair import repair
from harness.scenario import Scenario

Mutator = Callable[[Random, Scenario], Scenario]

_GO_ON = 0.5
"""Probability of one more mutation: two on average, so that half of the children differ by one idea alone, which keeps
the yield of a mutator readable, and one in eight makes the three steps that most bugs need together."""
_ATTEMPTS = 8
"""Draws before `mutate` gives up on an edit with an effect. About half of the draws find nothing to do on the smallest
scenarios, so that 1 in 2^8 mutations comes back unchanged there."""

MUTATORS: dict[str, Mutator] = {
    mutator.__name__: mutator
    for mutator in (
        mutators.insert_request,
        mutators.remove_request,
        mutators.duplicate_request,
        timeline_mutators.insert_abort,
        timeline_mutators.remove_event,
        timeline_mutators.move_event,
        timeline_mutators.change_delay,
        timeline_mutators.flip_in_step,
        timeline_mutators.insert_reset,
        timeline_mutators.insert_encoder_reset,
        timeline_mutators.insert_pause,
        timeline_mutators.change_pause,
        mutators.tweak_limit,
        mutators.change_choice,
        mutators.change_speculative,
        mutators.change_groups,
        mutators.change_block_sizes,
        mutators.change_encoder,
        mutators.change_encoder_connector,
        mutators.change_connector,
        mutators.change_load,
        mutators.change_send,
        prompt_mutators.split_text,
        prompt_mutators.resize_text,
        prompt_mutators.fit_text,
        prompt_mutators.shift_text,
        prompt_mutators.remove_part,
        prompt_mutators.share_prefix,
        prompt_mutators.insert_image,
        prompt_mutators.resize_image,
        prompt_mutators.reidentify_image,
        prompt_mutators.rename_image,
        mutators.change_max_tokens,
        mutators.change_acceptance,
        timeline_mutators.change_step_delays,
        mutators.change_stop,
        mutators.change_grammar,
        mutators.change_priority,
        mutators.change_min_tokens,
        mutators.change_salt,
        mutators.flip_skip_prefix,
        mutators.flip_prompt_logprobs,
        mutators.change_lora,
        limits.change_limit,
        ids.reuse_id,
        sessions.insert_chunk,
        sessions.change_chunk,
        sessions.hurry,
    )
}
"""By the name under which their yield is counted."""

_NEEDS = {
    "insert_abort": "abort",
    "flip_in_step": "abort",
    "insert_reset": "reset",
    "insert_encoder_reset": "encoder_reset",
    "insert_pause": "pause",
    "change_min_tokens": "min_tokens",
    "change_salt": "cache_salt",
    "flip_skip_prefix": "skip_prefix",
    "flip_prompt_logprobs": "prompt_logprobs",
    "change_lora": "lora",
    "change_speculative": "spec",
    "change_groups": "groups",
    "change_block_sizes": "block_sizes",
    "change_encoder": "mm",
    "change_encoder_connector": "ec_connector",
    "change_connector": "connector",
    "change_load": "connector",
    "change_send": "connector",
    "insert_image": "mm",
    "resize_image": "mm",
    "reidentify_image": "mm",
    "rename_image": "mm_uuids",
    "change_acceptance": "spec",
    "change_step_delays": "async",
    "change_stop": "stop",
    "change_grammar": "grammar",
    "change_priority": "priority",
    "insert_chunk": "streaming",
    "change_chunk": "streaming",
    "hurry": "streaming",
    "reuse_id": "reused_ids",
}
"""Mutators that do nothing, or nothing that `restrict` lets stand, without this feature."""


def mutate(rng: Random, scenario: Scenario, features: frozenset[str]) -> tuple[Scenario, tuple[str, ...]]:
    """A legal neighbour of `scenario` within `features`, and the names of the mutators that had an effect, in order."""
    names = [name for name in MUTATORS if _NEEDS.get(name, "text") in features | {"text"}]
    scenario = restrict(scenario, features)
    used: list[str] = []
    for _ in range(_ATTEMPTS):
        name = rng.choice(names)
        child = restrict(repair(MUTATORS[name](rng, scenario)), features)
        if child == scenario:
            continue
        scenario = child
        used.append(name)
        if rng.random() >= _GO_ON:
            break
    return scenario, tuple(used)

"""Limits of the scheduler's configuration for generator and mutators: drawn, switched off, changed.

As in `fuzz.generate`: the random source comes first, and nothing depends on set order, hashing or time.
"""

from collections.abc import Callable, Mapping
from random import Random

from msgspec.structs import replace

from harness.scenario import Engine, Scenario, Speculative

_WATERMARKS = (1, 5, 10, 20, 33, 50)
"""In hundredths: of a small pool, a block or two up to half of it."""
_INTERVALS = (2, 2, 3, 4, 8)


def with_limits(rng: Random, weights: Mapping[str, float], engine: Engine) -> Engine:
    """The engine with the limits whose features are on."""
    draws: dict[str, Callable[[], dict[str, object]]] = {
        "active_seqs": lambda: {"max_num_active_seqs": rng.randint(1, engine.max_num_seqs)},
        "adaptive_prefill": lambda: {"long_prefill_token_threshold_adaptive": True},
        "unreserved_isl": lambda: {"scheduler_reserve_full_isl": False},
        "watermark": lambda: {"watermark": rng.choice(_WATERMARKS)},
        "prefill_interval": lambda: {
            "prefill_schedule_interval": rng.choice(_INTERVALS),
            "data_parallel": rng.random() < 0.5,
        },
        "dynamic_spec": lambda: {"speculative": with_schedule(rng, engine.speculative)},
    }
    for name, draw in draws.items():
        if name in weights:
            engine = replace(engine, **draw())
    return engine


def with_schedule(rng: Random, speculative: Speculative | None) -> Speculative | None:
    """Draft lengths by the size of a step: mostly fewer for larger ones, and often none at all."""
    if speculative is None:
        return None
    most = speculative.num_speculative_tokens
    schedule = sorted((rng.randint(0, most) for _ in range(rng.randint(1, 4))), reverse=rng.random() < 0.8)
    return replace(speculative, num_speculative_tokens_per_batch_size=tuple(schedule))


def _off(**values: object) -> Callable[[Scenario], Scenario]:
    return lambda scenario: replace(scenario, engine=replace(scenario.engine, **values))


def _one_draft_length(scenario: Scenario) -> Scenario:
    speculative = scenario.engine.speculative
    if speculative is None:
        return scenario
    speculative = replace(speculative, num_speculative_tokens_per_batch_size=())
    return replace(scenario, engine=replace(scenario.engine, speculative=speculative))


OFF: dict[str, Callable[[Scenario], Scenario]] = {
    "active_seqs": _off(max_num_active_seqs=0),
    "adaptive_prefill": _off(long_prefill_token_threshold_adaptive=False),
    "unreserved_isl": _off(scheduler_reserve_full_isl=True),
    "watermark": _off(watermark=0),
    "prefill_interval": _off(prefill_schedule_interval=1, data_parallel=False),
    "dynamic_spec": _one_draft_length,
}
"""Turning each feature off, as in `fuzz.restrict`."""


def change_limit(rng: Random, scenario: Scenario) -> Scenario:
    """Another value for one of the limits, or its default."""
    name = rng.choice(tuple(OFF))
    if rng.random() < 0.25:
        return OFF[name](scenario)
    return replace(scenario, engine=with_limits(rng, {name: 1.0}, scenario.engine))

"""Features: their names, and the nearest scenario without some of them. Pure."""

from collections.abc import Callable

from msgspec.structs import replace

from fuzz import limits
from fuzz.edits import without_events
from harness.features import uses_v2_ngram
from harness.groups import blocks_needed, groups_of, has_mamba, is_hybrid, scaled, states_are_cached
from harness.repair import repair
from harness.scenario import (
    MAX_MODEL_LEN,
    Abort,
    Arrive,
    Engine,
    Event,
    Image,
    Mamba,
    Part,
    Pause,
    Reset,
    Resized,
    Resume,
    Scenario,
    Text,
    part_length,
)
from harness.sessions import longest


def parse_features(text: str) -> frozenset[str]:
    """`all`, or a comma-separated list of names from FEATURES. ValueError names the first unknown one."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name != "all" and name not in FEATURES:
            raise ValueError(f"unknown feature {name!r}; known: all, {', '.join(FEATURES)}")
    return frozenset(FEATURES if "all" in names else names)


def restrict(scenario: Scenario, features: frozenset[str]) -> Scenario:
    """The nearest legal scenario without the features that are not in `features`. Idempotent."""
    scenario = repair(scenario)
    for name, turn_off in _OFF.items():
        if name not in features:
            scenario = repair(turn_off(scenario))
    return scenario


def _engine_field(**values: object) -> Callable[[Scenario], Scenario]:
    return lambda scenario: replace(scenario, engine=replace(scenario.engine, **values))


def _without_images(scenario: Scenario) -> Scenario:
    """Text of the same length in their places: positions and sharing stay."""

    def text(part: Part) -> Part:
        if not isinstance(part, Image):
            return part
        return Text(part.identity, 0, part_length(part, scenario.images))

    requests = tuple(replace(r, prompt=tuple(map(text, r.prompt))) for r in scenario.requests)
    return replace(scenario, engine=replace(scenario.engine, encoder=None), images=(), requests=requests)


def _without_shared_names(scenario: Scenario) -> Scenario:
    """Each name has one length."""

    def own(part: Part) -> Part:
        return Image(part.identity) if isinstance(part, Resized) else part

    requests = tuple(replace(r, prompt=tuple(map(own, r.prompt))) for r in scenario.requests)
    return replace(scenario, requests=requests)


def _without_cross_attention(scenario: Scenario) -> Scenario:
    engine = scenario.engine
    if engine.encoder is None:
        return scenario
    encoder = replace(engine.encoder, is_encoder_decoder=False)
    return replace(scenario, engine=replace(engine, encoder=encoder))


def _within_model_len(scenario: Scenario) -> Scenario:
    """Room for every request and its drafts; where the language has no such length, fewer output tokens."""
    engine = scenario.engine
    drafts = engine.speculative.num_speculative_tokens if engine.speculative else 0
    if any(longest(r, scenario.images) + drafts > MAX_MODEL_LEN for r in scenario.requests):
        scenario = _request_field(chunks=None)(scenario)
    # A session counts up to its last output; shorter turns make it shorter by as much.
    ends = [longest(r, scenario.images) - r.max_tokens + 1 + drafts for r in scenario.requests]
    pairs = tuple(zip(scenario.requests, ends, strict=True))
    length = min(MAX_MODEL_LEN, max((engine.max_model_len, *(r.max_tokens + end for r, end in pairs))))
    requests = tuple(replace(r, max_tokens=max(1, min(r.max_tokens, length - end))) for r, end in pairs)
    return replace(scenario, engine=replace(engine, max_model_len=length), requests=requests)


def without_pressure(engine: Engine) -> Engine:
    """Blocks for as many full-length requests as may run at once, and no more of them than 1024 blocks hold."""
    each = blocks_needed(engine) - 1
    seqs = min(engine.max_num_seqs, 1023 // each)
    return replace(engine, max_num_seqs=seqs, num_gpu_blocks=max(engine.num_gpu_blocks, 1 + seqs * each))


def _without_aborts(scenario: Scenario) -> Scenario:
    """Second arrivals in their places, which `repair` drops, handing their delays on."""
    timeline = (Arrive(e.request, e.delay) if isinstance(e, Abort) else e for e in scenario.timeline)
    return replace(scenario, timeline=tuple(timeline))


def _without_control(is_off: Callable[[Event], bool]) -> Callable[[Scenario], Scenario]:
    def turn_off(scenario: Scenario) -> Scenario:
        return without_events(scenario, [at for at, event in enumerate(scenario.timeline) if is_off(event)])

    return turn_off


def _request_field(**values: object) -> Callable[[Scenario], Scenario]:
    def turn_off(scenario: Scenario) -> Scenario:
        return replace(scenario, requests=tuple(replace(r, **values) for r in scenario.requests))

    return turn_off


def _without_connector(scenario: Scenario) -> Scenario:
    return replace(scenario, engine=replace(scenario.engine, connector=None))


def _without_failed_loads(scenario: Scenario) -> Scenario:
    requests = (replace(r, load=replace(r.load, failed=()) if r.load else None) for r in scenario.requests)
    return replace(scenario, requests=tuple(requests))


def _without_failure_policy(scenario: Scenario) -> Scenario:
    connector = scenario.engine.connector
    if connector is None:
        return scenario
    recompute = replace(connector, kv_load_failure_policy="recompute")
    return replace(scenario, engine=replace(scenario.engine, connector=recompute))


def _without_hybrid_connector(scenario: Scenario) -> Scenario:
    """The connector stays."""
    return (
        _engine_field(sliding_window=0, kv_cache_groups=())(scenario)
        if scenario.engine.connector
        else scenario
    )


def _without_connected_states(scenario: Scenario) -> Scenario:
    """The connector stays."""
    connected = scenario.engine.connector is not None and states_are_cached(scenario.engine)
    return _engine_field(kv_cache_groups=())(scenario) if connected else scenario


def _without_hybrid_failures(scenario: Scenario) -> Scenario:
    return _without_failed_loads(scenario) if len(groups_of(scenario.engine)) > 1 else scenario


def _encoder_connector(**values: object) -> Callable[[Scenario], Scenario]:
    def turn_off(scenario: Scenario) -> Scenario:
        connector = scenario.engine.ec_connector
        if connector is None:
            return scenario
        return _engine_field(ec_connector=replace(connector, **values))(scenario)

    return turn_off


def _without_stops(scenario: Scenario) -> Scenario:
    requests = (replace(r, ignore_eos=False, eos_at=None, stop_at=None) for r in scenario.requests)
    return replace(scenario, requests=tuple(requests))


def _without_grammars(scenario: Scenario) -> Scenario:
    return replace(scenario, requests=tuple(replace(r, grammar=None) for r in scenario.requests))


def _without_cached_states(scenario: Scenario) -> Scenario:
    engine = scenario.engine
    if is_hybrid(engine):
        return _engine_field(kv_cache_groups=())(scenario)
    return _engine_field(enable_prefix_caching=False)(scenario) if has_mamba(engine) else scenario


def _without_block_sizes(*kinds: type) -> Callable[[Scenario], Scenario]:
    """Groups of these kinds, or all, have the engine's."""

    def turn_off(scenario: Scenario) -> Scenario:
        groups = scenario.engine.kv_cache_groups
        found = tuple(
            scaled(group, 1) if not kinds or isinstance(group, kinds) else group for group in groups
        )
        return _engine_field(kv_cache_groups=found)(scenario)

    return turn_off


def _without_chunks(scenario: Scenario) -> Scenario:
    """States are cached at the ends of chunks: vLLM refuses the one without the other."""
    engine = replace(scenario.engine, enable_chunked_prefill=False, long_prefill_token_threshold=0)
    if has_mamba(engine):
        engine = replace(engine, enable_prefix_caching=False)
    return replace(scenario, engine=engine)


_OFF: dict[str, Callable[[Scenario], Scenario]] = {
    "long_prefill": _engine_field(long_prefill_token_threshold=0),
    "prefix_cache": _engine_field(enable_prefix_caching=False),
    "events": _engine_field(enable_kv_cache_events=False),
    "priority": _engine_field(policy="fcfs"),
    "abort": _without_aborts,
    "async": _engine_field(async_scheduling=False),
    "spec": _engine_field(speculative=None),
    "mm": _without_images,
    "mm_uuids": _without_shared_names,
    "encoder_decoder": _without_cross_attention,
    "block_sizes": _without_block_sizes(),
    "mamba_block_sizes": _without_block_sizes(Mamba),
    "groups": lambda scenario: (
        scenario if is_hybrid(scenario.engine) else _engine_field(kv_cache_groups=())(scenario)
    ),
    "sliding_window": _engine_field(sliding_window=0),
    "mamba_cache": _without_cached_states,
    "free": _engine_field(interleaving="engine"),
    "v2_runner": _engine_field(model_runner="v1"),
    "v2_ngram": lambda scenario: (
        _engine_field(model_runner="v1")(scenario) if uses_v2_ngram(scenario) else scenario
    ),
    "stop": _without_stops,
    "grammar": _without_grammars,
    "reset": _without_control(lambda event: isinstance(event, Reset) and event.cache == "prefix"),
    "encoder_reset": _without_control(lambda event: isinstance(event, Reset) and event.cache == "encoder"),
    "pause": _without_control(lambda event: isinstance(event, Pause | Resume)),
    "min_tokens": _request_field(min_tokens=0),
    "cache_salt": _request_field(cache_salt=0),
    "skip_prefix": _request_field(skip_reading_prefix_cache=False),
    "lora": _engine_field(max_loras=0),
    "pipeline": _engine_field(pipeline_parallel_size=1),
    **limits.OFF,
    "connector": _without_connector,
    "failed_load": _without_failed_loads,
    "load_failure_policy": _without_failure_policy,
    "hybrid_connector": _without_hybrid_connector,
    "ec_connector": _engine_field(ec_connector=None),
    "ec_both": _encoder_connector(ec_role="ec_consumer"),
    "ec_latency": _encoder_connector(latency=0),
    "pooling": _engine_field(runner_type="generate"),
    "prompt_logprobs": _request_field(prompt_logprobs=False),
    "connector_states": _without_connected_states,
    "streaming": _request_field(chunks=None),
    "reused_ids": _request_field(same_id_as=None),
    "hybrid_failed_load": _without_hybrid_failures,
    # These three read what the others leave: lengths, then the budget that a length asks for, then blocks for both.
    "max_model_len": _within_model_len,
    "chunked_prefill": _without_chunks,
    "preemption": lambda scenario: replace(scenario, engine=without_pressure(scenario.engine)),
}
"""Turning a feature off is one edit; what follows from it (acceptance without drafts, ...) is repair's."""


FEATURES: tuple[str, ...] = ("text", *_OFF)
"""All that can be asked for. `text` is always on; its name serves to ask for nothing else."""

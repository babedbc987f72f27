"""Mutators: small structure-aware edits of a scenario, one idea each.

A mutator takes a legal scenario and returns a decodable one (every number within its own limits), or its argument if it
finds nothing to work on. Rules: the random source comes first; nothing depends on set order, hashing or time.
"""

from random import Random

from msgspec.structs import replace

from fuzz.edits import (
    MAX_DELAY,
    any_request,
    change_script,
    insert_event,
    tweak,
    with_engine,
    without_requests,
)
from fuzz.generate import (
    KV_ROLES,
    interesting_lengths,
    new_encoder_connector,
    new_grammar,
    new_group,
    new_load,
    new_request,
)
from fuzz.restrict import FEATURES
from fuzz.swarm import draw_weights
from fuzz.timelines import DELAYS
from harness.groups import groups_of, scaled
from harness.scenario import (
    MAX_GROUPS,
    MAX_MODEL_LEN,
    MAX_REQUESTS,
    Arrive,
    Chunked,
    Connector,
    Encoder,
    Mamba,
    Request,
    Scenario,
    Speculative,
    Window,
)


def insert_request(rng: Random, scenario: Scenario) -> Scenario:
    weights = draw_weights(rng, frozenset(FEATURES))
    request = new_request(rng, weights, scenario.engine, scenario.images, list(scenario.requests))
    return _with_request(rng, scenario, request)


def _with_request(rng: Random, scenario: Scenario, request: Request) -> Scenario:
    if len(scenario.requests) >= MAX_REQUESTS:
        return scenario
    scenario = replace(scenario, requests=(*scenario.requests, request))
    return insert_event(rng, scenario, Arrive(len(scenario.requests) - 1, rng.choice(DELAYS)))


def remove_request(rng: Random, scenario: Scenario) -> Scenario:
    if len(scenario.requests) < 2:
        return scenario
    return without_requests(scenario, (rng.randrange(len(scenario.requests)),))


def duplicate_request(rng: Random, scenario: Scenario) -> Scenario:
    return _with_request(rng, scenario, rng.choice(scenario.requests)) if scenario.requests else scenario


def tweak_limit(rng: Random, scenario: Scenario) -> Scenario:
    """One number of the configuration: a step, a factor, or an edge that the scenario has."""
    name, low, high = rng.choice(_LIMITS)
    value = tweak(rng, getattr(scenario.engine, name), low, high)
    edges = interesting_lengths(scenario.engine, scenario.images)
    return with_engine(
        scenario, **{name: max(low, min(high, rng.choice((value, rng.choice(edges or (value,))))))}
    )


def change_choice(rng: Random, scenario: Scenario) -> Scenario:
    """Turns a switch of the configuration, or draws another block size."""
    name, values = rng.choice(_CHOICES)
    return with_engine(
        scenario, **{name: rng.choice([v for v in values if v != getattr(scenario.engine, name)])}
    )


def change_speculative(rng: Random, scenario: Scenario) -> Scenario:
    old = scenario.engine.speculative or Speculative()
    new = Speculative(rng.choice(("eagle", "mtp", "ngram")), tweak(rng, old.num_speculative_tokens, 1, 4))
    off = scenario.engine.speculative is not None and rng.random() < 0.2
    return with_engine(scenario, speculative=None if off else new)


def change_groups(rng: Random, scenario: Scenario) -> Scenario:
    """One KV cache group more, less, twice, other, or of another size."""
    groups = list(groups_of(scenario.engine))
    at = rng.randrange(len(groups))
    old = groups[at]
    fresh = Mamba() if rng.random() < 0.1 else new_group(rng, scenario.engine.block_size)
    new = rng.choice((old, fresh))
    if isinstance(old, Window | Chunked) and rng.random() < 0.4:
        groups[at] = replace(old, size=tweak(rng, old.size, 1, MAX_MODEL_LEN))
    else:
        groups[at : at + rng.randint(0, 1)] = rng.choice(([], [new], [new]))
    return with_engine(scenario, kv_cache_groups=tuple(groups[:MAX_GROUPS]))


def change_block_sizes(rng: Random, scenario: Scenario) -> Scenario:
    """One KV cache group with smaller or larger blocks than the others."""
    groups = list(groups_of(scenario.engine))
    at = rng.randrange(len(groups))
    groups[at] = scaled(groups[at], rng.choice((1, 2, 2, 4)))
    return with_engine(scenario, kv_cache_groups=tuple(groups))


def change_encoder(rng: Random, scenario: Scenario) -> Scenario:
    old = scenario.engine.encoder or Encoder()
    flags = ("disable_chunked_mm_input", "is_encoder_decoder")
    name = rng.choice(("max_num_encoder_input_tokens", "encoder_cache_size", *flags))
    if name in flags:
        return with_engine(scenario, encoder=replace(old, **{name: not getattr(old, name)}))
    sums = [one + other for one in (0, *scenario.images) for other in scenario.images] or [64]
    value = tweak(rng, rng.choice((getattr(old, name), *sums)), 1, MAX_MODEL_LEN)
    return with_engine(scenario, encoder=replace(old, **{name: value}))


def change_encoder_connector(rng: Random, scenario: Scenario) -> Scenario:
    """An encoder-cache connector, another one, or none."""
    old = scenario.engine.ec_connector
    if old is not None and rng.random() < 0.2:
        return with_engine(scenario, ec_connector=None)
    weights = {"ec_both": 0.5, "ec_latency": 0.5}
    new = new_encoder_connector(rng, weights, scenario.images)
    if old is not None and rng.random() < 0.5:
        name = rng.choice(("ec_role", "stored", "latency"))
        new = replace(old, **{name: getattr(new, name)})
    return with_engine(scenario, ec_connector=new)


def change_connector(rng: Random, scenario: Scenario) -> Scenario:
    """A connector, other words for it, or none."""
    old = scenario.engine.connector
    if old is not None and rng.random() < 0.2:
        return with_engine(scenario, connector=None)
    return with_engine(scenario, connector=Connector(rng.choice(KV_ROLES), rng.choice(("recompute", "fail"))))


def change_load(rng: Random, scenario: Scenario) -> Scenario:
    """A load, none, or one number of it."""

    def edit(request: Request) -> Request:
        if request.load is None:
            weights = {"failed_load": 0.25}
            return replace(request, load=new_load(rng, weights, scenario.engine))
        load = request.load
        value: object
        match rng.choice(("tokens", "load_kv_async", "latency", "failed", "undecided", "none")):
            case "tokens":
                name, value = "tokens", tweak(rng, rng.choice((load.tokens, *edges)), 1, MAX_MODEL_LEN)
            case "load_kv_async":
                name, value = "load_kv_async", not load.load_kv_async
            case "latency":
                name, value = "latency", tweak(rng, load.latency, 0, MAX_DELAY)
            case "failed":
                name, value = "failed", change_script(rng, load.failed, 5)
            case "undecided":
                name, value = "undecided", tweak(rng, load.undecided, 0, 8)
            case _:
                return replace(request, load=None)
        return replace(request, load=replace(load, **{name: value}))

    edges = interesting_lengths(scenario.engine, scenario.images) or (1,)
    if scenario.engine.connector is None:
        scenario = with_engine(scenario, connector=Connector())
    return any_request(rng, scenario, edit)


def change_send(rng: Random, scenario: Scenario) -> Scenario:
    if scenario.engine.connector is None:
        scenario = with_engine(scenario, connector=Connector())

    def edit(request: Request) -> Request:
        drop = request.send is not None and rng.random() < 0.3
        return replace(request, send=None if drop else tweak(rng, request.send or 0, 0, MAX_DELAY))

    return any_request(rng, scenario, edit)


def change_max_tokens(rng: Random, scenario: Scenario) -> Scenario:
    return any_request(rng, scenario, lambda r: replace(r, max_tokens=tweak(rng, r.max_tokens, 1, 16)))


def change_acceptance(rng: Random, scenario: Scenario) -> Scenario:
    high = scenario.engine.speculative.num_speculative_tokens if scenario.engine.speculative else 0
    return any_request(rng, scenario, lambda r: replace(r, acceptance=change_script(rng, r.acceptance, high)))


def change_stop(rng: Random, scenario: Scenario) -> Scenario:
    name = rng.choice(("eos_at", "stop_at", "ignore_eos"))

    def edit(request: Request) -> Request:
        if name == "ignore_eos":
            return replace(request, ignore_eos=not request.ignore_eos)
        return replace(request, **{name: rng.choice((None, rng.randrange(request.max_tokens)))})

    return any_request(rng, scenario, edit)


def change_grammar(rng: Random, scenario: Scenario) -> Scenario:
    """A structured output, or none."""

    def edit(request: Request) -> Request:
        off = request.grammar is not None and rng.random() < 0.25
        return replace(request, grammar=None if off else new_grammar(rng))

    return any_request(rng, scenario, edit)


def change_min_tokens(rng: Random, scenario: Scenario) -> Scenario:
    def edit(request: Request) -> Request:
        edges = (request.eos_at or 0, request.stop_at or 0, request.max_tokens)
        return replace(request, min_tokens=tweak(rng, rng.choice((request.min_tokens, *edges)), 0, 16))

    return any_request(rng, scenario, edit)


def change_salt(rng: Random, scenario: Scenario) -> Scenario:
    return any_request(rng, scenario, lambda r: replace(r, cache_salt=rng.randint(0, 2)))


def change_lora(rng: Random, scenario: Scenario) -> Scenario:
    """Another adapter, or none, for one request, or another number of slots."""
    if rng.random() < 0.3:
        return with_engine(scenario, max_loras=rng.randint(0, 3))
    slots = max(1, scenario.engine.max_loras)
    return any_request(
        rng, with_engine(scenario, max_loras=slots), lambda r: replace(r, lora=rng.randint(0, 4))
    )


def flip_skip_prefix(rng: Random, scenario: Scenario) -> Scenario:
    return any_request(
        rng, scenario, lambda r: replace(r, skip_reading_prefix_cache=not r.skip_reading_prefix_cache)
    )


def flip_prompt_logprobs(rng: Random, scenario: Scenario) -> Scenario:
    return any_request(rng, scenario, lambda r: replace(r, prompt_logprobs=not r.prompt_logprobs))


def change_priority(rng: Random, scenario: Scenario) -> Scenario:
    scenario = with_engine(scenario, policy="priority")
    return any_request(rng, scenario, lambda r: replace(r, priority=tweak(rng, r.priority, -3, 3)))


_LIMITS = (
    ("max_num_seqs", 1, 32),
    ("max_num_batched_tokens", 1, MAX_MODEL_LEN),
    ("max_model_len", 2, MAX_MODEL_LEN),
    ("num_gpu_blocks", 2, 1024),
    ("long_prefill_token_threshold", 0, MAX_MODEL_LEN),
    ("sliding_window", 0, MAX_MODEL_LEN),
)
_CHOICES: tuple[tuple[str, tuple[object, ...]], ...] = (
    ("block_size", (4, 8, 16, 32)),
    ("enable_prefix_caching", (False, True)),
    ("enable_kv_cache_events", (False, True)),
    ("enable_chunked_prefill", (False, True)),
    ("policy", ("fcfs", "priority")),
    ("async_scheduling", (False, True)),
    ("interleaving", ("engine", "free")),
    ("model_runner", ("v1", "v2")),
    ("pipeline_parallel_size", (1, 2, 3, 4)),
    ("runner_type", ("generate", "pooling")),
)

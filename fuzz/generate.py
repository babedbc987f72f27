"""Scenarios from nothing, swarm style, and the switches that keep any scenario within the allowed features.

Rules: the random source is the first argument of everything; nothing depends on set order, hashing or time; what
comes out is always legal (`repair` has the last word). Each scenario draws its own subset of the allowed features and
a weight for each, because a feature that is always on hides the bugs that need its neighbour alone. Values are drawn
near the edges that the scenario itself makes: blocks, chunks, images, window, model length.

Mutation is `mutate.py`'s; this file lends it its draws (`new_request`, `new_text`, `DELAYS`, ...) and `restrict`.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Literal

from msgspec.structs import replace

from fuzz.edits import without_events
from harness.groups import canonical_groups, groups_of
from harness.repair import blocks_needed, repair
from harness.scenario import (
    MAX_MODEL_LEN,
    Abort,
    Arrive,
    Chunked,
    Connector,
    Encoder,
    Engine,
    Event,
    Full,
    Grammar,
    Group,
    Image,
    Load,
    Mamba,
    Part,
    Pause,
    Request,
    Reset,
    Resume,
    Scenario,
    Speculative,
    Text,
    Window,
    concerns,
    part_length,
    prompt_length,
)

Weights = Mapping[str, float]
"""The features that are on in one scenario, each with the probability that a request, say, makes use of it."""

_SHARES = (0.3, 0.6, 0.9)
"""Probability that an allowed feature is on, drawn once a scenario. A bug that needs four features together (spec, mm,
async, chunked_prefill) then sees them in (0.3^4 + 0.6^4 + 0.9^4) / 3 = 26% of scenarios, a single feature alone among
nineteen in about 0.05%; one fixed share of 0.6 would give 13% and nearly none."""
_WEIGHTS = (0.25, 0.5, 0.9)
BlockSize = Literal[4, 8, 16, 32]
_BLOCK_SIZES: tuple[BlockSize, ...] = (4, 4, 4, 8, 8, 16, 16, 32)
_DRAFTS = (1, 1, 2, 3, 4)
_METHODS: tuple[Literal["eagle", "mtp", "ngram"], ...] = ("eagle", "eagle", "mtp", "ngram")

_LONG_PROMPT = 60
"""Typical longest prompt: several chunks and blocks, but few enough steps (a step costs about 0.5 ms)."""
_MAX_PARTS = 12
"""The language allows 16; the rest is room for mutation."""
_AT_EDGE = 0.5
"""Share of images that are placed where a prefill chunk of the request alone would end."""
_IN_ROOM = 0.97
"""Share of requests whose min_tokens the model length allows: up to 0.28 vLLM hangs on all others."""
DELAYS = (*(0, 0, 0, 0, 1, 1, 2, 3, 4) * 8, 8, 16)
"""Mostly few iterations, so that requests meet; one event in 37 waits until everything before it has drained."""


KV_ROLES: tuple[Literal["kv_both", "kv_consumer", "kv_producer"], ...] = (
    "kv_both",
    "kv_both",
    "kv_consumer",
    "kv_producer",
)
_LATENCIES = (0, 0, 1, 1, 2, 2, 3, 4, 6, 12)
"""Iterations of a transfer: about as long as others take to run, to end, and to take the blocks."""


def parse_features(text: str) -> frozenset[str]:
    """`all`, or a comma-separated list of names from FEATURES. ValueError names the first unknown one."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name != "all" and name not in FEATURES:
            raise ValueError(f"unknown feature {name!r}; known: all, {', '.join(FEATURES)}")
    return frozenset(FEATURES if "all" in names else names)


def generate(rng: Random, features: frozenset[str]) -> Scenario:
    """A legal scenario that uses some of `features` and nothing else."""
    weights = draw_weights(rng, features)
    block_size = rng.choice(_BLOCK_SIZES)
    images = _images(rng, block_size) if "mm" in weights else ()
    engine = _engine(rng, weights, block_size, images)
    requests: list[Request] = []
    for _ in range(rng.choice((1, 2, 2, 3, 3, 4, 4, 5, 6, 8))):
        requests.append(new_request(rng, weights, engine, images, requests))
    timeline = new_timeline(rng, weights, len(requests))
    step_delays = tuple(rng.choice((0, 0, 1, 1, 2, 3)) for _ in range(rng.randint(0, 5)))
    return restrict(Scenario(1, engine, images, tuple(requests), timeline, step_delays), features)


def draw_weights(rng: Random, features: frozenset[str]) -> Weights:
    """The swarm: which of the allowed features are on, and how much each is used."""
    share = rng.choice(_SHARES)
    return {name: rng.choice(_WEIGHTS) for name in FEATURES if name in features and rng.random() < share}


def interesting_lengths(engine: Engine, images: tuple[int, ...]) -> tuple[int, ...]:
    """Lengths in tokens at, just before and just after the edges that this engine has, ascending."""
    edges = [1, chunk_length(engine), engine.max_num_batched_tokens, engine.max_model_len, *images]
    edges += [blocks * engine.block_size for blocks in (1, 2, 3)]
    for size in sorted({group.size for group in groups_of(engine) if isinstance(group, Window | Chunked)}):
        edges += [size, size + engine.block_size]
    near = {edge + offset for edge in edges for offset in (-1, 0, 1)}
    return tuple(sorted(length for length in near if 1 <= length < engine.max_model_len))


def chunk_length(engine: Engine) -> int:
    """Most prompt tokens that one request can get in one step."""
    return min(engine.max_num_batched_tokens, engine.long_prefill_token_threshold or MAX_MODEL_LEN)


def _near(rng: Random, *values: int) -> int:
    return max(1, rng.choice(values) + rng.choice((-1, 0, 0, 0, 1)))


def _images(rng: Random, block_size: int) -> tuple[int, ...]:
    """Few identities, so that requests share them; often of one length, so that one fits where another was."""
    first = _near(rng, 2, 4, 8, block_size, rng.randint(1, 24))
    others = rng.choice((0, 1, 1, 2, 3))
    return (first, *(rng.choice((first, first, _near(rng, 3, 8, block_size))) for _ in range(others)))


def _engine(rng: Random, weights: Weights, block_size: BlockSize, images: tuple[int, ...]) -> Engine:
    """Small everywhere: contention for tokens, blocks and encoder space is where schedulers err."""
    seqs = rng.choice((1, 2, 2, 3, 4, 4, 8))
    length = _near(rng, 24, 32, 48, 64, 96)
    engine = Engine(
        max_num_seqs=seqs,
        max_num_batched_tokens=_near(rng, seqs + 1, 8, 12, 16, 16, 32, block_size, *images),
        max_model_len=max(length, max(images, default=0) + 2),
        block_size=block_size,
        enable_prefix_caching="prefix_cache" in weights,
        enable_chunked_prefill="chunked_prefill" in weights,
        long_prefill_token_threshold=_near(rng, 2, 4, 8, block_size) if "long_prefill" in weights else 0,
        policy="priority" if "priority" in weights else "fcfs",
        async_scheduling="async" in weights,
        sliding_window=_near(rng, 2, block_size, 2 * block_size) if "sliding_window" in weights else 0,
        kv_cache_groups=_groups(rng, block_size) if "groups" in weights else (),
        speculative=Speculative(rng.choice(_METHODS), rng.choice(_DRAFTS)) if "spec" in weights else None,
        encoder=_encoder(rng, weights, images) if "mm" in weights else None,
        enable_kv_cache_events="events" in weights,
        connector=_connector(rng, weights) if "connector" in weights else None,
        interleaving="free" if _chance(rng, weights, "free") else "engine",
    )
    window, groups = canonical_groups(engine)  # a pool is tight for what is left of the groups
    engine = replace(engine, sliding_window=window, kv_cache_groups=groups)
    if "preemption" in weights:
        engine = replace(engine, num_gpu_blocks=blocks_needed(engine) + rng.choice((0, 0, 1, 2, 4)))
    else:
        engine = _without_pressure(engine)
    shown = (Request(prompt=(Image(0),)),) if images else ()
    return repair(Scenario(format=1, engine=engine, images=images, requests=shown)).engine


def _groups(rng: Random, block_size: int) -> tuple[Group, ...]:
    """Mostly with full attention, mostly of different kinds, in any order."""
    groups = [new_group(rng, block_size) for _ in range(rng.choice((1, 2, 2, 3, 3, 4)))]
    if rng.random() < 0.75:
        groups.insert(rng.choice((0, 0, len(groups))), Full())
    if rng.random() < 0.15:  # it does without prefix caching and drafts
        groups.insert(rng.randint(0, len(groups)), Mamba())
    return tuple(groups)


def new_group(rng: Random, block_size: int) -> Group:
    """A group of attention layers of any kind; sizes near one, two or three blocks, where they meet others' edges."""
    blocks = rng.choice((1, 1, 2, 3))
    kinds: tuple[Group, ...] = (
        Full(),
        Window(_near(rng, 2, blocks * block_size)),
        Window(_near(rng, block_size, blocks * block_size)),
        Chunked(blocks * block_size),
    )
    return rng.choice(kinds)


def _encoder(rng: Random, weights: Weights, images: tuple[int, ...]) -> Encoder:
    """A cache for one or two images, so that one must go before another comes, and a budget for about as much."""
    longest = max(images)
    two = sum(sorted(images)[-2:])
    return Encoder(
        max_num_encoder_input_tokens=max(longest, _near(rng, longest, longest, two, 64)),
        encoder_cache_size=max(longest, _near(rng, longest, longest, two, two, sum(images))),
        disable_chunked_mm_input=rng.random() < 0.25,
        is_encoder_decoder=_chance(rng, weights, "encoder_decoder"),
    )


def _connector(rng: Random, weights: Weights) -> Connector:
    return Connector(
        kv_role=rng.choice(KV_ROLES),
        kv_load_failure_policy="fail" if _chance(rng, weights, "load_failure_policy") else "recompute",
    )


def _chance(rng: Random, weights: Weights, feature: str) -> bool:
    return feature in weights and rng.random() < weights[feature]


def new_request(
    rng: Random, weights: Weights, engine: Engine, images: tuple[int, ...], earlier: list[Request]
) -> Request:
    """One more request, often with the beginning of an earlier one."""
    prompt: list[Part] = []
    if earlier and rng.random() < max(0.25, weights.get("prefix_cache", 0.0)):
        donor = rng.choice(earlier).prompt
        prompt = list(donor[: rng.randint(1, len(donor))])
    if images and _chance(rng, weights, "mm"):
        prompt = _with_images(rng, engine, images, prompt)
    at = sum(part_length(part, images) for part in prompt)
    if not prompt or rng.random() < 0.6:
        prompt.append(new_text(rng, engine, images, at))
        at += part_length(prompt[-1], images)
    tokens = rng.randint(1, 12)
    if _chance(rng, weights, "max_model_len"):
        room = engine.max_model_len - 1 - at - rng.randint(0, 4)
        if room > 0:
            prompt.append(Text(0, min(at, MAX_MODEL_LEN), room))
        tokens = rng.choice((tokens, 8, 16))
    elif rng.random() < 0.25:
        tokens = _near(rng, engine.block_size - at % engine.block_size)
    request = Request(prompt=tuple(prompt[:_MAX_PARTS]), max_tokens=tokens)
    return _answers(rng, weights, engine, request, engine.max_model_len - prompt_length(request, images))


def _with_images(rng: Random, engine: Engine, images: tuple[int, ...], prompt: list[Part]) -> list[Part]:
    """`prompt`, and text and images in turn; half of the images begin where a chunk ends."""
    prompt = list(prompt)
    at = sum(part_length(part, images) for part in prompt)
    chunk = chunk_length(engine)
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        anywhere = rng.choice((0, 1, rng.randint(1, 12), engine.block_size))
        gap = chunk - at % chunk if rng.random() < _AT_EDGE else anywhere
        if gap and at + gap < engine.max_model_len:
            prompt.append(Text(0, min(at, MAX_MODEL_LEN), gap))
            at += gap
        prompt.append(Image(rng.randrange(len(images))))
        at += part_length(prompt[-1], images)
    return prompt


def new_text(rng: Random, engine: Engine, images: tuple[int, ...], at: int) -> Text:
    """Text for position `at`: mostly the token at its own index of stream 0, so that equal positions share."""
    lengths = [length for length in interesting_lengths(engine, images) if length <= _LONG_PROMPT]
    length = rng.choice(lengths) if rng.random() < 0.6 else rng.randint(1, _LONG_PROMPT)
    return Text(rng.choice((0, 0, 0, 1, 2)), min(at, MAX_MODEL_LEN), length)


def _answers(rng: Random, weights: Weights, engine: Engine, request: Request, room: int) -> Request:
    """The script of the model's answers, and the other parameters; `room` is for outputs, in tokens."""
    eos_at = rng.randrange(request.max_tokens) if _chance(rng, weights, "stop") else None
    drafts = engine.speculative.num_speculative_tokens if engine.speculative else 0
    least = rng.choice(
        (rng.randint(1, request.max_tokens), (eos_at or 0) + rng.randint(0, 1), request.max_tokens)
    )
    if rng.random() < _IN_ROOM:
        least = min(least, max(0, room))
    return replace(
        request,
        min_tokens=least if _chance(rng, weights, "min_tokens") else 0,
        cache_salt=rng.randint(0, 2) if _chance(rng, weights, "cache_salt") else 0,
        skip_reading_prefix_cache=_chance(rng, weights, "skip_prefix"),
        priority=rng.randint(-2, 2) if _chance(rng, weights, "priority") else 0,
        eos_at=eos_at,
        ignore_eos=eos_at is not None and rng.random() < 0.25,
        stop_at=rng.randrange(request.max_tokens) if _chance(rng, weights, "stop") else None,
        acceptance=tuple(rng.randint(0, drafts) for _ in range(rng.randint(0, 5))) if drafts else (),
        grammar=new_grammar(rng) if _chance(rng, weights, "grammar") else None,
        load=new_load(rng, weights, engine) if _chance(rng, weights, "connector") else None,
        send=rng.choice(_LATENCIES) if rng.random() < 0.5 and _chance(rng, weights, "connector") else None,
    )


def new_load(rng: Random, weights: Weights, engine: Engine) -> Load:
    """What is found outside: often all of the prompt (more is repaired to that), or whole blocks of it."""
    length = rng.choice((MAX_MODEL_LEN, rng.randint(1, 24), engine.block_size * rng.randint(1, 6)))
    fails = "failed_load" in weights and rng.random() < 0.6
    return Load(
        tokens=length,
        load_kv_async=rng.random() < 0.7,
        latency=rng.choice(_LATENCIES),
        failed=tuple(sorted(set(rng.choices(range(5), k=rng.randint(1, 3))))) if fails else (),
        undecided=rng.choice((0, 0, 0, 0, 1, 3)),
    )


def new_grammar(rng: Random) -> Grammar:
    """Compiled at once, or while others run; one in sixteen cannot be."""
    return Grammar(rng.choice((0, 0, 0, 1, 2, 5)), rng.random() < 0.0625)


def new_timeline(rng: Random, weights: Weights, num_requests: int) -> tuple[Event, ...]:
    """Everyone arrives in order; some are aborted, at any place after their arrival."""
    events: list[Event] = [Arrive(i, rng.choice(DELAYS)) for i in range(num_requests)]
    for i in range(num_requests):
        if _chance(rng, weights, "abort") and rng.random() < 0.5:
            arrival = next(at for at, event in enumerate(events) if concerns(event) == i)
            abort = Abort(i, rng.choice(DELAYS), in_step=rng.random() < 0.5)
            events.insert(rng.randint(arrival + 1, len(events)), abort)
    for name, at_most in (("reset", 3), ("encoder_reset", 2)):
        for _ in range(rng.randint(0, at_most) if _chance(rng, weights, name) else 0):
            events.insert(rng.randint(1, len(events)), new_reset(rng, name))
    for _ in range(rng.randint(1, 2) if _chance(rng, weights, "pause") else 0):
        first = rng.randint(0, len(events))
        events.insert(first, new_pause(rng))
        events.insert(rng.randint(first + 1, min(first + 4, len(events))), Resume(rng.choice(DELAYS)))
    return tuple(events)


def new_reset(rng: Random, feature: str) -> Reset:
    """A reset of the cache that a feature names."""
    if feature == "encoder_reset":
        return Reset(rng.choice(DELAYS), cache="encoder")
    return Reset(rng.choice(DELAYS), reset_running_requests=rng.random() < 0.7)


def new_pause(rng: Random) -> Pause:
    """A pause; it needs its resumption."""
    return Pause(rng.choice(DELAYS), rng.choice(("abort", "wait", "keep", "keep")), rng.random() < 0.6)


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
        return Text(part.identity, 0, scenario.images[part.identity]) if isinstance(part, Image) else part

    requests = tuple(replace(r, prompt=tuple(map(text, r.prompt))) for r in scenario.requests)
    return replace(scenario, engine=replace(scenario.engine, encoder=None), images=(), requests=requests)


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
    ends = [prompt_length(r, scenario.images) + 1 + drafts for r in scenario.requests]
    pairs = tuple(zip(scenario.requests, ends, strict=True))
    length = min(MAX_MODEL_LEN, max((engine.max_model_len, *(r.max_tokens + end for r, end in pairs))))
    requests = tuple(replace(r, max_tokens=max(1, min(r.max_tokens, length - end))) for r, end in pairs)
    return replace(scenario, engine=replace(engine, max_model_len=length), requests=requests)


def _without_pressure(engine: Engine) -> Engine:
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
    window = 0 if scenario.engine.connector else scenario.engine.sliding_window
    return replace(scenario, engine=replace(scenario.engine, sliding_window=window))


def _without_hybrid_failures(scenario: Scenario) -> Scenario:
    return _without_failed_loads(scenario) if scenario.engine.sliding_window else scenario


def _without_stops(scenario: Scenario) -> Scenario:
    requests = (replace(r, ignore_eos=False, eos_at=None, stop_at=None) for r in scenario.requests)
    return replace(scenario, requests=tuple(requests))


def _without_grammars(scenario: Scenario) -> Scenario:
    return replace(scenario, requests=tuple(replace(r, grammar=None) for r in scenario.requests))


_OFF: dict[str, Callable[[Scenario], Scenario]] = {
    "long_prefill": _engine_field(long_prefill_token_threshold=0),
    "prefix_cache": _engine_field(enable_prefix_caching=False),
    "events": _engine_field(enable_kv_cache_events=False),
    "priority": _engine_field(policy="fcfs"),
    "abort": _without_aborts,
    "async": _engine_field(async_scheduling=False),
    "spec": _engine_field(speculative=None),
    "mm": _without_images,
    "encoder_decoder": _without_cross_attention,
    "groups": _engine_field(kv_cache_groups=()),
    "sliding_window": _engine_field(sliding_window=0),
    "free": _engine_field(interleaving="engine"),
    "stop": _without_stops,
    "grammar": _without_grammars,
    "reset": _without_control(lambda event: isinstance(event, Reset) and event.cache == "prefix"),
    "encoder_reset": _without_control(lambda event: isinstance(event, Reset) and event.cache == "encoder"),
    "pause": _without_control(lambda event: isinstance(event, Pause | Resume)),
    "min_tokens": _request_field(min_tokens=0),
    "cache_salt": _request_field(cache_salt=0),
    "skip_prefix": _request_field(skip_reading_prefix_cache=False),
    "connector": _without_connector,
    "failed_load": _without_failed_loads,
    "load_failure_policy": _without_failure_policy,
    "hybrid_connector": _without_hybrid_connector,
    "hybrid_failed_load": _without_hybrid_failures,
    # These three read what the others leave: lengths, then the budget that a length asks for, then blocks for both.
    "max_model_len": _within_model_len,
    "chunked_prefill": _engine_field(enable_chunked_prefill=False, long_prefill_token_threshold=0),
    "preemption": lambda scenario: replace(scenario, engine=_without_pressure(scenario.engine)),
}
"""Turning a feature off is one edit; what follows from it (acceptance without drafts, ...) is repair's."""

FEATURES: tuple[str, ...] = ("text", *_OFF)
"""All that can be asked for. `text` is always on; its name serves to ask for nothing else."""

"""Scenarios from nothing, swarm style, and the switches that keep any scenario within the allowed features.

Rules: the random source is the first argument of everything; nothing depends on set order, hashing or time; what
comes out is always legal (`repair` has the last word). Each scenario draws its own subset of the allowed features and
a weight for each, because a feature that is always on hides the bugs that need its neighbour alone. Values are drawn
near the edges that the scenario itself makes: blocks, chunks, images, window, model length.

Mutation is `mutate.py`'s; this file lends it its draws (`new_request`, `new_text`, `DELAYS`, ...) and `restrict`.
"""

from random import Random
from typing import Literal

from msgspec.structs import replace

from fuzz import ids, limits, sessions
from fuzz.restrict import FEATURES as FEATURES
from fuzz.restrict import parse_features as parse_features
from fuzz.restrict import restrict as restrict
from fuzz.restrict import without_pressure
from fuzz.swarm import Weights, chance, draw_weights
from fuzz.timelines import new_timeline
from harness.groups import blocks_needed, canonical_groups, groups_of, scale_of, scaled
from harness.repair import repair
from harness.scenario import (
    MAX_MODEL_LEN,
    Chunked,
    Connector,
    Encoder,
    EncoderConnector,
    Engine,
    Full,
    Grammar,
    Group,
    Image,
    Load,
    Mamba,
    Part,
    Request,
    Resized,
    Scenario,
    Speculative,
    Text,
    Window,
    part_length,
    prompt_length,
)

BlockSize = Literal[4, 8, 16, 32]
_BLOCK_SIZES: tuple[BlockSize, ...] = (4, 4, 4, 8, 8, 16, 16, 32)
_DRAFTS = (1, 1, 2, 3, 4)
_METHODS: tuple[Literal["eagle", "mtp", "ngram"], ...] = ("eagle", "mtp", "ngram")

_LONG_PROMPT = 60
"""Typical longest prompt: several chunks and blocks, but few enough steps (a step costs about 0.5 ms)."""
_MAX_PARTS = 12
"""The language allows 16; the rest is room for mutation."""
_AT_EDGE = 0.5
"""Share of images that are placed where a prefill chunk of the request alone would end."""
_IN_ROOM = 0.97
"""Share of requests whose min_tokens the model length allows: up to 0.28 vLLM hangs on all others."""


KV_ROLES: tuple[Literal["kv_both", "kv_consumer", "kv_producer"], ...] = (
    "kv_both",
    "kv_both",
    "kv_consumer",
    "kv_producer",
)
_LATENCIES = (0, 0, 1, 1, 2, 2, 3, 4, 6, 12)
"""Iterations of a transfer: about as long as others take to run, to end, and to take the blocks."""


def generate(rng: Random, features: frozenset[str]) -> Scenario:
    """A legal scenario that uses some of `features` and nothing else."""
    weights = draw_weights(rng, features)
    block_size = rng.choice(_BLOCK_SIZES)
    images = _images(rng, block_size) if "mm" in weights else ()
    engine = _engine(rng, weights, block_size, images)
    requests: list[Request] = []
    for _ in range(rng.choice((1, 2, 2, 3, 3, 4, 4, 5, 6, 8))):
        requests.append(new_request(rng, weights, engine, images, requests))
        if chance(rng, weights, "streaming"):
            requests[-1] = sessions.opened(rng, requests[-1], engine, stops="stop" in weights)
    timeline = sessions.with_inputs(rng, new_timeline(rng, weights, len(requests)), requests)
    step_delays = tuple(rng.choice((0, 0, 1, 1, 2, 3)) for _ in range(rng.randint(0, 5)))
    scenario = Scenario(1, engine, images, tuple(requests), timeline, step_delays)
    if chance(rng, weights, "reused_ids"):
        scenario = ids.reuse_id(rng, scenario)
    return restrict(scenario, features)


def interesting_lengths(engine: Engine, images: tuple[int, ...]) -> tuple[int, ...]:
    """Lengths in tokens at, just before and just after the edges that this engine has, ascending."""
    edges = [1, chunk_length(engine), engine.max_num_batched_tokens, engine.max_model_len, *images]
    edges += [blocks * engine.block_size for blocks in (1, 2, 3)]
    edges += [2 * engine.block_size * scale for scale in sorted({*map(scale_of, groups_of(engine))} - {1})]
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
        kv_cache_groups=_sized(rng, weights, _groups(rng, weights, block_size)),
        speculative=Speculative(rng.choice(_METHODS), rng.choice(_DRAFTS)) if "spec" in weights else None,
        encoder=_encoder(rng, weights, images) if "mm" in weights else None,
        enable_kv_cache_events="events" in weights,
        connector=_connector(rng, weights) if _connects(rng, weights) else None,
        interleaving="free" if chance(rng, weights, "free") else "engine",
        model_runner="v2" if "v2_runner" in weights else "v1",
        max_loras=rng.choice((1, 1, 2, 3)) if "lora" in weights else 0,
        pipeline_parallel_size=_stages(rng, weights),
        ec_connector=new_encoder_connector(rng, weights, images) if _finds_outputs(rng, weights) else None,
        # Seldom: little else goes with it.
        runner_type="pooling" if rng.random() < 0.3 and chance(rng, weights, "pooling") else "generate",
    )
    window, groups = canonical_groups(engine)  # a pool is tight for what is left of the groups
    engine = replace(engine, sliding_window=window, kv_cache_groups=groups)
    if "preemption" in weights:
        engine = replace(engine, num_gpu_blocks=blocks_needed(engine) + rng.choice((0, 0, 1, 2, 4)))
    else:
        engine = without_pressure(engine)
    engine = limits.with_limits(rng, weights, engine)
    shown = (Request(prompt=(Image(0),)),) if images else ()
    return repair(Scenario(format=1, engine=engine, images=images, requests=shown)).engine


def _groups(rng: Random, weights: Weights, block_size: int) -> tuple[Group, ...]:
    """Mostly with full attention, mostly of different kinds, in any order."""
    if "groups" not in weights:
        hybrid = rng.random() < 0.8 * weights.get("mamba_cache", 0.0)
        return (
            rng.choice(((Full(), Mamba()), (Full(), Mamba(), Mamba()), (Mamba(), Full()))) if hybrid else ()
        )
    groups = [new_group(rng, block_size) for _ in range(rng.choice((1, 2, 2, 3, 3, 4)))]
    if rng.random() < 0.75:
        groups.insert(rng.choice((0, 0, len(groups))), Full())
    if rng.random() < max(0.15, 0.8 * weights.get("mamba_cache", 0.0)):
        groups.insert(rng.randint(0, len(groups)), Mamba())
    return tuple(groups)


def _sized(rng: Random, weights: Weights, groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """Groups with blocks of different sizes; without chunked local attention, which they do not go with."""
    states_too = "block_sizes" in weights and "mamba_block_sizes" in weights
    if not chance(rng, weights, "block_sizes") and not states_too:
        return groups
    found: list[Group] = []
    for group in groups:
        if isinstance(group, Mamba):
            found.append(scaled(group, rng.choice((1, 2, 2, 4)) if states_too else 1))
        else:
            group = Window(group.size) if isinstance(group, Chunked) else group
            found.append(scaled(group, rng.choice((1, 1, 1, 2, 2, 4))))
    return tuple(found)


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
        # Seldom: little else goes with it.
        is_encoder_decoder=rng.random() < 0.4 and chance(rng, weights, "encoder_decoder"),
    )


def _stages(rng: Random, weights: Weights) -> int:
    """A pipeline wins over drafts and the V2 runner: it leaves them room."""
    return rng.choice((2, 2, 3, 4)) if rng.random() < weights.get("pipeline", 0.0) / 2 else 1


def _connects(rng: Random, weights: Weights) -> bool:
    """Whether the engine has a connector: it would win over a pipeline."""
    return "connector" in weights and ("pipeline" not in weights or rng.random() < 0.5)


def _finds_outputs(rng: Random, weights: Weights) -> bool:
    """Whether there is an encoder-cache connector: it would win over the V2 runner."""
    return chance(rng, weights, "ec_connector") and ("v2_runner" not in weights or rng.random() < 0.5)


def new_encoder_connector(rng: Random, weights: Weights, images: tuple[int, ...]) -> EncoderConnector:
    """About half of the images are outside, where others look for room."""
    stored = tuple(image for image in range(len(images)) if rng.random() < 0.6)
    slow = stored and chance(rng, weights, "ec_latency")
    return EncoderConnector(
        ec_role="ec_both" if chance(rng, weights, "ec_both") else "ec_consumer",
        stored=stored,
        latency=rng.choice((1, 1, 2, 3, 6)) if slow else 0,
    )


def _connector(rng: Random, weights: Weights) -> Connector:
    return Connector(
        kv_role=rng.choice(KV_ROLES),
        kv_load_failure_policy="fail" if chance(rng, weights, "load_failure_policy") else "recompute",
    )


def new_request(
    rng: Random, weights: Weights, engine: Engine, images: tuple[int, ...], earlier: list[Request]
) -> Request:
    """One more request, often with the beginning of an earlier one."""
    prompt: list[Part] = []
    if earlier and rng.random() < max(0.25, weights.get("prefix_cache", 0.0)):
        donor = rng.choice(earlier).prompt
        prompt = list(donor[: rng.randint(1, len(donor))])
    if images and chance(rng, weights, "mm"):
        prompt = _with_images(rng, engine, images, prompt)
        if "mm_uuids" in weights:
            prompt = [
                _renamed(rng, part, images) if chance(rng, weights, "mm_uuids") else part for part in prompt
            ]
    at = sum(part_length(part, images) for part in prompt)
    if not prompt or rng.random() < 0.6:
        prompt.append(new_text(rng, engine, images, at))
        at += part_length(prompt[-1], images)
    tokens = rng.randint(1, 12)
    if chance(rng, weights, "max_model_len"):
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


def _renamed(rng: Random, part: Part, images: tuple[int, ...]) -> Part:
    """An item with its name and another length, which is near it or another item's."""
    if not isinstance(part, Image):
        return part
    return Resized(part.identity, _near(rng, images[part.identity], *images))


def new_text(rng: Random, engine: Engine, images: tuple[int, ...], at: int) -> Text:
    """Text for position `at`: mostly the token at its own index of stream 0, so that equal positions share."""
    lengths = [length for length in interesting_lengths(engine, images) if length <= _LONG_PROMPT]
    length = rng.choice(lengths) if rng.random() < 0.6 else rng.randint(1, _LONG_PROMPT)
    return Text(rng.choice((0, 0, 0, 1, 2)), min(at, MAX_MODEL_LEN), length)


def _answers(rng: Random, weights: Weights, engine: Engine, request: Request, room: int) -> Request:
    """The script of the model's answers, and the other parameters; `room` is for outputs, in tokens."""
    eos_at = rng.randrange(request.max_tokens) if chance(rng, weights, "stop") else None
    drafts = engine.speculative.num_speculative_tokens if engine.speculative else 0
    least = rng.choice(
        (rng.randint(1, request.max_tokens), (eos_at or 0) + rng.randint(0, 1), request.max_tokens)
    )
    if rng.random() < _IN_ROOM:
        least = min(least, max(0, room))
    return replace(
        request,
        min_tokens=least if chance(rng, weights, "min_tokens") else 0,
        cache_salt=rng.randint(0, 2) if chance(rng, weights, "cache_salt") else 0,
        skip_reading_prefix_cache=chance(rng, weights, "skip_prefix"),
        prompt_logprobs=chance(rng, weights, "prompt_logprobs"),
        lora=rng.choice((1, 1, 2, 2, 3, 4)) if chance(rng, weights, "lora") else 0,
        priority=rng.randint(-2, 2) if chance(rng, weights, "priority") else 0,
        eos_at=eos_at,
        ignore_eos=eos_at is not None and rng.random() < 0.25,
        stop_at=rng.randrange(request.max_tokens) if chance(rng, weights, "stop") else None,
        acceptance=tuple(rng.randint(0, drafts) for _ in range(rng.randint(0, 5))) if drafts else (),
        grammar=new_grammar(rng) if chance(rng, weights, "grammar") else None,
        load=new_load(rng, weights, engine) if chance(rng, weights, "connector") else None,
        send=rng.choice(_LATENCIES) if rng.random() < 0.5 and chance(rng, weights, "connector") else None,
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

"""Mutators: small structure-aware edits of a scenario, one idea each.

A mutator takes a legal scenario and returns a decodable one (every number within its own limits), or its argument if it
finds nothing to work on. Rules: the random source comes first; nothing depends on set order, hashing or time.
"""

from collections.abc import Sequence
from random import Random

from msgspec.structs import replace

from fuzz.edits import (
    MAX_DELAY,
    MAX_PARTS,
    any_event,
    any_part,
    any_request,
    insert_event,
    without_events,
    without_requests,
)
from fuzz.generate import (
    DELAYS,
    FEATURES,
    KV_ROLES,
    chunk_length,
    draw_weights,
    interesting_lengths,
    new_grammar,
    new_group,
    new_load,
    new_pause,
    new_request,
    new_reset,
)
from harness.groups import groups_of
from harness.scenario import (
    MAX_EVENTS,
    MAX_GROUPS,
    MAX_MODEL_LEN,
    MAX_REQUESTS,
    MAX_SCRIPT,
    MAX_STREAMS,
    Abort,
    Arrive,
    Chunked,
    Connector,
    Encoder,
    Event,
    Image,
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
)


def _tweak(rng: Random, value: int, low: int, high: int) -> int:
    """Another value within the limits: one step, double, half, or anything."""
    wanted = rng.choice((value - 1, value + 1, value * 2, value // 2, low, rng.randint(low, high)))
    return max(low, min(high, wanted))


def _engine(scenario: Scenario, **values: object) -> Scenario:
    return replace(scenario, engine=replace(scenario.engine, **values))


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


def insert_abort(rng: Random, scenario: Scenario) -> Scenario:
    aborted = {event.request for event in scenario.timeline if isinstance(event, Abort)}
    arrived = [e.request for e in scenario.timeline if isinstance(e, Arrive) and e.request not in aborted]
    if not arrived:
        return scenario
    return insert_event(rng, scenario, Abort(rng.choice(arrived), rng.choice(DELAYS), rng.random() < 0.5))


def remove_event(rng: Random, scenario: Scenario) -> Scenario:
    if len(scenario.timeline) < 2:
        return scenario
    at = rng.randrange(len(scenario.timeline))
    event = scenario.timeline[at]
    if isinstance(event, Arrive):
        return without_requests(scenario, (event.request,))
    return without_events(scenario, (at,))


def move_event(rng: Random, scenario: Scenario) -> Scenario:
    """To another place; its delay stays where it was, with its successor."""
    if len(scenario.timeline) < 2:
        return scenario
    at = rng.randrange(len(scenario.timeline))
    rest = list(without_events(scenario, (at,)).timeline)
    rest.insert(rng.randint(0, len(rest)), replace(scenario.timeline[at], delay=0))
    return replace(scenario, timeline=tuple(rest))


def change_delay(rng: Random, scenario: Scenario) -> Scenario:
    def edit(event: Event) -> Event:
        return replace(event, delay=rng.choice((_tweak(rng, event.delay, 0, MAX_DELAY), rng.choice(DELAYS))))

    return any_event(rng, scenario, edit)


def flip_in_step(rng: Random, scenario: Scenario) -> Scenario:
    def edit(event: Event) -> Event:
        return replace(event, in_step=not event.in_step) if isinstance(event, Abort) else event

    return any_event(rng, scenario, edit)


def insert_reset(rng: Random, scenario: Scenario) -> Scenario:
    return insert_event(rng, scenario, new_reset(rng, "reset"))


def insert_encoder_reset(rng: Random, scenario: Scenario) -> Scenario:
    """Right after a pause, if there is one, where running requests do not hinder it."""
    pauses = [at for at, event in enumerate(scenario.timeline) if isinstance(event, Pause)]
    reset = new_reset(rng, "encoder_reset")
    if not pauses or rng.random() < 0.3 or len(scenario.timeline) >= MAX_EVENTS:
        return insert_event(rng, scenario, reset)
    at = rng.choice(pauses) + 1
    return replace(scenario, timeline=(*scenario.timeline[:at], reset, *scenario.timeline[at:]))


def insert_pause(rng: Random, scenario: Scenario) -> Scenario:
    if len(scenario.timeline) >= MAX_EVENTS - 1:
        return scenario
    timeline = list(scenario.timeline)
    first = rng.randint(0, len(timeline))
    timeline.insert(first, new_pause(rng))
    timeline.insert(rng.randint(first + 1, len(timeline)), Resume(rng.choice(DELAYS)))
    return replace(scenario, timeline=tuple(timeline))


def change_pause(rng: Random, scenario: Scenario) -> Scenario:
    def edit(event: Event) -> Event:
        if isinstance(event, Pause):
            return replace(new_pause(rng), delay=event.delay)
        if isinstance(event, Reset):
            return replace(event, reset_running_requests=not event.reset_running_requests)
        return event

    return any_event(rng, scenario, edit)


def tweak_limit(rng: Random, scenario: Scenario) -> Scenario:
    """One number of the configuration: a step, a factor, or an edge that the scenario has."""
    name, low, high = rng.choice(_LIMITS)
    value = _tweak(rng, getattr(scenario.engine, name), low, high)
    edges = interesting_lengths(scenario.engine, scenario.images)
    return _engine(
        scenario, **{name: max(low, min(high, rng.choice((value, rng.choice(edges or (value,))))))}
    )


def change_choice(rng: Random, scenario: Scenario) -> Scenario:
    """Turns a switch of the configuration, or draws another block size."""
    name, values = rng.choice(_CHOICES)
    return _engine(scenario, **{name: rng.choice([v for v in values if v != getattr(scenario.engine, name)])})


def change_speculative(rng: Random, scenario: Scenario) -> Scenario:
    old = scenario.engine.speculative or Speculative()
    new = Speculative(rng.choice(("eagle", "mtp", "ngram")), _tweak(rng, old.num_speculative_tokens, 1, 4))
    off = scenario.engine.speculative is not None and rng.random() < 0.2
    return _engine(scenario, speculative=None if off else new)


def change_groups(rng: Random, scenario: Scenario) -> Scenario:
    """One KV cache group more, less, twice, other, or of another size."""
    groups = list(groups_of(scenario.engine))
    at = rng.randrange(len(groups))
    old = groups[at]
    fresh = Mamba() if rng.random() < 0.1 else new_group(rng, scenario.engine.block_size)
    new = rng.choice((old, fresh))
    if isinstance(old, Window | Chunked) and rng.random() < 0.4:
        groups[at] = replace(old, size=_tweak(rng, old.size, 1, MAX_MODEL_LEN))
    else:
        groups[at : at + rng.randint(0, 1)] = rng.choice(([], [new], [new]))
    return _engine(scenario, kv_cache_groups=tuple(groups[:MAX_GROUPS]))


def change_encoder(rng: Random, scenario: Scenario) -> Scenario:
    old = scenario.engine.encoder or Encoder()
    flags = ("disable_chunked_mm_input", "is_encoder_decoder")
    name = rng.choice(("max_num_encoder_input_tokens", "encoder_cache_size", *flags))
    if name in flags:
        return _engine(scenario, encoder=replace(old, **{name: not getattr(old, name)}))
    sums = [one + other for one in (0, *scenario.images) for other in scenario.images] or [64]
    value = _tweak(rng, rng.choice((getattr(old, name), *sums)), 1, MAX_MODEL_LEN)
    return _engine(scenario, encoder=replace(old, **{name: value}))


def change_connector(rng: Random, scenario: Scenario) -> Scenario:
    """A connector, other words for it, or none."""
    old = scenario.engine.connector
    if old is not None and rng.random() < 0.2:
        return _engine(scenario, connector=None)
    return _engine(scenario, connector=Connector(rng.choice(KV_ROLES), rng.choice(("recompute", "fail"))))


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
                name, value = "tokens", _tweak(rng, rng.choice((load.tokens, *edges)), 1, MAX_MODEL_LEN)
            case "load_kv_async":
                name, value = "load_kv_async", not load.load_kv_async
            case "latency":
                name, value = "latency", _tweak(rng, load.latency, 0, MAX_DELAY)
            case "failed":
                name, value = "failed", _change_script(rng, load.failed, 5)
            case "undecided":
                name, value = "undecided", _tweak(rng, load.undecided, 0, 8)
            case _:
                return replace(request, load=None)
        return replace(request, load=replace(load, **{name: value}))

    edges = interesting_lengths(scenario.engine, scenario.images) or (1,)
    if scenario.engine.connector is None:
        scenario = _engine(scenario, connector=Connector())
    return any_request(rng, scenario, edit)


def change_send(rng: Random, scenario: Scenario) -> Scenario:
    if scenario.engine.connector is None:
        scenario = _engine(scenario, connector=Connector())

    def edit(request: Request) -> Request:
        drop = request.send is not None and rng.random() < 0.3
        return replace(request, send=None if drop else _tweak(rng, request.send or 0, 0, MAX_DELAY))

    return any_request(rng, scenario, edit)


def split_text(rng: Random, scenario: Scenario) -> Scenario:
    def edit(part: Text, at: int) -> Sequence[Part]:
        cut = rng.randint(1, max(1, part.length - 1))
        tail = Text(part.stream, min(part.start + cut, MAX_MODEL_LEN), part.length - cut)
        return (replace(part, length=cut), tail) if tail.length else (part,)

    return any_part(rng, scenario, Text, edit)


def resize_text(rng: Random, scenario: Scenario) -> Scenario:
    def edit(part: Text, at: int) -> Sequence[Part]:
        length = rng.choice((part.length, *interesting_lengths(scenario.engine, scenario.images)))
        return (replace(part, length=_tweak(rng, length, 1, MAX_MODEL_LEN)),)

    return any_part(rng, scenario, Text, edit)


def fit_text(rng: Random, scenario: Scenario) -> Scenario:
    """Lets a text end where a chunk or a block ends, or one token off: what follows begins there."""

    def edit(part: Text, at: int) -> Sequence[Part]:
        unit = rng.choice((chunk_length(scenario.engine), scenario.engine.block_size))
        length = unit - at % unit + rng.choice((0, 0, unit)) + rng.choice((-1, 0, 0, 0, 1))
        return (replace(part, length=max(1, min(MAX_MODEL_LEN, length))),)

    return any_part(rng, scenario, Text, edit)


def shift_text(rng: Random, scenario: Scenario) -> Scenario:
    """Other tokens of the same number: breaks or makes a shared prefix."""

    def edit(part: Text, at: int) -> Sequence[Part]:
        return (Text(rng.randrange(3), rng.choice((0, min(at, MAX_MODEL_LEN), part.start)), part.length),)

    return any_part(rng, scenario, Text, edit)


def remove_part(rng: Random, scenario: Scenario) -> Scenario:
    return any_part(rng, scenario, rng.choice((Text, Image)), lambda part, at: ())


def share_prefix(rng: Random, scenario: Scenario) -> Scenario:
    """Puts the beginning of one request's prompt in the place of another's."""
    if not scenario.requests:
        return scenario
    donor = rng.choice(scenario.requests).prompt
    head = donor[: rng.randint(1, len(donor))]
    keep = rng.random() < 0.5

    def edit(request: Request) -> Request:
        tail = request.prompt if keep else request.prompt[len(head) :]
        return replace(request, prompt=(*head, *tail)[:MAX_PARTS])

    return any_request(rng, scenario, edit)


def insert_image(rng: Random, scenario: Scenario) -> Scenario:
    """An image, old or new, at the edge of a part."""
    images = scenario.images
    identity = rng.randint(0, min(len(images), MAX_STREAMS - 1))
    if identity == len(images):
        images = (*images, rng.choice((*images, rng.randint(1, 24))))

    def edit(request: Request) -> Request:
        at = rng.randint(0, len(request.prompt))
        return replace(
            request, prompt=(*request.prompt[:at], Image(identity), *request.prompt[at:])[:MAX_PARTS]
        )

    encoder = scenario.engine.encoder or Encoder()
    return any_request(rng, replace(_engine(scenario, encoder=encoder), images=images), edit)


def resize_image(rng: Random, scenario: Scenario) -> Scenario:
    if not scenario.images:
        return scenario
    i = rng.randrange(len(scenario.images))
    length = _tweak(rng, rng.choice(scenario.images), 1, 64)
    return replace(scenario, images=(*scenario.images[:i], length, *scenario.images[i + 1 :]))


def reidentify_image(rng: Random, scenario: Scenario) -> Scenario:
    return any_part(rng, scenario, Image, lambda part, at: (Image(rng.randrange(len(scenario.images))),))


def change_max_tokens(rng: Random, scenario: Scenario) -> Scenario:
    return any_request(rng, scenario, lambda r: replace(r, max_tokens=_tweak(rng, r.max_tokens, 1, 16)))


def _change_script(rng: Random, script: tuple[int, ...], high: int) -> tuple[int, ...]:
    """One entry more, less, or other."""
    at = rng.randint(0, len(script))
    value = rng.choice((rng.randint(0, high), 0, high))
    new = rng.choice(((), (value,), (value, *script[at : at + 1])))
    return (*script[:at], *new, *script[at + 1 :])[:MAX_SCRIPT]


def change_acceptance(rng: Random, scenario: Scenario) -> Scenario:
    high = scenario.engine.speculative.num_speculative_tokens if scenario.engine.speculative else 0
    return any_request(
        rng, scenario, lambda r: replace(r, acceptance=_change_script(rng, r.acceptance, high))
    )


def change_step_delays(rng: Random, scenario: Scenario) -> Scenario:
    return replace(scenario, step_delays=_change_script(rng, scenario.step_delays, rng.choice((1, 3, 8))))


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
        return replace(request, min_tokens=_tweak(rng, rng.choice((request.min_tokens, *edges)), 0, 16))

    return any_request(rng, scenario, edit)


def change_salt(rng: Random, scenario: Scenario) -> Scenario:
    return any_request(rng, scenario, lambda r: replace(r, cache_salt=rng.randint(0, 2)))


def flip_skip_prefix(rng: Random, scenario: Scenario) -> Scenario:
    return any_request(
        rng, scenario, lambda r: replace(r, skip_reading_prefix_cache=not r.skip_reading_prefix_cache)
    )


def change_priority(rng: Random, scenario: Scenario) -> Scenario:
    scenario = _engine(scenario, policy="priority")
    return any_request(rng, scenario, lambda r: replace(r, priority=_tweak(rng, r.priority, -3, 3)))


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
)

"""Structure-aware mutation: small edits of a scenario, one idea each, counted by name.

A mutator takes a legal scenario and returns a decodable one (every number within its own limits); `mutate` applies some
of them, repairs after each, and keeps the result within the allowed features. A mutator that finds nothing to work on
returns its argument. Rules: the random source comes first; nothing depends on set order, hashing or time.
"""

from collections.abc import Callable, Sequence
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
    chunk_length,
    draw_weights,
    interesting_lengths,
    new_request,
    restrict,
)
from harness.repair import repair
from harness.scenario import (
    MAX_MODEL_LEN,
    MAX_REQUESTS,
    MAX_SCRIPT,
    MAX_STREAMS,
    Abort,
    Arrive,
    Encoder,
    Event,
    Image,
    Part,
    Request,
    Scenario,
    Speculative,
    Text,
)

Mutator = Callable[[Random, Scenario], Scenario]

_GO_ON = 0.5
"""Probability of one more mutation: two on average, so that half of the children differ by one idea alone, which keeps
the yield of a mutator readable, and one in eight makes the three steps that most bugs need together."""
_ATTEMPTS = 8
"""Draws before `mutate` gives up on an edit with an effect. About half of the draws find nothing to do on the smallest
scenarios, so that 1 in 2^8 mutations comes back unchanged there."""


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


def _tweak(rng: Random, value: int, low: int, high: int) -> int:
    """Another value within the limits: one step, double, half, or anything."""
    wanted = rng.choice((value - 1, value + 1, value * 2, value // 2, low, rng.randint(low, high)))
    return max(low, min(high, wanted))


def _engine(scenario: Scenario, **values: object) -> Scenario:
    return replace(scenario, engine=replace(scenario.engine, **values))


def _insert_request(rng: Random, scenario: Scenario) -> Scenario:
    weights = draw_weights(rng, frozenset(FEATURES))
    request = new_request(rng, weights, scenario.engine, scenario.images, list(scenario.requests))
    return _with_request(rng, scenario, request)


def _with_request(rng: Random, scenario: Scenario, request: Request) -> Scenario:
    if len(scenario.requests) >= MAX_REQUESTS:
        return scenario
    scenario = replace(scenario, requests=(*scenario.requests, request))
    return insert_event(rng, scenario, Arrive(len(scenario.requests) - 1, rng.choice(DELAYS)))


def _remove_request(rng: Random, scenario: Scenario) -> Scenario:
    if len(scenario.requests) < 2:
        return scenario
    return without_requests(scenario, (rng.randrange(len(scenario.requests)),))


def _duplicate_request(rng: Random, scenario: Scenario) -> Scenario:
    return _with_request(rng, scenario, rng.choice(scenario.requests)) if scenario.requests else scenario


def _insert_abort(rng: Random, scenario: Scenario) -> Scenario:
    aborted = {event.request for event in scenario.timeline if isinstance(event, Abort)}
    arrived = [e.request for e in scenario.timeline if isinstance(e, Arrive) and e.request not in aborted]
    if not arrived:
        return scenario
    return insert_event(rng, scenario, Abort(rng.choice(arrived), rng.choice(DELAYS), rng.random() < 0.5))


def _remove_event(rng: Random, scenario: Scenario) -> Scenario:
    if len(scenario.timeline) < 2:
        return scenario
    at = rng.randrange(len(scenario.timeline))
    if isinstance(scenario.timeline[at], Arrive):
        return without_requests(scenario, (scenario.timeline[at].request,))
    return without_events(scenario, (at,))


def _move_event(rng: Random, scenario: Scenario) -> Scenario:
    """To another place; its delay stays where it was, with its successor."""
    if len(scenario.timeline) < 2:
        return scenario
    at = rng.randrange(len(scenario.timeline))
    rest = list(without_events(scenario, (at,)).timeline)
    rest.insert(rng.randint(0, len(rest)), replace(scenario.timeline[at], delay=0))
    return replace(scenario, timeline=tuple(rest))


def _change_delay(rng: Random, scenario: Scenario) -> Scenario:
    def edit(event: Event) -> Event:
        return replace(event, delay=rng.choice((_tweak(rng, event.delay, 0, MAX_DELAY), rng.choice(DELAYS))))

    return any_event(rng, scenario, edit)


def _flip_in_step(rng: Random, scenario: Scenario) -> Scenario:
    def edit(event: Event) -> Event:
        return replace(event, in_step=not event.in_step) if isinstance(event, Abort) else event

    return any_event(rng, scenario, edit)


def _tweak_limit(rng: Random, scenario: Scenario) -> Scenario:
    """One number of the configuration: a step, a factor, or an edge that the scenario has."""
    name, low, high = rng.choice(_LIMITS)
    value = _tweak(rng, getattr(scenario.engine, name), low, high)
    edges = interesting_lengths(scenario.engine, scenario.images)
    return _engine(
        scenario, **{name: max(low, min(high, rng.choice((value, rng.choice(edges or (value,))))))}
    )


def _change_choice(rng: Random, scenario: Scenario) -> Scenario:
    """Turns a switch of the configuration, or draws another block size."""
    name, values = rng.choice(_CHOICES)
    return _engine(scenario, **{name: rng.choice([v for v in values if v != getattr(scenario.engine, name)])})


def _change_speculative(rng: Random, scenario: Scenario) -> Scenario:
    old = scenario.engine.speculative or Speculative()
    new = Speculative(rng.choice(("eagle", "mtp", "ngram")), _tweak(rng, old.num_speculative_tokens, 1, 4))
    off = scenario.engine.speculative is not None and rng.random() < 0.2
    return _engine(scenario, speculative=None if off else new)


def _change_encoder(rng: Random, scenario: Scenario) -> Scenario:
    old = scenario.engine.encoder or Encoder()
    name = rng.choice(("max_num_encoder_input_tokens", "encoder_cache_size", "disable_chunked_mm_input"))
    if name == "disable_chunked_mm_input":
        return _engine(
            scenario, encoder=replace(old, disable_chunked_mm_input=not old.disable_chunked_mm_input)
        )
    sums = [one + other for one in (0, *scenario.images) for other in scenario.images] or [64]
    value = _tweak(rng, rng.choice((getattr(old, name), *sums)), 1, MAX_MODEL_LEN)
    return _engine(scenario, encoder=replace(old, **{name: value}))


def _split_text(rng: Random, scenario: Scenario) -> Scenario:
    def edit(part: Text, at: int) -> Sequence[Part]:
        cut = rng.randint(1, max(1, part.length - 1))
        tail = Text(part.stream, min(part.start + cut, MAX_MODEL_LEN), part.length - cut)
        return (replace(part, length=cut), tail) if tail.length else (part,)

    return any_part(rng, scenario, Text, edit)


def _resize_text(rng: Random, scenario: Scenario) -> Scenario:
    def edit(part: Text, at: int) -> Sequence[Part]:
        length = rng.choice((part.length, *interesting_lengths(scenario.engine, scenario.images)))
        return (replace(part, length=_tweak(rng, length, 1, MAX_MODEL_LEN)),)

    return any_part(rng, scenario, Text, edit)


def _fit_text(rng: Random, scenario: Scenario) -> Scenario:
    """Lets a text end where a chunk or a block ends, or one token off: what follows begins there."""

    def edit(part: Text, at: int) -> Sequence[Part]:
        unit = rng.choice((chunk_length(scenario.engine), scenario.engine.block_size))
        length = unit - at % unit + rng.choice((0, 0, unit)) + rng.choice((-1, 0, 0, 0, 1))
        return (replace(part, length=max(1, min(MAX_MODEL_LEN, length))),)

    return any_part(rng, scenario, Text, edit)


def _shift_text(rng: Random, scenario: Scenario) -> Scenario:
    """Other tokens of the same number: breaks or makes a shared prefix."""

    def edit(part: Text, at: int) -> Sequence[Part]:
        return (Text(rng.randrange(3), rng.choice((0, min(at, MAX_MODEL_LEN), part.start)), part.length),)

    return any_part(rng, scenario, Text, edit)


def _remove_part(rng: Random, scenario: Scenario) -> Scenario:
    return any_part(rng, scenario, rng.choice((Text, Image)), lambda part, at: ())


def _share_prefix(rng: Random, scenario: Scenario) -> Scenario:
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


def _insert_image(rng: Random, scenario: Scenario) -> Scenario:
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


def _resize_image(rng: Random, scenario: Scenario) -> Scenario:
    if not scenario.images:
        return scenario
    i = rng.randrange(len(scenario.images))
    length = _tweak(rng, rng.choice(scenario.images), 1, 64)
    return replace(scenario, images=(*scenario.images[:i], length, *scenario.images[i + 1 :]))


def _reidentify_image(rng: Random, scenario: Scenario) -> Scenario:
    return any_part(rng, scenario, Image, lambda part, at: (Image(rng.randrange(len(scenario.images))),))


def _change_max_tokens(rng: Random, scenario: Scenario) -> Scenario:
    return any_request(rng, scenario, lambda r: replace(r, max_tokens=_tweak(rng, r.max_tokens, 1, 16)))


def _change_script(rng: Random, script: tuple[int, ...], high: int) -> tuple[int, ...]:
    """One entry more, less, or other."""
    at = rng.randint(0, len(script))
    value = rng.choice((rng.randint(0, high), 0, high))
    new = rng.choice(((), (value,), (value, *script[at : at + 1])))
    return (*script[:at], *new, *script[at + 1 :])[:MAX_SCRIPT]


def _change_acceptance(rng: Random, scenario: Scenario) -> Scenario:
    high = scenario.engine.speculative.num_speculative_tokens if scenario.engine.speculative else 0
    return any_request(
        rng, scenario, lambda r: replace(r, acceptance=_change_script(rng, r.acceptance, high))
    )


def _change_step_delays(rng: Random, scenario: Scenario) -> Scenario:
    return replace(scenario, step_delays=_change_script(rng, scenario.step_delays, rng.choice((1, 3, 8))))


def _change_stop(rng: Random, scenario: Scenario) -> Scenario:
    name = rng.choice(("eos_at", "stop_at", "ignore_eos"))

    def edit(request: Request) -> Request:
        if name == "ignore_eos":
            return replace(request, ignore_eos=not request.ignore_eos)
        return replace(request, **{name: rng.choice((None, rng.randrange(request.max_tokens)))})

    return any_request(rng, scenario, edit)


def _change_priority(rng: Random, scenario: Scenario) -> Scenario:
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
    ("enable_chunked_prefill", (False, True)),
    ("policy", ("fcfs", "priority")),
    ("async_scheduling", (False, True)),
    ("interleaving", ("engine", "free")),
)

MUTATORS: dict[str, Mutator] = {
    "insert_request": _insert_request,
    "remove_request": _remove_request,
    "duplicate_request": _duplicate_request,
    "insert_abort": _insert_abort,
    "remove_event": _remove_event,
    "move_event": _move_event,
    "change_delay": _change_delay,
    "flip_in_step": _flip_in_step,
    "tweak_limit": _tweak_limit,
    "change_choice": _change_choice,
    "change_speculative": _change_speculative,
    "change_encoder": _change_encoder,
    "split_text": _split_text,
    "resize_text": _resize_text,
    "fit_text": _fit_text,
    "shift_text": _shift_text,
    "remove_part": _remove_part,
    "share_prefix": _share_prefix,
    "insert_image": _insert_image,
    "resize_image": _resize_image,
    "reidentify_image": _reidentify_image,
    "change_max_tokens": _change_max_tokens,
    "change_acceptance": _change_acceptance,
    "change_step_delays": _change_step_delays,
    "change_stop": _change_stop,
    "change_priority": _change_priority,
}
"""By the name under which their yield is counted."""

_NEEDS = {
    "insert_abort": "abort",
    "flip_in_step": "abort",
    "change_speculative": "spec",
    "change_encoder": "mm",
    "insert_image": "mm",
    "resize_image": "mm",
    "reidentify_image": "mm",
    "change_acceptance": "spec",
    "change_step_delays": "async",
    "change_stop": "stop",
    "change_priority": "priority",
}
"""Mutators that do nothing, or nothing that `restrict` lets stand, without this feature."""

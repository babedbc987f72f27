"""Mutators of prompts: texts, images, and what requests share (see `mutators`)."""

from collections.abc import Sequence
from random import Random

from msgspec.structs import replace

from fuzz.edits import (
    MAX_PARTS,
    any_part,
    any_request,
    tweak,
    with_engine,
)
from fuzz.generate import (
    chunk_length,
    interesting_lengths,
)
from harness.scenario import (
    MAX_MODEL_LEN,
    MAX_STREAMS,
    Encoder,
    Image,
    Part,
    Request,
    Resized,
    Scenario,
    Text,
)


def split_text(rng: Random, scenario: Scenario) -> Scenario:
    def edit(part: Text, at: int) -> Sequence[Part]:
        cut = rng.randint(1, max(1, part.length - 1))
        tail = Text(part.stream, min(part.start + cut, MAX_MODEL_LEN), part.length - cut)
        return (replace(part, length=cut), tail) if tail.length else (part,)

    return any_part(rng, scenario, Text, edit)


def resize_text(rng: Random, scenario: Scenario) -> Scenario:
    def edit(part: Text, at: int) -> Sequence[Part]:
        length = rng.choice((part.length, *interesting_lengths(scenario.engine, scenario.images)))
        return (replace(part, length=tweak(rng, length, 1, MAX_MODEL_LEN)),)

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
    return any_request(rng, replace(with_engine(scenario, encoder=encoder), images=images), edit)


def resize_image(rng: Random, scenario: Scenario) -> Scenario:
    if not scenario.images:
        return scenario
    i = rng.randrange(len(scenario.images))
    length = tweak(rng, rng.choice(scenario.images), 1, 64)
    return replace(scenario, images=(*scenario.images[:i], length, *scenario.images[i + 1 :]))


def reidentify_image(rng: Random, scenario: Scenario) -> Scenario:
    return any_part(rng, scenario, Image, lambda part, at: (Image(rng.randrange(len(scenario.images))),))


def rename_image(rng: Random, scenario: Scenario) -> Scenario:
    """An item keeps its name, and has a length of its own: near that of the others, or of another image."""

    def edit(part: Image, at: int) -> Sequence[Part]:
        return (Resized(part.identity, tweak(rng, rng.choice(scenario.images), 1, 64)),)

    return any_part(rng, scenario, Image, edit)

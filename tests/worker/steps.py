"""Steps made by hand, as the scheduler would send them, for a worker without vLLM; requests and engines for them."""

import dataclasses
from typing import Any

from msgspec.structs import replace

from harness.model import Reference
from harness.scenario import Engine, Image, Request, Scenario, Speculative, Text
from harness.step import CachedRow, NewRow, Step
from harness.worker.batch_v1 import BatchV1
from harness.worker.batch_v2 import BatchV2
from harness.worker.forward import Execution
from harness.worker.observation import Breach
from harness.worker.stub_v1 import StubV1
from harness.worker.stub_v2 import StubV2
from harness.worker.traits import Traits, TraitsV2

ENGINE = Engine(block_size=4, num_gpu_blocks=16, max_model_len=32)


def references(*requests: Request, images: tuple[int, ...] = ()) -> dict[str, Reference]:
    """The truth about requests r0, r1, ..."""
    scenario = Scenario(1, Engine(max_model_len=32), images, requests)
    return {f"r{index}": Reference(scenario, index) for index in range(len(requests))}


def text(length: int, stream: int = 0, **rest: object) -> Request:
    return Request(prompt=(Text(stream, 0, length),), max_tokens=16, **rest)


def picture(before: int, after: int) -> Request:
    """Text, image 0, text."""
    parts = (
        *((Text(0, 0, before),) if before else ()),
        Image(0),
        *((Text(0, before, after),) if after else ()),
    )
    return Request(prompt=parts, max_tokens=16)


def new(reference: Reference, *tables: tuple[int, ...], request: str = "r0", computed: int = 0) -> NewRow:
    """A row for a request that the worker does not know, one block table a group."""
    items = tuple((offset, length, f"image-{identity}") for offset, length, identity in reference.items)
    return NewRow(request, tuple(reference.tokens[: reference.prompt_length]), items, tables, computed)


def new_v2(reference: Reference, *tables: tuple[int, ...], outputs: int = 0, **rest: Any) -> NewRow:
    """A row as the V2 runner gets it, also for a request that was preempted after `outputs` tokens."""
    known = tuple(map(reference.token, range(reference.prompt_length + outputs)))
    return dataclasses.replace(new(reference, *tables, **rest), prefill=known)


def cached(
    computed: int,
    *blocks: tuple[int, ...],
    request: str = "r0",
    outputs: int = 0,
    resumed: bool = False,
    tokens: list[int] | None = None,
) -> CachedRow:
    """A row for a request that it knows; `blocks` are the new ones, one tuple a group."""
    return CachedRow(
        request, resumed, blocks or None, computed, outputs, None if tokens is None else tuple(tokens)
    )


def step(
    *rows: NewRow | CachedRow,
    tokens: dict[str, int] | int = 0,
    drafts: dict[str, tuple[int, ...]] | None = None,
    encode: dict[str, tuple[int, ...]] | None = None,
    free: tuple[str, ...] = (),
    finished: tuple[str, ...] = (),
    total: int | None = None,
    zeroed: tuple[int, ...] = (),
    **rest: Any,
) -> Step:
    """A step; a plain number of `tokens` is r0's."""
    scheduled = {"r0": tokens} if isinstance(tokens, int) else tokens
    scheduled = {request: count for request, count in scheduled.items() if count}
    return Step(
        index=0,
        iteration=0,
        new=tuple(row for row in rows if isinstance(row, NewRow)),
        cached=tuple(row for row in rows if isinstance(row, CachedRow)),
        scheduled=scheduled,
        total=sum(scheduled.values()) if total is None else total,
        drafts=drafts or {},
        encoder_inputs=encode or {},
        freed_encoder=free,
        finished=finished,
        zeroed=zeroed,
        preempted=rest.pop("preempted", ()),
        **rest,
    )


def batch(
    known: dict[str, Reference], *, asynchronous: bool = False, pipeline: bool = False, **traits: Any
) -> BatchV1:
    return BatchV1(known, async_scheduling=asynchronous, pipeline=pipeline, traits=Traits(**traits))


def stub(known: dict[str, Reference], engine: Engine = ENGINE, **traits: Any) -> StubV1:
    return StubV1(engine, known, Traits(**traits))


def batch_v2(known: dict[str, Reference], engine: Engine = ENGINE, **traits: Any) -> BatchV2:
    return BatchV2(known, engine, TraitsV2(**traits))


def stub_v2(known: dict[str, Reference], engine: Engine = ENGINE, **traits: Any) -> StubV2:
    return StubV2(engine, known, TraitsV2(**traits))


def breaches(execution: Execution) -> list[str]:
    """What a step met that broke the runner's contract."""
    return [seen.kind for seen in execution.observations if isinstance(seen, Breach)]


def true(reference: Reference, start: int, stop: int) -> list[int]:
    """The tokens of positions [start, stop)."""
    return [reference.token(position) for position in range(start, stop)]


ONE = references(text(6))
R0 = ONE["r0"]
EAGLE = replace(ENGINE, speculative=Speculative("eagle", 2))
NGRAM = replace(ENGINE, speculative=Speculative("ngram", 2))
SEEN = references(picture(4, 4), images=(6,))
"""r0: text [0, 4), image [4, 10), text [10, 14)."""
PICTURE = SEEN["r0"]
TABLE = (1, 2, 3, 4)

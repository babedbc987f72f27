"""Which blocks a step reads and writes, by what the cache managers hold when the pass that schedules it ends."""

from collections.abc import Iterator, Sequence
from typing import Any

from harness.groups import attended_from, groups_of, states_are_cached
from harness.scenario import Mamba
from harness.step import Step
from harness.world import World

Use = tuple[int, str, Sequence[Any]]
"""A KV cache group, a request, and its blocks (vLLM's KVCacheBlock) there; null blocks among them."""


def read(world: World, step: Step) -> Iterator[Use]:
    """Context blocks: as far back as the group attends. A state stands for all positions before it."""
    for group, kind, size, request, start, blocks in _held(world, step):
        first = max(0, start - 1) if isinstance(kind, Mamba) else attended_from(kind, start)
        yield group, request, blocks[first // size : -(-start // size)]


def written(world: World, step: Step) -> Iterator[Use]:
    """Blocks of the positions that the step computes. A cached state is kept where the step ends, and one for each
    draft in the blocks after it.
    """
    cached = states_are_cached(world.engine)
    for group, kind, size, request, start, blocks in _held(world, step):
        count = step.scheduled.get(request, 0)
        first, last = start // size, (start + count - 1) // size
        if cached and isinstance(kind, Mamba):
            first, last = last, last + len(step.drafts.get(request, ()))
        yield group, request, blocks[first : last + 1]


def _held(world: World, step: Step) -> Iterator[tuple[int, Any, int, str, int, Sequence[Any]]]:
    """(group, its kind, its block size, request, first position that the step computes, the request's blocks)."""
    computed = step.computed
    for group, (manager, kind) in enumerate(zip(world.managers, groups_of(world.engine), strict=True)):
        for request, start in computed.items():
            yield group, kind, manager.block_size, request, start, manager.req_to_blocks.get(request, ())

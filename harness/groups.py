"""KV cache groups: which of them an engine has, and what of its context a query attends to in each. Pure.

An entry of `Engine.kv_cache_groups` is one group as vLLM's grouping makes them: layers of one kind that share a block
table. Groups of equal kind are groups of their own, as in a model with several times as many layers of one kind as of
another.
"""

from typing import cast

from msgspec.structs import replace

from harness.scenario import (
    Chunked,
    Engine,
    Full,
    Group,
    Mamba,
    Scale,
    Wide,
    WideFull,
    WideMamba,
    WideWindow,
    Window,
)


def groups_of(engine: Engine) -> tuple[Group, ...]:
    """The groups of an engine, in vLLM's order, whichever way they are spelled."""
    if engine.kv_cache_groups:
        return engine.kv_cache_groups
    return (Full(), Window(engine.sliding_window)) if engine.sliding_window else (Full(),)


def kind_of(group: Group) -> str:
    """The name of its kind, whatever the size of its blocks."""
    return next(kind.__name__ for kind in (Full, Window, Chunked, Mamba) if isinstance(group, kind))


def scale_of(group: Group) -> int:
    """How many times as large as the engine's `block_size` the group's is."""
    return group.scale if isinstance(group, Wide) else 1


def scaled(group: Group, scale: int) -> Group:
    """The group with blocks of 1, 2 or 4 times the engine's size; chunked local attention as it is."""
    if isinstance(group, Chunked) or scale == scale_of(group):
        return group
    if isinstance(group, Window):
        return WideWindow(group.size, cast(Scale, scale)) if scale > 1 else Window(group.size)
    if isinstance(group, Mamba):
        return WideMamba(cast(Scale, scale)) if scale > 1 else Mamba()
    return WideFull(cast(Scale, scale)) if scale > 1 else Full()


def has_block_sizes(engine: Engine) -> bool:
    """Whether the groups have blocks of different sizes."""
    return any(isinstance(group, Wide) for group in engine.kv_cache_groups)


def state_tokens(engine: Engine) -> int:
    """Tokens per block of the groups that keep a state, all of which have the same; the engine's `block_size` if there
    are none.
    """
    states = (group for group in engine.kv_cache_groups if isinstance(group, Mamba))
    return engine.block_size * max(map(scale_of, states), default=1)


def tokens_per_block(group: Group, engine: Engine) -> int:
    """The group's block size: a state that is never cached has room for a whole sequence."""
    whole = isinstance(group, Mamba) and not states_are_cached(engine)
    return engine.max_model_len if whole else engine.block_size * scale_of(group)


def blocks_per_sequence(group: Group, engine: Engine) -> int:
    """Blocks that one request of `max_model_len` tokens holds at most, by vLLM's own reckoning.

    Of cached states those of two steps, and one for each draft (`MambaSpec.max_memory_usage_bytes`). A window may begin
    inside a block (`SlidingWindowSpec.max_memory_usage_bytes`); that counts where hits, too, end inside blocks, and
    each takes a copy of what it shares.
    """
    if isinstance(group, Mamba) and states_are_cached(engine):
        return 2 + (engine.speculative.num_speculative_tokens if engine.speculative else 0)
    inside = isinstance(group, Window) and state_tokens(engine) > engine.block_size
    return -(-engine.max_model_len // tokens_per_block(group, engine)) + inside


def blocks_needed(engine: Engine) -> int:
    """Blocks that one request of `max_model_len` tokens can hold, over all groups, plus vLLM's null block.

    vLLM refuses to start with a pool that cannot hold one full request (`check_enough_kv_cache_memory`).
    """
    return 1 + sum(blocks_per_sequence(group, engine) for group in groups_of(engine))


def attended_from(group: Group, position: int) -> int:
    """First position that a query at `position` attends to; everything from there on must be in the group's blocks.

    A Mamba layer attends to its state alone, which stands for all positions before.
    """
    if isinstance(group, Window):
        return max(0, position - group.size + 1)
    if isinstance(group, Chunked):
        return position // group.size * group.size
    return 0


def whole_group(engine: Engine) -> int:
    """Index of the first group that keeps everything. StopIteration if none does."""
    return next(index for index, group in enumerate(groups_of(engine)) if isinstance(group, Full))


def looks_ahead(engine: Engine) -> bool:
    """Whether the drafter is a model, with a layer and a look-ahead of its own."""
    return engine.speculative is not None and engine.speculative.method != "ngram"


def reads_across(engine: Engine) -> bool:
    """Whether the model is an encoder-decoder one, whose cross-attention reads what a step itself has encoded."""
    return engine.encoder is not None and engine.encoder.is_encoder_decoder


def canonical_groups(engine: Engine) -> tuple[int, tuple[Group, ...]]:
    """(`sliding_window`, `kv_cache_groups`) of the nearest legal engine, in the one spelling that its groups have.

    vLLM's rules: chunked local attention next to a drafter with a model is kept as full attention (the hybrid manager
    is off), a chunk is a whole number of blocks (`make_local_attention_virtual_batches`), and grouping puts layers of
    one kind in as many groups as that kind has more layers than the rarest. The drafter's layer has full attention.
    Of different block sizes, `_sized` says what is legal. Ours: Mamba stands beside attention, since a model without
    any has other block sizes.
    """
    if not engine.kv_cache_groups:
        return min(engine.sliding_window, engine.max_model_len), ()
    drafts = looks_ahead(engine)
    groups = [_fitted(group, engine) for group in engine.kv_cache_groups]
    if drafts:
        groups = [group for group in groups if not isinstance(group, Chunked)]
        groups += [Full()] * (not any(isinstance(group, Full) for group in groups))
    if all(isinstance(group, Mamba) for group in groups):
        groups.append(Full())
    groups = _sized(groups, engine)
    kinds = list(dict.fromkeys(groups))
    counts = {kind: groups.count(kind) for kind in kinds}
    if 1 not in counts.values():
        counts[kinds[0]] = 1
    found = tuple(kind for kind in kinds for _ in range(counts[kind]))
    if found == (Full(),):
        return 0, ()
    if len(found) == 2 and found[0] == Full() and type(found[1]) is Window:
        return found[1].size, ()
    return 0, found


def _sized(groups: list[Group], engine: Engine) -> list[Group]:
    """The groups with block sizes that go together.

    The smallest is the engine's (EngineCore: `cache_config.block_size` is the least of all groups'). Chunked local
    attention's manager asserts that all hits are multiples of its own block size, and nothing else. The V1 runner
    moves states of one spec only (`get_mamba_groups`); those that are not cached have no blocks to scale.
    """
    states = [scale_of(group) for group in groups if isinstance(group, Mamba)]
    of_states = states[0] if states and engine.enable_prefix_caching else 1
    if any(isinstance(group, Chunked) for group in groups):
        return [scaled(group, 1) for group in groups]
    groups = [scaled(group, of_states) if isinstance(group, Mamba) else group for group in groups]
    counted = [group for group in groups if engine.enable_prefix_caching or not isinstance(group, Mamba)]
    least = min(map(scale_of, counted))
    return [scaled(group, max(1, scale_of(group) // least)) for group in groups]


def has_mamba(engine: Engine) -> bool:
    """Whether some group keeps a state."""
    return any(isinstance(group, Mamba) for group in engine.kv_cache_groups)


def is_hybrid(engine: Engine) -> bool:
    """Whether the groups are full attention and Mamba, the one mixture (beside a window) of all releases."""
    return set(engine.kv_cache_groups) == {Full(), Mamba()}


def states_are_cached(engine: Engine) -> bool:
    """Whether states can be hit (`mamba_cache_mode="align"`)."""
    return has_mamba(engine) and engine.enable_prefix_caching


def _fitted(group: Group, engine: Engine) -> Group:
    if isinstance(group, Window):
        return replace(group, size=min(group.size, engine.max_model_len))
    if isinstance(group, Chunked):
        return Chunked(-(-group.size // engine.block_size) * engine.block_size)
    return group

"""Scenario.engine -> KV cache groups, by vLLM's own grouping of a model's layers.

What is ours is the model: which layers it has, and so how many of a kind stand against how many of another. Grouping,
block sizes and the choice of the groups that drop a block for the drafter (`is_eagle_group`) are vLLM's, release by
release.
"""

from typing import Any

from harness import compat
from harness.groups import groups_of, looks_ahead, scale_of, states_are_cached, tokens_per_block
from harness.scenario import Chunked, Engine, Full, Group, Mamba, Window
from harness.verdict import HarnessError


def _layers(engine: Engine) -> dict[str, Any]:
    """Spec per layer, in the model's order: two layers a group, the last full-attention one of which is the drafter's.

    So every kind has a multiple of two layers, and vLLM's rule (as many layers in a group as the rarest kind has)
    gives back the groups that the scenario names; `harness.groups` leaves at least one kind that occurs once.
    """
    groups = groups_of(engine)
    layers = {
        f"model.layers.{2 * index + at}": _spec(engine, group)
        for index, group in enumerate(groups)
        for at in (0, 1)
    }
    if looks_ahead(engine):
        last = max(index for index, group in enumerate(groups) if isinstance(group, Full))
        del layers[f"model.layers.{2 * last + 1}"]
        layers["model.drafter"] = _spec(engine, groups[last], is_draft=True)
    return layers


def _spec(engine: Engine, group: Group, **more: Any) -> Any:
    """vLLM's KVCacheSpec of a layer. Head and number sizes are of no consequence, but pages are equally large: a layer
    with half the head has blocks of twice the size, as `unify_kv_cache_spec_page_size` would make them.
    """
    import torch
    from vllm.v1.kv_cache_interface import (
        ChunkedLocalAttentionSpec,
        FullAttentionSpec,
        MambaSpec,
        SlidingWindowSpec,
    )

    heads = max(map(scale_of, groups_of(engine)))
    if isinstance(group, Mamba):
        # A state as large as a page of the others, which vLLM lets no page be smaller than.
        more = {}
        if states_are_cached(engine):
            drafts = engine.speculative.num_speculative_tokens if engine.speculative else 0
            more = {"mamba_cache_mode": "align", "num_speculative_blocks": drafts}
        return compat.construct(
            MambaSpec,
            block_size=tokens_per_block(group, engine),
            shapes=((2 * engine.block_size * heads,),),
            dtypes=(torch.float32,),
            **more,
        )
    size = tokens_per_block(group, engine)
    head = heads // scale_of(group)
    more |= {"block_size": size, "num_kv_heads": 1, "head_size": head, "dtype": torch.float32}
    if isinstance(group, Window):
        return compat.construct(SlidingWindowSpec, sliding_window=group.size, **more)
    if isinstance(group, Chunked):
        return compat.construct(ChunkedLocalAttentionSpec, attention_chunk_size=group.size, **more)
    return compat.construct(FullAttentionSpec, **more)


def grouped(engine: Engine, config: Any) -> tuple[Any, ...]:
    """vLLM's KVCacheGroupSpecs of the engine's layers under its VllmConfig.

    HarnessError if they are not the groups that the scenario names.
    """
    found = tuple(compat.kv_cache_groups(config, _layers(engine)))
    wanted = [_spec(engine, group) for group in groups_of(engine)]
    if [group.kv_cache_spec for group in found] != wanted:
        raise HarnessError(f"vLLM groups the layers of {groups_of(engine)} as {found}")
    return found

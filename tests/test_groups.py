"""KV cache groups: one spelling for one meaning, and what a query attends to."""

import pytest
from msgspec.structs import replace

from harness.codec import ScenarioError, decode, encode
from harness.groups import attended_from, blocks_needed, groups_of
from harness.repair import repair
from harness.scenario import (
    Chunked,
    Engine,
    Full,
    Mamba,
    Scenario,
    Speculative,
    WideFull,
    WideMamba,
    WideWindow,
    Window,
)

EAGLE = Speculative("eagle", 1)


def repaired(*groups, **engine):
    found = repair(Scenario(1, Engine(kv_cache_groups=groups, block_size=4, **engine))).engine
    return found.sliding_window or found.kv_cache_groups


@pytest.mark.parametrize(
    ("groups", "engine", "spelling"),
    [
        ((Full(),), {}, ()),
        ((Full(), Window(6)), {}, 6),
        ((Window(6), Full()), {}, (Window(6), Full())),
        ((Window(6),), {}, (Window(6),)),
        ((Window(6), Window(6)), {}, (Window(6),)),
        ((Full(), Window(6), Full(), Window(6)), {}, (Full(), Window(6), Window(6))),
        ((Window(6), Full(), Window(6)), {}, (Window(6), Window(6), Full())),
        ((Full(), Window(500)), {"max_model_len": 32}, 32),
        ((Chunked(5),), {}, (Chunked(8),)),
        ((Full(), Chunked(8)), {"speculative": Speculative("ngram", 1)}, (Full(), Chunked(8))),
        ((Full(), Chunked(8)), {"speculative": EAGLE}, ()),
        ((Chunked(8), Window(6)), {"speculative": EAGLE}, (Window(6), Full())),
        ((Full(), Window(6)), {"sliding_window": 3}, 6),
        ((Mamba(),), {}, (Mamba(), Full())),
        ((Mamba(), Full(), Mamba()), {}, (Mamba(), Mamba(), Full())),
        ((WideFull(2),), {}, ()),
        ((WideFull(4), WideWindow(6, 2)), {}, (WideFull(2), Window(6))),
        ((WideFull(4), WideWindow(6, 4)), {}, 6),
        ((Full(), WideWindow(6, 2), Chunked(8)), {}, (Full(), Window(6), Chunked(8))),
        ((WideFull(2), Window(6)), {"speculative": EAGLE}, (WideFull(2), Window(6))),
        ((Full(), Mamba(), WideMamba(4)), {}, (Full(), Mamba(), Mamba())),
        ((WideFull(4), WideMamba(2), Mamba()), {}, (WideFull(2), Mamba(), Mamba())),
        ((Full(), WideMamba(4)), {}, (Full(), WideMamba(4))),
        ((WideFull(2), WideMamba(4)), {"enable_prefix_caching": False}, (Full(), Mamba())),
        ((Full(), Window(6), Window(7)), {"sliding_window": 3}, (Full(), Window(6), Window(7))),
    ],
)
def test_one_spelling_for_one_meaning(groups, engine, spelling):
    assert repaired(*groups, **engine) == spelling


def test_a_file_says_groups_in_one_line():
    engine = Engine(kv_cache_groups=(Window(6), Full(), Chunked(16)))
    scenario = repair(Scenario(1, engine))
    assert b'"kv_cache_groups": [["window", 6], ["full"], ["chunked", 16]]' in encode(scenario)
    assert decode(encode(scenario)) == scenario


def test_a_wide_group_is_spelled_with_its_scale():
    scenario = repair(Scenario(1, Engine(kv_cache_groups=(Full(), WideWindow(6, 4), WideMamba(2)))))
    assert b'"kv_cache_groups": [["full"], ["wide_window", 6, 4], ["wide_mamba", 2]]' in encode(scenario)
    assert decode(encode(scenario)) == scenario


def test_a_wide_group_holds_fewer_blocks():
    engine = Engine(max_model_len=36, block_size=4)
    assert [
        blocks_needed(replace(engine, kv_cache_groups=groups))
        for groups in (
            (Full(), WideFull(4)),
            (WideFull(2), Window(5)),
            (WideFull(2), Window(5), WideMamba(2)),
        )
    ] == [1 + 9 + 3, 1 + 5 + 9, 1 + 5 + 10 + 2]


def test_a_chunk_can_be_a_wide_state_s_block():
    engine = repair(
        Scenario(1, Engine(kv_cache_groups=(Full(), WideMamba(4)), max_num_batched_tokens=8, block_size=4))
    ).engine
    assert engine.max_num_batched_tokens == 16


def test_the_other_spelling_is_refused():
    with pytest.raises(ScenarioError, match=r"^\$\.engine"):
        decode(b'{"format": 1, "engine": {"kv_cache_groups": [["full"], ["window", 6]]}}')


def test_a_group_of_layers_holds_as_many_blocks_as_any_other():
    engine = Engine(max_model_len=32, block_size=4)
    assert [
        blocks_needed(replace(engine, **groups))
        for groups in (
            {},
            {"sliding_window": 5},
            {"kv_cache_groups": (Full(), Window(5), Chunked(8), Mamba()), "enable_prefix_caching": False},
        )
    ] == [1 + 8, 1 + 16, 1 + 24 + 1]


def hybrid(**engine):
    return repair(Scenario(1, Engine(kv_cache_groups=(Full(), Mamba()), **engine))).engine


def test_a_state_that_is_not_cached_does_without_drafts():
    engine = hybrid(enable_prefix_caching=False, enable_chunked_prefill=False, speculative=EAGLE)
    assert (engine.speculative, engine.enable_chunked_prefill) == (None, False)


def test_cached_states_ask_for_chunks_that_a_block_fits_into():
    engine = hybrid(
        enable_chunked_prefill=False, max_num_batched_tokens=8, block_size=16, long_prefill_token_threshold=3
    )
    assert engine.enable_chunked_prefill
    assert (engine.max_num_batched_tokens, engine.long_prefill_token_threshold) == (16, 16)


def test_cached_states_with_drafts_go_step_by_step():
    engine = hybrid(speculative=EAGLE, async_scheduling=True, model_runner="v2")
    assert (engine.speculative, engine.async_scheduling, engine.model_runner) == (EAGLE, False, "v1")
    assert hybrid(speculative=Speculative("ngram", 2)).speculative is None


def test_a_request_holds_few_cached_states():
    engine = Engine(max_model_len=64, block_size=4, kv_cache_groups=(Full(), Mamba()))
    assert blocks_needed(engine) == 1 + 16 + 2
    assert blocks_needed(replace(engine, speculative=Speculative("mtp", 3))) == 1 + 16 + 5


@pytest.mark.parametrize(
    ("group", "attends"),
    [
        (Full(), lambda query, position: True),
        (Window(5), lambda query, position: query - position < 5),
        (Chunked(8), lambda query, position: query // 8 == position // 8),
    ],
)
def test_what_a_query_attends_to(group, attends):
    """Against the masks as one would write them down."""
    for query in range(30):
        seen = [position for position in range(query + 1) if attends(query, position)]
        assert seen == list(range(attended_from(group, query), query + 1))


def test_both_spellings_name_groups():
    assert groups_of(Engine()) == (Full(),)
    assert groups_of(Engine(sliding_window=6)) == (Full(), Window(6))
    assert groups_of(Engine(kv_cache_groups=(Chunked(16),))) == (Chunked(16),)

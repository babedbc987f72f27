"""What limits come to, and which are legal."""

import pytest
from msgspec.structs import replace

from harness.limits import drafts_after, longest_prefill, repair_limits, watermark_blocks
from harness.repair import repair
from harness.scenario import Connector, Engine, Full, Mamba, Scenario, Speculative


@pytest.mark.parametrize(
    ("engine", "live", "lone_is_free", "longest"),
    [
        (Engine(), 3, True, 0),
        (Engine(long_prefill_token_threshold=5), 3, True, 5),
        (Engine(long_prefill_token_threshold=5), 1, True, 0),
        (Engine(long_prefill_token_threshold=5), 1, False, 5),
        (Engine(long_prefill_token_threshold_adaptive=True), 3, True, 0),
        (Engine(long_prefill_token_threshold=5, long_prefill_token_threshold_adaptive=True), 3, True, 21),
        (Engine(long_prefill_token_threshold=5, long_prefill_token_threshold_adaptive=True), 16, True, 5),
        (Engine(long_prefill_token_threshold=5, long_prefill_token_threshold_adaptive=True), 1, False, 64),
    ],
)
def test_the_longest_prefill_is_the_threshold_or_a_fair_share(engine, live, lone_is_free, longest):
    assert longest_prefill(engine, live, lone_is_free=lone_is_free) == longest


@pytest.mark.parametrize(("percent", "blocks"), [(0, 0), (1, 0), (10, 6), (99, 63)])
def test_the_watermark_is_rounded_down(percent, blocks):
    assert watermark_blocks(Engine(watermark=percent)) == blocks


def test_draft_lengths_go_on_as_the_last_says():
    assert [drafts_after(Speculative("eagle", 3, (3, 1)), batch) for batch in (1, 2, 3, 9)] == [3, 1, 1, 1]
    assert drafts_after(Speculative("eagle", 3), 9) == 3


def test_repair():
    engine = Engine(
        max_num_seqs=3,
        max_num_active_seqs=9,
        data_parallel=True,
        speculative=Speculative("eagle", 2, (5, 1, 0, 0, 7)),
    )
    repaired = repair_limits(engine)
    assert repaired.max_num_active_seqs == 3
    assert not repaired.data_parallel  # without an interval it would say nothing
    assert repaired.speculative == Speculative("eagle", 2, (2, 1, 0))
    assert repair_limits(repaired) == repaired


def test_a_schedule_of_drafts_is_for_the_v1_runner_without_states():
    drafts = Speculative("eagle", 2, (2, 0))
    assert repair_limits(Engine(speculative=drafts)).speculative == drafts
    for engine in (Engine(model_runner="v2"), Engine(kv_cache_groups=(Full(), Mamba()))):
        assert repair_limits(replace(engine, speculative=drafts)).speculative == Speculative("eagle", 2)


@pytest.mark.parametrize(
    "beside",
    [
        Engine(connector=Connector()),
        Engine(kv_cache_groups=(Full(), Mamba()), enable_chunked_prefill=True),
    ],
)
def test_a_pipeline_gives_way(beside):
    def stages(engine):
        return repair(Scenario(1, replace(engine, pipeline_parallel_size=2))).engine.pipeline_parallel_size

    assert (stages(beside), stages(Engine())) == (1, 2)


def test_a_pipeline_has_the_v1_runner_and_no_drafts():
    engine = Engine(pipeline_parallel_size=2, model_runner="v2", speculative=Speculative())
    assert repair(Scenario(1, engine)).engine == Engine(pipeline_parallel_size=2)

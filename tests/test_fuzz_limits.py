"""Drawing and changing limits of the scheduler's configuration."""

from random import Random

import pytest
from msgspec.structs import replace

from fuzz.limits import OFF, change_limit, with_limits, with_schedule
from harness.scenario import Engine, Scenario, Speculative

PLAIN = Engine(max_num_seqs=5, speculative=Speculative("eagle", 3))
DRAWS = range(300)
FIELDS = {
    "active_seqs": {"max_num_active_seqs"},
    "adaptive_prefill": {"long_prefill_token_threshold_adaptive"},
    "unreserved_isl": {"scheduler_reserve_full_isl"},
    "watermark": {"watermark"},
    "prefill_interval": {"prefill_schedule_interval", "data_parallel"},
    "dynamic_spec": {"speculative"},
}


def differing(one, other):
    return {name for name in one.__struct_fields__ if getattr(one, name) != getattr(other, name)}


@pytest.mark.parametrize("name", OFF)
def test_a_feature_sets_its_limit_and_nothing_else(name):
    drawn = [with_limits(Random(seed), {name: 0.5}, PLAIN) for seed in DRAWS]
    assert set().union(*(differing(one, PLAIN) for one in drawn)) == FIELDS[name]
    assert all(differing(one, PLAIN) for one in drawn)
    for one in drawn[:20]:
        assert OFF[name](Scenario(1, one)) == Scenario(1, PLAIN)


def test_no_feature_no_limit():
    assert with_limits(Random(1), {"mm": 0.9}, PLAIN) == PLAIN


def test_values():
    """Every one that there is, and none beyond what the engine has."""
    drawn = [with_limits(Random(seed), dict.fromkeys(OFF, 1.0), PLAIN) for seed in DRAWS]
    assert {one.max_num_active_seqs for one in drawn} == {1, 2, 3, 4, 5}
    assert {one.watermark for one in drawn} == {1, 5, 10, 20, 33, 50}
    assert {one.prefill_schedule_interval for one in drawn} == {2, 3, 4, 8}
    assert {one.data_parallel for one in drawn} == {False, True}


def test_draft_lengths_mostly_shrink_and_never_exceed():
    schedules = [
        with_schedule(Random(seed), PLAIN.speculative).num_speculative_tokens_per_batch_size for seed in DRAWS
    ]
    assert {len(one) for one in schedules} == {1, 2, 3, 4}
    assert {count for one in schedules for count in one} == {0, 1, 2, 3}
    shrinking = sum(list(one) == sorted(one, reverse=True) for one in schedules)
    growing = sum(list(one) == sorted(one) for one in schedules)
    assert shrinking + growing >= len(schedules) and shrinking > 2 * (len(schedules) - shrinking)
    assert with_schedule(Random(1), None) is None


def test_one_limit_changes():
    changed = set()
    back = 0
    limited = Scenario(1, with_limits(Random(3), dict.fromkeys(OFF, 1.0), PLAIN))
    for seed in DRAWS:
        made = change_limit(Random(seed), limited)
        assert replace(made, engine=limited.engine) == limited
        fields = differing(made.engine, limited.engine)
        assert any(fields <= known for known in FIELDS.values())
        changed |= fields
        back += any(made == off(limited) for off in OFF.values()) and bool(fields)
    assert changed == set().union(*FIELDS.values())
    assert 50 < back < 200
    assert change_limit(Random(5), limited) == change_limit(Random(5), limited)

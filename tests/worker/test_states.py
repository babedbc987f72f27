"""Where Mamba states are found and left, by the place in a request's block table."""

from msgspec.structs import replace

from harness.scenario import Engine, Full, Mamba, Speculative, WideMamba
from harness.step import CachedRow
from harness.worker.states import States
from worker.steps import step

ENGINE = Engine(block_size=4, kv_cache_groups=(Full(), Mamba()))


def states(drafts: int = 0, **options: bool) -> States:
    return States(replace(ENGINE, speculative=Speculative("mtp", drafts) if drafts else None), **options)


def test_without_prefix_caching_there_is_one_place():
    one = States(replace(ENGINE, enable_prefix_caching=False))
    assert not one.cached
    assert (one.source("r0"), one.target("r0")) == (0, 0)


def test_a_state_moves_to_the_block_in_which_the_step_ends():
    one = states()
    assert one.place("r0", 0, 6) is None, "the first step starts from nothing"
    assert one.target("r0") == 1
    assert one.place("r0", 6, 2) is None
    assert one.place("r0", 8, 1) == (1, 2)


def test_a_wide_group_s_state_moves_less_often():
    one = States(replace(ENGINE, kv_cache_groups=(Full(), WideMamba(2))))
    assert one.place("r0", 4, 4) is None, "a hit inside a block is where the step works"
    assert one.place("r0", 8, 1) == (0, 1)


def test_a_hit_is_where_its_last_position_is():
    one = states()
    assert one.place("r0", 8, 3) == (1, 2)
    assert (one.source("r0"), one.target("r0")) == (2, 2)


def test_the_next_step_starts_after_the_last_draft_that_was_right():
    one = states(3)
    one.place("r0", 0, 5)
    one.verified("r0", 5, 1)
    assert one.place("r0", 5, 3) is None
    assert one.target("r0") == 1
    assert one.verified("r0", 6, 2) is None
    assert one.source("r0") == 2
    assert one.place("r0", 7, 4) == (2, 2), "from the state after one draft, which is where the step works"


def test_a_block_s_end_among_the_drafts_is_kept_where_it_is_looked_for():
    one = states(3)
    one.place("r0", 5, 4)  # 5, and drafts at 6, 7 and 8
    assert one.target("r0") == 2
    assert one.verified("r0", 6, 4) == (4, 1), (
        "the state after 7, of the second draft, to the block that ends there"
    )
    assert one.source("r0") == 5


def test_a_block_s_end_in_the_place_itself():
    one = states(1)
    one.place("r0", 6, 2)  # 6, and a draft at 7
    assert one.verified("r0", 7, 2) == (2, 1)
    assert one.source("r0") == 1


def test_who_returns_starts_from_what_it_brings():
    one = states()
    one.place("r0", 0, 20)
    gone = step(preempted=("r0",))
    one.begin(gone, ())
    assert one.place("r0", 4, 2) == (0, 1)


def test_up_to_0_16_a_request_that_resumes_untold_starts_from_its_old_place():
    row = CachedRow("r0", True, ((1,), (2,)), 4, 1, None)
    for forgotten, move in ((True, (0, 1)), (False, (4, 1))):
        one = states(resumed_are_forgotten=forgotten)
        one.place("r0", 0, 20)
        one.begin(step(row), ["r0"])
        assert one.place("r0", 4, 2) == move

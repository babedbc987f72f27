"""Grammar bitmasks: bits, and which rows belong to whom."""

import numpy as np
import pytest

from harness.worker import masks


def row(*tokens: int) -> masks.Rows:
    """A row of 3 words that allows these tokens."""
    words = [sum(1 << token % 32 for token in tokens if token // 32 == word) for word in range(3)]
    return np.array(words, dtype=np.uint32).view(np.int32)


@pytest.mark.parametrize("tokens", [(), (0,), (31,), (32,), (3, 63, 95)])
def test_a_row_says_which_tokens_it_allows(tokens: tuple[int, ...]) -> None:
    assert masks.allowed(row(*tokens)).tolist() == list(tokens)
    assert not masks.allows_everything(row(*tokens))


def test_a_row_of_ones_allows_everything() -> None:
    assert masks.allows_everything(np.full(3, -1, dtype=np.int32))


@pytest.mark.parametrize(
    ("allowed", "wanted", "sampled"),
    [((31, 40), 31, 31), ((31, 40), 40, 40), ((31, 40), 5, 31), ((), 5, 0)],
    ids=["the highest bit", "another word", "the first that is allowed", "nothing is allowed"],
)
def test_a_greedy_sampler_takes_what_a_row_leaves(
    allowed: tuple[int, ...], wanted: int, sampled: int
) -> None:
    assert masks.sampled(row(*allowed), wanted) == sampled


@pytest.mark.parametrize(("strided", "second"), [(True, [3, 4]), (False, [1, 2])])
def test_rows_are_cut_as_the_runner_cuts_them(strided: bool, second: list[int]) -> None:
    """Two requests with room for two drafts each; the first has none."""
    bitmask = np.arange(6, dtype=np.int32).reshape(6, 1)
    rows = masks.rows_of(["r2", "r0"], bitmask, {"r0": [-1], "r1": [-1, -1]}, strided=strided)
    assert {request: found.flatten().tolist() for request, found in rows.items()} == {"r2": [0], "r0": second}


def test_nobody_s_rows() -> None:
    assert masks.rows_of([], np.zeros((0, 1), dtype=np.int32), {}, strided=True) == {}


def test_words_hold_the_vocabulary() -> None:
    assert [masks.words(count) for count in (1, 32, 33)] == [1, 1, 2]

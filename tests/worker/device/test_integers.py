"""The network's arithmetic on tensors is the reference model's on Python's integers, bit for bit."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness import model
from harness.scenario import MAX_MODEL_LEN, MAX_STREAMS
from harness.worker.device import integers

quick = settings(max_examples=200, deadline=None, derandomize=True)
words = st.integers(0, 2**64 - 1)
batches = st.lists(words, min_size=1, max_size=8)
positions = st.integers(0, MAX_MODEL_LEN)


def tensor(unsigned: list[int]) -> torch.Tensor:
    return torch.tensor([integers.signed(word) for word in unsigned], dtype=torch.int64)


def unsigned(words: torch.Tensor) -> list[int]:
    return [word % 2**64 for word in words.tolist()]


@quick
@given(st.lists(st.tuples(words, words), min_size=1, max_size=8))
def test_mix(pairs: list[tuple[int, int]]) -> None:
    states, values = zip(*pairs, strict=True)
    assert unsigned(integers.mix(tensor(list(states)), tensor(list(values)))) == [
        model.mix(state, value) for state, value in pairs
    ]


@quick
@given(
    st.lists(
        st.tuples(positions, st.integers(0, model.VOCABULARY - 1), st.integers(0, 2**24 - 1)), min_size=1
    )
)
def test_keys(rows: list[tuple[int, int, int]]) -> None:
    places, tokens, items = (torch.tensor(column) for column in zip(*rows, strict=True))
    assert unsigned(integers.keys(places, tokens, items)) == [model.key(*row) for row in rows]


@quick
@given(batches)
def test_drawn(fingerprints: list[int]) -> None:
    assert integers.drawn(tensor(fingerprints)).tolist() == [model.drawn(word) for word in fingerprints]


@quick
@given(batches)
def test_words_travel_in_floats(sent: list[int]) -> None:
    limbs = integers.to_limbs(tensor(sent))
    assert (limbs.dtype, tuple(limbs.shape)) == (torch.float32, (len(sent), integers.LIMBS))
    assert unsigned(integers.from_limbs(limbs)) == sent


def test_items_travel_in_floats() -> None:
    """Every position of every item has a value of its own, and an embedding in float32 holds it."""
    values = [model.item_value(item, at) for item in range(MAX_STREAMS) for at in range(MAX_MODEL_LEN)]
    assert len(set(values)) == len(values) and 0 not in values
    assert torch.tensor(values, dtype=torch.float32).to(torch.int64).tolist() == values

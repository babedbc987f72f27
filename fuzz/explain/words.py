"""Words that several parts of an explanation use."""

MARK = ">>>"
"""Before what oracles have said."""
Items = dict[str, list[tuple[int, int, str]]]
"""Per request its images as (first position, position after the last, name)."""


def count(number: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"

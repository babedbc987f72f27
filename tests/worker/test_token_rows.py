"""Lines of the persistent batch: who gets which, and what is left in them."""

from harness.worker.token_rows import TokenRows


def rows(**tokens: list[int]) -> TokenRows:
    made = TokenRows()
    for request, known in tokens.items():
        made.add(request, known)
    return made


def test_the_smallest_free_line_is_taken_first_and_what_was_left_there_is_read() -> None:
    lines = rows(a=[1, 2, 3, 4], b=[5, 6], c=[7])
    lines.remove("b")
    lines.remove("a")
    lines.add("d", [8])
    lines.condense()
    assert lines.in_order() == ["d", "c"]
    assert lines.read("d", 0, 4) == [8, 2, 3, 4]
    assert lines.read("c", 0, 3) == [7, 6, 0], "c has moved to b's line, of which it overwrites what it knows"


def test_drafts_stay_until_they_are_overwritten() -> None:
    lines = rows(a=[1])
    lines.draft("a", [-1, -1])
    lines.append("a", [-1])
    lines.remove("a")
    lines.condense()
    lines.add("b", [4])
    assert lines.read("b", 0, 4) == [4, -1, -1, 0]


def test_drafts_move_with_their_line() -> None:
    lines = rows(a=[1], b=[2])
    lines.draft("b", [9])
    lines.remove("a")
    lines.condense()
    assert lines.read("b", 0, 2) == [2, 9]


def test_a_cut_is_where_the_next_sample_goes() -> None:
    lines = rows(a=[1, 2, 3])
    lines.cut("a", 1)
    lines.append("a", [5])
    assert lines.read("a", 0, 4) == [1, 5, 3, 0]

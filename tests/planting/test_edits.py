"""Edits of syntax trees: what each makes of a function, and how many places it counts."""

import ast

import pytest

from harness.planting import edits
from harness.planting.plant import Change

SOURCE = """
def f(self, x):
    total = 0
    for item in x:  # a loop
        if item.bad and not item.known:
            self.drop(item)
            continue
        total = total + item.size - item.slack
    if (
        total
        > self.limit
    ):
        return None
    return total
"""


def changed(change: Change) -> tuple[int, str]:
    function = ast.parse(SOURCE).body[0]
    assert isinstance(function, ast.FunctionDef)
    count = change(function)
    compile(ast.Module([function], []), "f.py", "exec")
    return count, ast.unparse(function)


def after(*pairs: tuple[str, str]) -> str:
    text = ast.unparse(ast.parse(SOURCE))
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


def test_answer() -> None:
    assert changed(edits.answer("False")) == (1, "def f(self, x):\n    return False")


def test_drop_takes_a_statement_and_what_is_inside_it() -> None:
    count, text = changed(edits.drop("for item in x:"))
    assert count == 1 and "total + item.size" not in text


def test_drop_leaves_no_empty_block() -> None:
    count, text = changed(edits.drop("return None"))
    assert (count, text) == (1, after(("return None", "pass")))


def test_heads_may_be_cut_short() -> None:
    assert changed(edits.drop("if item.bad ..."))[0] == 1
    assert changed(edits.drop("return ..."))[0] == 2
    assert changed(edits.drop("return total + ..."))[0] == 0


def test_unwrap_keeps_what_was_guarded() -> None:
    count, text = changed(edits.unwrap("if total > self.limit:"))
    assert count == 1 and "if total" not in text and "return None" in text


def test_follow_and_precede() -> None:
    count, text = changed(edits.follow("self.drop(item)", "self.log()"))
    assert (count, text) == (
        1,
        after(("self.drop(item)\n", "self.drop(item)\n            self.log()\n")),
    )
    count, text = changed(edits.precede("self.drop(item)", "self.log()"))
    assert (count, text) == (1, after(("self.drop(item)", "self.log()\n            self.drop(item)")))


def test_assign_hits_every_assignment_to_the_target() -> None:
    count, text = changed(edits.assign("total", "1"))
    assert (count, text) == (
        2,
        after(("total = 0", "total = 1"), ("total = total + item.size - item.slack", "total = 1")),
    )


def test_swap_does_not_care_for_layout() -> None:
    count, text = changed(edits.swap("total > self.limit", "False"))
    assert (count, text) == (1, after(("total > self.limit", "False")))


def test_swap_looks_at_whole_expressions_and_not_inside_a_match() -> None:
    assert changed(edits.swap("total + item", "0"))[0] == 0
    count, text = changed(edits.swap("self", "self.self"))
    assert count == text.count("self.self") == 2 and "self.self.self" not in text


def test_either_adds_up_and_every_wants_all() -> None:
    good, bad = edits.drop("return None"), edits.drop("return nothing")
    assert changed(edits.either(good, bad))[0] == 1
    assert changed(edits.every(good, bad))[0] == 0
    assert changed(edits.every(good, edits.drop("self.drop(item)")))[0] == 2


@pytest.mark.parametrize(
    "change", [edits.swap("item.size", "0"), edits.follow("self.drop(item)", "self.log()")]
)
def test_what_is_new_stands_on_a_line_of_the_function(change: Change) -> None:
    function = ast.parse(SOURCE).body[0]
    assert isinstance(function, ast.FunctionDef)
    change(function)
    lines = range(1, SOURCE.count("\n") + 1)
    assert all(node.lineno in lines for node in ast.walk(function) if isinstance(node, ast.stmt | ast.expr))

"""Edits of syntax trees, from which plants are made. Pure.

Statements are named by their *head*: the first line of what `ast.unparse` makes of them, or the beginning of that line
followed by " ...". Expressions are named by what `ast.unparse` makes of them. Comments, layout and brackets of the
source do not matter.
"""

import ast
import copy
from collections.abc import Callable
from typing import TypeVar

from harness.planting.plant import Change

Block = list[ast.stmt]
Node = TypeVar("Node", bound=ast.AST)


def answer(expression: str) -> Change:
    """The function does nothing but return `expression`."""

    def change(function: ast.FunctionDef) -> int:
        place = function.body[0]
        function.body = [_at(place, statement) for statement in ast.parse(f"return {expression}").body]
        return 1

    return change


def drop(head: str) -> Change:
    """Statements with that head go, and all that is inside them."""
    return _statements(head, lambda found: [])


def unwrap(head: str) -> Change:
    """The condition of an `if` goes, what it guards stays."""
    return _statements(head, lambda found: found.body if isinstance(found, ast.If) else [found])


def follow(head: str, text: str) -> Change:
    """`text` comes after statements with that head."""
    return _statements(head, lambda found: [found, *_parsed(text, found)])


def precede(head: str, text: str) -> Change:
    """`text` comes before statements with that head."""
    return _statements(head, lambda found: [*_parsed(text, found), found])


def assign(target: str, expression: str) -> Change:
    """Assignments to `target` give it `expression` instead."""

    def new(found: ast.stmt) -> Block:
        assert isinstance(found, ast.Assign)
        value = ast.parse(expression, mode="eval").body
        return [
            ast.Assign(found.targets, _at(found, value), lineno=found.lineno, col_offset=found.col_offset)
        ]

    return _statements(f"{target} = ...", new)


def swap(old: str, new: str) -> Change:
    """The expression `old` becomes `new`; inside a match nothing is looked at."""

    def change(function: ast.FunctionDef) -> int:
        swapper = _Swapper(old, new)
        for statement in function.body:  # a statement never is the match, so it is changed in place
            swapper.visit(statement)
        return swapper.done

    return change


def either(*changes: Change) -> Change:
    """All changes, of which releases know one or another; the number of places is their sum."""
    return lambda function: sum([one(function) for one in changes])


def every(*changes: Change) -> Change:
    """One change after the other; the number of places is their sum, or 0 if one finds none."""

    def change(function: ast.FunctionDef) -> int:
        counts = [one(function) for one in changes]
        return sum(counts) if all(counts) else 0

    return change


class _Swapper(ast.NodeTransformer):
    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new
        self.done = 0

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.expr) and ast.unparse(node) == self._old:
            self.done += 1
            return _at(node, ast.parse(self._new, mode="eval").body)
        return self.generic_visit(node)


def _statements(head: str, new: Callable[[ast.stmt], Block]) -> Change:
    """Puts `new(statement)` in the place of each statement with that head."""

    def change(function: ast.FunctionDef) -> int:
        done = 0
        for node in list(ast.walk(function)):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if not isinstance(block, list):
                    continue
                out: Block = []
                for statement in block:
                    hit = _has_head(statement, head)
                    done += hit
                    out += new(statement) if hit else [statement]
                if not out and block and name == "body":
                    out = [_at(block[0], ast.Pass())]
                setattr(node, name, out)
        return done

    return change


def _has_head(statement: ast.stmt, head: str) -> bool:
    first = ast.unparse(statement).partition("\n")[0]
    return first.startswith(head[:-4]) if head.endswith(" ...") else first == head


def _parsed(text: str, place: ast.stmt) -> Block:
    return [_at(place, statement) for statement in ast.parse(text).body]


def _at(place: ast.stmt | ast.expr, node: Node) -> Node:
    """The node with the position of `place`, so that tracebacks stay readable."""
    node = copy.deepcopy(node)
    for child in ast.walk(node):
        if isinstance(child, ast.stmt | ast.expr | ast.keyword | ast.arg | ast.ExceptHandler):
            ast.copy_location(child, place)
    return node

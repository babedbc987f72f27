"""Puts plants into the vLLM that this process has imported, and takes them out.

A planted function keeps its identity, globals, closure, defaults, name, file and line numbers; only its code is
another. So whoever holds a reference to it meets the bug, tracebacks and `O1`'s anchors read as ever, and branch
counters (fuzz.feedback) can be added afterwards.
"""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType

from harness.planting.plant import Edit, Plant
from harness.planting.plants import find
from harness.releases import TargetError

_planted: list[tuple[FunctionType, CodeType]] = []
"""Functions with the code that was theirs, in the order of planting."""
_current: Plant | None = None


def current() -> Plant | None:
    """The plant in this process's vLLM."""
    return _current


def plant(name: str) -> None:
    """Plants a bug; an earlier one goes. Call it before branch counters are added. TargetError if it does not fit."""
    global _current
    chosen = find(name)
    uproot()
    changed: dict[FunctionType, ast.FunctionDef] = {}
    for edit in chosen.edits:
        function = _function(chosen, edit)
        tree = changed.setdefault(function, _tree(function))
        found = edit.change(tree)
        if found != edit.count:
            places = f"{found} such place{'' if found == 1 else 's'}"
            raise _misfit(chosen, f"{edit.place} has {places}, not {edit.count}")
    codes = [(function, _compiled(function, tree)) for function, tree in changed.items()]
    for function, code in codes:
        _planted.append((function, function.__code__))
        function.__code__ = code
    _current = chosen


def uproot() -> None:
    """Takes out what was planted. (Branch counters of those functions go with it.)"""
    global _current
    while _planted:
        function, code = _planted.pop()
        function.__code__ = code
    _current = None


@contextmanager
def planted(name: str) -> Iterator[Plant]:
    """The plant is there inside the block."""
    plant(name)
    try:
        yield find(name)
    finally:
        uproot()


def _function(chosen: Plant, edit: Edit) -> FunctionType:
    try:
        found: object = importlib.import_module(edit.module)
        for part in edit.path:
            # Not getattr: what a subclass inherits is another place.
            found = vars(found)[part]
    except (ImportError, KeyError):
        raise _misfit(chosen, f"it has no {edit.place}") from None
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__
    if not isinstance(found, FunctionType):
        raise _misfit(chosen, f"{edit.place} is no plain function")
    return found


def _tree(function: FunctionType) -> ast.FunctionDef:
    source = textwrap.dedent(inspect.getsource(function))
    tree = ast.parse(source)
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
    (definition,) = tree.body
    assert isinstance(definition, ast.FunctionDef)
    return definition


def _compiled(function: FunctionType, tree: ast.FunctionDef) -> CodeType:
    """The code of the changed tree, with the free variables of the original, `super()`'s `__class__` among them."""
    tree.decorator_list.clear()
    free = function.__code__.co_freevars
    maker = ast.parse(f"def make({', '.join(free)}):\n    pass").body[0]
    assert isinstance(maker, ast.FunctionDef)
    maker.body = [tree]
    module = ast.fix_missing_locations(ast.Module([maker], []))
    made = _within(compile(module, function.__code__.co_filename, "exec", dont_inherit=True), "make")
    code = _within(made, function.__name__).replace(co_qualname=function.__code__.co_qualname)
    if code.co_freevars != free:
        raise AssertionError(f"{function.__qualname__}: free variables {code.co_freevars}, not {free}")
    return code


def _within(code: CodeType, name: str) -> CodeType:
    return next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)


def _misfit(chosen: Plant, why: str) -> TargetError:
    version = getattr(importlib.import_module("vllm"), "__version__", "?")
    return TargetError(
        f"planted bug {chosen.name} does not fit vLLM {version}: {why}; choose the release it is for (docs/ledger.md)"
    )

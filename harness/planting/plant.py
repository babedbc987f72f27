"""What a planted bug is, and where its edits go. Pure."""

import ast
from collections.abc import Callable
from dataclasses import dataclass

Change = Callable[[ast.FunctionDef], int]
"""Changes a function's tree in place; returns in how many places."""


@dataclass(frozen=True)
class Edit:
    """One change of one function. `place` is `module:Class.function`; `change` must hit `count` places, no more."""

    place: str
    change: Change
    count: int = 1

    @property
    def module(self) -> str:
        return self.place.partition(":")[0]

    @property
    def path(self) -> tuple[str, ...]:
        return tuple(self.place.partition(":")[2].split("."))


@dataclass(frozen=True)
class Plant:
    """A bug to plant. `says` is a sentence about what vLLM does wrong with it; `edits` are all made or none."""

    name: str
    says: str
    edits: tuple[Edit, ...]

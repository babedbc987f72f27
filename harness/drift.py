"""What a vLLM has changed of what schedfuzz relies on, in words. Reads source files; imports no vLLM.

`relied.toml` says what that is; `relied.json` holds how it is in the newest release that we support. What older
releases do otherwise is `harness.compat`'s: a difference is news only against the newest one.
"""

import ast
import hashlib
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from harness.verdict import HarnessError

HERE = Path(__file__).parent
RELIED = HERE / "relied.toml"
SNAPSHOT = HERE / "relied.json"
Kind = Literal["fields", "parameters", "attributes", "methods", "body"]
Definition: TypeAlias = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Things of one kind in one file of vLLM, and who relies on them."""

    file: str
    by: str
    kind: Kind
    names: tuple[str, ...]


class _Relied(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    relied: tuple[Entry, ...]


class Snapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How everything is in one release: names, or a digest, by `key`."""

    version: str
    known: dict[str, list[str]]


def entries() -> tuple[Entry, ...]:
    """What `relied.toml` says."""
    return msgspec.convert(tomllib.loads(RELIED.read_text(encoding="utf-8")), _Relied).relied


def snapshot() -> Snapshot:
    """What `relied.json` says."""
    return msgspec.json.decode(SNAPSHOT.read_bytes(), type=Snapshot)


def take(package: Path, version: str) -> Snapshot:
    """How everything is in the `vllm` package at a path. HarnessError names what is not there."""
    known = {}
    for entry, name in _all():
        found = _read(package, entry, name)
        if found is None:
            raise HarnessError(f"vLLM {version} has no {name} in {entry.file}, which {entry.by}")
        known[_key(entry, name)] = found
    return Snapshot(version, known)


def drift(package: Path) -> list[str]:
    """A sentence for each thing that the `vllm` package at a path has otherwise than the newest supported release."""
    before = snapshot()
    told = []
    for entry, name in _all():
        change = _change(entry.kind, before.known[_key(entry, name)], _read(package, entry, name))
        if change:
            told.append(f"{name} ({entry.file}) {change}; {entry.by}")
    return told


def _all() -> Iterator[tuple[Entry, str]]:
    return ((entry, name) for entry in entries() for name in entry.names)


def _key(entry: Entry, name: str) -> str:
    return f"{entry.file}:{name}:{entry.kind}"


def _change(kind: Kind, before: list[str], now: list[str] | None) -> str:
    if now is None:
        return "is gone"
    if before == now:
        return ""
    if kind == "body":
        return "has other code"
    gone = [name for name in before if name not in now]
    new = [name for name in now if name not in before]
    changes = [f"has no {kind} {', '.join(gone)} any more"] if gone else []
    changes += [f"has new {kind}: {', '.join(new)}"] if new else []
    return " and ".join(changes) or f"has its {kind} in another order"


def _read(package: Path, entry: Entry, name: str) -> list[str] | None:
    definition = _definition(package / entry.file, name)
    return None if definition is None else _READERS[entry.kind](definition)


def _definition(file: Path, name: str) -> Definition | None:
    tree = _tree(file)
    scope: ast.AST | None = tree
    for part in name.split("."):
        body: list[ast.stmt] = getattr(scope, "body", [])
        scope = next((node for node in body if isinstance(node, Definition) and node.name == part), None)
    return scope if isinstance(scope, Definition) else None


@cache
def _tree(file: Path) -> ast.Module | None:
    try:
        return ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None


def _fields(definition: Definition) -> list[str]:
    """Annotated names, or those of an enumeration."""
    names = []
    for node in definition.body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        names += [target.id for target in targets if isinstance(target, ast.Name)]
    return names


def _parameters(definition: Definition) -> list[str]:
    if isinstance(definition, ast.ClassDef):
        return []
    arguments = definition.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [argument.arg for argument in named]


def _attributes(definition: Definition) -> list[str]:
    stores = (
        node.attr
        for node in ast.walk(definition)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )
    return sorted(set(stores))


def _methods(definition: Definition) -> list[str]:
    return [node.name for node in definition.body if isinstance(node, Definition)]


def _body(definition: Definition) -> list[str]:
    code = ast.parse(ast.unparse(definition))
    for node in ast.walk(code):
        if isinstance(node, Definition) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return [hashlib.sha256(ast.unparse(code).encode()).hexdigest()[:16]]


_READERS: Mapping[Kind, Callable[[Definition], list[str]]] = {
    "fields": _fields,
    "parameters": _parameters,
    "attributes": _attributes,
    "methods": _methods,
    "body": _body,
}

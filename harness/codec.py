"""Scenarios as text: one canonical spelling out, strict decoding in. Pure, and nothing that is loaded can execute."""

import json

import msgspec

from harness.repair import repair
from harness.scenario import Image, Scenario, concerns

MAX_BYTES = 1 << 20
"""Larger files are refused unread: the largest scenario that the limits below admit has about 100 kB."""

MAX_DEPTH = 16
"""The language nests to depth 6; msgspec's own decoder recurses, so deep files are refused before it sees them."""

LINE_WIDTH = 100
"""Of the canonical layout, in characters."""


class ScenarioError(ValueError):
    """A file or value that is not a scenario; the message names the place (a JSON path) and the remedy."""


_DECODER = msgspec.json.Decoder(Scenario, strict=True)


def encode(scenario: Scenario) -> bytes:
    """Canonical JSON, laid out for people (what fits in a line stays in one), ending in a newline."""
    return (_layout(msgspec.to_builtins(scenario), 0) + "\n").encode()


def _layout(value: object, depth: int) -> str:
    flat = json.dumps(value)
    if not isinstance(value, dict | list | tuple) or (depth and len(flat) + depth < LINE_WIDTH):
        return flat
    if isinstance(value, dict):
        opening, closing = "{", "}"
        parts = [f"{json.dumps(key)}: {_layout(item, depth + 1)}" for key, item in value.items()]
    else:
        opening, closing = "[", "]"
        parts = [_layout(item, depth + 1) for item in value]
    indent = " " * depth
    return opening + "\n" + ",\n".join(f"{indent} {part}" for part in parts) + f"\n{indent}{closing}"


def decode(data: bytes) -> Scenario:
    """Strict decoding and validation. ScenarioError names the JSON path and what is expected there."""
    if len(data) > MAX_BYTES:
        raise ScenarioError(f"$: {len(data)} bytes; a scenario has at most {MAX_BYTES}")
    if _depth(data) > MAX_DEPTH:
        raise ScenarioError(f"$: nested deeper than {MAX_DEPTH}")
    try:
        scenario = _DECODER.decode(data)
    except msgspec.ValidationError as error:
        before, found, after = str(error).rpartition(" - at `")
        message, path = (before, after) if found else (after, "$")
        raise ScenarioError(f"{path.strip('`') or '$'}: {message}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ScenarioError(f"$: not JSON: {error}") from None
    # msgspec takes the last of equal keys; a reader takes the first.
    json.loads(data, object_pairs_hook=_unique)
    validate(scenario)
    return scenario


def _unique(pairs: list[tuple[str, object]]) -> None:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ScenarioError(f"$: an object has the key `{twice}` twice; keep one")


def _depth(data: bytes) -> int:
    deepest = depth = 0
    in_string = escaped = False
    for byte in data:
        if in_string:
            in_string = escaped or byte != 0x22
            escaped = byte == 0x5C and not escaped
        elif byte == 0x22:
            in_string = True
        elif byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest


def validate(scenario: Scenario) -> None:
    """Checks what types cannot say. ScenarioError names the first place where `repair` would change something."""
    for i, request in enumerate(scenario.requests):
        for j, part in enumerate(request.prompt):
            if isinstance(part, Image) and part.identity >= len(scenario.images):
                raise ScenarioError(
                    f"$.requests[{i}].prompt[{j}]: image {part.identity} is not in $.images, "
                    f"which has {len(scenario.images)}"
                )
    for i, event in enumerate(scenario.timeline):
        named = concerns(event)
        if named is not None and named >= len(scenario.requests):
            raise ScenarioError(
                f"$.timeline[{i}].request: {named}, but there are {len(scenario.requests)} requests"
            )
    repaired = repair(scenario)
    if repaired != scenario:
        path, found, legal = _first_difference(
            msgspec.to_builtins(scenario), msgspec.to_builtins(repaired), "$"
        )
        raise ScenarioError(f"{path}: {found} is not legal with the rest of the scenario; {legal} would be")


def _first_difference(found: object, legal: object, path: str) -> tuple[str, object, object]:
    if isinstance(found, dict) and isinstance(legal, dict):
        for key in [*found, *legal]:
            if found.get(key) != legal.get(key):
                return _first_difference(found.get(key), legal.get(key), f"{path}.{key}")
    if isinstance(found, list | tuple) and isinstance(legal, list | tuple) and len(found) == len(legal):
        for i, (one, other) in enumerate(zip(found, legal, strict=True)):
            if one != other:
                return _first_difference(one, other, f"{path}[{i}]")
    return path, _short(found), _short(legal)


def _short(value: object) -> str:
    text = "its default" if value is None else msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else text[:57] + "..."

"""A finding as a pytest file: the scenario inlined as data, and one call that fails where the bug is.

Rules: only our package is needed; the file passes our linter; nothing that a scenario or a message contains can break
out of the literal it is put into. That last one is not believed but checked: `emit` parses what it has written and
compares its syntax tree, node by node, with the only shape it may have.
"""

import ast
import re
import textwrap
from typing import Any

from fuzz.explain import promise
from harness.codec import decode, encode
from harness.scenario import Scenario
from harness.verdict import HarnessError, Violation

MAX_NAME = 80
"""Characters of a test's name: what leaves room for `def` and the annotation in a line of 110."""
_WIDTH = 100
_MESSAGE = 600
"""Characters of a message that a docstring quotes."""

_NAMES = {
    ("O3", "encoder-evictable-while-read", ""): "encoder output evictable while read",
    ("O4", "drafter-read-miss", "never encoded"): "drafter reads image never encoded",
    ("O4", "drafter-read-miss", "evicted"): "drafter reads evicted image",
    ("O4", "target-read-miss", "never encoded"): "target reads image never encoded",
    ("O4", "target-read-miss", "evicted"): "target reads evicted image",
}
"""Names that say more than kind and anchor do; an empty anchor stands for any."""


def test_name(violation: Violation) -> str:
    """The name of the test that shows a violation, in snake case: what goes wrong and, where it is known, where."""
    oracle, kind, anchor = violation.oracle, violation.kind, violation.anchor
    words = _NAMES.get((oracle, kind, anchor)) or _NAMES.get((oracle, kind, ""))
    if words is None and oracle == "O1" and anchor.count(":") >= 2:
        # module:function:exception:line, as the oracle writes it
        _, function, error, *_ = anchor.split(":", 3)
        words = f"{error} in {function.rpartition('.')[2]}"
    name = _snake(words or f"{kind} {anchor}") or _snake(violation.fingerprint) or "finding"
    return "test_" + name[: MAX_NAME - 5].rstrip("_")


def _snake(text: str) -> str:
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", text)
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


def emit(scenario: Scenario, violation: Violation, *, vllm: str, ledger: tuple[str, ...] = ()) -> str:
    """Source of a pytest file that fails on every vLLM on which `scenario` shows this violation's fingerprint.

    `vllm` is the release on which it was found, `ledger` the ids of known records. HarnessError if the source is not
    what it must be.
    """
    fingerprint = violation.fingerprint
    broken = promise(violation.oracle, violation.speaker)
    told = [f"vLLM {vllm}: {_clip(violation.message)}."]
    if broken:
        told.append(f"The promise that it breaks: {broken}")
    facts = [
        f"Fingerprint: {fingerprint}",
        f"Oracle: {violation.oracle} ({violation.kind})",
        f"Found on: vLLM {vllm}",
    ]
    if ledger:
        facts.append(f"Known as: {', '.join(ledger)}")
    name = test_name(violation)
    shows = name.removeprefix("test_").replace("_", " ").capitalize()
    source = "\n".join(
        (
            _docstring([f"{shows}.", *told], facts),
            "from harness.testing import assert_absent",
            "",
            f"FINGERPRINT = {_literal(fingerprint)}",
            f"SCENARIO = {_literal(encode(scenario).decode())}",
            "",
            "",
            f"def {name}() -> None:",
            "    assert_absent(SCENARIO, FINGERPRINT)",
            "",
        )
    )
    _check(source, scenario, violation)
    return source


def _literal(text: str) -> str:
    """A Python literal in ASCII that means `text`: over several lines if the text allows it."""
    if text.isascii() and "\\" not in text and all(char.isprintable() or char == "\n" for char in text):
        if "\n" not in text and '"' not in text:
            return f'"{text}"'
        if '"""' not in text and text.endswith("\n"):
            return f'"""\\\n{text}"""'
    return ascii(text)


def _docstring(paragraphs: list[str], facts: list[str]) -> str:
    lines: list[str] = []
    for paragraph in paragraphs:
        lines += [*textwrap.wrap(_prose(paragraph), _WIDTH), ""]
    for fact in facts:
        lines += textwrap.wrap(_prose(fact), _WIDTH, subsequent_indent="  ")
    text = "\n".join(line.rstrip() for line in lines)
    return f'{"r" if chr(92) in text else ""}"""{text}\n"""\n'


def _prose(text: str) -> str:
    """Text for a docstring (raw if it holds a backslash): ASCII, one line, and no double quote that could end it."""
    text = " ".join(text.split()).replace('"', "'")
    return "".join(char if char.isascii() and char.isprintable() else ascii(char)[1:-1] for char in text)


def _clip(text: str) -> str:
    text = text.rstrip(" .\n")
    return text if len(text) <= _MESSAGE else text[: _MESSAGE - 3] + "..."


def _check(source: str, scenario: Scenario, violation: Violation) -> None:
    """HarnessError unless the source is a docstring, our import, two constants and one test that calls our helper."""
    try:
        found = ast.parse(source).body
        constants: list[Any] = [ast.literal_eval(found[i].value) for i in (0, 2, 3)]  # type: ignore[attr-defined]
        right = (
            isinstance(constants[0], str)
            and constants[1] == violation.fingerprint
            and decode(constants[2].encode()) == scenario
        )
        expected = (
            '""\n'
            "from harness.testing import assert_absent\n"
            'FINGERPRINT = ""\n'
            'SCENARIO = ""\n'
            f"def {test_name(violation)}() -> None:\n    assert_absent(SCENARIO, FINGERPRINT)\n"
        )
        for i in (0, 2, 3):
            found[i].value = ast.Constant("")  # type: ignore[attr-defined]
        same = ast.dump(ast.Module(found, [])) == ast.dump(ast.parse(expected))
    except (SyntaxError, ValueError, AttributeError, IndexError, TypeError) as error:
        raise HarnessError(f"the generated test is broken: {error}") from error
    if not right or not same:
        raise HarnessError("the generated test does not hold what it must hold")

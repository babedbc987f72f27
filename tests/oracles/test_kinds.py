"""No kind of breach that an oracle, a worker or the connector's peer can speak of goes without a test of it."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SPEAKERS = ("harness/oracles", "harness/worker", "harness/peers")


def words(path: Path) -> set[str]:
    """String constants that look like a kind: small words with hyphens between."""
    return {
        node.value
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"[a-z]+(-[a-z]+)+", node.value)
    }


def test_every_kind_is_made_to_speak() -> None:
    spoken = set().union(*(words(path) for folder in SPEAKERS for path in (ROOT / folder).rglob("*.py")))
    assert len(spoken) > 50
    here = Path(__file__)
    tests = [*here.parent.glob("*.py"), *here.parents[1].glob("worker/*.py")]
    heard = set().union(*(words(path) for path in tests if path != here))
    assert spoken - heard == {"old-drafts-fed"}  # on 0.12 and 0.13 only: tests/releases.json has it

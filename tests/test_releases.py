"""Every supported release keeps its promises where nothing is wrong, and what it breaks is known.

`make test-releases` runs all of them, `make test` two that rotate: SCHEDFUZZ_RELEASES names them.
"""

import os
from pathlib import Path

import pytest

from conftest import Shown, ask
from fuzz.generate import FEATURES, restrict
from fuzz.ledger import ids_for
from harness import features, target
from harness.scenario import Scenario
from harness.verdict import Level, Verdict, Violation
from scenarios import LEGAL, LEGAL_V2, generated

CHOSEN = os.environ.get("SCHEDFUZZ_RELEASES", "").split() or [target.SUPPORTED[0]]
PAGES = Path(__file__).parent.parent / "docs" / "findings"
HAND_MADE = {**LEGAL, **LEGAL_V2}
GENERATED = 60


def known() -> str:
    """All that the pages about findings say."""
    return "\n".join(page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.md")))


def unknown(version: str, shown: Shown, pages: str) -> list[str]:
    """Violations that neither a page nor the ledger's table speaks of."""
    found = []
    for fingerprint, oracle, kind, anchor, level in shown.violations:
        violation = Violation(oracle, kind, anchor, 0, "", Level(level))
        if level == Level.VIOLATION and fingerprint not in pages and not ids_for(violation, version, ()):
            found.append(fingerprint)
    return found


def scenarios_for(version: str) -> tuple[Scenario, ...]:
    """Hand-made ones that use nothing which the release lacks, and generated ones that do without it."""
    lacking = ask(version).lacking
    legal = [one for one in HAND_MADE.values() if not lacking & set(features.used(one))]
    return (*legal, *(restrict(one, frozenset(FEATURES) - lacking) for one in generated(GENERATED)))


@pytest.mark.parametrize("version", CHOSEN)
def test_a_release(version: str) -> None:
    """A fault of our own would end the process; what is refused beside what is lacking would not be legal."""
    scenarios = scenarios_for(version)
    assert len(scenarios) > len(LEGAL) // 2 + GENERATED
    shown = ask(version, scenarios).shown
    refused = [
        scenario for scenario, one in zip(scenarios, shown, strict=True) if one.verdict == Verdict.REJECTED
    ]
    # 0.16 refuses asynchronous scheduling with cached states, 0.12 and 0.13 grammars with asynchronous drafts.
    assert len(refused) <= len(shown) // 10, refused
    pages = known()
    assert {name for one in shown for name in unknown(version, one, pages)} == set()


def test_the_makefile_names_all_that_are_supported() -> None:
    makefile = (Path(__file__).parent.parent / "Makefile").read_text(encoding="utf-8")
    named = makefile.partition("ALL_RELEASES := ")[2].partition("\n\n")[0].replace("\\", " ").split()
    assert named == list(target.SUPPORTED)

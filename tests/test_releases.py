"""What every supported release shows on scenarios that are there to stay, to the letter; and on generated ones nothing
that neither a page nor the ledger explains.

`make test-releases` runs all releases, `make test` two that rotate: SCHEDFUZZ_RELEASES names them. What they are to
show is in releases.json: by release and scenario, all fingerprints, those of hazards among them; of quiet scenarios
nothing is said. After a change that is meant (of an oracle, of a scenario), have it written anew, and look at the
difference: each new line is a finding to be explained.

    make test-releases SCHEDFUZZ_WRITE_RELEASES=1
"""

import json
import os
from collections.abc import Collection
from pathlib import Path

import msgspec
import pytest

from conftest import Shown, ask
from fuzz.corpus import read
from fuzz.ledger import ids_for
from fuzz.uses import uses
from harness import features, target
from harness.scenario import Scenario
from harness.verdict import Level, Verdict, Violation
from scenarios import LEGAL, LEGAL_V2, generated

ROOT = Path(__file__).parent.parent
CHOSEN = os.environ.get("SCHEDFUZZ_RELEASES", "").split() or [target.SUPPORTED[0]]
GOLDEN = Path(__file__).with_name("releases.json")
WRITE = bool(os.environ.get("SCHEDFUZZ_WRITE_RELEASES"))
PAGES = "".join(
    page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "findings").glob("*.md"))
)
REGRESSIONS = {path.stem: read(path) for path in sorted((ROOT / "corpus" / "regressions").glob("*.json"))}
GENERATED = 60


class Expected(msgspec.Struct, frozen=True):
    """What one release lacks, which scenarios it refuses though it lacks nothing of them, and what the others show."""

    lacking: list[str]
    refused: list[str]
    shown: dict[str, list[str]]


def expected() -> dict[str, Expected]:
    """By release."""
    return msgspec.json.decode(GOLDEN.read_bytes(), type=dict[str, Expected])


def write(version: str, found: Expected) -> None:
    """A line a scenario, so that a difference can be read."""
    known = {**(expected() if GOLDEN.exists() else {}), version: found}
    entries = [f' "{name}": {written(known[name])}' for name in target.SUPPORTED if name in known]
    GOLDEN.write_text("{\n" + ",\n".join(entries) + "\n}\n", encoding="utf-8")


def written(one: Expected) -> str:
    rows = [f"   {json.dumps(name)}: {json.dumps(prints)}" for name, prints in one.shown.items()]
    return "\n".join(
        (
            "{",
            f'  "lacking": {json.dumps(one.lacking)},',
            f'  "refused": {json.dumps(one.refused)},',
            '  "shown": {',
            ",\n".join(rows),
            "  }",
            " }",
        )
    )


def named() -> dict[str, Scenario]:
    """Hand-made scenarios by name."""
    parts = (LEGAL, LEGAL_V2, REGRESSIONS)
    every = {name: scenario for part in parts for name, scenario in part.items()}
    assert len(every) == sum(map(len, parts))
    return every


def seen(version: str, lacking: Collection[str]) -> tuple[Expected, set[str]]:
    """What a release does, and the violations that nobody has explained."""
    made_up = generated(GENERATED, lacking)
    scenarios = named() | made_up
    release = ask(version, tuple(scenarios.values()))
    shown = dict(zip(scenarios, release.shown, strict=True))
    lacks = {name for name, made in scenarios.items() if release.lacking & set(features.used(made))}
    refused = {name for name, one in shown.items() if one.verdict == Verdict.REJECTED}
    assert lacks <= refused
    found = Expected(
        sorted(release.lacking),
        sorted(refused - lacks - made_up.keys()),
        {
            name: sorted(one.fingerprints)
            for name, one in shown.items()
            if one.fingerprints and name not in made_up
        },
    )
    return found, set().union(*(unknown(version, scenarios[name], one) for name, one in shown.items()))


def unknown(version: str, scenario: Scenario, shown: Shown) -> set[str]:
    """Violations that neither a page nor the ledger's table speaks of."""
    used = uses(scenario)
    found = set()
    for fingerprint, oracle, kind, anchor, level in shown.violations:
        violation = Violation(oracle, kind, anchor, message="", iteration=0, level=Level(level))
        if (
            level == Level.VIOLATION
            and f"`{fingerprint}`" not in PAGES
            and not ids_for(violation, version, used)
        ):
            found.add(fingerprint)
    return found


@pytest.mark.parametrize("version", CHOSEN)
def test_a_release(version: str) -> None:
    """A fault of our own would end the process."""
    if WRITE:
        write(version, seen(version, ask(version).lacking)[0])
    known = expected()[version]
    found, unexplained = seen(version, known.lacking)
    assert unexplained == set()
    assert found.lacking == known.lacking
    assert found.refused == known.refused
    assert found.shown == known.shown


def test_all_releases_are_known() -> None:
    assert list(expected()) == list(target.SUPPORTED)


def test_the_makefile_names_all_that_are_supported() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = makefile.partition("ALL_RELEASES := ")[2].partition("\n\n")[0].replace("\\", " ").split()
    assert named == list(target.SUPPORTED)

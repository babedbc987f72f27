"""Every plant fits the release that it is for, makes it show the bug, and leaves nothing behind."""

import importlib

import pytest

from conftest import need
from fuzz.corpus import read
from fuzz.finding import seen
from fuzz.ledger import FOLDER, records
from fuzz.ledger_report import results
from harness import planting
from harness.planting import PLANTS, Plant
from harness.planting.edits import drop, swap
from harness.planting.plant import Edit
from harness.releases import TargetError

OLDER = {"29750": "0.23.0", "46315": "0.29.0", "43559": "0.32.0"}
"""Plants for another release than the newest."""
HERE = [name for name in PLANTS if name not in OLDER]
PROOFS = {
    outcome.record: hunt
    for outcome in results()
    for hunt in outcome.hunts
    if hunt.found and hunt.plant in HERE
}


def codes(plant: Plant) -> list[bytes]:
    found = []
    for edit in plant.edits:
        owner = importlib.import_module(edit.module)
        for part in edit.path:
            owner = vars(owner)[part]
        function = owner.__func__ if isinstance(owner, staticmethod | classmethod) else owner
        found.append(function.__code__.co_code + repr(function.__code__.co_names).encode())
    return found


@pytest.fixture
def newest_only(vllm: str, newest: str) -> None:
    if vllm != newest:
        pytest.skip(f"plants are for {newest}")


@pytest.mark.usefixtures("newest_only")
@pytest.mark.parametrize("name", HERE)
def test_a_plant_changes_what_it_names_and_is_undone(name: str) -> None:
    plant = PLANTS[name]
    before = codes(plant)
    with planting.planted(name) as current:
        assert planting.current() is current is plant
        assert all(old != new for old, new in zip(before, codes(plant), strict=True))
    assert codes(plant) == before
    assert planting.current() is None


@pytest.mark.usefixtures("newest_only")
@pytest.mark.parametrize("record", PROOFS)
def test_a_plant_shows_what_its_proof_says(record: str) -> None:
    hunt = PROOFS[record]
    scenario = read(FOLDER / "proofs" / hunt.scenario)
    assert seen(scenario, hunt.fingerprint) is None
    assert hunt.plant is not None
    with planting.planted(hunt.plant):
        assert seen(scenario, hunt.fingerprint) is not None
    assert seen(scenario, hunt.fingerprint) is None


@pytest.mark.usefixtures("vllm")
def test_a_second_plant_takes_the_place_of_the_first() -> None:
    planting.plant("12545")
    planting.plant("30916")
    assert planting.current() is PLANTS["30916"]
    planting.uproot()
    before = codes(PLANTS["12545"])
    with planting.planted("12545"):
        pass
    assert codes(PLANTS["12545"]) == before


SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (Edit(f"{SCHEDULER}.schedule", drop("no_such_call()")), "0 such places, not 1"),
        (Edit(f"{SCHEDULER}.schedule", swap("request", "None")), "not 1"),
        (Edit(f"{SCHEDULER}.no_such_method", drop("x")), "it has no"),
        (Edit("vllm.no_such_module:X.y", drop("x")), "it has no"),
    ],
)
def test_a_release_of_another_shape_is_refused_and_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, edit: Edit, why: str
) -> None:
    good = PLANTS["30916"].edits
    monkeypatch.setitem(
        PLANTS, "30916", Plant("30916", "two edits, one of which does not fit", (*good, edit))
    )
    before = codes(Plant("", "", good))
    with pytest.raises(TargetError, match=f"planted bug 30916 does not fit vLLM .*{why}.*; choose"):
        planting.plant("30916")
    assert codes(Plant("", "", good)) == before
    assert planting.current() is None


def test_an_unknown_name_is_the_users_mistake() -> None:
    with pytest.raises(TargetError, match="no planted bug is called '38906'; choose one of: 38907 "):
        planting.find("38906")


def test_names_are_records_or_mends() -> None:
    known = {record.id for record in records()}
    extra = {"23544", "12545", "23347", "28787", "26385", "38663", "11565", "10730"}
    assert {name for name in PLANTS if not name.startswith("mend-")} <= known | extra


@pytest.mark.parametrize(("name", "version"), OLDER.items())
def test_plants_of_older_releases_have_a_site_there(name: str, version: str) -> None:
    need(version)
    (record,) = (record for record in records() if record.id == name)
    assert any((site.plant, site.vllm) == (name, version) for site in record.site)

"""Every plant fits the release that it is for, makes it show the bug, and leaves nothing behind."""

import importlib

import pytest
from msgspec.structs import replace

from conftest import ask
from fuzz.corpus import read
from fuzz.finding import seen
from fuzz.ledger import FOLDER, records
from fuzz.ledger_report import results
from harness import planting
from harness.planting import PLANTS, Plant
from harness.planting.edits import drop, swap
from harness.planting.plant import Edit
from harness.releases import SUPPORTED, TargetError
from harness.scenario import Image, Request, Scenario
from scenarios import EAGLE, LEGAL, RACE, SMALL, VISION, scenario, text

OLDER = {"mend-42492": "0.13.0", "29750": "0.23.0", "46315": "0.24.0", "43559": "0.32.0"}
"""Plants for another release than the newest, and one that they are for."""
HERE = [name for name in PLANTS if name not in OLDER]

TWICE = scenario(VISION, Request(prompt=(Image(0), Image(0)), max_tokens=3), images=(6,))
FULL = scenario(replace(SMALL, speculative=EAGLE), text(44, 20, acceptance=(0, 1)))
"""A request whose last drafts would lie beyond max_model_len."""


def proof(name: str) -> Scenario:
    """A scenario that the ledger's hunts have found."""
    return read(FOLDER / "proofs" / f"{name}.json")


def regression(name: str) -> Scenario:
    return read(FOLDER.parent / "regressions" / f"{name}.json")


LOUD = {
    "38907": (LEGAL["mm"], "O3-encoder-evictable-while-read-1412f49d"),
    "45347": (proof("45347-0.23.0"), "O3-encoder-evictable-in-flight-c55731af"),
    "54284": (proof("54284-0.28.0"), "O5-encoded-again-5ac42fdd"),
    "29750": (proof("29750-0.23.0-planted"), "O4-drafter-read-miss-aea77521"),
    "23544": (TWICE, "O5-counter-drift-186e2525"),
    "12545": (proof("45347-0.23.0"), "O5-dead-reference-f6b9349d"),
    "48245": (LEGAL["reset_async"], "O13-stale-token-6441eb63"),
    "27922": (LEGAL["async"], "O9-scheduled-past-max-tokens-3f4dc713"),
    "29987": (proof("29987-0.33.0-planted"), "O17-completed-though-aborted-562f59d9"),
    "30916": (LEGAL["reset_spec_async"], "O13-stale-token-6441eb63"),
    "23347": (LEGAL["priority"], "O1-exception-d83c0f98"),
    "28787": (LEGAL["async_preemption"], "O13-stale-token-6441eb63"),
    "26385": (LEGAL["async_preemption"], "O13-tokens-not-resent-69dd9537"),
    "38663": (LEGAL["grammar"], "O16-state-differs-dcb40b66"),
    "29387": (LEGAL["mamba_cache"], "O2-kv-read-mismatch-358f2615"),
    "43559": (proof("43559-0.25.1"), "O2-kv-read-mismatch-358f2615"),
    "11565": (LEGAL["prefix"], "O6-ref-count-d7a62878"),
    "10730": (FULL, "O9-limit-exceeded-a92f7cc9"),
    "45357": (RACE, "O17-load-into-block-in-flight-65284fd2"),
    "49674": (proof("49674-0.29.0"), "O15-preempted-in-vain-09b102ae"),
    "45388": (proof("45388-0.33.0-planted"), "O7-no-progress-5fb57c18"),
    "57841": (proof("57841-0.30.0"), "O7-no-progress-5fb57c18"),
    "32255": (LEGAL["connector_abort"], "O17-load-destination-freed-a547203f"),
    "31583": (proof("31583-0.13.0"), "O13-new-request-known-250049b2"),
    "45357-zero": (proof("45357-zero-0.25.1"), "O17-load-destination-zeroed-3ee9c7e1"),
    "57696": (proof("57696-0.30.0"), "O4-target-read-size-d614673e"),
    "mend-43569": (
        regression("hash-of-a-block-that-the-victim-never-wrote"),
        "O2-kv-read-mismatch-358f2615",
    ),
    "mend-42492": (proof("42492-0.13.0"), "O8-wrong-token-14b7bfe8"),
    "mend-54076": (proof("54076-0.33.0"), "O2-kv-read-mismatch-358f2615"),
    "mend-55092": (proof("55092-0.33.0"), "O14-removed-while-held-f796f50f"),
    "mend-51228": (proof("51228-0.33.0"), "O5-counter-drift-d7586260"),
    "mend-reset": (proof("derived-reset-0.33.0"), "O1-exception-161f29a9"),
    "mend-49439": (proof("49439-0.33.0"), "O7-no-progress-de915666"),
    "mend-34220": (proof("derived-34220-0.33.0"), "O7-no-progress-5362a372"),
}
"""What shows a bug when it is planted and only then, and by which fingerprint; a mend, when it is not."""
SILENT = {"46315", "39528"}
"""Plants that no scenario can show. The ledger says of each what is missing."""
FOUND = {
    outcome.record: hunt
    for outcome in results()
    for hunt in outcome.hunts
    if hunt.found and hunt.plant in HERE
}
"""What the ledger's hunts for planted bugs have found on the newest release."""


def shows(name: str, planted: bool) -> bool:
    """Whether a plant's fingerprint is to show."""
    return planted is not name.startswith("mend-")


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
@pytest.mark.parametrize("name", [name for name in HERE if name in LOUD])
def test_a_plant_is_loud_and_quiet_without(name: str) -> None:
    made, fingerprint = LOUD[name]
    assert (seen(made, fingerprint) is not None) is shows(name, False)
    with planting.planted(name):
        assert (seen(made, fingerprint) is not None) is shows(name, True)
    assert (seen(made, fingerprint) is not None) is shows(name, False)


@pytest.mark.usefixtures("newest_only")
@pytest.mark.parametrize("record", FOUND)
def test_a_plant_shows_what_its_proof_says(record: str) -> None:
    hunt = FOUND[record]
    made = read(FOLDER / "proofs" / hunt.scenario)
    assert seen(made, hunt.fingerprint) is None
    with planting.planted(record):
        assert seen(made, hunt.fingerprint) is not None


@pytest.mark.parametrize(("name", "version"), OLDER.items())
def test_a_plant_for_an_older_release(name: str, version: str) -> None:
    """It fits there, which is all that a silent one can tell, and is loud as on the newest."""
    if name in SILENT:
        ask(version, plant=name)
        return
    made, fingerprint = LOUD[name]
    without, planted = ask(version, (made,), plant=name).shown
    assert (fingerprint in without.fingerprints) is shows(name, False)
    assert (fingerprint in planted.fingerprints) is shows(name, True)


def test_every_plant_is_loud_or_silent_for_a_reason() -> None:
    assert LOUD.keys() | SILENT == PLANTS.keys()
    assert not LOUD.keys() & SILENT
    words = {record.id: record.missing for record in records()}
    assert all(words[name] for name in SILENT)


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


@pytest.mark.parametrize("name", OLDER)
def test_plants_of_older_releases_have_a_site_there(name: str) -> None:
    (record,) = (record for record in records() if record.id == name.removeprefix("mend-"))
    assert any(name in (site.plant, site.mend) and site.vllm != SUPPORTED[-1] for site in record.site)

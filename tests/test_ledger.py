"""The records of known bugs: what they say, how they compare releases, and what a mistake in them does."""

import json
from collections.abc import Collection
from pathlib import Path

import pytest

from fuzz import ledger
from fuzz.corpus import read
from fuzz.ledger import FOLDER, chosen, ids_for, parse
from fuzz.ledger_report import page, results
from fuzz.restrict import parse_features
from fuzz.uses import uses
from harness.planting import PLANTS
from harness.target import SUPPORTED
from harness.verdict import Level, Violation
from scenarios import LEGAL

RECORD = '[[record]]\nid = "{}"\nsays = "x"'
CANDIDATE = RECORD + "\nchecked = false"
SIGN = '[[record.sign]]\noracle = "O*"'


WORDS = {word for scenario in LEGAL.values() for word in uses(scenario)}


def ids(oracle: str, kind: str, anchor: str, version: str, used: Collection[str] = WORDS) -> tuple[str, ...]:
    return ids_for(Violation(oracle, kind, anchor, "", 0), version, used)


def test_a_finding_is_no_record_without_what_the_record_needs():
    hang = ("O7", "no-progress", "before an encoder input", "0.27.1")
    assert ids(*hang) == ("51603", "45414")
    assert ids(*hang, used=WORDS - {"cached Mamba states"}) == ()


def test_what_records_need_exists_and_is_used_by_their_proofs():
    for record in ledger.records():
        assert set(record.needs) <= WORDS, record.id
        for proof in (FOLDER / "proofs").glob(f"{record.id}-[0-9]*.json"):
            assert set(record.needs) <= set(uses(read(proof))), proof.name


@pytest.mark.parametrize(
    ("oracle", "kind", "anchor", "version", "expected"),
    [
        ("O3", "encoder-evictable-while-read", "EncoderCacheManager.freeable", "0.12.0", ("38907",)),
        ("O3", "encoder-evictable-while-read", "EncoderCacheManager.freeable", "0.19.1", ("38907",)),
        ("O3", "encoder-evictable-while-read", "EncoderCacheManager.freeable", "0.20.2", ("54284",)),
        ("O3", "encoder-evictable-while-read", "EncoderCacheManager.freeable", "0.28.0", ("54284",)),
        ("O3", "encoder-evictable-while-read", "EncoderCacheManager.freeable", "0.29.0", ()),
        ("O3", "free-block-written", "Full", "0.19.0", ()),
        ("O17", "load-destination-freed", "ended request", "0.15.1", ("32255",)),
        ("O17", "load-destination-freed", "ended request", "0.16.0", ()),
        ("O17", "load-into-block-in-flight", "BlockPool", "0.23.0", ("45357",)),
        ("O17", "failed-load-not-undone", "Scheduler._handle_invalid_blocks", "0.33.0", ("34484",)),
        ("O7", "no-progress", "WAITING_FOR_REMOTE_KVS", "0.24.0", ("45388", "45406", "57841")),
        ("O4", "drafter-read-miss", "never encoded", "0.19.0", ()),
        ("O4", "drafter-read-miss", "never encoded", "0.11.2", ("29750",)),
        ("O4", "drafter-read-miss", "evicted", "0.23.0", ("46315", "39543")),
        ("O4", "drafter-read-miss", "evicted", "0.24.0", ()),
        ("O4", "target-read-miss", "evicted", "0.19.0", ("38907", "45347", "54284")),
        ("O4", "target-read-miss", "evicted", "0.33.0", ()),
        (
            "O7",
            "no-progress",
            "an encoder input that fits a step only without the drafter's look-ahead",
            "0.33.0",
            ("derived-34220",),
        ),
        ("O7", "no-progress", "RUNNING", "0.33.0", ()),
        (
            "O1",
            "exception",
            "m:A._update_request_with_output:E:num_output_placeholders >= 0",
            "0.26.0",
            ("48245",),
        ),
        (
            "O1",
            "exception",
            "m:A._update_request_with_output:E:num_output_placeholders >= 0",
            "0.32.0",
            ("57562",),
        ),
        ("O2", "kv-read-mismatch", "position taken from the prefix cache", "0.33.0", ("43569", "54076")),
        ("O2", "kv-read-mismatch", "position that the request computed", "0.25.1", ()),
        ("O8", "wrong-token", "EngineCoreOutput.new_token_ids", "0.33.0", ()),
    ],
)
def test_the_table(oracle, kind, anchor, version, expected):
    assert ids(oracle, kind, anchor, version) == expected


def test_releases_compare_as_numbers():
    place = ("O3", "encoder-evictable-while-read", "EncoderCacheManager.freeable")
    assert ids(*place, "0.9.2") == ()
    assert ids(*place, "0.19") == ids(*place, "v0.19.0") == ids(*place, "0.19.1rc1+cpu") == ("38907",)


@pytest.mark.parametrize("version", ["unknown", "", "dev", "0.1.dev1+g0a1b2c3", "0.0.0"])
def test_a_tree_without_a_version_is_the_newest(version):
    for place in (
        ("O2", "kv-read-mismatch", "x"),
        ("O3", "encoder-evictable-while-read", "EncoderCacheManager.freeable"),
        ("O4", "drafter-read-miss", "evicted"),
    ):
        assert ids(*place, version) == ids(*place, SUPPORTED[-1])


def test_ids_come_once_and_in_the_order_of_the_table(monkeypatch):
    text = "\n".join(f"{CANDIDATE.format(name)}\n{SIGN}\n{SIGN}" for name in "bac")
    monkeypatch.setattr(ledger, "records", lambda: parse(text))
    assert ids("O1", "k", "a", "0.19.0") == ("b", "a", "c")


def test_anchors_are_globs_and_case_matters(monkeypatch):
    text = CANDIDATE.format("1") + '\n[[record.sign]]\noracle = "O1"\nkind = "k"\nanchor = "*Foo*"'
    monkeypatch.setattr(ledger, "records", lambda: parse(text))
    assert ids("O1", "k", "aFoo\nb", "0.19.0") == ("1",)
    assert ids("O1", "k", "afoo", "0.19.0") == ids("O10", "k", "Foo", "0.19.0") == ()


def test_a_hazard_is_a_sign_only_where_it_is_said(monkeypatch):
    hazard = Violation("O1", "k", "a", "", 0, level=Level.HAZARD)
    for extra, expected in (("", ()), ("hazard = true", ("1",))):
        text = f"{CANDIDATE.format('1')}\n{SIGN}\n{extra}"
        monkeypatch.setattr(ledger, "records", lambda text=text: parse(text))
        assert ids_for(hazard, "0.19.0", ()) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        'missing = "x"\nlast = "0.19.x"',
        'missing = "x"\nlsat = "0.19.0"',
        "missing = 1",
        '[[record.site]]\nvllm = "0.19.0"',
        f'{SIGN}\n[[record.site]]\nvllm = "0.19.0"\nplant = "1"\nfixed = "0.20.2"',
        'missing = "x"\n' + RECORD.format("1") + '\nmissing = "y"',
    ],
)
def test_mistakes_are_noticed(text):
    parse(RECORD.format("1") + '\nmissing = "x"')
    with pytest.raises(ValueError):
        parse(f"{RECORD.format('1')}\n{text}")


def test_every_sign_can_apply_to_some_release():
    for record in ledger.records():
        for one in (record, *record.sign):
            assert one.first is None or one.last is None or order(one.first) <= order(one.last), record.id


def test_every_record_can_be_looked_for():
    for record in ledger.records():
        parse_features(record.features)
        for site in record.site:
            assert {site.vllm, site.fixed} <= {*SUPPORTED, None}
            assert {site.plant, site.mend} <= {*PLANTS, None}
            assert site.plant in (None, record.id)
            assert site.mend is None or site.mend.startswith("mend-")
            bounds = record.first, record.last
            inside = all(
                bound is None
                or (order(bound) <= order(site.vllm)) is (bound is bounds[0])
                or bound == site.vllm
                for bound in bounds
            )
            assert inside is (site.plant is None), f"{record.id} on {site.vllm}"
            assert site.fixed is None or record.last is None or order(site.fixed) > order(record.last)


def test_version_checked_records_are_all_here():
    """What others wrote down about known bugs lies beside the repository where this project's people work."""
    shared = Path(__file__).parents[2] / "shared" / "ledger" / "known-bugs.jsonl"
    if not shared.is_file():
        pytest.skip("the shared ledger is not here")
    known = map(json.loads, shared.read_text(encoding="utf-8").splitlines())
    assert {one["id"] for one in known if one["verified"]} == {record.id for record in chosen()}


def test_ids_are_chosen_in_the_order_of_the_table():
    assert [record.id for record in chosen(["45347", "38907"])] == ["38907", "45347"]
    with pytest.raises(ValueError, match="no checked ledger record is called '39543'"):
        chosen(["39543"])


def order(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def test_results_are_of_records_and_their_proofs_are_there():
    known = {record.id: record for record in chosen()}
    for outcome in results():
        record = known[outcome.record]
        sites = {(site.vllm, site.plant) for site in record.site}
        assert {(hunt.vllm, hunt.plant) for hunt in outcome.hunts} <= sites
        for hunt in outcome.hunts:
            if hunt.found:
                read(FOLDER / "proofs" / hunt.scenario)
                assert hunt.seconds <= 600
        assert outcome.found or record.missing, f"{record.id} needs a word about why it is not found"


def test_the_page_is_what_the_results_say():
    assert (FOLDER.parents[1] / "docs" / "ledger.md").read_text(encoding="utf-8") == page(results())

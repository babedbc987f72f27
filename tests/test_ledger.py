"""The table of known bugs: what it says, how it compares releases, and what it does with a mistake in it."""

import pytest

from fuzz import ledger
from fuzz.ledger import ids_for, parse
from harness.target import SUPPORTED
from harness.verdict import Violation


def ids(oracle: str, kind: str, anchor: str, version: str) -> tuple[str, ...]:
    return ids_for(Violation(oracle, kind, anchor, "", 0), version)


@pytest.mark.parametrize(
    ("oracle", "kind", "anchor", "version", "expected"),
    [
        ("O3", "encoder-evictable-while-read", "EncoderCacheManager.freeable", "0.12.0", ("38907",)),
        ("O3", "encoder-evictable-while-read", "EncoderCacheManager.freeable", "0.19.1", ("38907",)),
        ("O3", "encoder-evictable-while-read", "EncoderCacheManager.freeable", "0.20.2", ("54284",)),
        ("O3", "encoder-evictable-while-read", "EncoderCacheManager.freeable", "0.28.0", ("54284",)),
        ("O3", "encoder-evictable-while-read", "EncoderCacheManager.freeable", "0.29.0", ()),
        ("O3", "free-block-written", "group 0", "0.19.0", ()),
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
        ("O2", "kv-read-mismatch", "position taken from the prefix cache", "0.33.0", ("43569",)),
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
    text = "\n".join(f'[[rule]]\noracle = "O*"\nkind = "*"\nids = {ids}' for ids in (["b", "a"], ["a", "c"]))
    monkeypatch.setattr(ledger, "rules", lambda: parse(text))
    assert ids("O1", "k", "a", "0.19.0") == ("b", "a", "c")


def test_anchors_are_globs_and_case_matters(monkeypatch):
    text = '[[rule]]\noracle = "O1"\nkind = "k"\nanchor = "*Foo*"\nids = ["1"]'
    monkeypatch.setattr(ledger, "rules", lambda: parse(text))
    assert ids("O1", "k", "aFoo\nb", "0.19.0") == ("1",)
    assert ids("O1", "k", "afoo", "0.19.0") == ids("O10", "k", "Foo", "0.19.0") == ()


@pytest.mark.parametrize(
    "line",
    [
        "ids = []",
        'ids = "38907"',
        'ids = ["1"]\nlast = "0.19.x"',
        'ids = ["1"]\nlsat = "0.19.0"',
        "ids = [38907]",
        "",
    ],
)
def test_mistakes_in_the_table_are_noticed(line):
    with pytest.raises(ValueError):
        parse(f'[[rule]]\noracle = "O1"\nkind = "k"\n{line}')


def test_every_rule_can_apply_to_some_release():
    for rule in ledger.rules():
        assert rule.first is None or rule.last is None or ids_order(rule.first) <= ids_order(rule.last)


def ids_order(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]

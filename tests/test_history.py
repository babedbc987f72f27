"""The product's promise on real history: two bugs of vLLM show where they are, and not where they are fixed.

Each release runs in a process of its own, once for all scenarios.
"""

import pytest

from conftest import ask
from scenarios import EVICTABLE, LEGAL, LOOK_AHEAD, PUBLISHED

SCENARIOS = {
    "evictable, sync": EVICTABLE["sync"],
    "evictable, async": EVICTABLE["async"],
    "look-ahead": LOOK_AHEAD,
    "in flight": LEGAL["mm_async"],
    "published": PUBLISHED,
}
WHILE_READ = ("O3", "encoder-evictable-while-read", "violation")
DRAFTER_MISS = ("O4", "drafter-read-miss", "violation")
IN_FLIGHT = ("O3", "encoder-evictable-in-flight", "hazard")
KV_MISMATCH = ("O2", "kv-read-mismatch", "violation")


def shown(version, name):
    """What a scenario shows on a release, and (oracle, kind, level) of each violation."""
    one = ask(version, tuple(SCENARIOS.values())).shown[list(SCENARIOS).index(name)]
    return one, [(oracle, kind, level) for _, oracle, kind, _, level in one.violations]


@pytest.mark.parametrize("name", ["evictable, sync", "evictable, async"])
@pytest.mark.parametrize(
    ("version", "said"), [("0.19.0", [WHILE_READ]), ("0.20.2", []), ("0.24.0", []), ("0.33.0", [])]
)
def test_encoder_freed_on_scheduled_tokens(version, name, said):
    """Finding (i), PR 38907: fixed after 0.19.1."""
    assert shown(version, name)[1] == said


@pytest.mark.parametrize(
    ("version", "said"),
    [("0.19.0", [DRAFTER_MISS]), ("0.23.0", [DRAFTER_MISS]), ("0.24.0", []), ("0.33.0", [])],
)
def test_drafter_reads_an_image_at_the_chunk_s_end(version, said):
    """Finding (ii): the runner asserts up to 0.23 and falls back from 0.24."""
    assert shown(version, "look-ahead")[1] == said


def test_the_two_are_two():
    prints = {name: shown("0.19.0", name)[0].fingerprints for name in list(SCENARIOS)[:3]}
    assert prints["evictable, sync"] == prints["evictable, async"]
    assert not set(prints["evictable, sync"]) & set(prints["look-ahead"])


def test_a_hazard_is_no_violation():
    """To 0.33 an entry is evictable while a later step, in flight, reads it: harmless with a worker in order."""
    one, said = shown("0.33.0", "in flight")
    assert (one.verdict, said) == ("hazard", [IN_FLIGHT])


def test_hashes_of_a_victim_s_blocks():
    """Ledger 43569, open: hashes that a pass published outlive the preemption that takes its tokens back."""
    one, said = shown("0.33.0", "published")
    assert one.verdict == "violation"
    assert {each for each in said if each[2] == "violation"} == {KV_MISMATCH}

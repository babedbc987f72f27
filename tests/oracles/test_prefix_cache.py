"""O6 hears when the prefix cache gives more than it holds; and, as a hazard, when it gives less."""

import pytest

from harness.execute import execute
from harness.oracles.prefix_cache import PrefixCache
from harness.verdict import Level
from oracles.faults import Fault, assert_heard, assert_quiet, faults, plant
from scenarios import LEGAL

pytestmark = pytest.mark.usefixtures("vllm")

GET = "BlockPool.get_cached_block"
MISSED, INVENTED = ("hit-missed", "get_computed_blocks"), ("hit-invented", "get_computed_blocks")
WITH_A_DRAFTER = ("hit-missed", "get_computed_blocks, with a drafter")


def nothing(original, pool, block_hash, groups):
    """No block is found, whatever is there."""


def not_the_first(original, pool, block_hash, groups):
    """The block with the oldest hash is not found."""
    found = original(pool, block_hash, groups)
    oldest = next((block for block in pool.blocks if block.block_hash), None)
    return None if found is None or found[0] is oldest else found


def anything(original, pool, block_hash, groups):
    """Some block with a hash will do."""
    some = next((block for block in pool.blocks if block.block_hash), None)
    return None if some is None else [some] * len(groups)


FAULTS = {"another block is found": Fault(GET, anything, "prefix", (INVENTED,))}
MISSES = {
    "nothing is found": Fault(GET, nothing, "prefix", (MISSED,)),
    "one block is not found": Fault(GET, not_the_first, "prefix", (MISSED,)),
    "nothing is found in a window": Fault(GET, nothing, "groups", (MISSED,)),
    "nothing is found of a state": Fault(GET, nothing, "mamba_cache", (MISSED,)),
    "nothing is found for a drafter": Fault(GET, nothing, "groups_eagle", (WITH_A_DRAFTER,)),
}


def test_is_quiet_on_legal_scenarios(legal):
    assert_quiet(PrefixCache, legal)


@faults(FAULTS)
def test_hears(monkeypatch, fault):
    assert_heard(monkeypatch, PrefixCache, fault)


@faults(MISSES)
def test_a_miss_is_a_hazard(monkeypatch, fault):
    assert hazards(fault.scenario) == set()
    plant(monkeypatch, fault.where, fault.fault)
    assert hazards(fault.scenario) == set(fault.heard)


def hazards(name):
    violations = execute(LEGAL[name], (PrefixCache,)).violations
    assert all(violation.level is Level.HAZARD for violation in violations)
    return {(violation.kind, violation.anchor) for violation in violations}

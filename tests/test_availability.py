"""The table of features says of the device what the device's side says of scenarios."""

from random import Random

import pytest

from fuzz.generate import FEATURES, generate
from harness.worker.device.support import UNSUPPORTED, cannot_run
from test_generate import NEEDS, uses


@pytest.mark.parametrize("feature", sorted(set(FEATURES) - {"text"}))
def test_a_feature_is_unsupported_if_no_scenario_of_it_can_run(feature: str) -> None:
    features = frozenset({"chunked_prefill", feature, *NEEDS.get(feature, ())})
    scenarios = (generate(Random(seed), features) for seed in range(150))
    refusals = [cannot_run(scenario) for scenario in scenarios if uses(scenario, feature)]
    assert refusals
    assert (None not in refusals) is (feature in UNSUPPORTED)

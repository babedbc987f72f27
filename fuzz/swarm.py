"""Swarm testing: which features one scenario has, and how much it uses each. The random source comes first."""

from collections.abc import Mapping
from random import Random

from fuzz.restrict import FEATURES

Weights = Mapping[str, float]
"""The features that are on in one scenario, each with the probability that a request, say, makes use of it."""


_SHARES = (0.3, 0.6, 0.9)
"""Probability that an allowed feature is on, drawn once a scenario. A bug that needs four features together (spec, mm,
async, chunked_prefill) then sees them in (0.3^4 + 0.6^4 + 0.9^4) / 3 = 26% of scenarios, a single feature alone among
nineteen in about 0.05%; one fixed share of 0.6 would give 13% and nearly none."""


_WEIGHTS = (0.25, 0.5, 0.9)


def draw_weights(rng: Random, features: frozenset[str]) -> Weights:
    """The swarm: which of the allowed features are on, and how much each is used."""
    share = rng.choice(_SHARES)
    return {name: rng.choice(_WEIGHTS) for name in FEATURES if name in features and rng.random() < share}


def chance(rng: Random, weights: Weights, feature: str) -> bool:
    return feature in weights and rng.random() < weights[feature]

"""Generation, and mutation of a corpus of whatever showed a new state feature; no code coverage, no libFuzzer."""

from random import Random

from fuzz.crossover import crossover
from fuzz.engines.base import Run
from fuzz.generate import generate, restrict
from fuzz.mutate import mutate
from harness.scenario import Scenario

GENERATE = 0.15
CROSSOVER = 0.10
"""Shares of the choices, the rest mutates: enough new blood that a corpus of one family does not stay one, little
enough that most executions build on what was found."""
RECENT = 0.5
"""Half of the parents are among the newest `RECENT_SIZE` entries: they are where the frontier is."""
RECENT_SIZE = 32


class RandomEngine:
    name = "random"
    instruments = False

    def explore(self, run: Run) -> None:
        rng = Random(run.worker_seed)
        corpus: list[Scenario] = []
        while not run.over():
            scenario = run.foreign()
            if scenario is None:
                scenario = _next(rng, corpus, run.features)
            _, new = run.execute(scenario)
            if new:
                corpus.append(scenario)


def _next(rng: Random, corpus: list[Scenario], features: frozenset[str]) -> Scenario:
    choice = rng.random()
    if not corpus or choice < GENERATE:
        return generate(rng, features)
    recent = corpus[-RECENT_SIZE:] if rng.random() < RECENT else corpus
    if choice < GENERATE + CROSSOVER:
        return restrict(crossover(rng, rng.choice(recent), rng.choice(corpus)), features)
    return mutate(rng, rng.choice(recent), features)[0]

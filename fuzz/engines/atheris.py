"""libFuzzer, through Atheris: code coverage decides, our mutator and crossover make the inputs.

Inputs are scenarios as compact JSON. libFuzzer hands them back as bytes; those that we made are remembered, so that
decoding is a look-up. Bytes that do not decode (libFuzzer's first input is empty) stand for a scenario generated from
them. State features are shown to libFuzzer as counters (feedback.counters).

`Fuzz()` never returns: the session ends the process at its limits. Use a process of its own, in which vLLM is imported.
"""

import zlib
from collections import OrderedDict
from random import Random
from typing import Any

import msgspec

from fuzz import feedback
from fuzz.crossover import crossover
from fuzz.engines.base import Run
from fuzz.generate import generate, restrict
from fuzz.mutate import mutate
from harness.codec import MAX_BYTES, ScenarioError, decode
from harness.scenario import Scenario

GENERATE = 0.15
CROSSOVER = 0.10
"""Shares of all inputs. libFuzzer calls the mutator and the crossover in turn, half of the inputs each; the crossover
function passes on to the mutator what exceeds its share."""
REMEMBERED = 1 << 14
"""Scenarios kept decoded: 2 to 5 kB each."""

_OPTIONS = (
    "-runs=-1",
    "-len_control=0",  # sizes are the mutator's business
    f"-max_len={MAX_BYTES // 8}",  # the largest legal scenario has about 100 kB
    "-timeout=86400",  # seconds; executions are bounded by steps, and the parent watches (Atheris takes 0 for 1)
    "-rss_limit_mb=0",
    "-malloc_limit_mb=0",
    "-detect_leaks=0",
    "-handle_int=0",
    "-handle_term=0",
    "-print_final_stats=0",
    "-reload=0",
)


class AtherisEngine:
    name = "atheris"
    instruments = True

    def explore(self, run: Run) -> None:
        import atheris

        driver = _Driver(run, feedback.counters())
        # libFuzzer takes a seed of 0 for "choose one".
        arguments = [
            "schedfuzz",
            *_OPTIONS,
            f"-seed={run.worker_seed % 0x7FFFFFFF + 1}",
            f"-artifact_prefix={run.log}",
        ]
        atheris.Setup(arguments, driver.test, custom_mutator=driver.mutate, custom_crossover=driver.crossover)
        atheris.Fuzz()


class _Driver:
    """The three callbacks. An exception that escapes one ends the process, so the session catches ours."""

    def __init__(self, run: Run, counters: tuple[Any, ...]) -> None:
        self._run = run
        self._counters = counters
        self._decoded: OrderedDict[bytes, Scenario] = OrderedDict()
        self._encode = msgspec.json.Encoder().encode

    def test(self, data: bytes) -> None:
        """TestOneInput."""
        if self._run.over():
            self._run.end()
        numbers, _ = self._run.execute(self._scenario(data))
        counters = self._counters
        for number in numbers:
            counters[number]()

    def mutate(self, data: bytes, max_size: int, seed: int) -> bytes:
        rng = Random(seed)
        foreign = self._run.foreign()
        if foreign is not None:
            return self._bytes(foreign, data, max_size)
        if rng.random() < GENERATE:
            return self._bytes(generate(rng, self._run.features), data, max_size)
        return self._bytes(mutate(rng, self._scenario(data), self._run.features)[0], data, max_size)

    def crossover(self, data: bytes, other: bytes, max_size: int, seed: int) -> bytes:
        rng = Random(seed)
        if rng.random() >= 2 * CROSSOVER:
            return self.mutate(data, max_size, rng.getrandbits(32))
        child = crossover(rng, self._scenario(data), self._scenario(other))
        return self._bytes(restrict(child, self._run.features), data, max_size)

    def _scenario(self, data: bytes) -> Scenario:
        known = self._decoded.get(data)
        if known is not None:
            self._decoded.move_to_end(data)
            return known
        try:
            scenario = restrict(decode(data), self._run.features)
        except ScenarioError:
            scenario = generate(Random(zlib.crc32(data) + self._run.worker_seed), self._run.features)
        self._remember(data, scenario)
        return scenario

    def _bytes(self, scenario: Scenario, otherwise: bytes, max_size: int) -> bytes:
        data = self._encode(scenario)
        if len(data) > max_size:
            return otherwise
        self._remember(data, scenario)
        return data

    def _remember(self, data: bytes, scenario: Scenario) -> None:
        self._decoded[data] = scenario
        if len(self._decoded) > REMEMBERED:
            self._decoded.popitem(last=False)

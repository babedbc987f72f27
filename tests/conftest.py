"""Which vLLM the tests run, and how to run a scenario on another one.

`vllm` puts the newest cached release (or what SCHEDFUZZ_VLLM names) into this process, once; a second one takes a
process of its own: `run_on`. Tests that ask for neither need no vLLM.
"""

import functools
import json
import logging
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from harness import presence, target
from harness.execute import Result, execute
from harness.scenario import Scenario
from harness.testing import VARIABLE
from harness.worker.traits import Traits, TraitsV2
from scenarios import LEGAL, LEGAL_V2, generated

pytest.register_assert_rewrite("oracles.faults")

CHILD = Path(__file__).with_name("child.py")
CHILD_SECONDS = 300
"""A child takes some 10 s to import vLLM and 30 ms a scenario; on a busy machine several times that."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that put a vLLM into this process come last: it stays there, and some tests are about having none. Last of
    all come those that put one for a device's platform there; they are skipped if there is one without."""

    def rank(item: pytest.Item) -> int:
        names = getattr(item, "fixturenames", ())
        return 2 if "device" in names else int("vllm" in names or item.path.parent.name == "regressions")

    items.sort(key=rank)


@dataclass(frozen=True)
class Shown:
    """What a scenario showed in another process; `violations` holds (fingerprint, oracle, kind, anchor, level)."""

    verdict: str
    violations: tuple[tuple[str, ...], ...]
    digest: str

    @property
    def fingerprints(self) -> list[str]:
        return [violation[0] for violation in self.violations]


@dataclass(frozen=True)
class Release:
    """What a process of its own said: about its vLLM, and about each scenario."""

    version: str
    traits: Traits
    traits_v2: TraitsV2
    lacking: frozenset[str]
    shown: tuple[Shown, ...]


def need(version: str) -> None:
    """Skips the test if the cache lacks a release."""
    try:
        target.check(version)
    except target.TargetError as error:
        pytest.skip(f"{error} (make test fetches what the tests need)")


@functools.cache
def ask(
    version: str, scenarios: tuple[Scenario, ...] = (), hash_seed: str = "0", plant: str | None = None
) -> Release:
    """Runs scenarios on a release in a fresh process, and, if a plant is named, once more with the bug planted.

    Skips the test if the cache lacks the release.
    """
    need(version)
    done = subprocess.run(
        [sys.executable, str(CHILD), version, *([plant] if plant else [])],
        input=b"".join(msgspec.json.encode(scenario) + b"\n" for scenario in scenarios),
        capture_output=True,
        timeout=CHILD_SECONDS,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(CHILD.parent.parent)},
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-4000:]
    release, *shown = map(json.loads, done.stdout.splitlines())
    return Release(
        version=release["version"],
        traits=Traits(**release["traits"]),
        traits_v2=TraitsV2(**release["traits_v2"]),
        lacking=frozenset(release["lacking"]),
        shown=tuple(
            Shown(one["verdict"], tuple(map(tuple, one["violations"])), one["digest"]) for one in shown
        ),
    )


def run_on(version: str, scenario: Scenario) -> list[str]:
    """Fingerprints that a scenario shows on a release, in a fresh process."""
    return ask(version, (scenario,)).shown[0].fingerprints


@pytest.fixture(scope="session")
def newest() -> str:
    """The newest supported release that the cache has."""
    releases = target.cached()
    if not releases:
        pytest.skip("no vLLM release is cached; make test fetches what the tests need")
    return releases[-1].version


@pytest.fixture(scope="session")
def chosen(request: pytest.FixtureRequest) -> target.Target:
    """The vLLM under test: what SCHEDFUZZ_VLLM names, or else the newest cached release."""
    return target.resolve(os.environ.get(VARIABLE) or request.getfixturevalue("newest"))


@pytest.fixture(scope="session")
def vllm(chosen: target.Target) -> str:
    """Activates the vLLM under test in this process; its version."""
    return activated(chosen, target.Platform.NONE)


def activated(chosen: target.Target, platform: target.Platform) -> str:
    """Puts a vLLM into this process; its version."""
    if not target.hash_seed_is_fixed():
        pytest.fail("set PYTHONHASHSEED to a number (make test sets it to 0): findings must not depend on it")
    target.activate(chosen, platform)
    # It dumps the engine's state whenever an exception passes through the loop, also the one that ends an execution.
    logging.getLogger("vllm").setLevel(logging.CRITICAL)
    return chosen.version


@pytest.fixture(scope="session")
def legal(vllm: str) -> dict[str, tuple[Scenario, Result]]:
    """What all oracles say of legal scenarios: the hand-written ones and 60 generated ones."""
    named = {**LEGAL, **LEGAL_V2, **generated(60, presence.lacking())}
    return {name: (scenario, execute(scenario)) for name, scenario in named.items()}

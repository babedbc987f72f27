"""Faults to plant in vLLM, and what every oracle's test asks: quiet on legal scenarios, loud on a fault.

A fault wraps one live function of vLLM and is called as `fault(original, self, ...)`. A table of `Fault`s says where,
on which scenario, and what exactly the oracle must say.
"""

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from harness.execute import Result, execute
from harness.oracles import Oracle
from harness.oracles.exceptions import Exceptions
from harness.scenario import Scenario
from harness.verdict import Level
from scenarios import HAZARDS, KNOWN_TRUE, LEGAL

MODULES = {
    "Scheduler": "vllm.v1.core.sched.scheduler",
    "AsyncScheduler": "vllm.v1.core.sched.async_scheduler",
    "EncoderCacheManager": "vllm.v1.core.encoder_cache_manager",
    "KVCacheManager": "vllm.v1.core.kv_cache_manager",
    "BlockPool": "vllm.v1.core.block_pool",
    "EngineCoreProc": "vllm.v1.engine.core",
    "ScriptedConnector": "harness.peers.kv_connector",
    "ScriptedEncoderConnector": "harness.peers.ec_connector",
    "SlidingWindowManager": "vllm.v1.core.single_type_kv_cache_manager",
    "StructuredOutputManager": "vllm.v1.structured_output",
    "MambaManager": "vllm.v1.core.single_type_kv_cache_manager",
    "ChunkedLocalAttentionManager": "vllm.v1.core.single_type_kv_cache_manager",
}
SCHEDULE = "Scheduler.schedule"
UPDATE = "Scheduler.update_from_output"

Wrapper = Callable[..., Any]


class Fault(NamedTuple):
    """`heard` holds (kind, anchor) of all that the oracle says before the execution ends, in order."""

    where: str
    fault: Wrapper
    scenario: str | Scenario
    heard: tuple[tuple[str, str], ...]


def faults(table: dict[str, Fault]) -> pytest.MarkDecorator:
    """Parametrizes a test with a table of faults."""
    return pytest.mark.parametrize("fault", table.values(), ids=table.keys())


def plant(monkeypatch: pytest.MonkeyPatch, where: str, fault: Wrapper) -> None:
    """Wraps `Class.method` of vLLM for the rest of the test."""
    owner, _, method = where.partition(".")
    cls = getattr(importlib.import_module(MODULES[owner]), owner)
    original = getattr(cls, method)

    @functools.wraps(original)
    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        return fault(original, *arguments, **keywords)

    monkeypatch.setattr(cls, method, wrapped)


def heard(scenario: str | Scenario, oracle: type[Oracle]) -> list[tuple[str, str, str]]:
    """(oracle, kind, anchor) of what one oracle, with O1 beside it, says of a scenario at level violation."""
    chosen = LEGAL[scenario] if isinstance(scenario, str) else scenario
    result = execute(chosen, dict.fromkeys((Exceptions, oracle)))
    assert result.rejected is None
    return [(v.oracle, v.kind, v.anchor) for v in result.violations if v.level is Level.VIOLATION]


def assert_heard(monkeypatch: pytest.MonkeyPatch, oracle: type[Oracle], fault: Fault) -> None:
    """The oracle is silent without the fault, and says exactly what the table says with it."""
    assert heard(fault.scenario, oracle) == []
    plant(monkeypatch, fault.where, fault.fault)
    assert heard(fault.scenario, oracle) == [(oracle.family, *said) for said in fault.heard]


def assert_quiet(oracle: type[Oracle], legal: dict[str, tuple[Scenario, Result]]) -> None:
    """On legal scenarios the family said what is known to be true, no more and no less, and only hazards that may be.

    Of older releases more is true than we list: skipped there.
    """
    release = sys.modules["vllm"].__version__
    if release not in KNOWN_TRUE:
        pytest.skip(f"no list of what {release} does wrong on legal input")
    said = [
        (name, violation)
        for name, (_, result) in legal.items()
        for violation in result.violations
        if violation.oracle == oracle.family
    ]
    found = {
        (name, each.fingerprint)
        for name, each in said
        if each.level is Level.VIOLATION or (each.oracle, each.kind) not in HAZARDS
    }
    known = {pair for pair in KNOWN_TRUE[release] if pair[1].startswith(f"{oracle.family}-")}
    assert found == known


def after(change: Callable[..., Any], *, call: int | None = None) -> Wrapper:
    """Lets `change(self, result)` loose on what the function returns: on every call, or on one (0 is the first)."""
    calls = iter(range(1 << 30))

    def fault(original: Callable[..., Any], owner: Any, *arguments: Any, **keywords: Any) -> Any:
        result = original(owner, *arguments, **keywords)
        if call in (None, next(calls)):
            change(owner, result)
        return result

    return fault


def before(change: Callable[..., Any], *, call: int | None = None) -> Wrapper:
    """Lets `change(self)` loose before the function runs: on every call, or on one (0 is the first)."""
    calls = iter(range(1 << 30))

    def fault(original: Callable[..., Any], owner: Any, *arguments: Any, **keywords: Any) -> Any:
        if call in (None, next(calls)):
            change(owner)
        return original(owner, *arguments, **keywords)

    return fault


def skipped(original: Callable[..., Any], owner: Any, *arguments: Any, **keywords: Any) -> None:
    """The function does nothing."""


def outputs_of(result: Any) -> list[Any]:
    """The EngineCoreOutput objects that `update_from_output` returns."""
    return [output for client in result.values() for output in client.outputs]

"""What each oracle costs: its methods are timed, one by one, over executions with all of them."""

import time
from collections.abc import Callable, Iterable
from typing import Any

from fuzz.explain import promise
from harness.engine import EVENTS
from harness.execute import execute
from harness.oracles import ALL, Oracle
from harness.scenario import Scenario


def costs(scenarios: Iterable[Scenario]) -> dict[type[Oracle], float]:
    """Microseconds per step that each oracle takes, in the order in which they are fed. No guest of a timed test."""
    spent = dict.fromkeys(ALL, 0.0)
    timed = [_timed(oracle, spent) for oracle in ALL]
    steps = sum(execute(scenario, timed).steps for scenario in scenarios)
    return {oracle: 1e6 * seconds / max(1, steps) for oracle, seconds in spent.items()}


def rows(measured: dict[type[Oracle], float]) -> list[str]:
    """Lines of the table in docs/oracles.md."""
    return [
        f"| {oracle.family} | `{oracle.__module__.rpartition('.')[2]}.{oracle.__name__}` "
        f"| {promise(oracle.family, oracle.__name__)} | {cost:.0f} |"
        for oracle, cost in sorted(measured.items(), key=lambda item: int(item[0].family[1:]))
    ]


def _timed(oracle: type[Oracle], spent: dict[type[Oracle], float]) -> type[Oracle]:
    def clocked(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(*arguments)
            finally:
                spent[oracle] += time.perf_counter() - began

        return call

    heard = {event: getattr(oracle, event) for event in EVENTS}
    own = {name: clocked(method) for name, method in heard.items() if method is not getattr(Oracle, name)}
    return type(oracle.__name__, (oracle,), own)

"""The scheduler's side of the encoder-cache connector: what is outside, what a step loads, and a record. Pure.

What it answers is legal by the docstrings of ECConnectorBase and by what vLLM's own connectors do. An output that is
outside stays there. Where it must be fetched, it is found once that is over (as by ECCPUConnector); who needs
it waits until then, and a fetch ends after a number of passes. What this engine encodes is found when the scheduler has
been told of the step.
"""

from collections.abc import Iterable

from harness.peers.external import Protest
from harness.scenario import Scenario, image_hash
from harness.verdict import HarnessError


class EncoderStore:
    """One execution's encoder outputs outside; all items are named by their hashes."""

    def __init__(self, scenario: Scenario) -> None:
        connector = scenario.engine.ec_connector
        if connector is None:
            raise HarnessError("an encoder store without a connector")
        self._latency = connector.latency
        self._saves = connector.ec_role == "ec_both"
        self._far = set(map(image_hash, connector.stored)) if connector.latency else set()
        """What must be fetched first."""
        self._found = set(map(image_hash, connector.stored)) - self._far
        self._due: dict[str, int] = {}
        """Pass with which the fetch of an item is over."""
        self._passes = 0
        self._loads: dict[str, None] = {}
        self._fetched: set[str] = set()
        """What has been found in this pass only: who asked before did not find it."""
        self.offered: frozenset[str] = frozenset()
        """What whoever asked in the last pass has found."""
        self.finished: list[str] = []
        """Requests that vLLM has told the end of; none in releases that do not."""
        self.protests: list[Protest] = []
        """All that O17 is to tell."""

    # -- hooks ----------------------------------------------------------------------------------------------------

    def has(self, item: str) -> bool:
        """`has_cache_item`."""
        return item in self._found

    def available(self, items: Iterable[str]) -> bool:
        """`ensure_cache_available`: whether none of these items is on its way; begins what has not begun."""
        waits = False
        for item in items:
            if item in self._far and self._due.setdefault(item, self._passes + self._latency) > self._passes:
                waits = True
            elif item in self._far:
                self._far.discard(item)
                self._found.add(item)
                self._fetched.add(item)
        return not waits

    def allocated(self, item: str) -> None:
        """`update_state_after_alloc`: there is room for an item; it is loaded if it is found, else encoded."""
        if item in self._found:
            self._loads[item] = None

    def loads(self) -> tuple[str, ...]:
        """`build_connector_meta`: what is loaded in the step that is being scheduled."""
        loads, self._loads = tuple(self._loads), {}
        self.offered = frozenset(self._found - self._fetched)
        self._fetched.clear()
        self._passes += 1
        return loads

    def end(self, request: str) -> None:
        """`request_finished`."""
        if request in self.finished:
            self.protests.append(
                Protest(
                    "finished-twice",
                    "ECConnectorBase.request_finished",
                    f"the encoder-cache connector is told the end of {request} again",
                    request,
                )
            )
        self.finished.append(request)

    # -- facts ----------------------------------------------------------------------------------------------------

    def told(self, encoded: Iterable[str]) -> None:
        """The scheduler has processed the result of a step that encoded these items."""
        if self._saves:
            self._found.update(item for item in encoded if item not in self._far)

    def lasts(self) -> bool:
        """Whether some fetch that has begun is not over yet."""
        return any(item in self._far and due > self._passes for item, due in self._due.items())

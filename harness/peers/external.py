"""The scheduler's side of the connector: what the script says of each request, and a record of what vLLM did. Pure.

What it answers is legal by the docstrings of KVConnectorBase_V1 and by what vLLM's own connectors do: only prompt
tokens are found outside; a synchronous load leaves a token to compute; every asynchronous transfer ends and is
reported, once; a request whose load is not over is not sent as well. The script is used up: answers "not known yet"
come before the first other one, and only a request's first load fails, so that a recomputed request gets further.

The record is what O17 and others compare vLLM's state with.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from harness.groups import groups_of, tokens_per_block, whole_group
from harness.peers.orders import LoadOrder, Orders, SendOrder, Tables, Transfers
from harness.scenario import Load, Scenario, request_id


@dataclass(frozen=True, slots=True)
class Protest:
    """vLLM called a hook as its docstring rules out."""

    kind: str
    hook: str
    message: str
    request: str


@dataclass(frozen=True, slots=True)
class Hit:
    """What a request was last admitted with: [0, local) from the prefix cache, [local, stop) from outside."""

    local: int
    stop: int
    asynchronous: bool


class External:
    """One execution's storage outside."""

    def __init__(self, scenario: Scenario, *, whole_blocks: bool = False) -> None:
        groups = groups_of(scenario.engine)
        self.sizes = tuple(tokens_per_block(group, scenario.engine) for group in groups)
        """Tokens per block of each group."""
        self._whole = whole_group(scenario.engine)
        self._block_size = scenario.engine.block_size
        self._whole_blocks = whole_blocks
        self._scripts = {request_id(i): request.load for i, request in enumerate(scenario.requests)}
        self._sends = {request_id(i): request.send for i, request in enumerate(scenario.requests)}
        self._asked: dict[str, int] = {}
        self._loaded: set[str] = set()
        """Requests whose first load has been ordered."""
        self._answers: dict[str, Hit] = {}
        self._new_loads: list[LoadOrder] = []
        self._new_sends: list[SendOrder] = []
        self.hits: dict[str, Hit] = {}
        """By request, of its last admission."""
        self.loads: dict[str, LoadOrder] = {}
        """Asynchronous loads that are ordered and that the scheduler has not been told the end of."""
        self.sends: dict[str, SendOrder] = {}
        """Sends of which the same is true."""
        self.finished: list[str] = []
        """Requests that vLLM has told the end of."""
        self._due: dict[str, int] = {}
        """Iteration up to which the script lets a request's transfer last."""
        self.failed: set[str] = set()
        """Requests that held a block when the scheduler was told that its load had failed."""
        self.protests: list[Protest] = []
        """Oldest first."""
        self.undecided = 0
        """How many answers were "not known yet"."""

    # -- hooks ----------------------------------------------------------------------------------------------------

    def lookup(self, request: str, computed: int, total: int) -> tuple[int | None, bool]:
        """`get_num_new_matched_tokens`: tokens to be had beyond `computed`, and whether asynchronously.

        `total` counts the request's tokens. With `whole_blocks` a load that ends before them ends with a block: up to
        0.17 the scheduler took each block of an asynchronous load for full, as all of vLLM's connectors made it.
        """
        script = self._scripts[request]
        if script is None:
            self._answers[request] = Hit(computed, computed, False)
            return 0, False
        self._asked[request] = self._asked.get(request, 0) + 1
        if self._asked[request] <= script.undecided:
            self.undecided += 1
            return None, False
        stop = script.tokens
        if self._whole_blocks and script.load_kv_async and stop < total:
            stop -= stop % self._block_size
        found = max(0, stop - computed)
        asynchronous = script.load_kv_async and found > 0
        self._answers[request] = Hit(computed, computed + found, asynchronous)
        return found, asynchronous

    def allocated(self, request: str, tables: Tables, tokens: int) -> None:
        """`update_state_after_alloc`: blocks for what was looked up, or (0) for other tokens."""
        if request in self.loads:
            self._protest(
                "allocated-while-loading", "update_state_after_alloc", request, "its load is not over"
            )
        hit = self._answers.pop(request, None)
        if not tokens:
            if hit is not None:
                self.hits[request] = Hit(hit.local, hit.local, False)
            return
        if hit is None or tokens != hit.stop - hit.local:
            answered = "none" if hit is None else str(hit.stop - hit.local)
            self._protest(
                "other-tokens-than-answered",
                "update_state_after_alloc",
                request,
                f"{tokens} tokens are to be loaded; the answer was {answered}",
            )
            return
        self.hits[request] = hit
        if any(len(table) * size < hit.stop for table, size in zip(tables, self.sizes, strict=True)):
            self._protest(
                "blocks-missing", "update_state_after_alloc", request, f"its blocks end before {hit.stop}"
            )
            return
        self._order_load(request, hit, tables)

    def _order_load(self, request: str, hit: Hit, tables: Tables) -> None:
        script = self._scripts[request]
        assert script is not None
        blocks = tables[self._whole][hit.local // self._block_size : -(-hit.stop // self._block_size)]
        failed = () if request in self._loaded else tuple(blocks[i] for i in script.failed if i < len(blocks))
        self._loaded.add(request)
        order = LoadOrder(request, hit.local, hit.stop, tables, hit.asynchronous, script.latency, failed)
        self._new_loads.append(order)
        if hit.asynchronous:
            self.loads[request] = order

    def end(self, request: str, tables: Tables, tokens: int) -> bool:
        """`request_finished`: whether the blocks are to stay until the send is over.

        `tokens` have their content in the blocks; 0 if nobody relies on it.
        """
        if request in self.finished:
            self._protest("finished-twice", "request_finished", request, "it was told before")
        self.finished.append(request)
        latency = self._sends[request]
        if latency is None or request in self.loads or not any(map(any, tables)):
            return False
        order = SendOrder(request, tables, min(tokens, len(tables[self._whole]) * self._block_size), latency)
        self.sends[request] = order
        self._new_sends.append(order)
        return True

    def orders(self) -> Orders:
        """`build_connector_meta`: what starts with the step that is being scheduled."""
        orders = Orders(tuple(self._new_loads), tuple(self._new_sends))
        self._new_loads, self._new_sends = [], []
        return orders

    # -- facts ----------------------------------------------------------------------------------------------------

    def started(self, orders: Orders, iteration: int) -> None:
        """Orders have left with a step."""
        for load in orders.loads:
            if load.asynchronous:
                self._due[load.request] = iteration + load.latency
        for send in orders.sends:
            self._due[send.request] = iteration + send.latency

    def taken(self, transfers: Transfers, holders: Iterable[tuple[str, Iterable[int]]]) -> None:
        """The engine loop has taken a result; `holders` are (request, block ids) before the scheduler sees it."""
        if transfers.invalid:
            self.failed.update(
                request for request, blocks in holders if not transfers.invalid.isdisjoint(blocks)
            )

    def told(self, transfers: Transfers) -> None:
        """The scheduler has processed a result."""
        for request in transfers.received:
            self.loads.pop(request, None)
            self._due.pop(request, None)
        for request in transfers.sent:
            self.sends.pop(request, None)
            self._due.pop(request, None)

    def script(self, request: str) -> Load | None:
        """What the scenario says about a request's load."""
        return self._scripts[request]

    def lasts(self, iteration: int) -> bool:
        """Whether some transfer cannot be over yet."""
        return any(due > iteration for due in self._due.values())

    def _protest(self, kind: str, hook: str, request: str, what: str) -> None:
        self.protests.append(Protest(kind, hook, f"{hook} for {request}: {what}", request))

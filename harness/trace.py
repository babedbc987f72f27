"""What happened, entry by entry: the one source for explanations, state features and determinism checks.

Entries are plain values in the order in which things happened; sets are sorted, nothing holds a vLLM object, so that
the same execution gives the same bytes in any process. Pure: imports no vLLM.
"""

import hashlib
from typing import TypeAlias

import msgspec


class _Entry(msgspec.Struct, frozen=True, tag_field="entry", omit_defaults=True):
    pass


class Occurred(_Entry, frozen=True, tag="event"):
    """The outside world acted: `what` is `arrive`, `abort`, `continue` or `close`; or `reset`, `pause`, `resume`, or
    `paused` when a pause completes, of which `detail` says what, and `done` whether it was so.
    """

    iteration: int
    what: str
    request: str = ""
    in_step: bool = False
    detail: str = ""
    done: bool = False


class ScheduledRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request's share of a step, as the SchedulerOutput says it.

    `computed` is the number of tokens computed before the step, `tokens` how many the step computes, the last
    `drafts` of which are speculative. `new_blocks` holds the block ids sent with the step, per KV cache group;
    `source` is `new`, `running` or `resumed`.
    """

    request: str
    source: str
    computed: int
    tokens: int
    drafts: int = 0
    new_blocks: tuple[tuple[int, ...], ...] = ()
    encoder_inputs: tuple[int, ...] = ()


class Loading(msgspec.Struct, frozen=True, omit_defaults=True):
    """A connector's load of positions [start, stop) that begins with a step."""

    request: str
    start: int
    stop: int
    asynchronous: bool = False


class Dispatched(_Entry, frozen=True, tag="step"):
    """A `schedule()` pass and the state that it left behind. Blocks count the pool, encoder slots are embeddings."""

    iteration: int
    step: int
    scheduled: tuple[ScheduledRequest, ...] = ()
    finished: tuple[str, ...] = ()
    preempted: tuple[str, ...] = ()
    freed_encoder: tuple[str, ...] = ()
    in_flight: int = 0
    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    num_blocks: int = 0
    encoder_free: int = 0
    encoder_freeable: int = 0
    loads: tuple[Loading, ...] = ()
    sends: tuple[str, ...] = ()
    """Ended requests whose blocks a connector begins to send."""
    copies: tuple[tuple[int, int], ...] = ()
    """Blocks that the worker copies before anything else, (from, to)."""
    encoder_loads: tuple[str, ...] = ()
    """Items whose encoder outputs a connector loads."""


class Delivered(_Entry, frozen=True, tag="update"):
    """The result of step `step` reached the scheduler: per request its new tokens and, at the end of it, or of a
    session's turn, why that ended."""

    iteration: int
    step: int
    sampled: tuple[tuple[str, tuple[int, ...]], ...] = ()
    outputs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    ended: tuple[tuple[str, str], ...] = ()
    received: tuple[str, ...] = ()
    sent: tuple[str, ...] = ()
    invalid_blocks: tuple[int, ...] = ()
    """What the connector reported: loads and sends that are over, blocks whose load failed."""


class Compiled(_Entry, frozen=True, tag="grammar"):
    """The compilation of a request's grammar has ended."""

    iteration: int
    request: str
    failed: bool = False


class Masked(_Entry, frozen=True, tag="mask"):
    """Step `step` samples under grammar masks: per request, how many rows (its drafts and one)."""

    iteration: int
    step: int
    rows: tuple[tuple[str, int], ...]


class Violated(_Entry, frozen=True, tag="violation"):
    """An oracle spoke."""

    iteration: int
    fingerprint: str
    message: str


Entry: TypeAlias = Occurred | Dispatched | Delivered | Compiled | Masked | Violated


class Trace:
    """The entries of one execution, in order."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)

    def encode(self) -> bytes:
        """One line of JSON an entry."""
        return b"".join(msgspec.json.encode(entry) + b"\n" for entry in self.entries)

    def digest(self) -> str:
        """SHA-256 of `encode()`, in hex."""
        return hashlib.sha256(self.encode()).hexdigest()

"""What a worker reports to the oracles: facts about one step, without judgement."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class KvMismatch:
    """A query attended to a slot that does not hold what that position must hold."""

    request: str
    group: int
    position: int
    block: int
    found: str
    """`unwritten`, `null block`, `missing block`, `other content` or `what a failed load left`."""


@dataclass(frozen=True, slots=True)
class SentMismatch:
    """A connector's send was over, and read a slot that does not hold what that position must hold."""

    request: str
    position: int
    found: str
    """As in `KvMismatch`."""


@dataclass(frozen=True, slots=True)
class EncoderMiss:
    """A gather found no encoder output. `window` is `target` or `drafter`."""

    request: str
    image: str
    window: str
    reason: str
    """`never encoded`, `evicted`, or `sent without the data that its encoder needs`."""
    fails: bool = True
    """Whether the real runner raises on it."""


@dataclass(frozen=True, slots=True)
class MaskMismatch:
    """A structured request's token was sampled under a mask that is not its grammar's at that output position."""

    request: str
    output: int
    """Output position, from 0."""
    drafts: int
    """How many drafts of the same step come before it."""
    found: str
    """`missing`, `allows every token`, or `allows other tokens`."""


@dataclass(frozen=True, slots=True)
class Breach:
    """The SchedulerOutput broke the runner's contract. `fails` says whether the real runner raises at this point."""

    kind: str
    message: str
    request: str = ""
    fails: bool = False


Observation: TypeAlias = KvMismatch | SentMismatch | EncoderMiss | MaskMismatch | Breach


class DeviceAssertion(Exception):
    """Our network was fed what no network computes with; a device would stop with an assertion of its own."""


class RunnerFailure(Exception):
    """The real model runner would raise here; the engine dies. Carries no judgement: the observations do."""

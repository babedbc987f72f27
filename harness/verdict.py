"""What an execution concludes: violations, their fingerprints, and the verdict.

A violation is a statement about vLLM; a `HarnessError` is a statement about us. The two never share a type, a counter
or an exit status. Pure: imports no vLLM.
"""

import enum
import hashlib

import msgspec


class HarnessError(Exception):
    """A fault of this tool. Never a finding; the command line ends with status 3."""


class Verdict(enum.StrEnum):
    """Outcome of one execution, in the words that `replay --json` prints."""

    OK = "ok"
    VIOLATION = "violation"
    HAZARD = "hazard"
    REJECTED = "rejected"
    HARNESS_ERROR = "harness-error"


class Level(enum.StrEnum):
    """`VIOLATION` breaks a promise today; `HAZARD` is harmless only because today's worker runs steps in order."""

    VIOLATION = "violation"
    HAZARD = "hazard"


class Violation(msgspec.Struct, frozen=True):
    """One broken promise, at one engine iteration.

    `anchor` names the place in vLLM's code or state (never a request id, a block id or a count), so that
    `(oracle, kind, anchor)` survives shrinking. `fatal` violations end the execution: what follows them is
    consequence, not evidence.
    """

    oracle: str
    kind: str
    anchor: str
    message: str
    iteration: int
    level: Level = Level.VIOLATION
    fatal: bool = True
    requests: tuple[str, ...] = ()
    speaker: str = ""
    """The oracle's class, where a family has several."""

    @property
    def fingerprint(self) -> str:
        """Readable and unique: `O4-draft-read-miss-1f2e3d4c`."""
        digest = hashlib.sha256("\0".join((self.oracle, self.kind, self.anchor)).encode()).hexdigest()
        return f"{self.oracle}-{self.kind}-{digest[:8]}"


def verdict_of(violations: list[Violation]) -> Verdict:
    """The verdict of an execution that ran: a violation outweighs a hazard."""
    if any(violation.level is Level.VIOLATION for violation in violations):
        return Verdict.VIOLATION
    return Verdict.HAZARD if violations else Verdict.OK

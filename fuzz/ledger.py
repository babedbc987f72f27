"""Which known bugs a finding may be: a table from (oracle, kind, anchor, release) to ledger record ids.

The table is `ledger.toml`, made to be edited by hand; its head says how. It holds ids, not the records.
"""

import functools
import re
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from harness.target import SUPPORTED
from harness.verdict import Violation

__all__ = ["Rule", "ids_for", "parse", "rules"]


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the table; see the head of `ledger.toml`."""

    oracle: str
    kind: str
    ids: tuple[str, ...]
    anchor: str = "*"
    first: str | None = None
    last: str | None = None

    def fits(self, violation: Violation, version: tuple[int, ...]) -> bool:
        """Whether this rule speaks about the violation on that release."""
        return (
            fnmatchcase(violation.oracle, self.oracle)
            and fnmatchcase(violation.kind, self.kind)
            and fnmatchcase(violation.anchor, self.anchor)
            and (self.first is None or _release(self.first) <= version)
            and (self.last is None or version <= _release(self.last))
        )


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rule: tuple[Rule, ...] = ()


def parse(text: str) -> tuple[Rule, ...]:
    """The rules that a table holds. ValueError says what is wrong with it."""
    table = msgspec.convert(tomllib.loads(text), _Table)
    for rule in table.rule:
        for bound in (rule.first, rule.last):
            if bound is not None and not re.fullmatch(r"\d+(\.\d+)*", bound):
                raise ValueError(f"{bound!r} is no release number, in a rule for {rule.oracle} {rule.kind}")
        if not rule.ids:
            raise ValueError(f"no ids in a rule for {rule.oracle} {rule.kind}")
    return table.rule


@functools.cache
def rules() -> tuple[Rule, ...]:
    """Our table."""
    return parse(Path(__file__).with_name("ledger.toml").read_text(encoding="utf-8"))


def ids_for(violation: Violation, vllm_version: str) -> tuple[str, ...]:
    """Ids of the records that a violation on this release may be an instance of; empty if none is known.

    A source tree that carries no version is taken for the newest release.
    """
    version = _release(vllm_version) or _release(SUPPORTED[-1])
    found = (record for rule in rules() if rule.fits(violation, version) for record in rule.ids)
    return tuple(dict.fromkeys(found))


def _release(text: str) -> tuple[int, ...]:
    """`0.19.0` as (0, 19), so that it equals `0.19`; what follows the numbers (rc1, +cpu) is not looked at."""
    if text.startswith("0.1.dev"):
        return ()  # what setuptools_scm calls a clone without tags
    numbers = re.match(r"v?(\d+(?:\.\d+)*)", text)
    found = [int(part) for part in numbers[1].split(".")] if numbers else []
    while found and found[-1] == 0:
        found.pop()
    return tuple(found)

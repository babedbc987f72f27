"""Known bugs of vLLM: what they are, by which signs ours would see them, and where to look for them.

The records are in corpus/ledger/records.toml, made to be edited by hand; its head says how.
"""

import functools
import re
import tomllib
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from harness.target import SUPPORTED
from harness.verdict import Level, Violation

__all__ = ["FOLDER", "Record", "Sign", "Site", "chosen", "ids_for", "parse", "records"]

FOLDER = Path(__file__).resolve().parent.parent / "corpus" / "ledger"


class _Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Sign(_Base, frozen=True):
    """What an oracle would say: three globs, and the releases (both included) on which it may be this record.

    A hazard counts only where `hazard` says so.
    """

    oracle: str
    kind: str = "*"
    anchor: str = "*"
    hazard: bool = False
    first: str | None = None
    last: str | None = None

    def matches(self, violation: Violation) -> bool:
        """Whether a violation is such a sign, on whichever release."""
        return (
            (self.hazard or violation.level is Level.VIOLATION)
            and fnmatchcase(violation.oracle, self.oracle)
            and fnmatchcase(violation.kind, self.kind)
            and fnmatchcase(violation.anchor, self.anchor)
        )

    def fits(self, violation: Violation, version: tuple[int, ...]) -> bool:
        """Whether this sign speaks about the violation on that release."""
        return (
            self.matches(violation)
            and (self.first is None or _release(self.first) <= version)
            and (self.last is None or version <= _release(self.last))
        )


class Site(_Base, frozen=True):
    """Where to look: a release that has the bug, or one with the bug planted into it.

    Who must be quiet: `fixed`, another release; the same one without the plant; or, for a bug that no release has
    fixed, the same one with the bug mended (`mend`). With none of these nobody is asked.
    """

    vllm: str
    plant: str | None = None
    fixed: str | None = None
    mend: str | None = None

    @property
    def name(self) -> str:
        return self.vllm if self.plant is None else f"{self.vllm}+{self.plant}"


class Record(_Base, frozen=True):
    """A known bug; see the head of `records.toml`."""

    id: str
    says: str
    checked: bool = True
    first: str | None = None
    last: str | None = None
    features: str = "all"
    needs: tuple[str, ...] = ()
    """What a scenario must use (fuzz.uses) for a finding of it to be, possibly, this record."""
    sign: tuple[Sign, ...] = ()
    site: tuple[Site, ...] = ()
    missing: str = ""


class _Table(_Base, frozen=True):
    record: tuple[Record, ...] = ()


def parse(text: str) -> tuple[Record, ...]:
    """The records that a table holds. ValueError says what is wrong with it."""
    table = msgspec.convert(tomllib.loads(text), _Table)
    for record in table.record:
        bounded: tuple[Record | Sign, ...] = (record, *record.sign)
        for each in bounded:
            for bound in (each.first, each.last):
                if bound is not None and not re.fullmatch(r"\d+(\.\d+)*", bound):
                    raise ValueError(f"{bound!r} is no release number, in record {record.id}")
        if not record.id:
            raise ValueError("a record without an id")
        if record.checked and not record.site and not record.missing:
            raise ValueError(f"record {record.id} needs a site, or a word about what is missing")
        if record.site and not record.sign:
            raise ValueError(f"record {record.id} has a site and no sign to look for")
        for site in record.site:
            if sum(name is not None for name in (site.plant, site.fixed, site.mend)) > 1:
                raise ValueError(f"a site of record {record.id} has more than one of plant, fixed and mend")
    ids = [record.id for record in table.record]
    if twice := sorted({name for name in ids if ids.count(name) > 1}):
        raise ValueError(f"two records are called {twice[0]!r}")
    return table.record


@functools.cache
def records() -> tuple[Record, ...]:
    """Our records, those that are only candidates (`checked = false`) among them."""
    return parse((FOLDER / "records.toml").read_text(encoding="utf-8"))


def chosen(ids: Iterable[str] = ()) -> tuple[Record, ...]:
    """The checked records of those ids, in the order of the table; all of them for none. ValueError names a bad id."""
    known = {record.id: record for record in records() if record.checked}
    wanted = tuple(ids) or tuple(known)
    for name in wanted:
        if name not in known:
            raise ValueError(f"no checked ledger record is called {name!r}; see docs/ledger.md")
    return tuple(record for name, record in known.items() if name in wanted)


def ids_for(violation: Violation, vllm_version: str, used: Collection[str]) -> tuple[str, ...]:
    """Ids of the records that a violation on this release may be an instance of; empty if none is known.

    `used` is what its scenario makes use of (fuzz.uses).

    A source tree that carries no version is taken for the newest release.
    """
    version = _release(vllm_version) or _release(SUPPORTED[-1])
    return tuple(
        record.id
        for record in records()
        if set(record.needs) <= set(used) and any(sign.fits(violation, version) for sign in record.sign)
    )


def _release(text: str) -> tuple[int, ...]:
    """`0.19.0` as (0, 19), so that it equals `0.19`; what follows the numbers (rc1, +cpu) is not looked at."""
    if text.startswith("0.1.dev"):
        return ()  # what setuptools_scm calls a clone without tags
    numbers = re.match(r"v?(\d+(?:\.\d+)*)", text)
    found = [int(part) for part in numbers[1].split(".")] if numbers else []
    while found and found[-1] == 0:
        found.pop()
    return tuple(found)

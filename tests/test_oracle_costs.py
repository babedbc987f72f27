"""Every oracle is in docs/oracles.md with its promise, and its cost can be measured."""

from pathlib import Path

import pytest

from fuzz.oracle_costs import costs, rows
from harness.oracles import ALL
from scenarios import LEGAL

PAGE = Path(__file__).parent.parent / "docs" / "oracles.md"


def test_the_page_has_every_oracle_and_what_it_promises() -> None:
    written = [line.rpartition(" | ")[0] for line in PAGE.read_text(encoding="utf-8").splitlines()]
    assert [row.rpartition(" | ")[0] for row in rows(dict.fromkeys(ALL, 0.0))] == [
        line for line in written if line.startswith("| O")
    ]


@pytest.mark.usefixtures("vllm")
def test_costs_are_of_those_who_listen() -> None:
    measured = costs([LEGAL["plain"], LEGAL["prefix"]])
    assert list(measured) == list(ALL)
    assert measured[next(oracle for oracle in ALL if oracle.__name__ == "BlockAccounting")] > 0
    assert measured[next(oracle for oracle in ALL if oracle.__name__ == "Exceptions")] == 0

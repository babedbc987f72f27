"""What became of the ledger's records: kept from run to run, and told as a page."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from fuzz.corpus import write
from fuzz.hunt import Trophy
from fuzz.ledger import FOLDER, Record, chosen, records

RESULTS = "results.json"
PROOFS = "proofs"


class Outcome(msgspec.Struct, frozen=True):
    """One record: its hunts in the order in which they were made, the last one successful if any was."""

    record: str
    found: bool
    hunts: tuple[Trophy, ...] = ()
    missing: str = ""
    """Why it was not looked for."""


def line(outcome: Outcome) -> str:
    """An outcome for people."""
    if not outcome.hunts:
        return f"{outcome.record}: not looked for: {outcome.missing}"
    said = [f"{outcome.record}: {'found' if outcome.found else 'not found'}"]
    for hunt in outcome.hunts:
        what = f"{hunt.fingerprint}, " if hunt.found else ""
        quiet = f"; quiet {_quiet(hunt)}" if hunt.found and hunt.quiet else ""
        others = f"; {hunt.others} candidates proved nothing" if hunt.others else ""
        fault = f"; our fault: {hunt.fault}" if hunt.fault else ""
        said.append(
            f"  {_where(hunt)}: {what}{hunt.executions} executions, {hunt.seconds:.1f} s, seed {hunt.seed}"
            f"{quiet}{others}{fault}"
        )
    return "\n".join(said)


def _where(hunt: Trophy) -> str:
    return hunt.vllm if hunt.plant is None else f"{hunt.vllm} with plant {hunt.plant}"


def _quiet(hunt: Trophy) -> str:
    if hunt.quiet.startswith("mend-"):
        return "once mended"
    return hunt.quiet if hunt.plant is not None else f"on {hunt.quiet}"


def results(folder: Path = FOLDER) -> list[Outcome]:
    """What a folder holds: those that our repository keeps, or a search's."""
    path = folder / RESULTS
    return msgspec.json.decode(path.read_bytes(), type=list[Outcome]) if path.exists() else []


def keep(folder: Path, outcome: Outcome, proofs: Path) -> None:
    """Adds an outcome to a folder's results, in the place of an earlier one, with the scenarios that are its proofs.

    `proofs` is the folder to which the outcome's scenarios are relative.
    """
    (folder / PROOFS).mkdir(parents=True, exist_ok=True)
    hunts = []
    for hunt in outcome.hunts:
        if hunt.found:
            name = f"{hunt.record}-{hunt.vllm}{'-planted' if hunt.plant else ''}.json"
            write(folder / PROOFS / name, (proofs / hunt.scenario).read_bytes())
            hunt = replace(hunt, scenario=name)
        hunts.append(hunt)
    known = {one.record: one for one in results(folder)}
    known[outcome.record] = replace(outcome, hunts=tuple(hunts))
    order = {record.id: at for at, record in enumerate(records())}
    found = sorted(known.values(), key=lambda one: order.get(one.record, len(order)))
    write(folder / RESULTS, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


def page(outcomes: Sequence[Outcome]) -> str:
    """The page: of all checked records, what was found, and what was not and why."""
    by_id = {one.record: one for one in outcomes}
    known = [(record, by_id.get(record.id) or Outcome(record.id, False)) for record in chosen()]
    found = [pair for pair in known if pair[1].found]
    lost = [pair for pair in known if not pair[1].found]
    return "\n".join(
        [
            _HEAD.format(found=len(found), all=len(known)),
            "| Record | What goes wrong | Where | Fingerprint | Quiet | Executions | Seconds | Seed | Features |",
            "|---|---|---|---|---|---|---|---|---|",
            *(_found_row(record, one) for record, one in found),
            "",
            "## Not found",
            "",
            "| Record | What goes wrong | Searched | What is missing |",
            "|---|---|---|---|",
            *(_lost_row(record, one) for record, one in lost),
            "",
        ]
    )


def _found_row(record: Record, outcome: Outcome) -> str:
    hunt = outcome.hunts[-1]
    quiet = {"": "nobody was asked"}.get(hunt.quiet, _quiet(hunt))
    hazard = " (hazard)" if hunt.level == "hazard" else ""
    features = "all" if record.features == "all" else hunt.features.replace(",", ", ")
    return (
        f"| {record.id} | {record.says} | {_where(hunt)} | `{hunt.fingerprint}`{hazard} | {quiet} | {hunt.executions} "
        f"| {hunt.seconds:.0f} | {hunt.seed} | {features} |"
    )


def _lost_row(record: Record, outcome: Outcome) -> str:
    searched = "; ".join(
        f"{_where(hunt)}: {hunt.executions} executions, {hunt.seconds:.0f} s" for hunt in outcome.hunts
    )
    return f"| {record.id} | {record.says} | {searched or '-'} | {record.missing or '?'} |"


_HEAD = """\
# The ledger as a proof

Made by `schedfuzz ledger --report docs/ledger.md`; edit `corpus/ledger/records.toml` instead.

The ledger holds bugs that vLLM's scheduler is known to have had. Each record is looked for by fuzzing alone: from an
empty corpus, with the features that somebody who suspects that corner would choose, one worker, 600 seconds at most; no
scenario written for it takes part. {found} of {all} were found.

*Found* means proven. The fuzzer saw a violation with a sign of the record; a fresh process on the same vLLM saw its
fingerprint again; and a vLLM that is free of the bug ran the same scenario to its end and did not show it: the release
that fixed it, or, where the bug was planted into a release (`--plant`, harness/planting), that release without the
plant. For bugs that no release has fixed, it is a vLLM with the bug mended in memory (harness/planting/mends.py).

Executions and seconds are the worker's, up to the scenario that became the proof; seconds are its own time on one
core. Importing vLLM (12 s), judging and shrinking are not in them.

## Found
"""

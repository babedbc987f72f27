"""Every oracle with the V2 model runner: as loud on the same faults, and on those that only its contract knows."""

import importlib.util
from typing import Any

import pytest
from msgspec.structs import replace

from fuzz.edits import with_runner
from harness import presence
from harness.execute import execute
from harness.oracles import Oracle
from harness.oracles.block_pool import BlockAccounting
from harness.oracles.contract import Contract
from harness.oracles.counters import Counters
from harness.oracles.drain import Drain
from harness.oracles.encoder_accounting import EncoderAccounting
from harness.oracles.encoder_presence import EncoderPresence
from harness.oracles.fences import Fences
from harness.oracles.kv_content import KvContent
from harness.oracles.limits import Limits
from harness.oracles.outputs import Outputs
from harness.oracles.progress import Progress
from harness.oracles.queues import Queues
from harness.repair import repair
from harness.verdict import Level
from oracles import test_contract
from oracles.faults import SCHEDULE, Fault, after, assert_heard, faults, plant
from oracles.test_contract import SINGLE, change_new, say
from scenarios import BACKLOG, LEGAL, SMALL, TIGHT, scenario, text

TABLES: dict[type[Oracle], str] = {
    BlockAccounting: "test_block_pool",
    Contract: "test_contract",
    Counters: "test_counters",
    Drain: "test_drain",
    EncoderAccounting: "test_encoder_accounting",
    EncoderPresence: "test_encoder_presence",
    Fences: "test_fences",
    KvContent: "test_kv_content",
    Limits: "test_limits",
    Outputs: "test_outputs",
    Progress: "test_progress",
    Queues: "test_queues",
}


def faults_of(module: str) -> dict[str, Fault]:
    """A module's table, made anew: faults count their calls, and the module's own tests use theirs."""
    spec = importlib.util.find_spec(f"oracles.{module}")
    assert spec is not None and spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    return fresh.FAULTS


OTHERWISE = {
    "no word to the connector",
    "another prompt",
    "new and known",
    "a position skipped",
    "tokens not resent",
    "wrong tokens resent",
    "resumed without a table",
}
"""Faults of O13 that V2 does not notice, or takes in another way: `FAULTS` and `UNNOTICED` below."""


def _goes_with_v2(fault: Fault) -> bool:
    """Not cached Mamba states, which are for V1."""
    asked = LEGAL[fault.scenario] if isinstance(fault.scenario, str) else fault.scenario
    return repair(with_runner(asked, "v2")).engine.model_runner == "v2"


SHARED = {
    f"{oracle.family} {name}": (oracle, fault)
    for oracle, module in TABLES.items()
    for name, fault in faults_of(module).items()
    if name not in OTHERWISE and _goes_with_v2(fault)
}
PREEMPTED = scenario(replace(TIGHT, model_runner="v2"), *BACKLOG)
QUEUED = scenario(replace(SMALL, max_num_seqs=1), text(5, 2), text(5, 2, 1))
ASYNC_DRAFTS = LEGAL["spec_async_eagle"]


def change_output(**values: Any) -> Any:
    """Fields of every step that has tokens."""

    def change(_: Any, output: Any) -> None:
        for name, value in values.items() if output.num_scheduled_tokens else ():
            setattr(output, name, value)

    return after(change)


def count_one_less(_: Any, output: Any) -> None:
    cached = output.scheduled_cached_reqs
    cached.num_computed_tokens = [count - 1 for count in cached.num_computed_tokens]


def say_that_all_run(_: Any, output: Any) -> None:
    """As if whoever runs had been preempted: their slots are given up."""
    output.preempted_req_ids = set(output.scheduled_cached_reqs.req_ids)


def lose_outputs(ids: list[int]) -> list[int]:
    """The tokens of a preempted request without what it has sampled."""
    return ids[:-1] if len(ids) > 20 else ids


FAULTS = {
    "new and known": Fault(SCHEDULE, test_contract.send_as_new_again(), "plain", say("counts-differ")),
    "a position skipped": Fault(SCHEDULE, after(test_contract.skip_a_position), SINGLE, say("counts-differ")),
    "async drafts, and a count that is too low": Fault(
        SCHEDULE, after(count_one_less), ASYNC_DRAFTS, say("counts-differ")
    ),
    "no tokens": Fault(
        SCHEDULE, change_new(prefill_token_ids=lambda _: None), SINGLE, say("tokens-not-sent")
    ),
    "wrong tokens": Fault(
        SCHEDULE,
        change_new(prefill_token_ids=lambda ids: [token + 1 for token in ids]),
        SINGLE,
        say("stale-token"),
    ),
    "outputs of a preempted request lost": Fault(
        SCHEDULE, change_new(prefill_token_ids=lose_outputs), PREEMPTED, say("stale-token")
    ),
    "preempted and scheduled": Fault(SCHEDULE, after(say_that_all_run), "plain", say("unknown-request")),
    "more blocks than a row has": Fault(
        SCHEDULE,
        change_new(block_ids=lambda tables: tuple([*ids, *range(20, 60)] for ids in tables)),
        SINGLE,
        say("table-overflow"),
    ),
    "no slot": Fault(SCHEDULE, after(test_contract.drop_ends), QUEUED, say("no-free-slot")),
    "drafts skipped and scheduled": Fault(
        SCHEDULE, change_output(skip_drafts=True), ASYNC_DRAFTS, say("placeholder-fed")
    ),
}
UNNOTICED = {
    "preemptions not told": Fault(SCHEDULE, change_output(preempted_req_ids=set()), PREEMPTED, ()),
    "no prompt, but its length": Fault(
        SCHEDULE, change_new(prompt_token_ids=lambda ids: [0] * len(ids)), SINGLE, ()
    ),
    "draft ids": Fault(
        SCHEDULE,
        after(
            lambda _, output: output.scheduled_spec_decode_tokens.update(
                {request: [7] * len(ids) for request, ids in output.scheduled_spec_decode_tokens.items()}
            )
        ),
        ASYNC_DRAFTS,
        (),
    ),
}
"""What V2 does not read: no false alarm there."""


@pytest.fixture(autouse=True)
def v2(vllm: str) -> None:
    if (missing := presence.lacking().get("v2_runner")) is not None:
        pytest.skip(f"vLLM {vllm}: {missing}")


def on_v2(fault: Fault) -> Fault:
    chosen = LEGAL[fault.scenario] if isinstance(fault.scenario, str) else fault.scenario
    return fault._replace(scenario=with_runner(chosen, "v2"))


@pytest.mark.parametrize(("oracle", "fault"), SHARED.values(), ids=SHARED.keys())
def test_hears_with_v2_too(monkeypatch: pytest.MonkeyPatch, oracle: type[Oracle], fault: Fault) -> None:
    assert_heard(monkeypatch, oracle, on_v2(fault))


@faults(FAULTS)
def test_hears_what_only_v2_needs(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    if "placeholder-fed" in fault.heard[0] and not can_skip_drafts():
        pytest.skip("this release's runner always drafts")
    assert_heard(monkeypatch, Contract, on_v2(fault))


@faults(UNNOTICED)
def test_is_quiet_about_what_v2_does_not_read(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    chosen = on_v2(fault).scenario
    plant(monkeypatch, fault.where, fault.fault)
    result = execute(chosen)
    assert [v.message for v in result.violations if v.level is Level.VIOLATION] == []


def can_skip_drafts() -> bool:
    from vllm.v1.core.sched.output import SchedulerOutput

    return "skip_drafts" in SchedulerOutput.__dataclass_fields__

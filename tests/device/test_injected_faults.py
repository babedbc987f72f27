"""Faults between scheduler and worker: what vLLM's own model runner does with each, and whether the stub speaks.

Each fault is planted in the SchedulerOutput that `Scheduler.schedule` returns in one step of a legal scenario, so that
both workers get the same broken step. docs/injected-faults.md is this table for people, measured on 0.33.0.
"""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from harness.execute import execute
from harness.oracles import VISIBLE
from harness.scenario import Arrive, Image, Request, Text
from harness.verdict import HarnessError, Level, Violation
from harness.worker.interface import Kind
from harness.worker.observation import EncoderMiss, KvMismatch, Observation, RunnerFailure
from oracles.faults import SCHEDULE, after, plant
from scenarios import EAGLE, LEGAL, SMALL, VISION, scenario, text

from .conftest import on_cpu

pytestmark = [pytest.mark.device, on_cpu]

PAGE = Path(__file__).parents[2] / "docs" / "injected-faults.md"
MEASURED_ON = "0.33.0"

AHEAD = scenario(
    replace(VISION, speculative=EAGLE),
    Request(prompt=(Text(0, 0, 16), Image(0)), max_tokens=2),
    Request(prompt=(Image(0), Text(0, 0, 3)), max_tokens=4),
    images=(6,),
    events=(Arrive(1), Arrive(0, 1)),
)
"""r0's first chunk ends where an image starts that r1 has had encoded: the drafter reads it before the target."""
PART = scenario(
    SMALL,
    text(14, 3),
    Request(prompt=(Text(0, 0, 4), Text(3, 0, 5)), max_tokens=3),
    events=(Arrive(0), Arrive(1, 2)),
)
"""r1 hits the first of r0's blocks, and no more."""
SCENARIOS = {**LEGAL, "ahead": AHEAD, "part": PART}

Edit = Callable[[Any, Any], None]
"""Called with the scheduler and its SchedulerOutput."""


def row(output: Any, request: str) -> int:
    return int(output.scheduled_cached_reqs.req_ids.index(request))


def new(output: Any, request: str) -> Any:
    return next(each for each in output.scheduled_new_reqs if each.req_id == request)


# -- blocks ---------------------------------------------------------------------------------------------------------


def swap(request: str, a: int, b: int, group: int = 0) -> Edit:
    def edit(_: Any, output: Any) -> None:
        ids = new(output, request).block_ids[group]
        ids[a], ids[b] = ids[b], ids[a]

    return edit


def give(request: str, *blocks: int, group: int = 0) -> Edit:
    """A new request's first blocks are others than its own."""

    def edit(_: Any, output: Any) -> None:
        new(output, request).block_ids[group][: len(blocks)] = blocks

    return edit


def append(request: str, *blocks: int) -> Edit:
    """A running request's new blocks are others than its own, or are not told."""

    def edit(_: Any, output: Any) -> None:
        cached, at = output.scheduled_cached_reqs, row(output, request)
        assert cached.new_block_ids[at] is not None
        cached.new_block_ids[at] = (list(blocks),) if blocks else None

    return edit


def exchange_groups(request: str) -> Edit:
    def edit(_: Any, output: Any) -> None:
        one = new(output, request)
        one.block_ids = tuple(reversed(one.block_ids))

    return edit


# -- counts and tokens ----------------------------------------------------------------------------------------------


def claim_at_admission(request: str, tokens: int) -> Edit:
    def edit(_: Any, output: Any) -> None:
        new(output, request).num_computed_tokens += tokens

    return edit


def claim(request: str, tokens: int) -> Edit:
    def edit(_: Any, output: Any) -> None:
        output.scheduled_cached_reqs.num_computed_tokens[row(output, request)] += tokens

    return edit


def count_outputs(request: str, tokens: int) -> Edit:
    def edit(_: Any, output: Any) -> None:
        output.scheduled_cached_reqs.num_output_tokens[row(output, request)] += tokens

    return edit


def schedule(request: str, tokens: int) -> Edit:
    """Tokens more than the scheduler's, in the total too."""

    def edit(_: Any, output: Any) -> None:
        output.num_scheduled_tokens[request] = output.num_scheduled_tokens.get(request, 0) + tokens
        output.total_num_scheduled_tokens += tokens

    return edit


def total(tokens: int) -> Edit:
    def edit(_: Any, output: Any) -> None:
        output.total_num_scheduled_tokens += tokens

    return edit


def draft_more(request: str) -> Edit:
    def edit(_: Any, output: Any) -> None:
        drafts = output.scheduled_spec_decode_tokens
        drafts[request] = [*drafts[request], 7]

    return edit


def change_prompt(request: str) -> Edit:
    def edit(_: Any, output: Any) -> None:
        one = new(output, request)
        one.prompt_token_ids = [one.prompt_token_ids[0], 9, *one.prompt_token_ids[2:]]

    return edit


def keep_tokens(_: Any, output: Any) -> None:
    """all_token_ids is left out."""
    assert output.scheduled_cached_reqs.all_token_ids
    output.scheduled_cached_reqs.all_token_ids = {}


# -- items ----------------------------------------------------------------------------------------------------------


def encode_nothing(request: str) -> Edit:
    def edit(_: Any, output: Any) -> None:
        assert output.scheduled_encoder_inputs.pop(request)

    return edit


def encode(request: str, item: int) -> Edit:
    def edit(_: Any, output: Any) -> None:
        output.scheduled_encoder_inputs[request] = [item]

    return edit


def free(image: str) -> Edit:
    def edit(_: Any, output: Any) -> None:
        output.free_encoder_mm_hashes = [*output.free_encoder_mm_hashes, image]

    return edit


def strip(request: str) -> Edit:
    def edit(_: Any, output: Any) -> None:
        one = new(output, request)
        one.mm_features = [dataclasses.replace(feature, data=None) for feature in one.mm_features]

    return edit


# -- who is there ---------------------------------------------------------------------------------------------------


def add_row(request: str, computed: int = 0, outputs: int = 0) -> Edit:
    """A row for a request that the scheduler has not scheduled."""

    def edit(_: Any, output: Any) -> None:
        cached = output.scheduled_cached_reqs
        cached.req_ids.append(request)
        cached.new_block_ids.append(None)
        cached.num_computed_tokens.append(computed)
        cached.num_output_tokens.append(outputs)

    return edit


def drop_row(request: str) -> Edit:
    def edit(_: Any, output: Any) -> None:
        cached, at = output.scheduled_cached_reqs, row(output, request)
        for field in ("req_ids", "new_block_ids", "num_computed_tokens", "num_output_tokens"):
            del getattr(cached, field)[at]

    return edit


def drop_new(request: str) -> Edit:
    def edit(_: Any, output: Any) -> None:
        output.scheduled_new_reqs.remove(new(output, request))

    return edit


def send_twice(request: str) -> Edit:
    def edit(_: Any, output: Any) -> None:
        output.scheduled_new_reqs.append(new(output, request))

    return edit


def resume_without_blocks(request: str) -> Edit:
    def edit(_: Any, output: Any) -> None:
        cached = output.scheduled_cached_reqs
        assert request in cached.resumed_req_ids
        cached.new_block_ids[row(output, request)] = None

    return edit


def resume_as_running(request: str) -> Edit:
    def edit(_: Any, output: Any) -> None:
        cached = output.scheduled_cached_reqs
        cached.resumed_req_ids = cached.resumed_req_ids - {request}

    return edit


def end(request: str) -> Edit:
    def edit(_: Any, output: Any) -> None:
        output.finished_req_ids = output.finished_req_ids | {request}

    return edit


def hide_end(request: str) -> Edit:
    def edit(_: Any, output: Any) -> None:
        assert request in output.finished_req_ids
        output.finished_req_ids = output.finished_req_ids - {request}

    return edit


def both(*edits: Edit) -> Edit:
    def edit(scheduler: Any, output: Any) -> None:
        for each in edits:
            each(scheduler, output)

    return edit


class Injected(NamedTuple):
    """What was measured; a step of -1 is none.

    `device` is what a client of the runner sees first: an exception with the vLLM function that raises it, a wrong
    token, a hang, or nothing. `stub` holds what the stub says in the first step in which it speaks, and whether it
    raises. `says` is the first violation that an ordinary execution reports.
    """

    scenario: str
    step: int
    edit: Edit
    device: tuple[str, int]
    stub: tuple[str, int]
    says: str


RUNNER = " in GPUModelRunner."
NOTHING = ("nothing", -1)
SILENT = ("nothing", -1)

FAULTS: dict[str, Injected] = {
    "two cached blocks swapped": Injected(
        "prefix", 2, swap("r1", 0, 1), NOTHING, ("reads other content", 2), "O2 kv-read-mismatch"
    ),
    "two new blocks swapped, which others hit together": Injected(
        "prefix", 0, swap("r0", 0, 1), NOTHING, ("reads other content", 2), "O2 kv-read-mismatch"
    ),
    "two new blocks swapped, of which another hits one": Injected(
        "part", 0, swap("r0", 0, 1), ("a wrong token", 2), ("reads other content", 2), "O2 kv-read-mismatch"
    ),
    "two cached blocks of a window swapped": Injected(
        "sliding_window",
        4,
        swap("r1", 5, 6, group=1),
        ("a wrong token", 4),
        ("reads other content", 4),
        "O2 kv-read-mismatch",
    ),
    "block tables of two groups exchanged": Injected(
        "sliding_window",
        4,
        exchange_groups("r1"),
        ("a wrong token", 4),
        ("reads null block, reads other content", 4),
        "O2 kv-read-mismatch",
    ),
    "a state's block is another request's": Injected(
        "groups_mamba",
        1,
        give("r1", 5, group=1),
        ("a wrong token", 2),
        ("reads other content", 2),
        "O2 kv-read-mismatch",
    ),
    "a cached state in another place of the table": Injected(
        "mamba_cache",
        47,
        swap("r4", 3, 4, group=1),
        ("a wrong token", 47),
        ("reads unwritten", 47),
        "O2 kv-read-mismatch",
    ),
    "a new block is another request's": Injected(
        "plain", 2, append("r1", 2), ("a wrong token", 2), ("reads other content", 2), "O2 kv-read-mismatch"
    ),
    "blocks freed early: a new request gets a running one's": Injected(
        "async", 1, give("r1", 1, 2), ("a wrong token", 1), ("reads other content", 1), "O2 kv-read-mismatch"
    ),
    "a new request gets the null block": Injected(
        "plain", 0, give("r0", 0), NOTHING, ("write-null-block", 0), "O13 write-null-block"
    ),
    "a block beyond the cache": Injected(
        "plain",
        0,
        give("r0", 99),
        ("DeviceAssertion in GPUModelRunner._model_forward", 0),
        ("block-beyond-cache; raises", 0),
        "O13 block-beyond-cache",
    ),
    "appended blocks lost": Injected(
        "chunked",
        2,
        append("r0"),
        ("a wrong token", 2),
        ("write-missing-block", 2),
        "O13 write-missing-block",
    ),
    "an appended block lost, by one request alone": Injected(
        "plain", 2, append("r1"), NOTHING, ("write-missing-block", 2), "O13 write-missing-block"
    ),
    "one more token computed, at admission": Injected(
        "plain",
        0,
        claim_at_admission("r0", 1),
        ("a wrong token", 0),
        ("reads unwritten, stale-token", 0),
        "O2 kv-read-mismatch",
    ),
    "one more token computed, at admission with a hit": Injected(
        "prefix",
        2,
        claim_at_admission("r1", 1),
        ("a wrong token", 2),
        ("reads unwritten, stale-token", 2),
        "O2 kv-read-mismatch",
    ),
    "count one too high, decode": Injected(
        "plain",
        1,
        claim("r0", 1),
        ("a wrong token", 1),
        ("reads unwritten, stale-token", 1),
        "O2 kv-read-mismatch",
    ),
    "count one too low, decode": Injected(
        "plain", 1, claim("r0", -1), ("a hang", -1), SILENT, "O10 counter-drift"
    ),
    "count one too high, prefill": Injected(
        "chunked",
        1,
        claim("r0", 1),
        ("a wrong token", 2),
        ("write-missing-block, reads unwritten", 1),
        "O2 kv-read-mismatch",
    ),
    "count one too low, prefill": Injected(
        "chunked", 1, claim("r0", -1), ("a wrong token", 2), ("reads unwritten", 2), "O2 kv-read-mismatch"
    ),
    "count one too high, async": Injected(
        "async",
        3,
        claim("r0", 1),
        ("a wrong token", 3),
        ("reads unwritten, stale-token", 3),
        "O2 kv-read-mismatch",
    ),
    "count one too low, async": Injected(
        "async", 3, claim("r0", -1), ("a wrong token", 4), ("stale-token", 3), "O13 stale-token"
    ),
    "count one too high, drafts": Injected(
        "spec_eagle",
        2,
        claim("r0", 1),
        ("a wrong token", 2),
        ("reads other content", 2),
        "O2 kv-read-mismatch",
    ),
    "count one too low, drafts": Injected(
        "spec_eagle", 2, claim("r0", -1), ("a wrong token", 2), SILENT, "O8 wrong-token"
    ),
    "count one too high, async with drafts": Injected(
        "spec_async_eagle", 3, claim("r0", 1), NOTHING, SILENT, "nothing"
    ),
    "count one too low, async with drafts": Injected(
        "spec_async_eagle", 3, claim("r0", -1), NOTHING, SILENT, "nothing"
    ),
    "one more token scheduled": Injected(
        "plain", 1, schedule("r0", 1), ("a wrong token", 1), ("stale-token", 1), "O13 stale-token"
    ),
    "one more token scheduled, async": Injected(
        "async",
        3,
        schedule("r0", 1),
        ("DeviceAssertion in GPUModelRunner._model_forward", 3),
        ("stale-token", 3),
        "O13 stale-token",
    ),
    "total one too high": Injected(
        "plain",
        1,
        total(1),
        ("ValueError in GPUModelRunner._prepare_inputs", 1),
        ("wrong-total; raises", 1),
        "O13 wrong-total",
    ),
    "total one too low": Injected(
        "plain",
        1,
        total(-1),
        ("ValueError in GPUModelRunner._prepare_inputs", 1),
        ("wrong-total; raises", 1),
        "O13 wrong-total",
    ),
    "drafts longer than scheduled": Injected(
        "spec_eagle",
        1,
        draft_more("r0"),
        ("a wrong token", 1),
        ("drafts-fill-step", 1),
        "O13 drafts-fill-step",
    ),
    "drafts longer than scheduled, async": Injected(
        "spec_async_eagle",
        2,
        draft_more("r0"),
        ("RuntimeError in GPUModelRunner._prepare_input_ids", 2),
        ("drafts-fill-step", 2),
        "O13 drafts-fill-step",
    ),
    "another prompt": Injected(
        "plain", 0, change_prompt("r0"), ("a wrong token", 0), ("stale-token", 0), "O13 prompt-differs"
    ),
    "all_token_ids left out for a resumed request, async": Injected(
        "async_preemption",
        14,
        keep_tokens,
        ("KeyError in GPUModelRunner._update_states", 14),
        ("tokens-not-resent; raises", 14),
        "O13 tokens-not-resent",
    ),
    "one output too few for a resumed request, async": Injected(
        "async_preemption",
        14,
        count_outputs("r1", -1),
        ("DeviceAssertion in GPUModelRunner._model_forward", 14),
        ("stale-token", 14),
        "O13 stale-token",
    ),
    "an encoder input left out": Injected(
        "mm",
        0,
        encode_nothing("r0"),
        ("RuntimeError in GPUModelRunner._gather_mm_embeddings", 0),
        ("target misses an item: never encoded; raises", 0),
        "O4 target-read-miss",
    ),
    "an encoder input that does not exist": Injected(
        "mm",
        0,
        encode("r0", 9),
        ("IndexError in GPUModelRunner._batch_mm_inputs_from_scheduler", 0),
        ("unknown-encoder-input; raises", 0),
        "O13 unknown-encoder-input",
    ),
    "an encoder input of an unknown request": Injected(
        "mm",
        0,
        encode("r9", 0),
        ("KeyError in GPUModelRunner._batch_mm_inputs_from_scheduler", 0),
        ("unknown-encoder-input; raises", 0),
        "O13 unscheduled-data",
    ),
    "an encoder output freed while read": Injected(
        "mm",
        1,
        free("image-1"),
        ("RuntimeError in GPUModelRunner._gather_mm_embeddings", 1),
        ("target misses an item: evicted; raises", 1),
        "O4 target-read-miss",
    ),
    "an encoder output freed in the step that encodes it": Injected(
        "mm", 0, free("image-0"), NOTHING, SILENT, "nothing"
    ),
    "the item of the drafter's look-ahead freed": Injected(
        "ahead",
        1,
        free("image-0"),
        ("RuntimeError in GPUModelRunner._gather_mm_embeddings", 2),
        ("target misses an item: evicted; raises", 2),
        "O4 target-read-miss",
    ),
    "an item without its data": Injected(
        "mm",
        0,
        strip("r0"),
        ("RuntimeError in GPUModelRunner._gather_mm_embeddings", 0),
        ("target misses an item: sent without the data that its encoder needs; raises", 0),
        "O4 target-read-miss",
    ),
    "a row for an unknown request": Injected(
        "plain",
        1,
        add_row("stranger"),
        ("KeyError in GPUModelRunner._update_states", 1),
        ("unknown-request; raises", 1),
        "O13 unknown-request",
    ),
    "a new request scheduled without data": Injected(
        "plain",
        0,
        drop_new("r0"),
        ("ValueError in GPUModelRunner._prepare_inputs", 0),
        ("rows-differ; raises", 0),
        "O13 rows-differ",
    ),
    "a running request scheduled without data": Injected(
        "plain", 1, drop_row("r0"), ("a hang", -1), SILENT, "O10 counter-drift"
    ),
    "a running request scheduled without data, async": Injected(
        "async", 3, drop_row("r0"), ("a wrong token", 4), ("stale-token", 3), "O13 stale-token"
    ),
    "a new request sent twice": Injected(
        "plain",
        0,
        send_twice("r0"),
        ("ValueError in GPUModelRunner._prepare_inputs", 0),
        ("new-request-known", 0),
        "O13 new-request-known",
    ),
    "resumed without block ids": Injected(
        "preemption",
        13,
        resume_without_blocks("r1"),
        ("AssertionError in GPUModelRunner._update_states", 13),
        ("resumed-without-blocks; raises", 13),
        "O13 resumed-without-blocks",
    ),
    "resumed, but sent as running": Injected(
        "preemption",
        21,
        resume_as_running("r2"),
        ("a wrong token", 21),
        ("reads other content", 21),
        "O2 kv-read-mismatch",
    ),
    "a finished request scheduled": Injected(
        "plain",
        3,
        both(add_row("r1", 9, 3), schedule("r1", 1)),
        ("KeyError in GPUModelRunner._update_states", 3),
        ("unknown-request; raises", 3),
        "O13 ended-request-scheduled",
    ),
    "a finished request scheduled, its end not told": Injected(
        "plain",
        3,
        both(hide_end("r1"), add_row("r1", 9, 3), schedule("r1", 1)),
        NOTHING,
        SILENT,
        "O13 ended-request-scheduled",
    ),
    "an end not told": Injected("plain", 3, hide_end("r1"), NOTHING, SILENT, "O13 finish-not-told"),
    "the end of a live request": Injected(
        "plain",
        1,
        end("r0"),
        ("KeyError in GPUModelRunner._update_states", 1),
        ("unknown-request; raises", 1),
        "O13 live-request-finished",
    ),
}


def first_number(message: str) -> int:
    """The step that a violation names."""
    found = re.search(r"step (\d+)", message)
    return int(found[1]) if found else -1


def on_device(monkeypatch: pytest.MonkeyPatch, name: str) -> tuple[str, int]:
    from harness.worker.device.worker import DeviceWorker

    steps: list[int] = []
    run = DeviceWorker.execute_model

    def execute_model(self: Any, step: Any, scheduler_output: Any) -> Any:
        steps.append(step.index)
        return run(self, step, scheduler_output)

    monkeypatch.setattr(DeviceWorker, "execute_model", execute_model)
    shown = execute(SCENARIOS[name], worker=Kind.DEVICE).violations
    return symptom(shown[0], steps[-1]) if shown else NOTHING


def symptom(violation: Violation, last: int) -> tuple[str, int]:
    if violation.oracle == "O1":
        _, function, error, _ = violation.anchor.split(":", 3)
        return f"{error} in {function}", last
    if violation.oracle == "O8":
        return "a wrong token", first_number(violation.message)
    return "a hang", -1


def words(seen: Observation) -> str:
    if isinstance(seen, KvMismatch):
        return f"reads {seen.found}"
    if isinstance(seen, EncoderMiss):
        return f"{seen.window} misses an item: {seen.reason}"
    return seen.kind


def of_stub(monkeypatch: pytest.MonkeyPatch, name: str) -> tuple[str, int]:
    """Heard by no oracle that could end the execution before the stub has seen the step."""
    from harness.worker.stub import StubWorker

    seen: dict[int, list[str]] = {}

    def told(call: str) -> None:
        original = getattr(StubWorker, call)

        def tell(self: Any, step: Any, argument: Any) -> Any:
            heard = seen.setdefault(step.index, [])
            try:
                result = original(self, step, argument)
            except RunnerFailure:
                heard += [*map(words, self.observations), "; raises"]
                raise
            heard += map(words, self.observations)
            return result

        monkeypatch.setattr(StubWorker, call, tell)

    told("execute_model")
    told("sample_tokens")
    try:
        execute(SCENARIOS[name], VISIBLE)
    except HarnessError as error:
        assert "the stub failed and no oracle spoke" in str(error)
    for step, heard in seen.items():
        if heard:
            return ", ".join(dict.fromkeys(heard)).replace(", ; ", "; "), step
    return SILENT


def of_schedfuzz(_: pytest.MonkeyPatch, name: str) -> str:
    """The first violation of an ordinary execution."""
    violations = [v for v in execute(SCENARIOS[name]).violations if v.level is Level.VIOLATION]
    return f"{violations[0].oracle} {violations[0].kind}" if violations else "nothing"


def in_tandem(_: pytest.MonkeyPatch, name: str) -> str:
    """The same, with both workers: HarnessError if they disagree."""
    violations = execute(SCENARIOS[name], worker=Kind.TANDEM).violations
    return ", ".join(f"{v.oracle} {v.kind}" for v in violations if v.level is Level.VIOLATION)


def measured(fault: Injected, watch: Callable[[pytest.MonkeyPatch, str], Any]) -> Any:
    with pytest.MonkeyPatch.context() as monkeypatch:
        plant(monkeypatch, SCHEDULE, after(fault.edit, call=fault.step))
        return watch(monkeypatch, fault.scenario)


@pytest.fixture
def measured_release(device: str) -> None:
    if device != MEASURED_ON:
        pytest.skip(f"says what {MEASURED_ON} does; vLLM {device} is under test")


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.usefixtures("measured_release")
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_what_runner_and_stub_do_with_a_fault(fault: Injected) -> None:
    assert measured(fault, on_device) == fault.device
    assert measured(fault, of_stub) == fault.stub
    assert measured(fault, of_schedfuzz) == fault.says
    if RUNNER in fault.device[0]:
        assert fault.says in measured(fault, in_tandem)


@pytest.mark.usefixtures("measured_release")
@pytest.mark.parametrize("name", sorted({fault.scenario for fault in FAULTS.values()}))
def test_without_a_fault_nobody_says_anything(name: str) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert on_device(monkeypatch, name) == NOTHING
        assert of_stub(monkeypatch, name) == SILENT
        assert of_schedfuzz(monkeypatch, name) == "nothing"


def test_the_stub_speaks_in_the_step_in_which_the_runner_raises() -> None:
    raised = {name: fault for name, fault in FAULTS.items() if RUNNER in fault.device[0]}
    assert len(raised) > 10
    assert {name for name, fault in raised.items() if fault.stub[1] != fault.device[1]} == set()


def test_the_stub_raises_only_where_the_runner_does() -> None:
    raises = {name for name, fault in FAULTS.items() if fault.stub[0].endswith("; raises")}
    assert {name for name in raises if RUNNER not in FAULTS[name].device[0]} == set()


def test_what_a_client_sees_is_reported() -> None:
    assert {n for n, fault in FAULTS.items() if fault.device != NOTHING and fault.says == "nothing"} == set()


@pytest.mark.usefixtures("measured_release")
def test_an_end_that_is_not_told_leaks_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row leaves the batch, since it is not scheduled; what the runner remembers of the request stays for good."""
    from harness.worker.device.worker import DeviceWorker

    left: list[tuple[set[str], set[str]]] = []
    run = DeviceWorker.execute_model

    def execute_model(self: Any, step: Any, scheduler_output: Any) -> Any:
        observations = run(self, step, scheduler_output)
        left.append((set(self._runner.requests), set(self._runner.input_batch.req_ids)))
        return observations

    monkeypatch.setattr(DeviceWorker, "execute_model", execute_model)
    execute(SCENARIOS["plain"], worker=Kind.DEVICE)
    assert left.pop() == (set(), set())
    measured(FAULTS["an end not told"], on_device)
    assert left.pop() == ({"r1"}, set())


def page_row(name: str, fault: Injected) -> str:
    def told(what: str, step: int) -> str:
        return what if step < 0 else f"{step}: {what}"

    cells = (name, f"{fault.scenario}, {fault.step}", told(*fault.device), told(*fault.stub), fault.says)
    return f"| {' | '.join(cells)} |"


def test_the_page_is_this_table() -> None:
    page = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert page[1:] == [page_row(name, fault) for name, fault in FAULTS.items()]

"""The loop around vLLM's own: virtual time, events, delays, and that everything happens again in the same way."""

from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest
from msgspec.structs import replace

from conftest import ask
from fuzz.edits import without_events
from harness.execute import execute
from harness.features import used
from harness.model import Reference
from harness.presence import lacking
from harness.scenario import Abort, Arrive, Grammar
from harness.trace import Compiled, Delivered, Dispatched, Masked, Occurred
from harness.verdict import HarnessError, Level, Verdict
from scenarios import KNOWN_TRUE, LEGAL, LEGAL_V2, SMALL, generated, scenario, text


def entries(chosen, kind):
    return [entry for entry in execute(chosen).trace.entries if isinstance(entry, kind)]


def steps(chosen):
    return entries(chosen, Dispatched)


def rows(chosen):
    return [row for step in steps(chosen) for row in step.scheduled]


def ends(chosen):
    return {request: reason for update in entries(chosen, Delivered) for request, reason in update.ended}


def turns(chosen, request):
    """Why each turn of a session has ended."""
    return [
        reason for update in entries(chosen, Delivered) for name, reason in update.ended if name == request
    ]


# -- the hand-written scenarios are what their names say ---------------------------------------

SHOWS = {
    "plain": lambda s: ends(s) == {"r0": "length", "r1": "length"},
    "events": lambda s: next(row.computed for row in rows(s) if row.request == "r2") == 0,
    "chunked": lambda s: len([row for row in rows(s) if row.request == "r0" and row.computed < 40]) > 2,
    "unchunked": lambda s: rows(s)[0].tokens == 40,
    "long_prefill": lambda s: max(row.tokens for row in rows(s)) == 5,
    "prefix": lambda s: [row.computed for row in rows(s) if row.source == "new"] == [0, 12, 8],
    "preemption": lambda s: any(step.preempted for step in steps(s)),
    "priority": lambda s: any("r0" in step.preempted for step in steps(s)),
    "abort": lambda s: ends(s) == {},
    "abort_in_step": lambda s: ends(s) == {"r0": "length"},
    "abort_waiting": lambda s: {row.request for row in rows(s)} == {"r0"},
    "stop": lambda s: ends(s) == {"r0": "stop", "r1": "stop", "r2": "length"},
    "max_model_len": lambda s: max(row.computed + row.tokens for row in rows(s)) == 47,
    "sliding_window": lambda s: len(rows(s)[0].new_blocks) == 2,
    "groups": lambda s: (
        len(rows(s)[0].new_blocks) == 5
        and [row.computed for row in rows(s) if row.source == "new"] == [0, 28, 24]
    ),
    "groups_local": lambda s: (
        sum(len(blocks) for row in rows(s) for blocks in row.new_blocks) > 2 * 24
        and not any(step.preempted for step in steps(s))
    ),
    "groups_eagle": lambda s: [row.computed for row in rows(s) if row.source == "new"] == [0, 32, 32],
    "groups_mamba": lambda s: (
        {row.source for row in rows(s)} == {"new", "running"}
        and {tuple(map(len, row.new_blocks))[1:3] for row in rows(s) if row.source == "new"} == {(1, 1)}
    ),
    "block_sizes": lambda s: (
        [row.computed for row in rows(s) if row.source == "new"][3:] == [16, 16]
        and tuple(map(len, rows(s)[0].new_blocks)) == (2, 4, 1)
    ),
    "block_sizes_eagle": lambda s: [row.computed for row in rows(s) if row.source == "new"] == [0, 32, 32],
    "block_sizes_mamba": lambda s: (
        [row.computed for row in rows(s) if row.source == "new"] == [0, 12, 12, 28]
        and any(step.copies for step in steps(s))
    ),
    "async": lambda s: max(step.in_flight for step in steps(s)) == 1,
    "async_preemption": lambda s: any(step.preempted and step.in_flight for step in steps(s)),
    "async_abort": lambda s: ends(s) == {},
    "spec_eagle": lambda s: {len(tokens) for tokens in sampled(s)} >= {1, 2, 3},
    "spec_mtp": lambda s: {len(tokens) for tokens in sampled(s)} == {1, 2},
    "spec_ngram": lambda s: {row.drafts for row in rows(s)} >= {0, 2},
    "spec_async_eagle": lambda s: {len(tokens) for tokens in sampled(s)} >= {1, 2, 3},
    "spec_async_mtp": lambda s: {len(tokens) for tokens in sampled(s)} == {1, 2},
    "spec_preemption": lambda s: any(step.preempted for step in steps(s)),
    "mm": lambda s: [row.encoder_inputs for row in rows(s) if row.encoder_inputs] == [(0, 1)],
    "mm_unchunked": lambda s: [row.encoder_inputs for row in rows(s) if row.encoder_inputs] == [(0,), (1,)],
    "mm_uuids": lambda s: ends(s) == dict.fromkeys(("r0", "r1", "r2"), "length"),
    "mm_async": lambda s: any(row.encoder_inputs for row in rows(s)),
    "mm_spec_async": lambda s: (
        any(row.drafts for row in rows(s)) and any(row.encoder_inputs for row in rows(s))
    ),
    "grammar": lambda s: first(s, "r1") == 3 and {rows for mask in masks(s) for _, rows in mask} == {1},
    "grammar_fails": lambda s: ends(s) == {"r0": "error", "r1": "length"},
    "grammar_abort": lambda s: ends(s) == {} and {row.request for row in rows(s)} == {"r1"},
    "grammar_preemption": lambda s: any(step.preempted and step.in_flight for step in steps(s)),
    "grammar_async": lambda s: (
        ends(s)["r2"] == "stop" and {"r0", "r1", "r2"} == dict(sum(masks(s), ())).keys()
    ),
    "grammar_spec": lambda s: {rows for mask in masks(s) for _, rows in mask} == {1, 2, 3},
    "grammar_spec_async": lambda s: {rows for mask in masks(s) for _, rows in mask} == {1, 3},
    "grammar_spec_preemption": lambda s: any(step.preempted for step in steps(s)),
    "grammar_free": lambda s: ends(s) == {"r0": "length", "r1": "length", "r2": "stop", "r3": "length"},
    "free": lambda s: (
        len(steps(s)) > len(steps(replace(s, engine=replace(s.engine, async_scheduling=False))))
    ),
    "reset": lambda s: [act.done for act in acts(s)] == [False, True, True, True] and resumed(s) == ["r0"],
    "reset_async": lambda s: (
        resumed(s) == ["r0", "r1"] * 2
        and any(one.sampled and not one.outputs for one in entries(s, Delivered))
    ),
    "reset_spec_async": lambda s: resumed(s) == ["r0", "r1"] * 2,
    "reset_free": lambda s: resumed(s) == ["r0", "r1"] * 2,
    "encoder_reset": lambda s: (
        [act.done for act in acts(s)] == [False, True]
        and [row.request for row in rows(s) if row.encoder_inputs] == ["r0", "r1"]
    ),
    "encoder_reset_mid_item": lambda s: (
        [act.what for act in acts(s)] == ["pause", "reset", "paused", "resume"]
        and sum(0 in row.encoder_inputs for row in rows(s)) == 2
    ),
    "pause_abort": lambda s: (
        told(s) == [("pause", 2), ("paused", 3), ("resume", 12)] and ends(s) == {"r1": "length"}
    ),
    "pause_wait": lambda s: (
        told(s) == [("pause", 2), ("paused", 7), ("resume", 23)] and last(s, "r0") < first(s, "r1") == 23
    ),
    "pause_keep": lambda s: (
        told(s) == [("pause", 2), ("paused", 2), ("resume", 23)]
        and not any(2 <= step.iteration < 23 for step in steps(s) if step.scheduled)
        and resumed(s) == ["r0"]
    ),
    "pause_async": lambda s: (
        [act.detail for act in acts(s) if act.what == "paused"]
        == [
            "keep and caches",
            "wait and caches",
        ]
    ),
    "streaming": lambda s: (
        turns(s, "r0") == ["length", "length", "stop"]
        and [row.computed for row in rows(s) if row.source == "new" and row.request == "r0"] == [0, 12, 18]
    ),
    "streaming_early": lambda s: turns(s, "r0") == ["length", "length", "stop"],
    "streaming_abort": lambda s: (
        (turns(s, "r0"), turns(s, "r1"), turns(s, "r2")) == ([], ["length"], ["length"])
    ),
    "streaming_async": lambda s: (
        turns(s, "r0") == ["stop", "length", "stop"]
        and any(len(one.sampled) > len(one.outputs) for one in entries(s, Delivered))
    ),
    "streaming_spec": lambda s: turns(s, "r0") == ["length"] * 3 and any(row.drafts for row in rows(s)),
    "streaming_preemption": lambda s: any(step.preempted for step in steps(s)) and len(turns(s, "r0")) == 2,
    "streaming_free": lambda s: turns(s, "r0") == ["length", "length", "stop"],
    "streaming_pause": lambda s: turns(s, "r0") == [] and ends(s)["r1"] == "length",
    "min_tokens": lambda s: ends(s) == {"r0": "stop", "r1": "length"},
    "cache_salt": lambda s: [row.computed for row in rows(s) if row.source == "new"] == [0, 0, 0, 12],
    "mamba_cache": lambda s: any(row.computed for row in rows(s) if row.source == "new"),
    "mamba_cache_eagle": lambda s: any(row.drafts for row in rows(s)),
    "active_seqs": lambda s: last(s, "r0") < first(s, "r1"),
    "adaptive_prefill": lambda s: max(row.tokens for row in rows(s)) == 8,
    "unreserved_isl": lambda s: first(s, "r1") == 1,
    "reserved_isl": lambda s: first(s, "r1") > 5,
    "watermark": lambda s: not any(step.preempted for step in steps(s)),
    "prefill_interval": lambda s: first(s, "r1") == 4,
    "prefill_interval_dp": lambda s: first(s, "r1") == 4,
    "dynamic_spec": lambda s: {row.drafts for row in rows(s)} == {0, 1, 3},
    "dynamic_spec_async": lambda s: {row.drafts for row in rows(s)} >= {0, 1, 3},
    "dynamic_spec_ngram": lambda s: {row.drafts for row in rows(s)} >= {0, 1},
    "lora": lambda s: first(s, "r3") < last(s, "r1") < first(s, "r2"),
    "lora_prefix": lambda s: [row.computed for row in rows(s) if row.source == "new"] == [0, 0, 0, 12, 12],
    "lora_spec_async": lambda s: any(row.drafts and row.request == "r1" for row in rows(s)),
    "lora_preemption": lambda s: any(step.preempted for step in steps(s)),
    "pipeline": lambda s: (
        max(step.in_flight for step in steps(s)) == 1 and ends(s).keys() == {"r0", "r1", "r2"}
    ),
    "pipeline_preemption": lambda s: any(step.preempted and step.in_flight for step in steps(s)),
    "pipeline_free": lambda s: max(step.in_flight for step in steps(s)) > 1,
    "skip_prefix": lambda s: not any(row.computed for row in rows(s) if row.source != "running"),
    "encoder_loads": lambda s: (
        [step.encoder_loads for step in steps(s) if step.encoder_loads] == [("image-1",)]
        and [row.encoder_inputs for row in rows(s) if row.encoder_inputs] == [(0,)]
    ),
    "encoder_saves": lambda s: (
        [step.encoder_loads for step in steps(s) if step.encoder_loads] == [("image-0",)]
        and [row.encoder_inputs for row in rows(s) if row.encoder_inputs] == [(0,), (1,)]
    ),
    "encoder_fetch": lambda s: (
        [step.step for step in steps(s) if step.encoder_loads] == [3]
        and not any(row.encoder_inputs for row in rows(s))
    ),
    "pooling": lambda s: ends(s) == {"r0": "stop", "r1": "stop"} and sampled(s) == [],
    "pooling_prefix": lambda s: [row.computed for row in rows(s) if row.source == "new"] == [0, 16, 0],
    "pooling_async": lambda s: ends(s) == {"r0": "stop", "r2": "stop", "r3": "stop"},
    "pooling_free": lambda s: (
        ends(s) == {"r0": "stop", "r1": "stop"} and any(row.encoder_inputs for row in rows(s))
    ),
    "prompt_logprobs": lambda s: [row.computed for row in rows(s) if row.source == "new"] == [0, 0, 0],
    "prompt_logprobs_preemption": lambda s: any(step.preempted and step.in_flight for step in steps(s)),
    "prompt_logprobs_skipped": lambda s: (
        [[row.request for row in step.scheduled] for step in steps(s) if step.scheduled][1] == ["r0"]
    ),
    "prompt_logprobs_spec": lambda s: {len(tokens) for tokens in sampled(s)} >= {1, 2, 3},
    "connector_sync": lambda s: [row.computed for row in rows(s) if row.source == "new"] == [10, 0],
    "connector_async": lambda s: any(update.received == ("r0",) for update in entries(s, Delivered)),
    "connector_mamba": lambda s: any(update.received == ("r1",) for update in entries(s, Delivered)),
    "connector_mamba_cache": lambda s: any(row.computed == 20 for row in rows(s)),
    "connector_send": lambda s: [r for update in entries(s, Delivered) for r in update.sent] == ["r1", "r0"],
    "connector_failure": lambda s: (
        len([update for update in entries(s, Delivered) if update.invalid_blocks]) == 2
        and ends(s) == {"r0": "length", "r1": "length"}
    ),
    "connector_fail_policy": lambda s: ends(s) == {"r0": "error", "r1": "error", "r2": "length"},
    "connector_abort": lambda s: ends(s) == {} and any(u.received == ("r0",) for u in entries(s, Delivered)),
    "connector_grammar": lambda s: ends(s) == {} and any(step.sends for step in steps(s)),
    "connector_preemption": lambda s: any(row.source == "resumed" and row.computed for row in rows(s)),
    "connector_salt": lambda s: [row.computed for row in rows(s) if row.source == "new"] == [10, 0, 0],
    "connector_reset": lambda s: [act.done for act in acts(s)] == [True, False, False, False],
    "connector_pause": lambda s: (
        [what for what, _ in told(s)] == ["pause", "resume", "pause", "paused", "paused", "resume"]
    ),
}


def masks(chosen):
    return [mask.rows for mask in entries(chosen, Masked)]


def in_step(event):
    return isinstance(event, Abort) and event.in_step


def acts(chosen):
    return [entry for entry in entries(chosen, Occurred) if not entry.request]


def told(chosen):
    return [(act.what, act.iteration) for act in acts(chosen)]


def resumed(chosen):
    return [row.request for row in rows(chosen) if row.source == "resumed"]


def scheduled(chosen, request):
    return [s.iteration for s in steps(chosen) for row in s.scheduled if row.request == request]


def first(chosen, request):
    """The iteration in which a request first runs."""
    return scheduled(chosen, request)[0]


def last(chosen, request):
    return scheduled(chosen, request)[-1]


def sampled(chosen):
    return [tokens for update in entries(chosen, Delivered) for _, tokens in update.sampled if tokens]


@pytest.mark.parametrize("name", [*LEGAL, *LEGAL_V2])
def test_the_hand_written_scenarios_show_what_they_are_named_after(vllm, legal, name):
    chosen, result = legal[name]
    if lacks := lacking().keys() & used(chosen):
        pytest.skip(f"vLLM {vllm} lacks {lacks}")
    broken = {(name, each.fingerprint) for each in result.violations if each.level is Level.VIOLATION}
    assert broken == {pair for pair in KNOWN_TRUE.get(vllm, ()) if pair[0] == name}
    assert broken or SHOWS[name.removesuffix(", V2")](chosen)


def test_every_request_gets_what_the_model_says(legal):
    """Not through an oracle: straight from the trace."""
    chosen = LEGAL["spec_eagle"]
    got = {"r0": [], "r1": []}
    for update in entries(chosen, Delivered):
        for request, tokens in update.outputs:
            got[request] += tokens
    assert got == {f"r{i}": Reference(chosen, i).expected_output()[0] for i in range(2)}


# -- time --------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [0, 1, 2, 5])
def test_events_happen_in_their_iteration(vllm, delay):
    chosen = scenario(SMALL, text(5, 9), text(5, 2, 1), events=(Arrive(0, 1), Arrive(1, delay), Abort(0, 1)))
    assert [(event.what, event.iteration) for event in entries(chosen, Occurred)] == [
        ("arrive", 1),
        ("arrive", 1 + delay),
        ("abort", 2 + delay),
    ]


def test_time_in_which_nothing_can_happen_is_jumped_over(vllm):
    chosen = scenario(SMALL, text(5, 2), text(5, 2, 1), events=(Arrive(0), Arrive(1, 64)))
    result = execute(chosen)
    assert result.steps < 10
    assert max(entry.iteration for entry in result.trace.entries) >= 64


@pytest.mark.parametrize(
    ("interleaving", "delays", "took"),
    [
        ("engine", (0,), [1, 1, 1]),
        ("engine", (3,), [1, 1, 1]),
        ("free", (0,), [0, 0, 0]),
        ("free", (3,), [1, 1, 1]),
        ("free", (0, 3), [0, 1, 1]),
    ],
)
def test_a_step_is_in_flight_until_its_result_is_taken(vllm, interleaving, delays, took):
    """Two batches may be in flight, and the loop waits for the older of them; a free one takes a result at once."""
    engine = replace(SMALL, async_scheduling=True, interleaving=interleaving)
    chosen = scenario(engine, text(40, 3), delays=delays)
    left = {step.step: step.iteration for step in steps(chosen)}
    assert [update.iteration - left[update.step] for update in entries(chosen, Delivered)][:3] == took


def test_a_grammar_is_compiled_in_its_iteration(vllm):
    compiled = [
        (entry.iteration, entry.request, entry.failed) for entry in entries(LEGAL["grammar"], Compiled)
    ]
    assert compiled == [(0, "r0", False), (3, "r1", False)]


@pytest.mark.parametrize("delay", [30, 64])
def test_a_slow_compilation_is_no_hang(vllm, delay):
    chosen = scenario(SMALL, text(5, 2, grammar=Grammar(delay)))
    assert execute(chosen).verdict is Verdict.OK
    assert first(chosen, "r0") == delay


def test_removing_an_event_hands_its_delay_to_the_next(vllm):
    """Or else ordering bugs vanish while shrinking."""
    chosen = scenario(SMALL, text(5, 9), text(5, 2, 1), events=(Arrive(0), Abort(0, 4), Arrive(1, 3)))
    without = without_events(chosen, [1])
    assert entries(without, Occurred)[-1] == entries(chosen, Occurred)[-1]


# -- aborts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("in_step", "computed"), [(False, 1), (True, 2)])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_abort_between_steps_or_inside_one(vllm, asynchronous, in_step, computed):
    """Between: the step that follows does not know the request. Inside: it runs and is not updated."""
    engine = replace(SMALL, async_scheduling=asynchronous)
    chosen = scenario(engine, text(5, 9), events=(Arrive(0), Abort(0, 1, in_step=in_step)))
    assert len(rows(chosen)) == computed
    updates = [tokens for update in entries(chosen, Delivered) for _, tokens in update.outputs]
    assert len(updates) == (0 if asynchronous else 1)


def test_an_abort_of_what_has_ended_changes_nothing(vllm):
    with_abort = scenario(SMALL, text(5, 1), text(5, 6, 1), events=(Arrive(0), Arrive(1), Abort(0, 3)))
    without = scenario(SMALL, text(5, 1), text(5, 6, 1), events=(Arrive(0), Arrive(1)))
    assert steps(with_abort) == steps(without)


def test_the_worker_is_told_of_every_end(vllm):
    told = [request for step in steps(LEGAL["async_abort"]) for request in step.finished]
    assert sorted(told) == ["r0", "r1"]


# -- faults of ours ----------------------------------------------------------------------------


def test_an_execution_without_end_is_a_fault_of_ours(vllm, monkeypatch):
    monkeypatch.setattr("harness.engine.MAX_ITERATIONS", 3)
    with pytest.raises(HarnessError, match="no end"):
        execute(LEGAL["plain"])


def test_a_runner_s_failure_that_no_oracle_hears_is_a_fault_of_ours(vllm, monkeypatch):
    from harness.worker.observation import RunnerFailure
    from harness.worker.stub_v1 import StubV1

    def fail(*_):
        raise RunnerFailure("odd")

    monkeypatch.setattr(StubV1, "_forward", fail)
    with pytest.raises(HarnessError, match="odd"):
        execute(LEGAL["plain"])


# -- determinism -------------------------------------------------------------------------------


def test_the_same_in_any_process(newest):
    """300 generated scenarios, three processes, three ways to hash strings: the same bytes."""
    # Of aborts that reach it together, and of requests that a failed load ends, vLLM makes a set of strings, and frees
    # in that set's order.
    fit = (
        s
        for s in generated(400).values()
        if sum(in_step(event) for event in s.timeline) < 2 and "load_failure_policy" not in used(s)
    )
    scenarios = tuple(islice(fit, 300))
    with ThreadPoolExecutor(2) as pool:
        releases = list(pool.map(lambda seed: ask(newest, scenarios, seed), ("0", "1", "4242")))
    digests = [[one.digest for one in release.shown] for release in releases]
    assert len(digests[0]) == len(scenarios) == 300
    assert digests[0] == digests[1] == digests[2]


def test_the_same_after_others(legal):
    """Nothing of an execution is left for the next one."""
    assert {name: execute(chosen).trace.digest() for name, (chosen, _) in legal.items()} == {
        name: result.trace.digest() for name, (_, result) in legal.items()
    }

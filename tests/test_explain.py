"""Explanations: every kind of entry is told, the right things are left out, and the same input gives the same text."""

import random

import pytest
from msgspec.structs import replace

from fuzz.explain import MAX_LINES, explain, promise
from fuzz.generate import FEATURES, generate
from harness.execute import Result
from harness.model import EOS
from harness.scenario import Arrive, Encoder, Engine, Grammar, Image, Request, Scenario, Speculative, Text
from harness.trace import (
    Compiled,
    Delivered,
    Dispatched,
    Masked,
    Occurred,
    ScheduledRequest,
    Trace,
    Violated,
)
from harness.verdict import Level, Verdict, Violation

SCENARIO = Scenario(
    1,
    engine=Engine(
        max_num_batched_tokens=16,
        async_scheduling=True,
        speculative=Speculative("eagle", 2),
        encoder=Encoder(64, 32),
    ),
    images=(10,),
    requests=(
        Request(prompt=(Text(0, 4, 8), Image(0), Text(1, 0, 3)), max_tokens=5, eos_at=2, acceptance=(2, 0)),
        Request(stop_at=0),
    ),
    timeline=(Arrive(0),),
    step_delays=(1, 3),
)
READ = Violation(
    "O3", "encoder-evictable-while-read", "EncoderCacheManager.freeable", "image-0 is evictable", 1
)
FLOWN = Violation("O3", "in-flight", "x", "is a pity", 1, level=Level.HAZARD)


def told(*entries, violations=(), scenario=SCENARIO, verdict=Verdict.OK, **more) -> str:
    trace = Trace()
    for entry in entries:
        trace.add(entry)
    return explain(scenario, Result(verdict, tuple(violations), trace, len(entries), **more), vllm="0.19.0")


def story(*entries, **more) -> list[str]:
    lines = told(*entries, **more).splitlines()
    return [
        line.strip() for line in lines[lines.index("What happened") + 1 : lines.index("To see it again") - 1]
    ]


def test_the_configuration_has_only_what_matters():
    text = told()
    section = text.partition("Configuration")[2].partition("Requests")[0].splitlines()[1:-1]
    assert [line.strip() for line in section] == [
        "max_num_batched_tokens = 16",
        "async_scheduling = true",
        "speculative_config.method = eagle",
        "speculative_config.num_speculative_tokens = 2",
        "max_num_encoder_input_tokens = 64",
        "encoder_cache_size = 32",
        "results are ready after, in turn and again from the first: 1, 3 iterations",
    ]
    assert "(none)" in told(scenario=Scenario(1))


def test_requests_are_told_with_positions():
    lines = told().splitlines()
    assert (
        "  r0  prompt of 21: text 0:4 at [0, 8), image-0 at [8, 18), text 1:0 at [18, 21); max_tokens 5; "
        "EOS as output 2; accepts, in turn, 2, 0 drafts"
    ) in lines
    assert "  r1  prompt of 1: text 0:0 at [0, 1); max_tokens 1; a stop token as output 0" in lines


def test_events():
    assert story(
        Occurred(0, "arrive", "r0"), Occurred(2, "abort", "r0"), Occurred(2, "abort", "r1", in_step=True)
    ) == [
        "iteration 0",
        "r0 arrives",
        "iteration 2",
        "r0 is aborted",
        "r1 is aborted, between the execution of a step and its update",
    ]


def test_steps():
    step = Dispatched(
        iteration=3,
        step=2,
        scheduled=(
            ScheduledRequest("r0", "new", 0, 16, 0, ((1, 2), (3,)), (0,)),
            ScheduledRequest("r1", "running", 4, 3, 2),
        ),
        finished=("r4",),
        preempted=("r2", "r3"),
        freed_encoder=("image-7",),
        in_flight=1,
        running=2,
        waiting=3,
        free_blocks=60,
        num_blocks=64,
        encoder_free=22,
        encoder_freeable=32,
    )
    assert story(step) == [
        "iteration 3",
        "step 2, with 1 other in flight",
        "r0 (new) computes [0, 16); blocks 1,2 / 3; encodes image-0; reads image-0 at [8, 18)",
        "r1 (running) computes [4, 7), the last 2 tokens of it drafts",
        "preempted: r2, r3",
        "worker drops the encoder output of: image-7",
        "worker is told the end of: r4",
        "then 2 running, 3 waiting; 60 of 64 blocks free; encoder cache: 22 of 32 free, 32 with what is evictable",
    ]
    assert "encoder cache" not in told(step, scenario=Scenario(1, requests=(Request(),)))


def test_the_drafter_looks_ahead():
    step = Dispatched(0, 0, (ScheduledRequest("r0", "new", 0, 8),))
    said = "r0 (new) computes [0, 8)"
    assert story(step)[2] == f"{said}; its drafter, one token ahead, reaches image-0 at [8, 18)"
    ngram = replace(SCENARIO, engine=replace(SCENARIO.engine, speculative=Speculative("ngram")))
    assert story(step, scenario=ngram)[2] == said


def test_updates():
    update = Delivered(
        iteration=4,
        step=2,
        sampled=(("r0", (7, EOS, 9)), ("r1", ()), ("r2", (5,))),
        outputs=(("r0", (7, EOS)), ("r2", (5,))),
        ended=(("r0", "stop"),),
    )
    assert story(update) == [
        "iteration 4",
        "update of step 2",
        "r0 gets 2 tokens (7 EOS), of 3 tokens (7 EOS 9) sampled; it ends: stop",
        "r1 gets no token",
        "r2 gets 1 token (5)",
    ]


def test_violations_stand_where_they_were_seen():
    lines = story(
        Dispatched(1, 0),
        Violated(1, READ.fingerprint, READ.message),
        Violated(1, FLOWN.fingerprint, FLOWN.message),
        violations=(READ, FLOWN),
        verdict=Verdict.VIOLATION,
    )
    at = lines.index(f">>> {READ.fingerprint}")
    assert lines[at - 1].startswith("then ")
    assert lines[at + 1] == f">>> {READ.message}"
    assert lines[at + 2] == f">>> The promise: {promise('O3')}"
    assert f">>> {FLOWN.fingerprint} (hazard)" in lines


def test_idle_passes_are_told_once():
    idle = [entry for i in range(12) for entry in (Dispatched(i + 1, i), Delivered(i + 1, i))]
    lines = story(Occurred(0, "arrive", "r0"), *idle, Occurred(20, "abort", "r0"))
    assert lines[2] == "iterations 1 to 12"
    assert lines[3].startswith("steps 0 to 11 schedule nothing; 0 running")
    assert len(lines) == 6


def test_long_stories_are_cut_in_the_middle():
    lines = story(*(Occurred(i, "arrive", f"r{i}") for i in range(MAX_LINES)))
    assert len(lines) == MAX_LINES + 1
    assert lines[1] == "r0 arrives" and lines[-1] == f"r{MAX_LINES - 1} arrives"
    assert f"... {MAX_LINES} lines left out ..." in lines


def test_head_and_end():
    text = told(violations=(READ,), verdict=Verdict.VIOLATION)
    assert text.startswith(f"{READ.fingerprint} on vLLM 0.19.0\n  {READ.message}\n")
    assert text.endswith("To see it again\n  schedfuzz replay minimal.json --vllm 0.19.0\n")
    assert told(verdict=Verdict.REJECTED, rejected="too small").startswith(
        "vLLM 0.19.0 refuses this configuration: too small\n"
    )
    assert told(Occurred(0, "arrive", "r0")).startswith(
        "vLLM 0.19.0 keeps every promise that we check, in 1 step\n"
    )


@pytest.mark.parametrize("seed", range(20))
def test_any_scenario_can_be_told(seed):
    scenario = generate(random.Random(seed), frozenset(FEATURES))
    shares = tuple(ScheduledRequest(f"r{i}", "new", 0, 9) for i in range(len(scenario.requests)))
    text = told(Dispatched(0, 0, shares), scenario=scenario)
    assert text == told(Dispatched(0, 0, shares), scenario=scenario)
    assert text.count(" (new) computes [0, 9)") == len(shares)


def test_promises():
    assert promise("O3") == "what a step reads or writes stays owned from the pass that schedules it."
    assert promise("O99") == ""


def test_every_oracle_promises_something():
    from harness.oracles import ALL

    promises = [promise(oracle.family, oracle.__name__) for oracle in ALL]
    assert all(len(promised) > 20 and not promised.startswith("O") for promised in promises)
    assert len(set(promises)) == len(ALL)


def test_grammars_are_told():
    lines = story(Compiled(0, "r0"), Compiled(0, "r1", failed=True), Masked(0, 0, (("r0", 1), ("r2", 3))))
    assert lines == [
        "iteration 0",
        "the grammar of r0 is compiled",
        "the grammar of r1 cannot be compiled",
        "step 0 samples under masks for r0 (1 row), r2 (3 rows)",
    ]


@pytest.mark.parametrize(
    ("grammar", "told_of_it"),
    [
        (Grammar(), "structured: its grammar is compiled after 0 iterations"),
        (Grammar(1, fails=True), "structured: its grammar fails to compile after 1 iteration"),
    ],
)
def test_a_structured_request_is_told(grammar, told_of_it):
    assert told_of_it in told(scenario=replace(SCENARIO, requests=(Request(grammar=grammar),)))


def test_an_operator_s_acts():
    assert story(
        Occurred(0, "reset", detail="prefix and running requests", done=True),
        Occurred(0, "reset", detail="prefix"),
        Occurred(1, "pause", detail="keep"),
        Occurred(2, "paused", detail="keep and caches", done=True),
        Occurred(2, "resume"),
    ) == [
        "iteration 0",
        "reset of the cache: prefix and running requests; it is done",
        "reset of the cache: prefix; it is refused",
        "iteration 1",
        "the engine is paused: keep",
        "iteration 2",
        "the pause is complete: keep and caches",
        "the engine is resumed",
    ]

"""Scenario.engine reaches vLLM's own configuration and scheduler, and vLLM refuses no legal scenario."""

import os
from operator import attrgetter

import pytest
from msgspec.structs import replace

from harness import build, compat, features, presence, submission
from harness.execute import execute
from harness.model import EOS, STOP, Reference
from harness.scenario import Encoder, Engine, Speculative
from harness.trace import Dispatched
from harness.verdict import HarnessError, Verdict
from scenarios import LEGAL, LEGAL_V2, SMALL, generated

pytestmark = pytest.mark.usefixtures("vllm")


def test_no_generated_scenario_is_refused():
    """Legal means: vLLM's own validation lets it through."""
    refused = {}
    for seed, scenario in enumerate(generated(500).values()):
        if presence.lacking().keys() & features.used(scenario):
            continue
        try:
            with compat.model_runner(scenario.engine.model_runner):
                build.engine_core(scenario.engine, None)
        except build.Rejected as refusal:
            refused[seed] = str(refusal)
    assert refused == {}


def test_what_vllm_refuses_is_rejected_and_no_finding():
    """Made past `validate`: without chunking, vLLM wants a budget for a whole model length."""
    illegal = replace(SMALL, enable_chunked_prefill=False, max_num_batched_tokens=16, max_num_seqs=32)
    result = execute(replace(LEGAL["plain"], engine=illegal))
    assert (result.verdict, result.violations, result.steps) == (Verdict.REJECTED, (), 0)
    assert result.rejected


def test_a_refusal_says_why():
    illegal = replace(SMALL, enable_chunked_prefill=False, max_num_batched_tokens=16, max_num_seqs=32)
    assert "max_num_batched_tokens" in execute(replace(LEGAL["plain"], engine=illegal)).rejected


@pytest.mark.parametrize(
    ("change", "place", "value"),
    [
        ({"max_num_seqs": 3}, "max_num_running_reqs", 3),
        ({"max_num_batched_tokens": 17}, "max_num_scheduled_tokens", 17),
        ({"max_model_len": 37}, "max_model_len", 37),
        ({"block_size": 8}, "block_size", 8),
        ({"num_gpu_blocks": 33}, "kv_cache_manager.block_pool.num_gpu_blocks", 33),
        ({"enable_prefix_caching": True}, "kv_cache_manager.enable_caching", True),
        ({"enable_prefix_caching": False}, "kv_cache_manager.enable_caching", False),
        ({"enable_chunked_prefill": True}, "scheduler_config.enable_chunked_prefill", True),
        ({"long_prefill_token_threshold": 7}, "scheduler_config.long_prefill_token_threshold", 7),
        ({"policy": "priority"}, "policy.value", "priority"),
        ({"async_scheduling": True}, "scheduler_config.async_scheduling", True),
        ({"max_num_active_seqs": 2}, "scheduler_config.max_num_active_seqs", 2),
        ({"max_num_active_seqs": 0}, "scheduler_config.max_num_active_seqs", None),
        ({"scheduler_reserve_full_isl": False}, "scheduler_config.scheduler_reserve_full_isl", False),
        ({"watermark": 25}, "scheduler_config.watermark", 0.25),
        ({"prefill_schedule_interval": 3}, "scheduler_config.prefill_schedule_interval", 3),
        ({"data_parallel": True, "prefill_schedule_interval": 3}, "parallel_config.data_parallel_size", 2),
        ({"speculative": Speculative("eagle", 3)}, "num_spec_tokens", 3),
        ({"speculative": Speculative("eagle", 3)}, "num_lookahead_tokens", 3),
        ({"speculative": Speculative("ngram", 3)}, "num_lookahead_tokens", 0),
        ({"encoder": Encoder(5, 9)}, "max_num_encoder_input_tokens", 5),
        ({"encoder": Encoder(5, 9)}, "encoder_cache_manager.cache_size", 9),
        ({"encoder": Encoder(5, 9, True)}, "scheduler_config.disable_chunked_mm_input", True),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_the_configuration_reaches_the_scheduler(change, place, value):
    scheduler = build.engine_core(replace(SMALL, **change), None).scheduler
    assert attrgetter(place)(scheduler) == value


def test_a_sliding_window_is_a_second_group():
    full, window = build.engine_core(
        replace(SMALL, sliding_window=6), None
    ).scheduler.kv_cache_config.kv_cache_groups
    assert type(full.kv_cache_spec).__name__ == "FullAttentionSpec"
    assert window.kv_cache_spec.sliding_window == 6


@pytest.mark.parametrize(
    ("engine", "cls"), [(SMALL, "Scheduler"), (replace(SMALL, async_scheduling=True), "AsyncScheduler")]
)
def test_the_scheduler_is_vllm_s_own(engine, cls):
    core = build.engine_core(engine, None)
    assert type(core.scheduler).__name__ == cls
    assert type(core.scheduler).__module__.startswith("vllm.")
    assert (core.batch_queue is not None) == engine.async_scheduling


@pytest.mark.parametrize("method", ["eagle", "mtp", "ngram"])
def test_only_a_drafter_with_a_model_looks_ahead(method):
    engine = Engine(speculative=Speculative(method, 2))
    scheduler = build.engine_core(engine, None).scheduler
    assert scheduler.num_spec_tokens == 2
    assert bool(scheduler.use_eagle) == (method != "ngram")


def test_a_request_is_what_the_front_end_would_submit():
    scenario = LEGAL["mm"]
    reference = Reference(scenario, 0)

    def data(identity: int, length: int) -> str:
        return f"{length} embeddings of image {identity}"

    request = submission.request(scenario, 0, reference, 3.0, None, data)
    assert (request.request_id, request.arrival_time) == ("r0", 3.0)
    assert list(request.prompt_token_ids) == reference.tokens[: reference.prompt_length]
    places = [(f.mm_position.offset, f.mm_position.length, f.identifier) for f in request.mm_features]
    assert places == [(6, 6, "image-0"), (14, 8, "image-1")]
    assert [f.data for f in request.mm_features] == ["6 embeddings of image 0", "8 embeddings of image 1"]
    assert request.sampling_params.max_tokens == scenario.requests[0].max_tokens


def test_a_request_has_its_adapter():
    scenario = LEGAL["lora"]
    adapters = [
        submission.request(scenario, index, Reference(scenario, index), 0.0, None, lambda *_: {}).lora_request
        for index in range(3)
    ]
    assert adapters[0] is None
    assert [(adapter.lora_int_id, adapter.lora_name) for adapter in adapters[1:]] == [
        (1, "adapter-1"),
        (2, "adapter-2"),
    ]
    assert build.vllm_config(scenario.engine).lora_config.max_loras == 1


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_a_request_stops_where_its_parameters_say(ignore_eos):
    stopping = LEGAL["stop"]
    requests = (replace(stopping.requests[0], ignore_eos=ignore_eos), *stopping.requests[1:])
    scenario = replace(stopping, requests=requests)
    params = submission.request(scenario, 0, Reference(scenario, 0), 0.0, None, lambda *_: {}).sampling_params
    assert STOP in params.stop_token_ids
    assert (params.eos_token_id == EOS) is not ignore_eos


def test_a_structured_request_waits_for_its_grammar():
    scenario = LEGAL["grammar"]
    request = submission.request(scenario, 0, Reference(scenario, 0), 0.0, None, lambda *_: {})
    assert request.use_structured_output
    assert request.structured_output_request.structured_output_key[1] == "r0"
    assert "GRAMMAR" in request.status.name or "FSM" in request.status.name


def test_only_what_compiles_grammars_is_ours():
    manager = build.engine_core(SMALL, None).structured_output_manager
    assert type(manager).__module__ == "vllm.v1.structured_output"
    assert type(manager.backend).__module__ == type(manager.executor).__module__ == "harness.peers.grammar"


# -- the model runner ---------------------------------------------------------------------------


def surroundings():
    """What choosing a model runner changes for vLLM."""
    from vllm.config import vllm as config

    return os.environ.get("VLLM_USE_V2_MODEL_RUNNER"), vars(config).get("HAS_TRITON")


@pytest.fixture
def v2(vllm):
    if (missing := presence.lacking().get("v2_runner")) is not None:
        pytest.skip(f"vLLM {vllm}: {missing}")


def test_each_execution_has_the_model_runner_that_its_scenario_says(v2, monkeypatch):
    """Both in one process, in turn; what is cached for one does not serve the other."""
    before, make = surroundings(), build.engine_core
    made = []
    monkeypatch.setattr(build, "engine_core", lambda *arguments: made.append(make(*arguments)) or made[-1])
    for scenario in (LEGAL["preemption"], LEGAL_V2["preemption, V2"], LEGAL["preemption"]):
        assert execute(scenario).violations == ()
        assert surroundings() == before
    assert [core.scheduler.use_v2_model_runner for core in made] == [False, True, False]


def test_a_model_runner_is_put_back_also_after_a_failure(v2):
    before = surroundings()
    with pytest.raises(ZeroDivisionError), compat.model_runner("v2"):
        assert surroundings() != before
        1 / 0  # noqa: B018
    assert surroundings() == before


def test_a_configuration_made_without_its_model_runner_is_our_fault(v2):
    with pytest.raises(HarnessError):
        build.engine_core(replace(SMALL, num_gpu_blocks=65, model_runner="v2"), None)
    with compat.model_runner("v2"), pytest.raises(HarnessError):
        build.engine_core(replace(SMALL, num_gpu_blocks=66), None)


def test_resumed_requests_are_told_as_such_though_v2_gets_them_as_new(v2):
    sources = {
        row.source
        for entry in execute(LEGAL_V2["preemption, V2"]).trace.entries
        if isinstance(entry, Dispatched)
        for row in entry.scheduled
    }
    assert sources == {"new", "running", "resumed"}

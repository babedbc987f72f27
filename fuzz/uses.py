"""What a scenario makes use of, in words: for the report of `fidelity`, and for what a known bug needs."""

from harness.groups import has_block_sizes, has_mamba, states_are_cached
from harness.limits import scheduler_fields as limits_of
from harness.scenario import Abort, Engine, Image, Pause, Reset, Resized, Scenario


def uses(scenario: Scenario) -> list[str]:
    """What a scenario has that a plain one has not, in a fixed order."""
    engine, events = scenario.engine, scenario.timeline
    images = any(isinstance(part, Image) for request in scenario.requests for part in request.prompt)
    has = {
        "chunked prefill": engine.enable_chunked_prefill,
        "long prefill threshold": engine.long_prefill_token_threshold > 0,
        "prefix caching": engine.enable_prefix_caching,
        "priority": engine.policy == "priority",
        "aborts": any(isinstance(event, Abort) for event in events),
        "async scheduling": engine.async_scheduling,
        "free interleaving": engine.interleaving == "free",
        "V2 runner": engine.model_runner == "v2",
        "sliding window": engine.sliding_window > 0,
        "mixed groups": bool(engine.kv_cache_groups),
        "Mamba": has_mamba(engine),
        "cached Mamba states": states_are_cached(engine),
        "block sizes": has_block_sizes(engine),
        "multimodal": images,
        "shared names": any(isinstance(part, Resized) for r in scenario.requests for part in r.prompt),
        "reused ids": any(request.same_id_as is not None for request in scenario.requests),
        "grammar": any(request.grammar for request in scenario.requests),
        "forced resets": any(isinstance(e, Reset) and e.reset_running_requests for e in events),
        "encoder resets": any(isinstance(e, Reset) and e.cache == "encoder" for e in events),
        "pauses": any(isinstance(e, Pause) for e in events),
        "pipeline": engine.pipeline_parallel_size > 1,
        "LoRA": any(request.lora for request in scenario.requests),
        "other limits": limits_of(engine) != limits_of(Engine()),
        "min_tokens": any(request.min_tokens for request in scenario.requests),
        "connector": engine.connector is not None,
        "loads": any(request.load for request in scenario.requests),
        "encoder-cache connector": engine.ec_connector is not None,
        "pooling": engine.runner_type == "pooling",
        "prompt logprobs": any(request.prompt_logprobs for request in scenario.requests),
        "failing loads": any(request.load and request.load.failed for request in scenario.requests),
        "sends": any(request.send is not None for request in scenario.requests),
    }
    if engine.speculative is not None:
        has["drafts"] = True
        has[engine.speculative.method] = True
        has[f"{engine.speculative.method} + async"] = engine.async_scheduling
        has["multimodal + spec"] = images
        has["dynamic drafts"] = bool(engine.speculative.num_speculative_tokens_per_batch_size)
    return [name for name, there in has.items() if there]

"""Scenario.requests -> what vLLM's front end hands to the engine core: requests, and the inputs of sessions."""

from collections.abc import Callable
from typing import Any

from harness import compat
from harness.model import EOS, STOP, Reference
from harness.scenario import Request, Scenario, image_hash, lora_name, prompt_length, request_id


def request(
    scenario: Scenario,
    index: int,
    reference: Reference,
    arrival: float,
    hasher: Any,
    item_data: Callable[[int, int], Any],
) -> Any:
    """Request `index` as vLLM's front end would hand it to the scheduler; `arrival` is in iterations.

    `item_data` gives what a multimodal item of an identity and a length carries for the worker.
    """
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    features = [
        compat.construct(
            MultiModalFeatureSpec,
            data=item_data(identity, length),
            modality="image",
            identifier=image_hash(identity),
            mm_hash=image_hash(identity),
            mm_position=PlaceholderRange(offset=offset, length=length),
        )
        for offset, length, identity in reference.items
    ]
    tokens = reference.tokens[: reference.prompt_length]
    resumable = reference.request.chunks is not None
    return _request(
        index, reference.request, tokens, arrival, hasher, features or None, resumable, reference.pools
    )


def update(scenario: Scenario, index: int, turn: Reference | None, arrival: float, hasher: Any) -> Any:
    """The next input of session `index`, whose turn it makes; with None, the end of its inputs, of which vLLM's front
    end says so with a token that nobody computes.
    """
    if turn is None:
        return _request(index, scenario.requests[index], [0], arrival, hasher, None, resumable=False)
    start = turn.prompt_length - prompt_length(turn.request, ())
    tokens = turn.tokens[start : turn.prompt_length]
    return _request(index, turn.request, tokens, arrival, hasher, None, resumable=True)


def _request(
    index: int,
    spec: Request,
    tokens: list[int],
    arrival: float,
    hasher: Any,
    features: Any,
    resumable: bool,
    pools: bool = False,
) -> Any:
    """vLLM's Request, with what it inherits from the scenario's."""
    from vllm.v1.request import Request as VllmRequest

    params, extra = (_pooling if pools else _sampling)(index, spec)
    if resumable:
        extra["resumable"] = True
    return VllmRequest(
        request_id=request_id(index if spec.same_id_as is None else spec.same_id_as),
        prompt_token_ids=tokens,
        sampling_params=None if pools else params,
        pooling_params=params if pools else None,
        arrival_time=arrival,
        mm_features=features,
        priority=spec.priority,
        cache_salt=f"salt-{spec.cache_salt}" if spec.cache_salt else None,
        lora_request=_lora_request(spec.lora),
        block_hasher=hasher,
        **extra,
    )


def _pooling(index: int, spec: Request) -> tuple[Any, dict[str, Any]]:
    """PoolingParams as the front end completes them."""
    from vllm.pooling_params import PoolingParams

    params = PoolingParams(task="embed", skip_reading_prefix_cache=spec.skip_reading_prefix_cache or None)
    return params, compat.set_eos(None, None)


def _sampling(index: int, spec: Request) -> tuple[Any, dict[str, Any]]:
    """SamplingParams, and what a release's Request wants to be told beside them."""
    from vllm.sampling_params import SamplingParams

    params = SamplingParams(
        temperature=0.0,
        max_tokens=spec.max_tokens,
        structured_outputs=_structured_outputs(index) if spec.grammar is not None else None,
        min_tokens=spec.min_tokens,
        ignore_eos=spec.ignore_eos,
        stop_token_ids=[STOP],
        skip_reading_prefix_cache=spec.skip_reading_prefix_cache or None,
        prompt_logprobs=1 if spec.prompt_logprobs else None,
    )
    return params, compat.set_eos(params, None if spec.ignore_eos else EOS)


def _lora_request(adapter: int) -> Any:
    from vllm.lora.request import LoRARequest

    name = lora_name(adapter)
    return LoRARequest(lora_name=name, lora_int_id=adapter, lora_path=name) if adapter else None


def _structured_outputs(index: int) -> Any:
    """What the front end leaves behind of a grammar; ours is a request's name (`harness.peers.grammar`)."""
    from vllm.sampling_params import StructuredOutputsParams

    params = StructuredOutputsParams(grammar=request_id(index))
    params._backend = "xgrammar"
    return params

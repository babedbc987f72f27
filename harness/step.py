"""A SchedulerOutput as the worker receives it: copied field by field at the moment of dispatch.

vLLM's in-process executors pass lists by reference, and the scheduler goes on changing some of them; a real worker in
another process never sees that. Everything that looks at a step later (stub, oracles, trace) looks at this copy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.peers.orders import Orders
from harness.verdict import HarnessError

_NOT_MODELLED = ("ec_manager_metadata", "aux_output_connector_metadata")
"""Other encoder cache managers, and connectors for further outputs: no engine that the language can say makes vLLM use
them."""


@dataclass(frozen=True, slots=True)
class NewRow:
    """A request that the worker does not know yet, or a session's next turn; `block_ids` has a tuple for each group."""

    request: str
    prompt: tuple[int, ...]
    items: tuple[tuple[int, int, str], ...]
    """Multimodal items as (offset, length, hash)."""
    block_ids: tuple[tuple[int, ...], ...]
    computed: int
    stripped: tuple[int, ...] = ()
    """Indices of items that come without the data that the encoder needs."""
    prefill: tuple[int, ...] | None = None
    """All tokens that are known, for the V2 runner: more than the prompt if the request was preempted."""
    lora: int = 0
    """The id of its LoRA adapter, or 0."""


@dataclass(frozen=True, slots=True)
class CachedRow:
    """A request that the worker knows. `all_tokens` is None unless the scheduler sent the tokens again."""

    request: str
    resumed: bool
    new_block_ids: tuple[tuple[int, ...], ...] | None
    computed: int
    num_output: int
    all_tokens: tuple[int, ...] | None
    new_tokens: tuple[int, ...] = ()
    """Known tokens that the step computes; sent to the first stage of a pipeline, which has not sampled them."""


@dataclass(frozen=True, slots=True)
class Step:
    """One scheduling pass, numbered from 0 in order of dispatch."""

    index: int
    iteration: int
    new: tuple[NewRow, ...]
    cached: tuple[CachedRow, ...]
    scheduled: dict[str, int]
    """Tokens per request, in the scheduler's order."""
    total: int
    drafts: dict[str, tuple[int, ...]]
    encoder_inputs: dict[str, tuple[int, ...]]
    freed_encoder: tuple[str, ...]
    finished: tuple[str, ...]
    preempted: tuple[str, ...]
    structured: bool = False
    """Whether a request with a grammar samples; not said, and not needed, up to 0.13."""
    to_draft: int | None = None
    """`num_spec_tokens_to_schedule`: drafts to make after this step; not said up to 0.23."""
    zeroed: tuple[int, ...] = ()
    """Blocks whose memory the worker fills with zeros before it does anything else with them."""
    copies: tuple[tuple[int, int], ...] = ()
    """Blocks that the worker copies after that, (from, to): what is shared is not written (from 0.26)."""
    orders: Orders | None = None
    """What the connector's metadata says; None without metadata."""
    loads_first: bool = True
    """Whether loads start before the forward pass, and not after it (`has_sync_kv_loads`, where a release has it)."""
    skip_drafts: bool = False
    """Nobody can use drafts proposed after this step, so that the V2 runner proposes none (from 0.33)."""
    item_updates: Mapping[str, Mapping[int, bool]] = field(default_factory=dict)
    """Per request and item: whether it has the data for the encoder from now on (V2 runner, from 0.33)."""
    encoder_loads: tuple[str, ...] = ()
    """Hashes of items whose encoder outputs a connector loads."""

    @property
    def computed(self) -> dict[str, int]:
        """`num_computed_tokens` before the step, per scheduled request."""
        return {row.request: row.computed for row in self.new} | {
            row.request: row.computed for row in self.cached
        }

    @property
    def admitted(self) -> dict[str, int]:
        """`num_computed_tokens` of the requests that begin with the step, or go on after a preemption."""
        return {row.request: row.computed for row in self.new} | {
            row.request: row.computed for row in self.cached if row.resumed
        }


def copy_step(output: Any, index: int, iteration: int) -> Step:
    """The step that vLLM's `SchedulerOutput` describes.

    HarnessError if it asks the worker for something that no worker here models: better no verdict than a wrong one.
    """
    for name in _NOT_MODELLED:
        if getattr(output, name, None):
            raise HarnessError(f"SchedulerOutput.{name} is set, and the stub does not model it")
    cached = output.scheduled_cached_reqs
    return Step(
        index=index,
        iteration=iteration,
        new=tuple(
            NewRow(
                request=new.req_id,
                prompt=tuple(new.prompt_token_ids),
                items=tuple(
                    (feature.mm_position.offset, feature.mm_position.length, feature.identifier)
                    for feature in new.mm_features
                ),
                block_ids=tuple(map(tuple, new.block_ids)),
                computed=new.num_computed_tokens,
                stripped=tuple(i for i, feature in enumerate(new.mm_features) if feature.data is None),
                prefill=_tokens(getattr(new, "prefill_token_ids", None)),
                lora=new.lora_request.lora_int_id if new.lora_request else 0,
            )
            for new in output.scheduled_new_reqs
        ),
        cached=tuple(_cached_row(cached, i, request) for i, request in enumerate(cached.req_ids)),
        scheduled=dict(output.num_scheduled_tokens),
        total=output.total_num_scheduled_tokens,
        drafts={request: tuple(ids) for request, ids in output.scheduled_spec_decode_tokens.items()},
        encoder_inputs={request: tuple(ids) for request, ids in output.scheduled_encoder_inputs.items()},
        freed_encoder=tuple(output.free_encoder_mm_hashes),
        finished=tuple(sorted(output.finished_req_ids)),
        preempted=tuple(sorted(output.preempted_req_ids or ())),
        structured=bool(getattr(output, "has_structured_output_requests", False)),
        to_draft=getattr(output, "num_spec_tokens_to_schedule", None),
        zeroed=tuple(getattr(output, "new_block_ids_to_zero", None) or ()),
        copies=tuple(
            (copied.src_block_id, copied.dst_block_id)
            for copied in getattr(output, "kv_cache_block_copies", None) or ()
        ),
        orders=None if output.kv_connector_metadata is None else output.kv_connector_metadata.orders,
        loads_first=getattr(output, "has_sync_kv_loads", True),
        skip_drafts=getattr(output, "skip_drafts", False),
        item_updates={
            request: {index: data is not None for index, data in items.items()}
            for request, items in (getattr(output, "encoder_input_updates", None) or {}).items()
        },
        encoder_loads=getattr(output.ec_connector_metadata, "loads", ()),
    )


def _tokens(ids: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if ids is None else tuple(ids)


def _cached_row(cached: Any, i: int, request: str) -> CachedRow:
    blocks = cached.new_block_ids[i]
    return CachedRow(
        request=request,
        resumed=request in cached.resumed_req_ids,
        new_block_ids=None if blocks is None else tuple(map(tuple, blocks)),
        computed=cached.num_computed_tokens[i],
        num_output=cached.num_output_tokens[i],
        all_tokens=_tokens(cached.all_token_ids.get(request)),
        new_tokens=tuple(cached.new_token_ids[i]) if cached.new_token_ids else (),
    )

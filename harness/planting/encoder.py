"""Plants around the encoder cache. Written for 0.33.0, unless a plant says another release."""

from harness.planting.edits import answer, drop, either, follow, swap
from harness.planting.plant import Edit, Plant

_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_CACHE = "vllm.v1.core.encoder_cache_manager:EncoderCacheManager"
_NO_ROLL_BACK = Edit(
    f"{_SCHEDULER}._free_encoder_inputs",
    swap(
        "request.num_computed_tokens - request.num_output_placeholders",
        "request.num_computed_tokens",
    ),
)

PLANTS = (
    Plant(
        "38907",
        "encoder outputs are let go as soon as the tokens that read them are scheduled",
        (
            Edit(
                f"{_SCHEDULER}._update_after_schedule",
                follow(
                    "request.num_computed_tokens += num_scheduled_token", "self._free_encoder_inputs(request)"
                ),
            ),
            _NO_ROLL_BACK,
        ),
    ),
    Plant(
        "45347",
        "encoder outputs are let go although drafts that may be rejected are all that reaches past them",
        (_NO_ROLL_BACK,),
    ),
    Plant(
        "46315",  # 0.24.0 to 0.29.0; from 0.30.0 on the drafter cannot reach back
        "encoder outputs are let go although the drafter still reads their last position",
        (
            Edit(
                f"{_SCHEDULER}._free_encoder_inputs",
                swap(
                    "start_pos + num_tokens + spec_lookahead",
                    "start_pos + num_tokens",
                ),
            ),
        ),
    ),
    Plant(
        "54284",
        "an item that a request shows several times is let go at its first place",
        (
            Edit(
                f"{_CACHE}.free_encoder_input", drop("if mm_hash in self.request_hash_refs.get(req_id, ()):")
            ),
        ),
    ),
    Plant(
        "57696",
        "an encoder output of another length is taken for the item of that name",
        (Edit(f"{_SCHEDULER}._reject_on_encoder_cache_embed_mismatch", answer("False")),),
    ),
    Plant(
        "29750",  # 0.12.0 to 0.23.0: what raises there reads the token's own embedding from 0.24.0 on
        "a chunk may end before an item that the drafter reads already, with the item not encoded",
        (
            Edit(
                f"{_SCHEDULER}.schedule",
                either(swap("1 if self.use_eagle else 0", "0"), swap("self.num_prefill_lookahead", "0")),
                count=2,
            ),
        ),
    ),
    Plant(
        "23544",
        "an item that a request shows twice in one chunk is paid for twice",
        (
            Edit(
                f"{_SCHEDULER}._try_schedule_encoder_inputs",
                swap("item_identifier in mm_hashes_to_schedule", "False"),
            ),
        ),
    ),
    Plant(
        "12545",
        "a request that ends keeps its encoder outputs",
        (Edit(f"{_SCHEDULER}._free_request", drop("self.encoder_cache_manager.free(request)")),),
    ),
)

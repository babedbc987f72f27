"""O13 hears a SchedulerOutput that does not say what the model runner needs, once."""

import dataclasses

import pytest

from harness.oracles.contract import Contract
from oracles.faults import SCHEDULE, Fault, after, assert_heard, assert_quiet, before, faults
from scenarios import EVICTABLE, SMALL, scenario, text

SINGLE = scenario(SMALL, text(5))
SINGLE_PICTURE = EVICTABLE["sync"]

pytestmark = pytest.mark.usefixtures("vllm")


def say(*kinds):
    return tuple((kind, "SchedulerOutput") for kind in kinds)


def remember_and_repeat():
    told = set()

    def change(_, output):
        output.finished_req_ids = told | output.finished_req_ids
        told.update(output.finished_req_ids)

    return after(change)


def drop_ends(_, output):
    output.finished_req_ids = set()


def end_living(scheduler, output):
    output.finished_req_ids = {next(iter(scheduler.requests))}


def schedule_ended(_, output):
    for request in output.finished_req_ids:
        output.num_scheduled_tokens[request] = 1
        output.total_num_scheduled_tokens += 1


def only_drafts(_, output):
    for request, drafts in output.scheduled_spec_decode_tokens.items():
        output.num_scheduled_tokens[request] = len(drafts)


def encode_for_another(_, output):
    output.scheduled_encoder_inputs["r1"] = [0]


def wrong_total(_, output):
    if output.total_num_scheduled_tokens:
        output.total_num_scheduled_tokens += 1


def lose_new_row(_, output):
    output.scheduled_new_reqs.pop()


def send_as_new_again():
    seen = []

    def change(_, output):
        seen.extend(output.scheduled_new_reqs)
        if not output.scheduled_new_reqs and output.num_scheduled_tokens:
            output.scheduled_new_reqs = [new for new in seen if new.req_id in output.num_scheduled_tokens]

    return after(change)


def send_as_known(_, output):
    """A request that the worker never heard of comes as one that it knows."""
    cached = output.scheduled_cached_reqs
    for new in output.scheduled_new_reqs:
        cached.req_ids.append(new.req_id)
        cached.new_block_ids.append(new.block_ids)
        cached.num_computed_tokens.append(new.num_computed_tokens)
        cached.num_output_tokens.append(0)
    output.scheduled_new_reqs = []


def lose_blocks(_, output):
    cached = output.scheduled_cached_reqs
    cached.new_block_ids = [None for _ in cached.new_block_ids]


def null_blocks(_, output):
    for new in output.scheduled_new_reqs:
        new.block_ids[0][:] = [0] * len(new.block_ids[0])


def skip_a_position(_, output):
    cached = output.scheduled_cached_reqs
    cached.num_computed_tokens = [count + 1 for count in cached.num_computed_tokens]


def resend_nothing(_, output):
    output.scheduled_cached_reqs.all_token_ids.clear()


def resend_others(_, output):
    tokens = output.scheduled_cached_reqs.all_token_ids
    for request in tokens:
        tokens[request] = [token + 1 for token in tokens[request]]


def resume_without_table(_, output):
    cached = output.scheduled_cached_reqs
    cached.new_block_ids = [
        None if request in cached.resumed_req_ids else ids
        for request, ids in zip(cached.req_ids, cached.new_block_ids, strict=True)
    ]


def keep_last_output(original, scheduler, state, update):
    """A session's next turn goes on with an output that it should have discarded."""
    last = state.all_token_ids[-1]
    original(scheduler, state, update)
    state.prompt_token_ids.insert(len(state.prompt_token_ids) - len(update.prompt_token_ids), last)


def change_new(**values):
    """Fields of every request that is sent as new."""

    def change(_, output):
        for row in output.scheduled_new_reqs:
            for name, value in values.items():
                setattr(row, name, value(getattr(row, name)))

    return after(change)


def rename_items(features):
    return [dataclasses.replace(feature, identifier=f"not {feature.identifier}") for feature in features]


def schedule_nothing(_, output):
    output.num_scheduled_tokens["r1"] = 0


def encode_what_is_not_there(_, output):
    output.scheduled_encoder_inputs["r0"] = [7]


def without_metadata(_, output):
    output.kv_connector_metadata = None


def raise_length(scheduler):
    """The scheduler takes the model's length for more than it is."""
    scheduler.max_model_len = scheduler.kv_cache_manager.max_model_len = 64


FAULTS = {
    "another adapter": Fault(
        SCHEDULE, change_new(lora_request=lambda _: None), "lora", say("adapter-changed")
    ),
    "other items": Fault(
        SCHEDULE, change_new(mm_features=rename_items), SINGLE_PICTURE, say("items-changed")
    ),
    "another prompt": Fault(
        SCHEDULE,
        change_new(prompt_token_ids=lambda ids: [*ids[:-1], ids[-1] + 1]),
        SINGLE,
        say("prompt-differs"),
    ),
    "a prompt cut short": Fault(
        SCHEDULE, change_new(prompt_token_ids=lambda ids: ids[:-1]), SINGLE, say("prompt-differs")
    ),
    "blocks that are not there": Fault(
        SCHEDULE,
        change_new(block_ids=lambda tables: tuple([block + 1000 for block in ids] for ids in tables)),
        SINGLE,
        say("block-beyond-cache"),
    ),
    "no tokens": Fault(SCHEDULE, after(schedule_nothing, call=0), "plain", say("no-tokens")),
    "encoder input that is not there": Fault(
        SCHEDULE, after(encode_what_is_not_there, call=0), SINGLE_PICTURE, say("unknown-encoder-input")
    ),
    "no word to the connector": Fault(
        SCHEDULE, after(without_metadata), "connector_sync", say("no-connector-metadata")
    ),
    "longer than the model": Fault(
        SCHEDULE, before(raise_length), "max_model_len", say("sampled-past-model-length")
    ),
    "last output of a turn kept": Fault(
        "Scheduler._update_request_as_session", keep_last_output, "streaming", say("session-prompt-differs")
    ),
    "end told twice": Fault(SCHEDULE, remember_and_repeat(), "plain", say("finished-twice")),
    "end not told": Fault(SCHEDULE, after(drop_ends), "plain", say("finish-not-told")),
    "end of a live request": Fault(
        SCHEDULE, after(end_living, call=1), "plain", say("live-request-finished")
    ),
    "over and scheduled": Fault(SCHEDULE, after(schedule_ended), "plain", say("ended-request-scheduled")),
    "drafts only": Fault(SCHEDULE, after(only_drafts), "spec_eagle", say("drafts-fill-step")),
    "encoder input of nobody": Fault(
        SCHEDULE, after(encode_for_another, call=0), SINGLE_PICTURE, say("unscheduled-data")
    ),
    "wrong total": Fault(SCHEDULE, after(wrong_total), "plain", say("wrong-total")),
    "scheduled without data": Fault(SCHEDULE, after(lose_new_row, call=0), "plain", say("rows-differ")),
    "new and known": Fault(SCHEDULE, send_as_new_again(), "plain", say("new-request-known")),
    "known and never heard of": Fault(SCHEDULE, after(send_as_known, call=0), SINGLE, say("unknown-request")),
    "blocks not sent": Fault(SCHEDULE, after(lose_blocks), "chunked", say("write-missing-block")),
    "null blocks": Fault(SCHEDULE, after(null_blocks), "plain", say("write-null-block")),
    "a position skipped": Fault(SCHEDULE, after(skip_a_position), SINGLE, say("stale-token")),
    "tokens not resent": Fault(SCHEDULE, after(resend_nothing), "async_preemption", say("tokens-not-resent")),
    "wrong tokens resent": Fault(SCHEDULE, after(resend_others), "async_preemption", say("stale-token")),
    "resumed without a table": Fault(
        SCHEDULE, after(resume_without_table), "preemption", say("resumed-without-blocks")
    ),
}


def test_is_quiet_on_legal_scenarios(legal):
    assert_quiet(Contract, legal)


@faults(FAULTS)
def test_hears(monkeypatch, fault):
    assert_heard(monkeypatch, Contract, fault)

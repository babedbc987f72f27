"""O8 hears every token too many, too few or wrong, and every end that is not the one and right one."""

import pytest

from harness.oracles.outputs import Outputs
from harness.scenario import Arrive, Close
from oracles.faults import (
    UPDATE,
    Fault,
    after,
    assert_heard,
    assert_quiet,
    faults,
    heard,
    outputs_of,
    plant,
    skipped,
)
from scenarios import PICTURE, RENAMED, SMALL, VISION, scenario, session, text

pytestmark = pytest.mark.usefixtures("vllm")

TOKENS = "EngineCoreOutput.new_token_ids"
ONE = scenario(SMALL, text(5, 3))


def each(change):
    """Changes every output that `update_from_output` returns."""
    return after(lambda _, result: [change(output) for output in outputs_of(result)])


def on_last(change):
    """Changes the output that ends a request."""
    return each(lambda output: change(output) if output.finish_reason is not None else None)


def twice(output):
    output.new_token_ids = output.new_token_ids * 2


def lose(output):
    output.new_token_ids = []


def corrupt(output):
    output.new_token_ids = [token + 1 for token in output.new_token_ids]


def stopped_instead(output):
    from vllm.v1.engine import FinishReason

    output.finish_reason = FinishReason.STOP


def end_now(output):
    from vllm.v1.engine import FinishReason

    output.finish_reason = FinishReason.LENGTH


def end_twice(_, result):
    for client in result.values():
        client.outputs += [output for output in client.outputs if output.finish_reason is not None]


def lose_end(_, result):
    for client in result.values():
        client.outputs = [output for output in client.outputs if output.finish_reason is None]


PARKED = scenario(SMALL, session(5, 3), events=(Arrive(0), Close(0, 9)))
"""A session whose client says no more for a while."""

FAULTS = {
    "output between turns": Fault(
        UPDATE, after(end_twice), PARKED, (("output-between-turns", "update_from_output"),)
    ),
    "turn ended early": Fault(UPDATE, each(end_now), PARKED, (("ended-early", "finish_reason length"),)),
    "token twice": Fault(UPDATE, each(twice), ONE, (("wrong-token", TOKENS),)),
    "last token twice": Fault(UPDATE, on_last(twice), ONE, (("too-many-tokens", TOKENS),)),
    "wrong token": Fault(UPDATE, each(corrupt), "plain", (("wrong-token", TOKENS),)),
    "token lost": Fault(
        UPDATE,
        after(lambda _, result: [lose(output) for output in outputs_of(result)], call=0),
        ONE,
        (("wrong-token", TOKENS),),
    ),
    "last token lost": Fault(UPDATE, on_last(lose), ONE, (("ended-early", "finish_reason length"),)),
    "ended early": Fault(UPDATE, each(end_now), ONE, (("ended-early", "finish_reason length"),)),
    "wrong reason": Fault(
        UPDATE, on_last(stopped_instead), ONE, (("wrong-finish-reason", "stop for length"),)
    ),
    "ended twice": Fault(UPDATE, after(end_twice), ONE, (("output-after-end", "update_from_output"),)),
    "end lost": Fault(UPDATE, after(lose_end), ONE, (("never-finished", "Scheduler.has_requests"),)),
    "abort ignored": Fault(
        "Scheduler.finish_requests", skipped, "abort", (("output-after-end", "update_from_output"),)
    ),
}


def test_is_quiet_on_legal_scenarios(legal):
    assert_quiet(Outputs, legal)


@faults(FAULTS)
def test_hears(monkeypatch, fault):
    assert_heard(monkeypatch, Outputs, fault)


def refuse_all(original, scheduler, request, *_):
    """Every item that is cached has another length, says the scheduler."""
    scheduler.encoder_cache_mismatch_reqs.add(request.request_id)
    return True


def test_an_error_is_right_only_for_a_name_of_two_lengths(monkeypatch):
    shared = scenario(VISION, PICTURE, RENAMED, images=(6,), events=(Arrive(0), Arrive(1, 8)))
    assert heard(shared, Outputs) == []
    plant(monkeypatch, "Scheduler._reject_on_encoder_cache_embed_mismatch", refuse_all)
    alike = scenario(VISION, PICTURE, PICTURE, images=(6,), events=(Arrive(0), Arrive(1, 8)))
    assert heard(alike, Outputs) == [("O8", "ended-early", "finish_reason error")]

"""O16 hears masks that are not the grammar's, grammars that are not where their outputs are, and early starts."""

import pytest
from msgspec.structs import replace

from harness.oracles.grammar import GrammarMasks
from harness.scenario import Grammar
from oracles.faults import SCHEDULE, Fault, after, assert_heard, assert_quiet, before, faults
from scenarios import EAGLE, SMALL, scenario, text

pytestmark = pytest.mark.usefixtures("vllm")

MASK = "Scheduler.get_grammar_bitmask"
FIRST, DRAFTED = "GrammarOutput: first token of a step", "GrammarOutput: after drafts"
STATE = ("state-differs", "StructuredOutputGrammar")
ONE = scenario(SMALL, text(5, 4, grammar=Grammar()))
DRAFTS = scenario(replace(SMALL, speculative=EAGLE), text(5, 8, grammar=Grammar()))
LATE = scenario(replace(SMALL, async_scheduling=True, speculative=EAGLE), text(5, 8, grammar=Grammar()))
SLOW = scenario(SMALL, text(5, 4, grammar=Grammar(delay=3)), text(5, 9, 1))


def no_mask(original, *_):
    """The worker is sent none."""


def open_mask(_, output):
    if output is not None:
        output.grammar_bitmask[:] = -1


def shifted(_, output):
    """Rows go to the request before."""
    if output is not None and len(output.grammar_bitmask) > 1:
        output.grammar_bitmask[:] = output.grammar_bitmask[::-1].copy()


def forgotten(scheduler, output):
    """The mask lacks a request."""
    if output is not None and len(output.structured_output_request_ids) > 1:
        output.grammar_bitmask = output.grammar_bitmask[:1]
        del output.structured_output_request_ids[1:]


def not_advanced(original, manager, request, tokens):
    """The outputs never reach the grammar."""
    return True


def not_rolled_back(original, manager, *arguments):
    """Drafts stay accepted after the mask is filled."""
    from harness.peers.grammar import ScriptedGrammar

    kept = ScriptedGrammar.rollback
    ScriptedGrammar.rollback = lambda *_: None
    try:
        return original(manager, *arguments)
    finally:
        ScriptedGrammar.rollback = kept


def too_early(scheduler):
    """The wait for a grammar is skipped."""
    from vllm.v1.request import RequestStatus

    for request in scheduler.waiting:
        request.status = RequestStatus.WAITING


def drafts_not_told(original, scheduler, *_):
    """Masks are filled for placeholders."""


TWO = scenario(SMALL, text(5, 4, grammar=Grammar()), text(6, 4, 1, grammar=Grammar()))

FAULTS = {
    "no mask": Fault(MASK, no_mask, ONE, (("mask-missing", FIRST),)),
    "an open mask": Fault(MASK, after(open_mask), ONE, (("mask-allows-every-token", FIRST),)),
    "another request's rows": Fault(MASK, after(shifted), TWO, (("mask-allows-other-tokens", FIRST),)),
    "a request without rows": Fault(MASK, after(forgotten), TWO, (("mask-missing", FIRST),)),
    "rows of drafts in disorder": Fault(MASK, after(shifted), DRAFTS, (("mask-allows-other-tokens", FIRST),)),
    "outputs not accepted": Fault("StructuredOutputManager.accept_tokens", not_advanced, ONE, (STATE,)),
    "drafts not taken back": Fault(
        "StructuredOutputManager.grammar_bitmask", not_rolled_back, DRAFTS, (STATE,)
    ),
    "drafts not told": Fault(
        "Scheduler.update_draft_token_ids_in_output",
        drafts_not_told,
        LATE,
        (("mask-allows-every-token", DRAFTED),),
    ),
    "scheduled too early": Fault(
        SCHEDULE, before(too_early, call=0), SLOW, (("scheduled-without-grammar", "Scheduler.schedule"),)
    ),
}


def test_is_quiet_on_legal_scenarios(legal):
    assert_quiet(GrammarMasks, legal)


@faults(FAULTS)
def test_hears(monkeypatch, fault):
    assert_heard(monkeypatch, GrammarMasks, fault)

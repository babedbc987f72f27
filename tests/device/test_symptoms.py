"""What a client would see of the findings that are open in the newest release."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from fuzz.confirm import Confirmation, Status, judge
from fuzz.corpus import read
from fuzz.finding import seen
from harness.scenario import Arrive, Scenario
from harness.target import Target
from scenarios import SAME_PROMPTS

from .conftest import PLATFORM

pytestmark = pytest.mark.device

FINDINGS = Path(__file__).parents[2] / "corpus" / "regressions"
WRONG, HANGS, DIES = "a wrong answer: ", "a hang: ", "the engine dies: "
SHOWS = {
    "hash-of-a-block-that-the-victim-never-wrote": WRONG,
    "item-as-long-as-budget-with-look-ahead": HANGS,
    "item-longer-than-prefill-threshold": HANGS,
    "padded-decode-cut-by-prefill-threshold": DIES + "AssertionError in vllm.v1.core.sched.scheduler",
    "priority-victim-leaves-uncomputed-encoder-entry": DIES
    + "RuntimeError in vllm.v1.worker.gpu_model_runner",
    "state-ahead-of-its-session": WRONG,
    "window-blocks-freed-on-optimistic-count": "",
    "drafter-reads-image-at-chunk-end": "",
}
CUT_DECODE = "O1-exception-bac762cf"


@pytest.fixture
def newest_under_test(device: str) -> Target:
    if device != "0.33.0":
        pytest.skip(f"says what 0.33.0 shows; vLLM {device} is under test")
    return Target(device, device, None)


def confirmed(scenario: Scenario, fingerprint: str, target: Target) -> Confirmation:
    return judge(Path("minimal.json"), fingerprint, scenario, target, PLATFORM)


@pytest.mark.parametrize("name", SHOWS)
def test_symptoms_of_known_findings(newest_under_test: Target, name: str) -> None:
    said = confirmed(read(FINDINGS / f"{name}.json"), "", newest_under_test)
    assert said.status == (Status.CONFIRMED if SHOWS[name] else Status.NOT_VISIBLE)
    assert said.saw.startswith(SHOWS[name]) and said.steps > 0


def test_a_finding_that_needs_one_prompt_to_get_two_answers(newest_under_test: Target) -> None:
    """No network gives them; with one script for both the bug would be another one, or none."""
    assert seen(SAME_PROMPTS, CUT_DECODE) is not None
    assert confirmed(SAME_PROMPTS, CUT_DECODE, newest_under_test).status == Status.NOT_SUPPORTED


def test_what_equal_prompts_do_not_matter_to_is_judged(newest_under_test: Target) -> None:
    """Scripts differ here, too, but the bug stays when one holds for both."""
    late = replace(SAME_PROMPTS.requests[1], eos_at=7)
    scenario = replace(SAME_PROMPTS, requests=(SAME_PROMPTS.requests[1], late, SAME_PROMPTS.requests[2]))
    assert confirmed(scenario, CUT_DECODE, newest_under_test).status == Status.CONFIRMED


def test_what_vllm_refuses_is_not_supported(newest_under_test: Target) -> None:
    """Made past `validate`: without chunking, vLLM wants a budget for a whole model length."""
    engine = replace(SAME_PROMPTS.engine, enable_chunked_prefill=False, max_num_batched_tokens=16)
    said = confirmed(Scenario(1, engine, (), SAME_PROMPTS.requests[:1], (Arrive(0),)), "", newest_under_test)
    assert (said.status, said.steps) == (Status.NOT_SUPPORTED, 0)
    assert said.saw.startswith("vLLM refuses: ") and "max_num_batched_tokens" in said.saw

"""The network's weights for a scenario say what its scripts say, and one prompt has one script."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from harness.model import Reference, drawn, key, wrong_token
from harness.scenario import Encoder, Engine, Image, Request, Scenario, Speculative, Text
from harness.worker.device.answers import answers, mistakes, unified

quick = settings(max_examples=150, deadline=None, derandomize=True)
PROMPTS = (
    (Text(0, 0, 4),),
    (Text(0, 0, 1), Text(0, 1, 3)),  # the same tokens
    (Text(0, 0, 5),),  # one more
    (Text(1, 0, 4),),
    (Image(0),),
    (Image(1),),  # the same tokens, another item
)
spots = st.none() | st.integers(0, 12)
scripts = st.lists(st.integers(0, 8), max_size=4).map(tuple)
requests = st.builds(
    Request,
    prompt=st.sampled_from(PROMPTS),
    max_tokens=st.integers(1, 12),
    eos_at=spots,
    stop_at=spots,
    acceptance=scripts,
)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    engine = Engine(
        max_model_len=32, encoder=Encoder(), speculative=Speculative("eagle", draw(st.integers(1, 8)))
    )
    made = draw(st.lists(requests, min_size=1, max_size=5))
    return Scenario(1, engine, images=(4, 4), requests=tuple(made))


def references(scenario: Scenario) -> list[Reference]:
    return [Reference(scenario, index) for index in range(len(scenario.requests))]


def script(request: Request) -> tuple[object, ...]:
    return request.eos_at, request.stop_at, request.acceptance


@quick
@given(scenarios())
def test_equal_prompts_answer_alike(scenario: Scenario) -> None:
    made = unified(scenario)
    prompts = [tuple(reference.contents) for reference in references(scenario)]
    for index, prompt in enumerate(prompts):
        first = prompts.index(prompt)
        before, after = scenario.requests[index], made.requests[index]
        assert script(after) == script(scenario.requests[first])
        assert replace(before, eos_at=None, stop_at=None, acceptance=()) == replace(
            after, eos_at=None, stop_at=None, acceptance=()
        ), "everything else is the client's"
    assert unified(made) is made
    if len(set(prompts)) == len(prompts):
        assert made is scenario


@quick
@given(scenarios())
def test_the_tables_say_what_the_scripts_say(scenario: Scenario) -> None:
    """A network with these tables, written down without tensors, beside the reference: every token, every draft."""
    made = unified(scenario)
    known = references(made)
    table = answers({f"r{index}": reference for index, reference in enumerate(known)})
    wrong = mistakes(
        {f"r{index}": reference for index, reference in enumerate(known)}, made.engine.speculative
    )
    count = made.engine.speculative.num_speculative_tokens

    def target(fingerprint: int) -> int:
        return table.get(fingerprint, drawn(fingerprint))

    def drafts(fingerprint: int, position: int) -> list[int]:
        said = []
        for at in range(position, position + count):
            token = target(fingerprint)
            said.append(wrong_token(token) if fingerprint in wrong else token)
            fingerprint = (fingerprint + key(min(at, made.engine.max_model_len), said[-1], 0)) % 2**64
        return said

    for reference in known:
        for position in range(reference.prompt_length, reference.max_model_len):
            assert target(reference.content(position - 1)) == reference.token(position)
            if position > reference.prompt_length:
                assert drafts(reference.content(position - 1), position) == reference.drafts(position, count)


def test_without_a_drafter_there_are_no_mistakes() -> None:
    reference = Reference(Scenario(1, requests=(Request(acceptance=(0,)),)), 0)
    assert mistakes({"r0": reference}, None) == frozenset()

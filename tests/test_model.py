"""The reference model: every position is a function of the whole prefix, and of nothing else."""

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.model import EOS, PLACEHOLDER, STOP, VOCABULARY, Reference, mix, stream_token, wrong_token
from harness.scenario import Encoder, Engine, Image, Request, Scenario, Text

quick = settings(max_examples=100, deadline=None, derandomize=True)
words = st.integers(0, 2**64 - 1)


def reference(request: Request, images: tuple[int, ...] = (), engine: Engine | None = None) -> Reference:
    engine = engine or Engine(encoder=Encoder() if images else None)
    return Reference(Scenario(format=1, engine=engine, images=images, requests=(request,)), 0)


@quick
@given(words, words, words)
def test_mix_stays_in_64_bits_and_tells_values_apart(state: int, one: int, other: int) -> None:
    assert 0 <= mix(state, one) < 2**64
    assert (mix(state, one) == mix(state, other)) == (one == other)


@quick
@given(st.integers(0, 7), st.integers(0, 1024))
def test_stream_tokens_are_ordinary(stream: int, index: int) -> None:
    assert STOP < stream_token(stream, index) < VOCABULARY


@quick
@given(st.integers(0, VOCABULARY - 1))
def test_wrong_tokens_are_wrong_and_ordinary(token: int) -> None:
    assert wrong_token(token) != token
    assert STOP < wrong_token(token) < VOCABULARY


@quick
@given(st.integers(1, 40), st.integers(1, 40))
def test_splitting_a_text_changes_nothing(first: int, second: int) -> None:
    whole = reference(Request(prompt=(Text(2, 5, first + second),)))
    split = reference(Request(prompt=(Text(2, 5, first), Text(2, 5 + first, second))))
    assert (whole.tokens, whole.contents) == (split.tokens, split.contents)


@quick
@given(st.integers(1, 30), st.integers(1, 30))
def test_equal_prefixes_have_equal_contents_and_differ_after(shared: int, more: int) -> None:
    one = reference(Request(prompt=(Text(0, 0, shared), Text(1, 0, more))))
    other = reference(Request(prompt=(Text(0, 0, shared), Text(2, 0, more))))
    assert one.contents[:shared] == other.contents[:shared]
    assert not set(one.contents[shared:]) & set(other.contents[shared:])


def test_contents_depend_on_position_in_the_sequence() -> None:
    contents = reference(Request(prompt=(Text(0, 0, 3), Text(0, 0, 3)))).contents
    assert len(set(contents)) == 6


def test_images_are_placeholders_with_contents_of_their_own() -> None:
    prompt = (Text(0, 0, 2), Image(0), Text(0, 2, 1), Image(1))
    one = reference(Request(prompt=prompt), images=(3, 3))
    other = reference(Request(prompt=(Text(0, 0, 2), Image(1), Text(0, 2, 1), Image(0))), images=(3, 3))
    assert one.items == [(2, 3, 0), (6, 3, 1)]
    assert other.items == [(2, 3, 1), (6, 3, 0)]
    assert one.tokens == other.tokens
    assert one.tokens[2:5] == [PLACEHOLDER] * 3
    assert one.contents[:2] == other.contents[:2]
    assert not set(one.contents[2:]) & set(other.contents[2:])
    assert one.prompt_length == 9


def test_outputs_follow_the_prompt_and_do_not_depend_on_the_order_of_questions() -> None:
    forwards, backwards = (reference(Request(prompt=(Text(0, 0, 5),), max_tokens=20)) for _ in range(2))
    tokens = [forwards.token(position) for position in range(25)]
    assert backwards.content(24) == forwards.content(24)
    assert [backwards.token(position) for position in reversed(range(25))] == tokens[::-1]
    assert all(token > STOP for token in tokens)


def test_output_ends_by_length() -> None:
    outputs, reason = reference(Request(prompt=(Text(0, 0, 5),), max_tokens=7)).expected_output()
    assert (len(outputs), reason) == (7, "length")


def test_output_ends_at_max_model_len() -> None:
    outputs, reason = reference(
        Request(prompt=(Text(0, 0, 5),), max_tokens=50), engine=Engine(max_model_len=12)
    ).expected_output()
    assert (len(outputs), reason) == (7, "length")


def test_output_ends_with_eos_unless_ignored() -> None:
    request = Request(max_tokens=9, eos_at=3)
    outputs, reason = reference(request).expected_output()
    assert (len(outputs), outputs[-1], reason) == (4, EOS, "stop")
    ignored, reason = reference(Request(max_tokens=9, eos_at=3, ignore_eos=True)).expected_output()
    assert (len(ignored), ignored[3], reason) == (9, EOS, "length")
    assert ignored[:4] == outputs


def test_output_ends_with_a_stop_token_even_if_eos_is_ignored() -> None:
    request = Request(max_tokens=9, eos_at=1, stop_at=3, ignore_eos=True)
    outputs, reason = reference(request).expected_output()
    assert (len(outputs), outputs[-1], reason) == (4, STOP, "stop")


def test_a_stop_token_in_the_last_place_is_a_stop() -> None:
    assert reference(Request(max_tokens=4, stop_at=3)).expected_output()[1] == "stop"


def test_eos_wins_where_both_are_due() -> None:
    outputs, _ = reference(Request(max_tokens=4, eos_at=2, stop_at=2)).expected_output()
    assert outputs[-1] == EOS


# -- the drafter -----------------------------------------------------------------------------------------------------

scripts = st.lists(st.integers(0, 8), max_size=6).map(tuple)
counts = st.integers(1, 8)


def right(one: Reference, position: int, drafts: list[int]) -> int:
    """How many drafts, from the first, are true."""
    return next((i for i, draft in enumerate(drafts) if draft != one.token(position + i)), len(drafts))


@quick
@given(scripts, counts, st.integers(1, 9))
def test_an_undisturbed_drafting_step_has_as_many_right_drafts_as_its_script_says(
    script: tuple[int, ...], count: int, length: int
) -> None:
    request = Request(prompt=(Text(0, 0, length),), acceptance=script)
    one = reference(request, engine=Engine(max_model_len=256))
    position = length + 1  # the first output is the prefill's
    for at in range(20):
        drafts = one.drafts(position, count)
        scripted = min(script[at % len(script)], count) if script else count
        assert (len(drafts), right(one, position, drafts)) == (count, scripted)
        position += scripted + 1


@quick
@given(scripts, counts, st.permutations(range(6, 40)))
def test_where_the_drafter_errs_belongs_to_the_position(
    script: tuple[int, ...], count: int, asked: list[int]
) -> None:
    """Not to the drafting step that covers it, nor to the order of questions: steps may start anywhere, as a
    preemption or a neighbour moves them."""
    one, other = (reference(Request(prompt=(Text(0, 0, 5),), acceptance=script)) for _ in range(2))
    errors = [position for position in range(6, 60) if one.errs(position, count)]
    for position in asked:
        until_error = next((error - position for error in errors if error >= position), count)
        assert right(other, position, other.drafts(position, count)) == min(until_error, count)
    assert [position for position in range(6, 60) if other.errs(position, count)] == errors


@quick
@given(scripts, counts, st.integers(6, 40))
def test_a_match_ends_with_its_first_wrong_guess(script: tuple[int, ...], count: int, position: int) -> None:
    """As an n-gram search proposes: nothing, or what is right and one more."""
    one = reference(Request(prompt=(Text(0, 0, 5),), acceptance=script))
    drafts = one.drafts(position, count)
    good = right(one, position, drafts)
    assert one.matched(position, count) == (drafts[: good + 1] if good else [])


def test_an_adapter_makes_another_model():
    plain, one, two = (reference(Request(prompt=(Text(0, 0, 4),), lora=lora)) for lora in (0, 1, 2))
    assert plain.tokens[:4] == one.tokens[:4] == two.tokens[:4]
    for position in range(8):
        assert len({known.content(position) for known in (plain, one, two)}) == 3
    assert len({known.token(4) for known in (plain, one, two)}) == 3
    assert one.drafts(5, 3) == [one.token(position) for position in (5, 6, 7)]

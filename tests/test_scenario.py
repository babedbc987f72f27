"""The input language: one spelling, strict decoding that says where, and repair that leaves legal scenarios alone."""

from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.generate import FEATURES, generate
from harness.codec import MAX_BYTES, MAX_DEPTH, ScenarioError, decode, encode, validate
from harness.groups import blocks_needed
from harness.repair import repair
from harness.scenario import (
    MAX_EVENTS,
    Abort,
    Arrive,
    Encoder,
    Engine,
    Event,
    Image,
    Pause,
    Request,
    Reset,
    Resume,
    Scenario,
    Speculative,
    Text,
    content_hash,
    part_length,
    prompt_length,
)

ALL = frozenset(FEATURES)
quick = settings(max_examples=100, deadline=None, derandomize=True)
seeds = st.integers(0, 2**32 - 1)

lengths = st.integers(0, 512)
counts = st.integers(1, 512)
scripts = st.lists(st.integers(0, 8), max_size=16).map(tuple)
indices = st.integers(0, 23)
delays = st.integers(0, 64)
parts = st.one_of(st.builds(Text, st.integers(0, 7), lengths, counts), st.builds(Image, st.integers(0, 7)))
positions = st.none() | lengths
requests = st.builds(
    Request,
    prompt=st.lists(parts, min_size=1, max_size=16).map(tuple),
    max_tokens=counts,
    priority=st.integers(-8, 8),
    ignore_eos=st.booleans(),
    eos_at=positions,
    stop_at=positions,
    acceptance=scripts,
    min_tokens=lengths,
    cache_salt=st.integers(0, 3),
    skip_reading_prefix_cache=st.booleans(),
)
engines = st.builds(
    Engine,
    max_num_seqs=st.integers(1, 32),
    max_num_batched_tokens=counts,
    max_model_len=st.integers(2, 512),
    block_size=st.sampled_from((4, 8, 16, 32)),
    num_gpu_blocks=st.integers(2, 1024),
    enable_prefix_caching=st.booleans(),
    enable_kv_cache_events=st.booleans(),
    enable_chunked_prefill=st.booleans(),
    long_prefill_token_threshold=lengths,
    policy=st.sampled_from(("fcfs", "priority")),
    async_scheduling=st.booleans(),
    sliding_window=lengths,
    speculative=st.none()
    | st.builds(Speculative, st.sampled_from(("eagle", "mtp", "ngram")), st.integers(1, 8)),
    encoder=st.none() | st.builds(Encoder, counts, counts, st.booleans(), st.booleans()),
    interleaving=st.sampled_from(("engine", "free")),
)
events = st.one_of(
    st.builds(Arrive, indices, delays),
    st.builds(Abort, indices, delays, st.booleans()),
    st.builds(Reset, delays, st.sampled_from(("prefix", "encoder")), st.booleans()),
    st.builds(Pause, delays, st.sampled_from(("abort", "wait", "keep")), st.booleans()),
    st.builds(Resume, delays),
)
scenarios = st.builds(
    Scenario,
    format=st.just(1),
    engine=engines,
    images=st.lists(counts, max_size=8).map(tuple),
    requests=st.lists(requests, max_size=4).map(tuple),
    timeline=st.lists(events, max_size=12).map(tuple),
    step_delays=scripts,
)
"""Anything that the types admit, most of it illegal."""


@quick
@given(scenarios)
def test_repair_makes_anything_legal_and_is_idempotent(scenario: Scenario) -> None:
    repaired = repair(scenario)
    assert repair(repaired) == repaired
    validate(repaired)
    assert decode(encode(repaired)) == repaired


@quick
@given(scenarios)
def test_validate_accepts_exactly_what_repair_leaves_alone(scenario: Scenario) -> None:
    try:
        validate(scenario)
    except ScenarioError as error:
        assert str(error).startswith("$.")
        assert "\n" not in str(error)
        assert repair(scenario) != scenario
    else:
        assert repair(scenario) == scenario


@quick
@given(scenarios)
def test_what_vllm_asks_for_holds_after_repair(scenario: Scenario) -> None:
    scenario = repair(scenario)
    engine, images = scenario.engine, scenario.images
    assert engine.max_num_batched_tokens >= engine.max_num_seqs
    assert engine.enable_chunked_prefill or engine.max_num_batched_tokens >= engine.max_model_len
    assert engine.num_gpu_blocks >= blocks_needed(engine)
    assert engine.long_prefill_token_threshold <= engine.max_model_len
    assert not (engine.async_scheduling and engine.speculative and engine.speculative.method == "ngram")
    for request in scenario.requests:
        assert 1 <= prompt_length(request, images) < engine.max_model_len
        for part in request.prompt:
            if isinstance(part, Image):
                assert engine.encoder is not None
                assert part_length(part, images) <= engine.encoder.encoder_cache_size
    arrived = [event.request for event in scenario.timeline if isinstance(event, Arrive)]
    assert len(arrived) == len(set(arrived))


@quick
@given(seeds)
def test_round_trip_and_one_spelling(seed: int) -> None:
    scenario = generate(Random(seed), ALL)
    data = encode(scenario)
    assert decode(data) == scenario
    assert encode(decode(data)) == data
    assert data.endswith(b"}\n")
    assert content_hash(decode(data)) == content_hash(scenario)


def test_equal_scenarios_have_one_spelling_and_one_name() -> None:
    """Whether defaults were written out, left out, or made by `repair`."""
    spellings = [
        b'{"format":1,"requests":[{}]}',
        b'{"format":1,"engine":{},"requests":[{"prompt":[["text"]]}]}',
        b'{"requests":[{"prompt":[["text",0,0,1]],"max_tokens":1}],"engine":{"max_num_seqs":4},"format":1}',
    ]
    decoded = [decode(data) for data in spellings]
    decoded += [repair(decoded[0]), Scenario(format=1, requests=(Request(),))]
    assert len(set(decoded)) == 1
    assert len({encode(scenario) for scenario in decoded}) == 1
    assert len({content_hash(scenario) for scenario in decoded}) == 1


def test_content_hash_is_pinned() -> None:
    """File names and corpora depend on it: a change of the canonical form is a change of the format."""
    scenario = repair(Scenario(format=1, requests=(Request(),), timeline=(Arrive(0, 2),)))
    assert msgspec.json.encode(scenario) == (
        b'{"format":1,"engine":{},"requests":[{"prompt":[["text",0,0,1]]}],'
        b'"timeline":[{"event":"arrive","request":0,"delay":2}]}'
    )


def with_request(text: str) -> bytes:
    return f'{{"format":1,"requests":[{text}]}}'.encode()


BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "$: not JSON"),
    "blank": (b" \n", "$: not JSON"),
    "NUL": (b"\0", "$: not JSON"),
    "NUL at the end": (b'{"format":1}\0', "$: not JSON"),
    "truncated": (b'{"format":1,"engine":{"max_nu', "$: not JSON"),
    "two documents": (b'{"format":1}{"format":1}', "$: not JSON"),
    "UTF-16": ('{"format":1}'.encode("utf-16"), "$: not JSON"),
    "UTF-8 with mark": (b'\xef\xbb\xbf{"format":1}', "$: not JSON"),
    "bad UTF-8": (b'{"format":1,"engine":{"policy":"\xff"}}', "$: not JSON"),
    "NaN": (b"NaN", "$: not JSON"),
    "pickle": (b"\x80\x04K\x01.", "$: not JSON"),
    "deep": (b"[" * 100_000 + b"]" * 100_000, f"$: nested deeper than {MAX_DEPTH}"),
    "large": (b" " * (MAX_BYTES + 1), f"$: {MAX_BYTES + 1} bytes"),
    "array": (b"[]", "$: Expected `object`, got `array`"),
    "no format": (b"{}", "$: Object missing required field `format`"),
    "other format": (b'{"format":2}', "$.format: "),
    "format is a float": (b'{"format":1.0}', "$.format: Expected `int`, got `float`"),
    "unknown field": (b'{"format":1,"engin":{}}', "$: Object contains unknown field `engin`"),
    "unknown field inside": (b'{"format":1,"engine":{"x":1}}', "$.engine: Object contains unknown field `x`"),
    "bool for int": (b'{"format":1,"engine":{"max_num_seqs":true}}', "$.engine.max_num_seqs: Expected `int`"),
    "int for bool": (
        b'{"format":1,"engine":{"async_scheduling":1}}',
        "$.engine.async_scheduling: Expected `bool`",
    ),
    "string for int": (with_request('{"max_tokens":"1"}'), "$.requests[0].max_tokens: Expected `int`"),
    "null": (b'{"format":1,"engine":null}', "$.engine: Expected `object`, got `null`"),
    "zero": (with_request('{"max_tokens":0}'), "$.requests[0].max_tokens: Expected `int` >= 1"),
    "huge": (b'{"format":1,"images":[99999999999999999999999]}', "$.images[0]: Expected `int` <= 512"),
    "huge float": (b'{"format":1,"images":[1e999]}', "$.images[0]: "),
    "block size": (b'{"format":1,"engine":{"block_size":5}}', "$.engine.block_size: Invalid enum value 5"),
    "unknown part": (
        with_request('{"prompt":[["video",0]]}'),
        "$.requests[0].prompt[0][0]: Invalid value 'video'",
    ),
    # msgspec gives no path for this one.
    "part too long": (with_request('{"prompt":[["image",0,1]]}'), "$: Expected `array` of at most length"),
    "no parts": (with_request('{"prompt":[]}'), "$.requests[0].prompt: Expected `array` of length >= 1"),
    "too many": (b'{"format":1,"images":[1,1,1,1,1,1,1,1,1]}', "$.images: Expected `array` of length <= 8"),
    "no such image": (
        with_request('{"prompt":[["image",0]]}'),
        "$.requests[0].prompt[0]: image 0 is not in $.images",
    ),
    "no such request": (
        b'{"format":1,"timeline":[{"event":"arrive","request":3}]}',
        "$.timeline[0].request: 3, but there are 0 requests",
    ),
    "unknown event": (b'{"format":1,"timeline":[{"event":"go","request":0}]}', "$.timeline[0].event: "),
    "eos never reached": (
        with_request('{"prompt":[["text",0,0,1]],"eos_at":5}'),
        "$.requests[0].eos_at: 5 is not",
    ),
    "prompt too long": (
        with_request('{"prompt":[["text",0,0,128]]}'),
        "$.requests[0].prompt[0][3]: 128 is not",
    ),
    "budget": (
        b'{"format":1,"engine":{"max_num_batched_tokens":2},"requests":[{"prompt":[["text",0,0,1]]}]}',
        "$.engine.max_num_batched_tokens: 2 is not legal with the rest of the scenario; 4 would be",
    ),
    "arrives twice": (
        b'{"format":1,"engine":{},"requests":[{"prompt":[["text",0,0,1]]}],'
        b'"timeline":[{"event":"arrive","request":0},{"event":"arrive","request":0}]}',
        "$.timeline: ",
    ),
    "a key twice": (
        b'{"format":1,"engine":{"max_num_seqs":2,"max_num_seqs":3}}',
        "$: an object has the key `max_num_seqs` twice; keep one",
    ),
    "abort of one who never came": (
        b'{"format":1,"requests":[{}],"timeline":[{"event":"abort","request":0}]}',
        "$.timeline: ",
    ),
    "unknown field with a path in its name": (
        b'{"format":1,"engine":{"a - at b":1}}',
        "$.engine: Object contains unknown field `a - at b`",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_errors_name_the_place(name: str) -> None:
    data, beginning = BROKEN[name]
    with pytest.raises(ScenarioError) as caught:
        decode(data)
    message = str(caught.value)
    assert message.startswith(beginning)
    assert "\n" not in message and len(message) < 300


@quick
@given(st.binary(max_size=200))
def test_any_bytes_give_a_scenario_or_a_scenario_error(data: bytes) -> None:
    try:
        decode(data)
    except ScenarioError as error:
        assert str(error).startswith("$")


@quick
@given(seeds, st.data())
def test_any_damage_gives_a_scenario_or_a_scenario_error(seed: int, data: st.DataObject) -> None:
    raw = bytearray(encode(generate(Random(seed), ALL)))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(raw))
    except ScenarioError as error:
        assert str(error).startswith("$")


def test_repair_hands_delays_of_dropped_events_on() -> None:
    scenario = Scenario(
        format=1,
        requests=(Request(), Request()),
        timeline=(Abort(0, 1), Arrive(0, 2), Arrive(0, 3), Arrive(1, 4), Abort(1, 5), Abort(1, 6)),
    )
    assert repair(scenario).timeline == (Arrive(0, 3), Arrive(1, 7), Abort(1, 5))


def test_repair_cuts_prompts_to_the_model_length() -> None:
    request = Request(prompt=(Text(0, 0, 10), Text(1, 0, 10), Text(2, 0, 10)))
    repaired = repair(Scenario(format=1, engine=Engine(max_model_len=16), requests=(request,)))
    assert repaired.requests[0].prompt == (Text(0, 0, 10), Text(1, 0, 5))


def test_repair_raises_encoder_limits_to_the_longest_item() -> None:
    scenario = Scenario(
        format=1,
        engine=Engine(encoder=Encoder(max_num_encoder_input_tokens=1, encoder_cache_size=2)),
        images=(5, 9),
        requests=(Request(prompt=(Image(0), Image(7))),),
    )
    repaired = repair(scenario)
    assert repaired.engine.encoder == Encoder(max_num_encoder_input_tokens=9, encoder_cache_size=9)
    assert repaired.requests[0].prompt == (Image(0), Image(1))


def test_the_canonical_form_is_for_readers():
    """What fits in a line stays in one; what does not has its parts on lines of their own."""
    made = Scenario(
        format=1,
        engine=Engine(max_num_batched_tokens=16, async_scheduling=True),
        images=(3,),
        requests=(
            Request(prompt=(Text(0, 0, 2), Image(0)), max_tokens=3),
            Request(prompt=tuple(Text(stream, 0, 100) for stream in range(7)), max_tokens=7, priority=-1),
        ),
        timeline=(Arrive(0), Arrive(1, 2)),
    )
    assert encode(made).decode() == CANONICAL


CANONICAL = """\
{
 "format": 1,
 "engine": {"max_num_batched_tokens": 16, "async_scheduling": true},
 "images": [3],
 "requests": [
  {"prompt": [["text", 0, 0, 2], ["image", 0]], "max_tokens": 3},
  {
   "prompt": [
    ["text", 0, 0, 100],
    ["text", 1, 0, 100],
    ["text", 2, 0, 100],
    ["text", 3, 0, 100],
    ["text", 4, 0, 100],
    ["text", 5, 0, 100],
    ["text", 6, 0, 100]
   ],
   "max_tokens": 7,
   "priority": -1
  }
 ],
 "timeline": [{"event": "arrive", "request": 0}, {"event": "arrive", "request": 1, "delay": 2}]
}
"""


@quick
@given(scenarios)
def test_who_pauses_resumes_and_pauses_do_not_nest(scenario: Scenario) -> None:
    timeline = repair(scenario).timeline
    what = [event for event in timeline if isinstance(event, Pause | Resume)]
    assert all(isinstance(event, Pause) for event in what[::2])
    assert all(isinstance(event, Resume) for event in what[1::2])
    assert len(what) % 2 == 0
    assert len(timeline) <= MAX_EVENTS


FORCED = Reset(1, "encoder", reset_running_requests=True)
TIMELINES: dict[str, tuple[tuple[Event, ...], tuple[Event, ...]]] = {
    "a pause without an end": ((Arrive(0), Pause(2)), (Arrive(0), Pause(2), Resume())),
    "a pause in a pause": (
        (Pause(1), Pause(2, "keep"), Arrive(0, 3), Resume(1), Resume(4)),
        (Pause(1), Arrive(0, 5), Resume(1)),
    ),
    "an encoder cache has nothing to do with running requests": ((FORCED,), (Reset(1, "encoder"),)),
    "no room for the end": ((*(Reset(),) * 63, Pause()), (Reset(),) * 63),
    "room for the end only": (
        (*(Reset(),) * 62, Pause(), Reset()),
        (*(Reset(),) * 62, Pause(), Resume()),
    ),
}


@pytest.mark.parametrize("name", TIMELINES)
def test_what_repair_makes_of_an_operator_s_acts(name: str) -> None:
    before, after = TIMELINES[name]
    assert repair(Scenario(1, requests=(Request(),), timeline=before)).timeline == after


def test_min_tokens_and_what_would_end_a_request_before_them() -> None:
    request = Request(max_tokens=4, min_tokens=9, eos_at=3, stop_at=4, ignore_eos=True)
    repaired = repair(Scenario(1, requests=(request,))).requests[0]
    assert repaired == Request(max_tokens=4, min_tokens=4)
    kept = Request(max_tokens=4, min_tokens=2, eos_at=2, stop_at=3)
    assert repair(Scenario(1, requests=(kept,))).requests == (kept,)

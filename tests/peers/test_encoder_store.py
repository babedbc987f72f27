"""The encoder-cache connector's scheduler side finds what the script says, when it says so."""

from harness.peers.encoder_store import EncoderStore
from harness.scenario import Encoder, EncoderConnector, Engine, Scenario

ONE, TWO = "image-0", "image-1"


def store(**connector):
    engine = Engine(encoder=Encoder(), ec_connector=EncoderConnector(**connector))
    return EncoderStore(Scenario(1, engine, (6, 8)))


def test_loads_what_is_outside_once():
    outside = store(stored=(1,))
    assert (outside.has(ONE), outside.has(TWO)) == (False, True)
    outside.allocated(ONE)
    outside.allocated(TWO)
    assert outside.loads() == (TWO,)
    assert outside.loads() == ()


def test_a_consumer_saves_nothing():
    outside = store()
    outside.told([ONE])
    assert not outside.has(ONE)


def test_what_is_encoded_is_found_once_the_scheduler_is_told():
    outside = store(ec_role="ec_both")
    outside.told([ONE])
    assert outside.has(ONE)


def test_a_fetch_begins_when_it_is_asked_for_and_takes_its_passes():
    outside = store(stored=(0,), latency=2)
    answers = []
    for _ in range(4):
        answers.append((outside.available([ONE, TWO]), outside.has(ONE), outside.lasts()))
        outside.loads()
    assert answers == [(False, False, True), (False, False, True), (True, True, False), (True, True, False)]


def test_a_second_end_is_protested():
    outside = store()
    outside.end("r0")
    assert not outside.protests
    outside.end("r0")
    assert [protest.kind for protest in outside.protests] == ["finished-twice"]

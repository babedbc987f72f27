"""O5 hears when the encoder cache's counters and references leave what its entries say."""

import pytest
from msgspec.structs import replace

from harness import planting
from harness.execute import execute
from harness.oracles.encoder_accounting import EncoderAccounting
from harness.scenario import Abort, Arrive, Encoder, Image, Request
from harness.trace import Dispatched
from oracles.faults import SCHEDULE, Fault, after, assert_heard, assert_quiet, before, faults, heard, skipped
from scenarios import ALBUM, PICTURE, SMALL, VISION, scenario

pytestmark = pytest.mark.usefixtures("vllm")

CACHE = "EncoderCacheManager"
ABORTED = scenario(VISION, ALBUM, PICTURE, images=(6, 8), events=(Arrive(0), Arrive(1), Abort(0, 1)))
"""An abort between the two chunks that read the second image."""
FEW = scenario(
    replace(VISION, encoder=Encoder(max_num_encoder_input_tokens=8, encoder_cache_size=16)),
    ALBUM,
    PICTURE,
    images=(6, 8),
)
"""An encoder budget for one image a step."""
CUT = scenario(VISION, ALBUM, images=(6, 8))
"""Two chunks read the second image."""
ACROSS = scenario(
    replace(
        SMALL,
        max_num_batched_tokens=48,
        enable_prefix_caching=False,
        enable_chunked_prefill=False,
        encoder=Encoder(
            max_num_encoder_input_tokens=16,
            encoder_cache_size=16,
            disable_chunked_mm_input=True,
            is_encoder_decoder=True,
        ),
    ),
    Request(prompt=(Image(0),), max_tokens=1),
    images=(6,),
)
"""An encoder-decoder model."""
SLOTS = "EncoderDecoderCacheManager.num_free_slots"


def drift(name, by):
    def change(scheduler, _):
        manager = scheduler.encoder_cache_manager
        setattr(manager, name, getattr(manager, name) + by)

    return after(change, call=0)


def forget_freeable(manager, _):
    """An entry without reference leaves the list of those that may go; the counter agrees with the list."""
    while manager.freeable:
        manager.num_freeable_slots -= manager.freeable.popitem()[1]


def load_other(_, output):
    """The worker loads what the scheduler has no entry for."""
    output.ec_connector_metadata.loads += ("image-7",)


def unasked(original, scheduler, *arguments, **keywords):
    """What the connector has is encoded all the same."""
    connector, scheduler.ec_connector = scheduler.ec_connector, None
    found = original(scheduler, *arguments, **keywords)
    scheduler.ec_connector = connector
    return found


def free_of_charge(original, manager, request, index):
    """A loaded item gets an entry, and takes no room."""
    original(manager, request, index)
    if index == 1:
        manager.num_free_slots += 8


def lose_entries(scheduler):
    """The cache forgets what it holds, though a request is in the midst of an item."""
    scheduler.encoder_cache_manager.reset()


def without_budget(original, manager, request, index, budget, *rest):
    return original(manager, request, index, 1 << 20, *rest)


def said(kind, what):
    return ((kind, what),)


FAULTS = {
    "free slots, one more": Fault(
        SCHEDULE, drift("num_free_slots", 1), "mm", said("counter-drift", f"{CACHE}.num_free_slots")
    ),
    "free slots, one fewer": Fault(
        SCHEDULE, drift("num_free_slots", -1), "mm", said("counter-drift", f"{CACHE}.num_free_slots")
    ),
    "freeable slots": Fault(
        SCHEDULE, drift("num_freeable_slots", 1), "mm", said("counter-drift", f"{CACHE}.num_freeable_slots")
    ),
    "freeable list": Fault(
        f"{CACHE}.free_encoder_input",
        after(forget_freeable),
        "mm",
        said("freeable-differs", f"{CACHE}.freeable"),
    ),
    "forgotten in the midst of an item": Fault(
        SCHEDULE, before(lose_entries, call=1), CUT, said("encoded-again", CACHE)
    ),
    "not freed at the end": Fault(
        f"{CACHE}.free", skipped, ABORTED, said("dead-reference", f"{CACHE}.cached")
    ),
    "loaded without an entry": Fault(
        SCHEDULE,
        after(load_other, call=1),
        "encoder_loads",
        said("loaded-without-entry", f"{CACHE}.cached"),
    ),
    "encoded though outside": Fault(
        "Scheduler._try_schedule_encoder_inputs",
        unasked,
        "encoder_loads",
        said("encoded-though-outside", "Scheduler._try_schedule_encoder_inputs"),
    ),
    "loaded free of charge": Fault(
        f"{CACHE}.allocate",
        free_of_charge,
        "encoder_loads",
        said("counter-drift", f"{CACHE}.num_free_slots"),
    ),
    "budget ignored": Fault(
        f"{CACHE}.can_allocate",
        without_budget,
        FEW,
        said("encoder-budget-exceeded", "scheduled_encoder_inputs"),
    ),
}


def test_is_quiet_on_legal_scenarios(legal):
    assert_quiet(EncoderAccounting, legal)


@faults(FAULTS)
def test_hears(monkeypatch, fault):
    assert_heard(monkeypatch, EncoderAccounting, fault)


@pytest.mark.parametrize("by", [17, -17])
def test_hears_of_free_slots_with_an_encoder_decoder_model(monkeypatch, by):
    """With the bug mended that every release has (ledger 51228), for which the oracle would speak anyhow."""
    assert heard(ACROSS, EncoderAccounting) == [("O5", "counter-drift", SLOTS)]
    with planting.planted("mend-51228"):
        fault = Fault(SCHEDULE, drift("num_free_slots", by), ACROSS, said("counter-drift", SLOTS))
        assert_heard(monkeypatch, EncoderAccounting, fault)


def test_a_victim_of_an_encoder_decoder_model_leaves_no_entry():
    """Its manager keeps nothing by name, and has nowhere to look."""
    engine = replace(ACROSS.engine, max_model_len=24, num_gpu_blocks=9)
    listeners = tuple(Request(prompt=(Image(0),), max_tokens=10) for _ in range(3))
    crowded = scenario(engine, *listeners, images=(6,))
    passes = [entry for entry in execute(crowded).trace.entries if isinstance(entry, Dispatched)]
    assert any(entry.preempted for entry in passes)
    assert {said[1:] for said in heard(crowded, EncoderAccounting)} <= {("counter-drift", SLOTS)}

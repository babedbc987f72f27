"""What a scheduler could do to a device's memory shows in the answers: the device's oracle can fail."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from harness.execute import Result, execute
from harness.scenario import Chunked, Full, Image, Request, Text, Window
from harness.step import Step
from harness.worker.interface import Kind
from harness.worker.tandem import Disagreement
from scenarios import LEGAL, SMALL, VISION, scenario, text

pytestmark = pytest.mark.device

MIXED = scenario(replace(SMALL, kv_cache_groups=(Chunked(12), Full(), Full(), Window(6))), text(14, 4))
"""Position 14, the first that is decoded, attends to 12 and later in the first group, to all in two, and to 9 and later
in the last."""
CUT = scenario(VISION, Request(prompt=(Text(0, 0, 12), Image(0)), max_tokens=3), images=(6,))
"""An image across the end of a chunk of 16: two steps read it."""


def shown(result: Result) -> list[tuple[str, str]]:
    return [(violation.oracle, violation.kind) for violation in result.violations]


def unwritten(group: int, position: int) -> Callable[[Any, Step], None]:
    """Takes what is kept for a position of r0 out of the KV cache, before the second step."""
    from harness.worker.device.runner import POISON

    tables: list[tuple[int, ...]] = []

    def change(runner: Any, step: Step) -> None:
        if step.index == 0:
            tables.extend(step.new[0].block_ids)
        elif step.index == 1:
            block = tables[group][position // SMALL.block_size]
            runner.model.model.memories[group].slots[block, position % SMALL.block_size] = POISON

    return change


@pytest.mark.parametrize(
    ("group", "position", "wrong"),
    [
        (0, 12, True),
        (0, 11, False),
        (1, 0, True),
        (1, 13, True),
        (2, 0, True),
        (3, 9, True),
        (3, 8, False),
    ],
    ids=[
        "first of the chunk",
        "outside the chunk",
        "first of the context",
        "last of the context",
        "first of the context in a second group",
        "first of the window",
        "outside the window",
    ],
)
def test_one_slot_of_the_context(plant: Any, group: int, position: int, wrong: bool) -> None:
    assert shown(execute(MIXED, worker=Kind.DEVICE)) == []
    plant(unwritten(group, position))
    assert shown(execute(MIXED, worker=Kind.DEVICE)) == [("O8", "wrong-token")] * wrong


def test_one_slot_of_the_context_in_tandem(plant: Any) -> None:
    """The scheduler has done nothing wrong, so the stub is content: a fault of ours."""
    plant(unwritten(1, 0))
    with pytest.raises(Disagreement, match="step 1 "):
        execute(MIXED, worker=Kind.TANDEM)


def lose(cache: dict[str, torch.Tensor]) -> None:
    cache.clear()


def change(cache: dict[str, torch.Tensor]) -> None:
    cache["image-0"] = cache["image-0"] + 1


@pytest.mark.parametrize(("harm", "symptom"), [(lose, ("O1", "exception")), (change, ("O8", "wrong-token"))])
def test_an_encoder_output_between_two_chunks(plant: Any, harm: Any, symptom: tuple[str, str]) -> None:
    assert shown(execute(CUT, worker=Kind.DEVICE)) == []
    plant(lambda runner, step: harm(runner.encoder_cache) if step.index == 1 else None)
    assert shown(execute(CUT, worker=Kind.DEVICE)) == [symptom]


ADAPTED = scenario(replace(SMALL, max_loras=1), text(6, 6), text(6, 6, lora=1))


@pytest.mark.parametrize("adapters", [(0, 0), (1, 1), (1, 0)])
def test_the_adapters_of_a_step(plant: Any, adapters: tuple[int, int]) -> None:
    """One step under another adapter answers otherwise, whatever the context was computed under."""
    assert shown(execute(ADAPTED, worker=Kind.DEVICE)) == []

    def change(runner: Any, step: Step) -> None:
        if step.index == 2:
            runner.input_batch.request_lora_mapping[:2] = adapters

    plant(change)
    assert shown(execute(ADAPTED, worker=Kind.DEVICE)) == [("O8", "wrong-token")]


def test_every_execution_starts_with_poisoned_caches(plant: Any) -> None:
    """In all memories, also of the drafter, and also after another execution."""
    from harness.worker.device.config import DRAFTER, layer
    from harness.worker.device.runner import POISON

    fresh: list[bool] = []
    memories: set[str] = set()

    def look(runner: Any, step: Step) -> None:
        if step.index == 0:
            fresh.extend(bool((cache == POISON).all()) for cache in runner.kv_caches)
            memories.update(runner.compilation_config.static_forward_context)

    plant(look)
    for name in ("spec_eagle", "sliding_window", "spec_eagle"):
        execute(LEGAL[name], worker=Kind.DEVICE)
    assert memories == {layer(0), layer(1), layer(DRAFTER)}
    assert len(fresh) >= 6 and all(fresh)


def test_a_mask(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It decides what is sampled: here another token than the model's, which the grammar then refuses."""
    from vllm.v1.core.sched.scheduler import Scheduler

    masked = Scheduler.get_grammar_bitmask

    def only_token_five(scheduler: Any, output: Any) -> Any:
        mask = masked(scheduler, output)
        if mask is not None:
            mask.grammar_bitmask[:] = 0
            mask.grammar_bitmask[:, 0] = 1 << 5
        return mask

    assert shown(execute(LEGAL["grammar"], worker=Kind.DEVICE)) == []
    monkeypatch.setattr(Scheduler, "get_grammar_bitmask", only_token_five)
    assert shown(execute(LEGAL["grammar"], worker=Kind.DEVICE))[0] == ("O8", "wrong-token")
    assert shown(execute(LEGAL["grammar"], worker=Kind.TANDEM)) == [("O16", "mask-allows-other-tokens")]

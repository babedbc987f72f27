"""State features: one table, numbers in range, computed from traces alone."""

import ast
import re
import subprocess
import sys
import textwrap

import pytest

from fuzz import feedback
from harness.trace import Compiled, Delivered, Dispatched, Masked, Occurred, ScheduledRequest, Trace


def trace(*entries: Occurred | Dispatched | Delivered) -> Trace:
    made = Trace()
    for entry in entries:
        made.add(entry)
    return made


def step(number: int, *rows: ScheduledRequest, **state: int) -> Dispatched:
    state = {"num_blocks": 64, "free_blocks": 60, "running": len(rows), **state}
    return Dispatched(iteration=number, step=number, scheduled=rows, **state)


LIFE = trace(
    Occurred(0, "arrive", "r0"),
    step(0, ScheduledRequest("r0", "new", 0, 8, encoder_inputs=(0,)), in_flight=1, encoder_free=10),
    Delivered(0, 0, sampled=(("r0", (5,)),)),
    step(1, ScheduledRequest("r0", "running", 8, 3, drafts=2)),
    Delivered(1, 1, sampled=(("r0", (6, 7)),)),
    Occurred(2, "abort", "r0", in_step=True),
    Delivered(2, 2, ended=(("r0", "abort"),)),
)


def names(made: Trace) -> set[str]:
    return {feedback.describe(number) for number in feedback.features(made)}


def test_an_empty_trace_has_no_features() -> None:
    assert feedback.features(Trace()) == frozenset()


def test_every_family_is_declared_once_with_help() -> None:
    declared = [feature.name for feature in feedback.TABLE]
    assert len(set(declared)) == len(declared)
    assert all(re.fullmatch(r"[a-z_]+", feature.name) and feature.help for feature in feedback.TABLE)
    assert sum(feature.size for feature in feedback.TABLE) == feedback.SIZE == 2357


def test_a_life_shows_in_its_families() -> None:
    families = {name.split(":")[0] for name in names(LIFE)}
    assert families >= {"free_blocks", "queues", "drafts", "encoder_cache", "rows", "events", "transitions"}
    assert "drafts:19" in names(LIFE), "two drafts, one accepted"


def test_masks_and_compilations_show() -> None:
    made = trace(Compiled(0, "r0"), Compiled(0, "r1", failed=True), Masked(0, 0, (("r0", 3), ("r2", 1))))
    assert names(made) == {"grammars:32", "grammars:34", "grammars:20"}


def test_features_tell_states_apart() -> None:
    row = ScheduledRequest("r0", "running", 8, 1)
    for this, that in (
        (step(0, row, free_blocks=0), step(0, row, free_blocks=60)),
        (step(0, row, waiting=0), step(0, row, waiting=3)),
        (step(0, row, in_flight=0), step(0, row, in_flight=1)),
        (step(0, row, encoder_freeable=0), step(0, row, encoder_freeable=8)),
        (step(0, row), step(0, ScheduledRequest("r0", "resumed", 8, 1))),
    ):
        assert feedback.features(trace(this)) != feedback.features(trace(that))


def test_extreme_values_stay_in_range() -> None:
    rows = tuple(
        ScheduledRequest(f"r{i}", "resumed", 0, 512, drafts=8, encoder_inputs=(0,) * 9) for i in range(24)
    )
    huge = step(
        0, *rows, in_flight=99, waiting=99, free_blocks=64, encoder_free=10**6, encoder_freeable=10**6
    )
    odd = (
        Delivered(0, 0, sampled=(("r0", tuple(range(20))),), ended=(("r1", "a reason of tomorrow"),)),
        huge,
    )
    numbers = feedback.features(trace(huge, *odd))
    assert all(0 <= number < feedback.SIZE for number in numbers)
    base = 0
    seen = feedback.view(trace(huge, *odd))
    for feature in feedback.TABLE:
        assert all(0 <= number < feature.size for number in feature.function(seen)), feature.name
        base += feature.size
    with pytest.raises(ValueError):
        feedback.describe(feedback.SIZE)


def test_counters_are_one_function_a_feature_and_instrumentation_keeps_behaviour() -> None:
    # In a process of its own: Atheris changes the interpreter's state.
    code = """
        import sys, types
        from fuzz import feedback
        module = types.ModuleType("vllm.v1.core.fake")
        exec(compile('''
        class Thing:
            @property
            def size(self): return 3 if self.big else 1
            @staticmethod
            def double(x): return 2 * x if x else 0
            def __init__(self, big): self.big = big
        def outer(x): return Thing(x).size
        imported = len
        '''.replace("\\n        ", "\\n"), "/fake.py", "exec"), vars(module))
        sys.modules["vllm.v1.core.fake"] = module
        first, again = feedback.instrument(), feedback.instrument()
        counters = feedback.counters()
        print([first, again, len(counters), counters[0](), module.outer(1), module.Thing.double(4)])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert ast.literal_eval(done.stdout) == [4, 4, feedback.SIZE, None, 3, 8]

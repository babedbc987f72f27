"""The free loop: which of the engine's calls it makes in an iteration, and in which order."""

from types import SimpleNamespace

import pytest

from harness.interleaving import FreeLoop


class Scripted:
    """A core of `size` batches at a time whose steps are ready after `delays` iterations; `said` holds the calls."""

    def __init__(self, size, delays, tokens=None, *, drafts=False, late=False, masked=()):
        self.said = []
        self.flights = []
        self.iteration = 0
        self._delays, self._tokens, self._masked = delays, tokens or [1] * len(delays), masked
        self.core = SimpleNamespace(
            batch_queue=None,
            batch_queue_size=size,
            use_spec_decode=drafts,
            async_scheduling=late,
            is_pooling_model=False,
            model_executor=self,
            scheduler=self,
            _process_aborts_queue=lambda: self.said.append("aborts"),
        )
        self.steps = 0

    # -- the scheduler

    def has_requests(self):
        return self.steps < len(self._delays)

    def schedule(self):
        step, self.steps = self.steps, self.steps + 1
        self.said.append(f"schedule {step}")
        return SimpleNamespace(
            step=step,
            total_num_scheduled_tokens=self._tokens[step],
            pending_structured_output_tokens=step in self._masked,
        )

    def get_grammar_bitmask(self, output):
        return output.step

    def update_from_output(self, output, result):
        assert result == output.step
        return result

    def update_draft_token_ids(self, drafts):
        self.said.append(f"drafts of {drafts}")

    def update_draft_token_ids_in_output(self, drafts, output):
        self.said.append(f"drafts of {drafts} for {output.step}")

    # -- the executor

    def execute_model(self, output, non_block):
        assert non_block
        ready = self.iteration + self._delays[output.step]
        self.flights.append(SimpleNamespace(step=output.step, ready=ready))
        self._last = output.step

    def sample_tokens(self, mask, non_block):
        assert non_block
        self.said.append(f"sample {mask}")

    def take_draft_token_ids(self):
        return self._last

    # -- who takes results

    def updated(self, step):
        self.said.append(f"update {step}")
        assert self.flights.pop(0).step == step

    def runs(self, iterations):
        """What is said in each iteration."""
        loop = FreeLoop(self, lambda flight: flight.step, self.updated)
        told = []
        for self.iteration in range(iterations):
            loop.step()
            told.append(self.said[:])
            self.said.clear()
        return told


pytestmark = pytest.mark.usefixtures("vllm")


def step(number):
    return [f"schedule {number}", f"sample {number}"]


def update(number):
    return ["aborts", f"update {number}"]


def test_a_result_is_taken_when_it_is_ready():
    assert Scripted(3, (0, 0)).runs(3) == [[*step(0), *update(0)], [*step(1), *update(1)], []]


def test_a_result_that_is_late_lets_others_begin():
    assert Scripted(3, (2, 0, 0)).runs(5) == [
        step(0),
        step(1),
        [*step(2), *update(0)],
        update(1),
        update(2),
    ]


def test_a_full_queue_waits_for_its_oldest():
    assert Scripted(2, (9, 0, 0)).runs(4) == [
        step(0),
        [*step(1), *update(0)],
        [*step(2), *update(1)],
        update(2),
    ]


def test_who_schedules_nothing_waits():
    assert Scripted(3, (9,)).runs(2) == [step(0), update(0)]
    assert Scripted(3, (9, 9), (1, 0)).runs(2) == [step(0), ["schedule 1", *update(0)]]


def test_a_step_without_tokens_has_nothing_to_sample_and_a_result():
    assert Scripted(3, (9,), (0,)).runs(2) == [["schedule 0", *update(0)], []]


def test_masks_need_all_results_before_them():
    """The step that is to be sampled is not among them."""
    assert Scripted(3, (9, 9, 0), masked=(2,)).runs(4) == [
        step(0),
        step(1),
        ["schedule 2", *update(0), *update(1), "sample 2", *update(2)],
        [],
    ]


def test_drafts_come_with_the_result_of_a_step_that_has_scheduled():
    assert Scripted(1, (0, 0), drafts=True).runs(2) == [
        [*step(0), *update(0), "drafts of 0"],
        [*step(1), *update(1), "drafts of 1"],
    ]


def test_asynchronous_drafts_come_before_the_mask():
    assert Scripted(2, (9, 9), drafts=True, late=True).runs(1) == [
        ["schedule 0", "drafts of 0 for 0", "sample 0"]
    ]


def test_the_engine_s_own_queue_is_used():
    core = Scripted(2, (9,))
    core.core.batch_queue = []
    FreeLoop(core, None, None).step()
    assert [flight.step for _, flight in core.core.batch_queue] == [0]

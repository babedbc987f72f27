"""Stub and device must say the same of every step; what only one of them says is our fault, and no finding."""

from types import SimpleNamespace
from typing import Any

import pytest

from harness.peers.orders import NOTHING, Transfers
from harness.verdict import HarnessError
from harness.worker.observation import Breach, RunnerFailure
from harness.worker.tandem import Disagreement, Tandem, _agree
from worker.steps import step

STEP = step(tokens={"r0": 4, "r1": 1})
TRUTH = {"r0": [], "r1": [7, 8]}
"""r0's prefill is not finished; r1 had a draft accepted."""


class Double:
    """A worker that says what it is told to say; `fails` names the calls that raise."""

    observations: tuple[Breach, ...] = ()
    transfers = NOTHING
    spoiled: frozenset[str] = frozenset()
    adrift: frozenset[str] = frozenset()

    def __init__(
        self,
        sampled: dict[str, list[int]] | None = None,
        drafts: dict[str, list[int]] | None = None,
        **fails: Exception,
    ) -> None:
        self.says = dict(TRUTH if sampled is None else sampled)
        self.drafts = drafts
        self.fails = fails

    def call(self, name: str) -> None:
        if name in self.fails:
            raise self.fails[name]

    def item_data(self, identity: int, length: int) -> Any:
        return self, identity, length

    def execute_model(self, step: Any, scheduler_output: Any) -> Any:
        self.call("execute")
        return self.observations

    def sampled(self, step: Any) -> dict[str, list[int]]:
        return self.says

    def sample_tokens(self, step: Any, grammar_output: Any) -> Any:
        self.call("sample")
        self.output = SimpleNamespace(
            req_ids=list(self.says),
            sampled_token_ids=[list(tokens) for tokens in self.says.values()],
            pooler_output=None,
            prompt_logprobs_dict={},
        )
        output = self.output

        def result() -> Any:
            self.call("result")
            return output

        return result

    def take_drafts(self) -> Any:
        return None if self.drafts is None else (list(self.drafts), list(self.drafts.values()))


def run(stub: Double, device: Double) -> Any:
    """One step, up to its drafts: the output and the drafts."""
    tandem = Tandem(stub, device)
    tandem.execute_model(STEP, None)
    output = tandem.sample_tokens(STEP, None)()
    return output, tandem.take_drafts()


def test_where_both_agree_the_device_s_words_go_on() -> None:
    stub, device = Suspicious(drafts={"r0": [1], "r1": [9]}), Double(drafts={"r0": [2], "r1": [9]})
    tandem = Tandem(stub, device)
    assert tandem.item_data(3, 5) == (device, 3, 5)
    assert tandem.execute_model(STEP, None) is stub.observations
    assert tandem.sample_tokens(STEP, None)() is device.output
    assert tandem.sampled(STEP) == TRUTH
    assert tandem.take_drafts() == (["r0", "r1"], [[2], [9]])


@pytest.mark.parametrize(
    "said",
    [
        {"r0": [], "r1": [7, 9]},
        {"r0": [], "r1": [7]},
        {"r0": [], "r1": [7, 8, 9]},
        {"r0": []},
        {"r0": [5], "r1": [7, 8]},
        {"r0": [], "r1": [7, 8], "r2": [1]},
    ],
    ids=["another token", "one too few", "one too many", "none", "of a prefill", "of a stranger"],
)
def test_other_tokens_are_a_disagreement(said: dict[str, list[int]]) -> None:
    with pytest.raises(Disagreement, match=r"disagree in step 0 \(iteration 0\): r[012] samples") as caught:
        run(Double(), Double(said))
    assert caught.value.step is STEP
    assert isinstance(caught.value, HarnessError)


def test_rows_that_nobody_computed_may_hold_anything() -> None:
    assert _agree([-1, 4], [77, 4]) and _agree(None, None)
    assert not _agree([-1, 4], [77, 5]) and not _agree([4], [4, 5]) and not _agree(None, [4])


def test_other_transfers_are_a_disagreement() -> None:
    stub = Double()
    stub.transfers = Transfers(received=("r0",))
    with pytest.raises(Disagreement, match="the device reports"):
        run(stub, Double())


def test_what_comes_of_a_failed_load_may_be_anything() -> None:
    stub, device = Double(drafts={"r1": [9]}), Double({"r0": [], "r1": [5]}, drafts={"r1": [1]})
    stub.spoiled = frozenset({"r1"})
    assert run(stub, device) == (device.output, (["r1"], [[1]]))


def test_a_result_is_compared_with_its_own_step() -> None:
    """With asynchronous scheduling two steps are dispatched before the first result is taken."""
    stub, device = Double(), Double()
    tandem = Tandem(stub, device)
    results = []
    for token in (7, 8):
        stub.says, device.says = {"r1": [token]}, {"r1": [token]}
        tandem.execute_model(STEP, None)
        results.append(tandem.sample_tokens(STEP, None))
    assert [result().sampled_token_ids for result in results] == [[[7]], [[8]]]


class Suspicious(Double):
    """One that goes on, and says what it does not like."""

    observations = (Breach("kind", "message"),)


@pytest.mark.parametrize("call", ["execute", "sample", "result"])
def test_the_device_alone_raises(call: str) -> None:
    """Wherever it does: also where an asynchronous result is waited for."""
    with pytest.raises(
        Disagreement, match=r"step 0 .*the device raises ValueError \(odd\), the stub does not"
    ):
        run(Double(), Double(**{call: ValueError("odd")}))


def test_the_device_raises_where_the_stub_finds_fault() -> None:
    """The two agree: a step that the stub judges, and goes on with, may end the runner."""
    for call in ("execute", "sample", "result"):
        with pytest.raises(RunnerFailure, match=r"ValueError: odd"):
            run(Suspicious(), Double(**{call: ValueError("odd")}))


def test_the_stub_alone_raises_after_another_fault() -> None:
    """What the runner makes of a step that is wrong already is not modelled."""
    stub = Double(execute=RunnerFailure("no block"))
    stub.observations = (Breach("a", "x", "r0"), Breach("b", "y", "r0", True))
    with pytest.raises(RunnerFailure, match="no block"):
        run(stub, Double())
    with pytest.raises(RunnerFailure, match="no mask"):
        run(Suspicious(sample=RunnerFailure("no mask")), Double())


def test_the_stub_alone_raises() -> None:
    with pytest.raises(Disagreement, match=r"step 0 .*the stub raises \(no block\), the device does not"):
        run(Double(execute=RunnerFailure("no block")), Double())


@pytest.mark.parametrize("call", ["execute", "sample", "result"])
def test_both_raise(call: str) -> None:
    """Then the stub's failure goes on: it comes with observations."""
    failure = RunnerFailure("no block")
    with pytest.raises(RunnerFailure) as caught:
        run(Double(execute=failure), Double(**{call: KeyError("r0")}))
    assert caught.value is failure


def test_the_stub_raises_in_the_second_call() -> None:
    """The device must, too: there or when its result is taken."""
    failure = RunnerFailure("too long")
    for call in ("sample", "result"):
        with pytest.raises(RunnerFailure):
            run(Double(sample=failure), Double(**{call: KeyError("r0")}))
    with pytest.raises(Disagreement, match=r"the stub raises \(too long\), the device does not"):
        run(Double(sample=failure), Double())


@pytest.mark.parametrize(
    "stub", [Double(), Double(execute=RunnerFailure("no block"))], ids=["runs", "raises"]
)
def test_our_own_faults_stay_what_they_are(stub: Double) -> None:
    """A fault of the device's set-up proves nothing about the step."""
    fault = HarnessError("not modelled")
    with pytest.raises(HarnessError) as caught:
        run(stub, Double(execute=fault))
    assert caught.value is fault


def test_other_drafts_of_a_request_that_sampled_are_a_disagreement() -> None:
    with pytest.raises(Disagreement, match=r"step 0 .*the device drafts \[2\] for r1, the stub \[1\]"):
        run(Double(drafts={"r1": [1]}), Double(drafts={"r1": [2]}))
    with pytest.raises(Disagreement, match=r"the device drafts \[2\] for r1, the stub None"):
        run(Double(drafts={}), Double(drafts={"r1": [2]}))


def test_drafts_of_an_unfinished_prefill_are_not_compared() -> None:
    _, drafts = run(Double(drafts={"r0": [1], "r1": [3]}), Double(drafts={"r0": [2], "r1": [3]}))
    assert drafts == (["r0", "r1"], [[2], [3]])


@pytest.mark.parametrize(("ours", "theirs"), [(None, {"r1": [2]}), ({"r1": [2]}, None)])
def test_no_drafts_are_nothing_to_compare(ours: Any, theirs: Any) -> None:
    """Before the first step, and where a release keeps none."""
    _, drafts = run(Double(drafts=ours), Double(drafts=theirs))
    assert drafts == (None if theirs is None else (["r1"], [[2]]))

"""vLLM's own model runner behind the executor seam.

A runner is made new for every scenario: its state is what this scenario made of it.
"""

from collections.abc import Mapping, Sequence, Set
from typing import Any

from harness.model import Reference
from harness.peers.orders import NOTHING, Transfers
from harness.scenario import DEFAULT_DELAY, Scenario
from harness.sessions import all_turns
from harness.step import Step
from harness.worker.device import streams
from harness.worker.device.answers import answers, mistakes
from harness.worker.interface import Result
from harness.worker.observation import Observation


class DeviceWorker:
    """Says nothing but tokens. What the runner raises goes through."""

    observations: Sequence[Observation] = ()
    spoiled: Set[str] = frozenset()
    adrift: Set[str] = frozenset()

    def __init__(self, scenario: Scenario, references: Mapping[str, Reference]) -> None:
        from harness.worker.device import connector, network, ngram
        from harness.worker.device.runner import model_runner

        self._runner = model_runner(scenario.engine)
        truths = all_turns(scenario)
        network.TABLES.fill(
            answers(truths), mistakes(truths, scenario.engine.speculative), self._runner.device
        )
        # The V2 runner calls it a speculator.
        drafter = getattr(self._runner, "drafter", None) or getattr(self._runner, "speculator", None)
        if isinstance(drafter, ngram.Proposer):
            drafter.runner, drafter.references = self._runner, references
        self._mover = connector.mover(self._runner, references)
        connector.give_outputs(self._runner, scenario.images)
        self._delays = scenario.step_delays or (DEFAULT_DELAY,)
        self._output: Any = None

    @property
    def transfers(self) -> Transfers:
        return NOTHING if self._mover is None else self._mover.transfers

    def item_data(self, identity: int, length: int) -> Any:
        from harness.worker.device.features import item_data

        return item_data(identity, length)

    def execute_model(self, step: Step, scheduler_output: Any) -> Sequence[Observation]:
        streams.occupy(self._runner.device, self._delays[step.index % len(self._delays)])
        if self._mover is not None:
            self._mover.begin(step.iteration)
        self._output = _sent(self._runner.execute_model(scheduler_output))
        return ()

    def sampled(self, step: Step) -> dict[str, list[int]]:
        return {}

    def sample_tokens(self, step: Step, grammar_output: Any) -> Result:
        output, self._output = self._output, None
        if output is None:
            output = self._runner.sample_tokens(grammar_output)
        return lambda: output.get_output() if hasattr(output, "get_output") else output

    def reset_mm_cache(self) -> None:
        self._runner.reset_mm_cache()

    def reset_encoder_cache(self) -> None:
        self._runner.reset_encoder_cache()

    def forget(self) -> None:
        from harness.worker.device.runner import poison

        poison(self._runner)

    def take_drafts(self) -> tuple[list[str], list[list[int]]] | None:
        drafts = self._runner.take_draft_token_ids()
        return None if drafts is None else (list(drafts.req_ids), list(map(list, drafts.draft_token_ids)))


def _sent(output: Any) -> Any:
    """A pooling model's result as another process gets it: up to 0.13 it has the runner's own lists of rows."""
    if getattr(output, "pooler_output", None):
        output.req_ids, output.req_id_to_index = list(output.req_ids), dict(output.req_id_to_index)
    return output

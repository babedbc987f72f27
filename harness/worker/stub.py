"""The stub behind the executor seam."""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from harness import compat
from harness.model import Reference
from harness.peers.orders import NOTHING, OrderedIds, Transfers
from harness.scenario import Engine
from harness.step import Step
from harness.worker.forward import Forward
from harness.worker.interface import Result
from harness.worker.masks import Rows, rows_of
from harness.worker.observation import Observation
from harness.worker.prompt_logprobs import Row
from harness.worker.stub_v1 import StubV1
from harness.worker.stub_v2 import StubV2


def stub(engine: Engine, references: Mapping[str, Reference]) -> Forward:
    """The stub of the engine's model runner, with the contract of the release under test."""
    if engine.model_runner == "v2":
        return StubV2(engine, references, compat.runner_traits_v2())
    return StubV1(engine, references, compat.runner_traits())


class StubWorker:
    """Runs a step when it is dispatched, and samples when it is told the masks; its result is only told later."""

    def __init__(self, engine: Engine, references: Mapping[str, Reference]) -> None:
        self.stub = stub(engine, references)
        self._sampled: dict[str, list[int]] = {}

    @property
    def transfers(self) -> Transfers:
        return NOTHING if self.stub.mover is None else self.stub.mover.transfers

    @property
    def spoiled(self) -> Set[str]:
        return self.stub.spoiled

    @property
    def adrift(self) -> Set[str]:
        return self.stub.adrift

    @property
    def observations(self) -> Sequence[Observation]:
        return tuple(self.stub.observations)

    def item_data(self, identity: int, length: int) -> Any:
        return {}

    def execute_model(self, step: Step, scheduler_output: Any) -> Sequence[Observation]:
        self.stub.forward(step)
        return self.observations

    def sampled(self, step: Step) -> dict[str, list[int]]:
        return self._sampled

    def sample_tokens(self, step: Step, grammar_output: Any) -> Result:
        self._sampled = self.stub.sample(step, self._rows(step, grammar_output))
        transfers = None if self.stub.mover is None else self.transfers
        output = runner_output(self._sampled, transfers, self.stub.prompt_logprobs)
        if self.stub.engine.runner_type == "pooling":
            output = pooling_output(step.scheduled, self.stub.pooled)
        return lambda: output

    def reset_mm_cache(self) -> None:
        """There is none."""

    def reset_encoder_cache(self) -> None:
        self.stub.encoder.reset()

    def forget(self) -> None:
        self.stub.kv.forget()

    def take_drafts(self) -> tuple[list[str], list[list[int]]] | None:
        drafts = self.stub.take_drafts()
        return None if drafts is None else (list(drafts), [list(ids) for ids in drafts.values()])

    def _rows(self, step: Step, grammar_output: Any) -> dict[str, Rows]:
        if grammar_output is None:
            return {}
        requests = grammar_output.structured_output_request_ids
        strided = self.stub.masks_are_strided
        rows = rows_of(requests, grammar_output.grammar_bitmask, step.drafts, strided=strided)
        limits = getattr(grammar_output, "num_acceptable_drafts", None)
        if limits is not None and self.stub.grammars_limit_drafts:
            rows = {
                request: rows[request][: 1 + limit] for request, limit in zip(requests, limits, strict=True)
            }
        return rows


def pooling_output(rows: Iterable[str], pooled: Mapping[str, int]) -> Any:
    """vLLM's ModelRunnerOutput for a step of a pooling model."""
    import torch
    from vllm.v1.outputs import ModelRunnerOutput

    requests = list(rows)
    answers = [pooled.get(request) for request in requests]
    return compat.construct(
        ModelRunnerOutput,
        req_ids=requests,
        req_id_to_index={request: i for i, request in enumerate(requests)},
        sampled_token_ids=[],
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[
            None if answer is None else torch.tensor(np.uint64(answer).astype(np.int64)) for answer in answers
        ],
    )


def _logprobs_tensors(rows: Sequence[Row]) -> Any:
    """vLLM's LogprobsTensors; how likely a token is, nobody asks."""
    import torch
    from vllm.v1.outputs import LogprobsTensors

    ids = torch.tensor(rows, dtype=torch.int32).reshape(-1, 2)
    return LogprobsTensors(ids, torch.zeros(ids.shape), torch.zeros(len(rows), dtype=torch.int32))


def runner_output(
    sampled: Mapping[str, Sequence[int]],
    transfers: Transfers | None = None,
    prompt_logprobs: Mapping[str, Sequence[Row]] | None = None,
) -> Any:
    """vLLM's ModelRunnerOutput for what a step sampled, and for what its connector reports if it has one."""
    from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

    connector_output = transfers and KVConnectorOutput(
        finished_sending=OrderedIds(transfers.sent),
        finished_recving=OrderedIds(transfers.received),
        invalid_block_ids=set(transfers.invalid),
    )
    return compat.construct(
        ModelRunnerOutput,
        req_ids=list(sampled),
        req_id_to_index={request: i for i, request in enumerate(sampled)},
        sampled_token_ids=[list(tokens) for tokens in sampled.values()],
        logprobs=None,
        prompt_logprobs_dict={
            request: _logprobs_tensors(rows) for request, rows in (prompt_logprobs or {}).items()
        },
        pooler_output=[],
        kv_connector_output=connector_output,
    )

"""The connector that vLLM's own KVConnectorFactory creates, both sides: hooks that pass on to `external` and `mover`.

Importing this imports vLLM, whose factory does so by the module's name. Nothing is decided here.
"""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)

from harness import compat
from harness.peers.external import External
from harness.peers.mover import Mover
from harness.peers.orders import OrderedIds, Orders, Tables, Transfers
from harness.verdict import HarnessError


class Metadata(KVConnectorMetadata):  # type: ignore[misc]
    """Orders on their way to the worker."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders


class ScriptedConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Both roles; `external` is set on the scheduler's side when it has been made, `mover` on the worker's."""

    external: External
    mover: Mover

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        # KVConnectorBase_V1's constructor logs a warning each time, and has a third argument from 0.12 on only.
        self._vllm_config = vllm_config
        self._kv_transfer_config = vllm_config.kv_transfer_config
        self._kv_cache_config = kv_cache_config
        self._connector_metadata = None
        self._kv_cache_manager = None
        self._role = role

    # -- scheduler side -------------------------------------------------------------------------------------------

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self.external.lookup(request.request_id, num_computed_tokens, request.num_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self.external.allocated(request.request_id, _tables(blocks.get_block_ids()), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Metadata:
        return Metadata(self.external.orders())

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, Any]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, Any]:
        relied_on = request.num_tokens - 1 if request.status.name in _COMPLETE else 0
        return self.external.end(request.request_id, _tables(block_ids), relied_on), None

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        """All of them (asked from 0.32 on): a request's own blocks come, not what a cache of prefixes has."""
        return tuple(range(len(self._kv_cache_config.kv_cache_groups)))

    # -- worker side ----------------------------------------------------------------------------------------------

    def start_load_kv(self, forward_context: Any, **_: Any) -> None:
        metadata = self._get_connector_metadata()
        if not isinstance(metadata, Metadata):
            raise HarnessError(f"the worker got metadata of {type(metadata).__name__}")
        self.mover.start(metadata.orders)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """A synchronous load is over when it is started."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **_: Any) -> None:
        """Sends read the blocks later."""

    def wait_for_save(self) -> None:
        """Nothing is saved within a step."""

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        transfers: Transfers = self.mover.finish()
        return OrderedIds(transfers.sent), OrderedIds(transfers.received)

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        # From 0.30 on the base class's copies the sets.
        sent, received = self.get_finished(finished_req_ids)
        return compat.transfer_results(sent, received)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return set(self.mover.transfers.invalid)


_COMPLETE = ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED")
"""Ends after which somebody uses what was computed."""


def _tables(block_ids: Any) -> Tables:
    return tuple(map(tuple, block_ids))

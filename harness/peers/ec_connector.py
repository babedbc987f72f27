"""The encoder-cache connector that vLLM's own ECConnectorFactory creates, both sides: hooks that pass on to the
`EncoderStore`, and to the one who knows encoder outputs.

Importing this imports vLLM, whose factory does so by the module's name. Nothing is decided here.
"""

from collections.abc import Callable
from typing import Any

from vllm.distributed.ec_transfer.ec_connector.base import ECConnectorBase, ECConnectorMetadata

from harness.peers.encoder_store import EncoderStore
from harness.verdict import HarnessError


class Metadata(ECConnectorMetadata):  # type: ignore[misc]
    """Hashes of what is loaded, on their way to the worker."""

    def __init__(self, loads: tuple[str, ...]) -> None:
        self.loads = loads


class ScriptedEncoderConnector(ECConnectorBase):  # type: ignore[misc]
    """Both roles; `store` is set on the scheduler's side when it has been made, `output` on the worker's."""

    store: EncoderStore
    output: Callable[[str], Any]
    """The encoder output of an item, by its hash."""

    # -- scheduler side -------------------------------------------------------------------------------------------

    def has_cache_item(self, identifier: str) -> bool:
        return self.store.has(identifier)

    def has_caches(self, request: Any) -> list[bool]:
        # Its name up to 0.14.
        return [self.store.has(feature.identifier) for feature in request.mm_features]

    def ensure_cache_available(self, request: Any, num_computed_tokens: int) -> bool:
        return self.store.available(
            feature.identifier
            for feature in request.mm_features
            if feature.mm_position.offset + feature.mm_position.length > num_computed_tokens
        )

    def update_state_after_alloc(self, request: Any, index: int) -> None:
        self.store.allocated(request.mm_features[index].identifier)

    def build_connector_meta(self, scheduler_output: Any) -> Metadata:
        return Metadata(self.store.loads())

    def request_finished(self, request: Any) -> tuple[bool, Any]:
        self.store.end(request.request_id)
        return False, None

    # -- worker side ----------------------------------------------------------------------------------------------

    def start_load_caches(self, encoder_cache: dict[str, Any], **_: Any) -> None:
        metadata = self._get_connector_metadata()
        if not isinstance(metadata, Metadata):
            raise HarnessError(f"the worker got metadata of {type(metadata).__name__}")
        for item in metadata.loads:
            encoder_cache[item] = self.output(item)

    def save_caches(self, encoder_cache: dict[str, Any], mm_hash: str, **_: Any) -> None:
        """The store takes what is encoded when the scheduler is told of it."""

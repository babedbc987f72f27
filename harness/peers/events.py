"""What listens to vLLM's stream of KV cache events: a publisher that keeps batches for whoever asks."""

from typing import Any


class Listener:
    """Stands where an EventPublisher stands; vLLM's own would send each batch to other processes."""

    def __init__(self) -> None:
        self._batches: list[Any] = []

    def publish(self, batch: Any) -> None:
        """A KVEventBatch, as `update_from_output` makes one."""
        self._batches.append(batch)

    def shutdown(self) -> None:
        """Nothing to close."""

    def take(self) -> list[Any]:
        """The events that nobody has taken yet, in order."""
        batches, self._batches = self._batches, []
        return [event for batch in batches for event in batch.events]

"""Encoder outputs in a worker's memory: encoded or loaded, gathered where a step needs them, merged, let go."""

from collections.abc import Callable

from harness.groups import reads_across
from harness.scenario import Engine
from harness.step import Step
from harness.worker.batch import Batch
from harness.worker.observation import Breach, EncoderMiss, EncoderSize, RunnerFailure
from harness.worker.traits import Traits, TraitsV2


class EncoderOutputs:
    """One worker's, by hash of the item; lengths in embeddings. `batch` gives the runner's bookkeeping, which takes
    what is met. RunnerFailure where the real runner raises.
    """

    def __init__(self, engine: Engine, traits: Traits | TraitsV2, batch: Callable[[], Batch]) -> None:
        self._engine = engine
        self._batch = batch
        self._one_spreads = traits.one_embedding_spreads
        self._drafter_falls_back = traits.drafter_falls_back
        self._held: dict[str, int] = {}
        """Length of each output."""
        self._ever: set[str] = set()
        self._encoded: set[tuple[str, str]] = set()
        """Requests and their images that the step in progress has encoded."""
        self._stripped: set[str] = set()
        """Images that could not be encoded, since their data was left out."""
        self._gathered = self._placeholders = 0
        """Embeddings that a window of the step has read, and those that it needs."""

    def reset(self) -> None:
        """What was encoded has gone as if it had been evicted."""
        self._held.clear()

    def free(self, step: Step) -> None:
        """What the scheduler has let go."""
        for image in step.freed_encoder:
            self._held.pop(image, None)

    def load(self, step: Step) -> None:
        """ECConnectorModelRunnerMixin: what a connector loads is there before anything is encoded or gathered."""
        items = (item for cached in self._batch().requests.values() for item in cached.items)
        lengths = {image: length for _, length, image in items}
        self._held.update((image, lengths.get(image, 0)) for image in step.encoder_loads)
        self._ever.update(step.encoder_loads)

    def run(self, step: Step) -> None:
        """Encodes what the step says."""
        self._encoded.clear()
        for request, indices in step.encoder_inputs.items():
            cached = self._batch().requests.get(request)
            if cached is None or not all(0 <= index < len(cached.items) for index in indices):
                message = f"items {indices} of {request} are to be encoded, which the worker does not know"
                raise self._batch().fail(Breach("unknown-encoder-input", message, request, True))
            for index in indices:
                _, length, image = cached.items[index]
                if index in cached.stripped:
                    self._stripped.add(image)  # the runner skips it, and says nothing
                    continue
                self._held[image] = length
                self._ever.add(image)
                self._encoded.add((request, image))

    def gather(self, request: str, start: int, count: int, window: str) -> None:
        """GPUModelRunner._gather_mm_embeddings: every item that overlaps [start, start+count) must be there."""
        if reads_across(self._engine):
            if start == 0:
                self._read_across(request, count)
            return
        end_of_target = start + count - (1 if window == "drafter" else 0)
        for offset, length, image in self._batch().requests[request].items:
            if offset >= start + count or offset + length <= start:
                continue
            if image in self._held:
                stop = min(start + count - offset, length)
                self._read_output(request, window, (offset, length, image), max(0, start - offset), stop)
                continue
            if self._drafter_falls_back and offset >= end_of_target:
                continue
            reason = "evicted" if image in self._ever else "never encoded"
            self._batch().observations.append(
                EncoderMiss(request, image, window, self._unless_stripped(image, reason))
            )
            raise RunnerFailure(f"Encoder cache miss for {image}.")

    def _read_across(self, request: str, count: int) -> None:
        """An encoder-decoder model: what a request's first step encodes is handed to cross-attention, which keeps it.
        Nothing looks for an item that is missing: what others have left is read in its place."""
        for offset, _, image in self._batch().requests[request].items:
            if offset < count and (request, image) not in self._encoded:
                reason = self._unless_stripped(image, "never encoded")
                self._batch().observations.append(EncoderMiss(request, image, "target", reason, fails=False))

    def _unless_stripped(self, image: str, reason: str) -> str:
        return "sent without the data that its encoder needs" if image in self._stripped else reason

    def _read_output(
        self, request: str, window: str, item: tuple[int, int, str], start: int, stop: int
    ) -> None:
        """An item's positions [start, stop) are gathered from the output of its name, as far as that goes."""
        _, length, image = item
        held = self._held[image]
        self._gathered += max(0, min(held, stop) - start)
        self._placeholders += stop - start
        if held != length:
            self._batch().observations.append(EncoderSize(request, image, window, held, length, held < stop))

    def merge(self) -> None:
        """`_merge_multimodal_embeddings`: what a window has gathered must be as much as it has placeholders."""
        gathered, placeholders = self._gathered, self._placeholders
        self._gathered = self._placeholders = 0
        if gathered != placeholders and not (gathered == 1 and self._one_spreads):
            raise RunnerFailure(f"{gathered} embeddings for {placeholders} placeholders")

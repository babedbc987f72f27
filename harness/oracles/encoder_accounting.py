"""O5: encoder cache accounting."""

from typing import Any, ClassVar

from harness.groups import reads_across
from harness.oracles.base import Oracle
from harness.scenario import image_hash
from harness.step import Step
from harness.world import Act, Life


class EncoderAccounting(Oracle):
    """O5: the encoder cache's counters equal what its entries say, and stay inside its limits.

    Promised by EncoderCacheManager's class docstring: `num_free_slots` is the capacity not taken by entries,
    `num_freeable_slots` adds the entries without reference, both between 0 and `cache_size`; references belong to
    requests that live. A step encodes at most the compute budget. An entry stays while a request is in the midst of its
    item ("free only what is processed"), so that nothing is encoded again for the rest of one. With an encoder-decoder
    model, which keeps nothing from step to step, the free slots are as many as there are, at most.

    What a connector has is loaded and not encoded ("it is not exist on remote encoder cache"), into an entry that takes
    room as any other: the worker holds no output of which the scheduler does not know.

    Ledger: 12545, 23544, 51228, 25890, 54284, 57696.
    """

    family: ClassVar[str] = "O5"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._begun: dict[str, tuple[int, set[int]]] = {}
        """Per request, where its last step ended and which items it has met without a break up to there."""
        images = self.world.scenario.images
        self._sizes = {image_hash(identity): size for identity, size in enumerate(images)}
        """Length of the item that was encoded last under each name."""

    def arrived(self, life: Life) -> None:
        self._begun.pop(life.request, None)

    def controlled(self, act: Act) -> None:
        self._begun.clear()  # a reset takes entries that are in use, and means it

    def dispatched(self, step: Step) -> None:
        encoder = self.world.engine.encoder
        if encoder is None:
            return
        sizes = []
        for request, indices in step.encoder_inputs.items():
            reference = self.world.references.get(request)
            items = reference.items if reference else ()
            # What does not exist is O13's.
            encoded = [items[i] for i in indices if 0 <= i < len(items)]
            sizes += [length for _, length, _ in encoded]
            self._sizes |= {image_hash(identity): length for _, length, identity in encoded}
        if sum(sizes) > encoder.max_num_encoder_input_tokens:
            self.report(
                "encoder-budget-exceeded",
                "scheduled_encoder_inputs",
                f"step {step.index} encodes {sum(sizes)} embeddings, the budget is "
                f"{encoder.max_num_encoder_input_tokens}",
                *step.encoder_inputs,
            )
        self._note_victims()
        self._counters()
        self._encoded_again(step)
        self._loaded(step)

    def _note_victims(self) -> None:
        """A request that a pass schedules and then preempts leaves an entry, of its item's length, and no trace in the
        step. Where a name has several lengths, only the entry tells.
        """
        if reads_across(self.world.engine):
            return  # nothing is kept by name
        scheduler = self.world.scheduler
        for request, state in scheduler.requests.items():
            if state.status.name != "PREEMPTED":
                continue
            for _, length, identity in self.world.references[request].items:
                if scheduler.encoder_cache_manager.freeable.get(image_hash(identity)) == length:
                    self._sizes[image_hash(identity)] = length

    def _loaded(self, step: Step) -> None:
        store = self.world.encoder_store
        if store is None:
            return
        for image in step.encoder_loads:
            if image not in self.world.scheduler.encoder_cache_manager.cached:
                self.report(
                    "loaded-without-entry",
                    "EncoderCacheManager.cached",
                    f"step {step.index} loads {image} into the worker's encoder cache, of which the scheduler does "
                    "not know",
                    fatal=False,
                )
        for request, indices in step.encoder_inputs.items():
            items = self.world.references[request].items
            for image in (image_hash(items[index][2]) for index in indices if 0 <= index < len(items)):
                if image in store.offered:
                    self.report(
                        "encoded-though-outside",
                        "Scheduler._try_schedule_encoder_inputs",
                        f"step {step.index} encodes {image} for {request}, which the connector has",
                        request,
                        fatal=False,
                    )

    def _encoded_again(self, step: Step) -> None:
        fresh = step.admitted
        for request, start in step.computed.items():
            end = start + step.scheduled.get(request, 0)
            before, begun = self._begun.get(request, (0, set()))
            if request in fresh or before != start:
                begun = set()
            items = self.world.references[request].items
            for index in step.encoder_inputs.get(request, ()):
                if index in begun and items[index][0] < start:
                    self.report(
                        "encoded-again",
                        "EncoderCacheManager",
                        f"step {step.index}: {request} is at {start}, in the midst of "
                        f"{image_hash(items[index][2])}, which is encoded again",
                        request,
                        fatal=False,
                    )
            met = {
                i for i, (offset, length, _) in enumerate(items) if offset < end and offset + length > start
            }
            self._begun[request] = end, begun | met

    def delivered(self, step: Step, outputs: object) -> None:
        if self.world.engine.encoder is not None:
            self._counters()

    def _counters(self) -> None:
        manager = self.world.scheduler.encoder_cache_manager
        if reads_across(self.world.engine):
            if not 0 <= manager.num_free_slots <= manager.cache_size:
                self.report(
                    "counter-drift",
                    "EncoderDecoderCacheManager.num_free_slots",
                    f"num_free_slots is {manager.num_free_slots}; there are {manager.cache_size}",
                    fatal=False,
                )
            return
        entries = {image: self._sizes[image] for image in manager.cached}
        free = manager.cache_size - sum(entries.values())
        freeable = free + sum(manager.freeable.values())
        for name, found, expected in (
            ("num_free_slots", manager.num_free_slots, free),
            ("num_freeable_slots", manager.num_freeable_slots, freeable),
        ):
            if found != expected or not 0 <= found <= manager.cache_size:
                self.report(
                    "counter-drift",
                    f"EncoderCacheManager.{name}",
                    f"{name} is {found}; the entries leave {expected} of {manager.cache_size}",
                )
        unreferenced = {image for image, users in manager.cached.items() if not users}
        if unreferenced != set(manager.freeable):
            self.report(
                "freeable-differs",
                "EncoderCacheManager.freeable",
                f"entries without reference: {sorted(unreferenced)}; freeable: {sorted(manager.freeable)}",
            )
        users = set().union(*manager.cached.values()) if manager.cached else set()
        dead = sorted(user for user in users if user not in self.world.scheduler.requests)
        if dead:
            self.report(
                "dead-reference", "EncoderCacheManager.cached", f"{dead} have ended but hold entries", *dead
            )

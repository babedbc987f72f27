"""Where the states of Mamba layers are: in which block of a request's table a step finds one and leaves one.

Without prefix caching a group has one block a request, which every step overwrites. With it (mode "align")
the runner works in the block in which the step ends, and copies the state there first if the last step ended in
another one (`mamba_utils.preprocess_mamba`); what it leaves behind, at the end of a block, is what others may hit. Each
draft has a state of its own, in the blocks that follow; the next step starts from the last one that was right, and if a
block's end lies among them, that state is copied to where it is looked for (`postprocess_mamba`).
"""

from collections.abc import Iterable

from harness.groups import state_tokens, states_are_cached
from harness.scenario import Engine
from harness.step import Step

Move = tuple[int, int]
"""From and to which place in the block table a state is copied."""


class States:
    """The runner's `mamba_state_idx` and `num_accepted_tokens`, by request."""

    def __init__(self, engine: Engine, *, resumed_are_forgotten: bool = True) -> None:
        self.cached = states_are_cached(engine)
        self._block_size = state_tokens(engine)
        self._resumed_are_forgotten = resumed_are_forgotten
        self._places: dict[str, int] = {}
        self._accepted: dict[str, int] = {}

    def begin(self, step: Step, added: Iterable[str]) -> None:
        """A step begins; `added` are the requests that it has put into the batch."""
        gone = [*step.finished, *step.preempted]
        if self._resumed_are_forgotten:
            gone += [row.request for row in step.cached if row.resumed]
        for request in gone:
            self._places.pop(request, None)
        for request in added:
            self._accepted.pop(request, None)

    def place(self, request: str, computed: int, count: int) -> Move | None:
        """Chooses where a step of `count` tokens from position `computed` on works; the copy that this takes.

        As `verified`, for cached states only: others have one place.
        """
        before = self._places.get(request, (computed - 1) // self._block_size)
        now = (computed + count - 1) // self._block_size
        self._places[request] = now
        if before in (-1, now):
            return None
        return before + self._accepted.pop(request, 1) - 1, now

    def source(self, request: str) -> int:
        """Place of the state that the step starts from."""
        return self._places.get(request, 0) + self._accepted.get(request, 1) - 1

    def target(self, request: str) -> int:
        """Place of the state that the step leaves, its drafts aside; those follow."""
        return self._places.get(request, 0)

    def verified(self, request: str, running: int, accepted: int) -> Move | None:
        """A step has sampled `accepted` tokens; without its drafts it ended at position `running`."""
        self._accepted[request] = accepted
        aligned = (running + accepted - 1) // self._block_size * self._block_size
        if aligned < running:
            return None
        source, target = self._places[request], aligned // self._block_size - 1
        if source == target:
            self._accepted[request] = 1
        source += aligned - running
        return (source, target) if source != target else None

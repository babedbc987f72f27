"""What is in flight: CUDA's streams and events, or their show on a CPU, where work is done when it is issued.

The runner's asynchronous paths use them whatever the device; vLLM's CPU worker of newer releases puts placeholders
there when it is imported, and `ignore` does the same for all.
"""

import functools
from typing import Any

import torch


class _Nothing:
    """An event, or a stream."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = torch.device("cpu")

    def _nothing(self, *_: Any, **__: Any) -> None:
        """All is done already."""

    record = wait = synchronize = wait_stream = wait_event = record_event = _nothing

    def query(self) -> bool:
        return True

    def __enter__(self) -> "_Nothing":
        return self

    def __exit__(self, *_: Any) -> None:
        """Nothing to leave."""


CYCLES = 2_000_000
"""One iteration's delay on CUDA: about a millisecond, several times what the steps of our network take, so that the
next step is scheduled, and blocks are freed and reused, while this one still runs."""


def occupy(device: torch.device, iterations: int) -> None:
    """Keeps a CUDA device busy before a step's kernels, as a larger model would; nothing on a CPU, where no step is
    ever in flight when the next one is scheduled.
    """
    if device.type == "cuda" and iterations:
        torch.cuda._sleep(CYCLES * iterations)


def _tensor(
    make: Any, *arguments: Any, pin_memory: bool = False, device: Any = None, **named: Any
) -> torch.Tensor:
    return make(*arguments, device=None if device == "cuda" else device, **named)


def ignore() -> None:
    """Makes streams, events and page locking do nothing, in this process and for good."""
    torch.Event = torch.cuda.Event = torch.cuda.Stream = _Nothing
    torch.cuda.current_stream = torch.cuda.stream = lambda *_, **__: _Nothing()
    torch.cuda.set_stream = torch.cuda.synchronize = lambda *_, **__: None
    torch.Tensor.pin_memory = lambda self, *_, **__: self
    torch.Tensor.record_stream = lambda *_, **__: None
    # Up to 0.16 masks' indices ask for locked pages in so many words, and addresses of Mamba states for CUDA.
    if not isinstance(torch.tensor, functools.partial):
        torch.tensor = functools.partial(_tensor, torch.tensor)

"""vLLM's own Triton kernels, run by Triton's interpreter, beside our stand-ins; in a process of its own.

    TRITON_INTERPRET=1 python interpreted.py VERSION < scenarios.jsonl

Both get the same memory, and must leave the same behind. The V1 runner's kernels are launched with random arguments
(`launches.py`), those of the V2 runner as it launches them while it runs the scenarios. The answer is one JSON object
on standard output: for each kernel that has a stand-in how often it was launched, and the arguments whose memory
differed; and what the scenarios showed. The interpreter has to be chosen before anything imports Triton.
"""

import json
import logging
import sys
from random import Random
from types import SimpleNamespace
from typing import Any

import torch
from launches import KERNELS

from harness import compat, target
from harness.codec import decode
from harness.execute import execute
from harness.worker.interface import Kind

LAUNCHES = 40
ADDRESSED: dict[int, torch.Tensor] = {}
"""Tensors whose address was asked for: so a kernel gets several at once."""
report: dict[str, list[Any]] = {}


def remember_addresses() -> None:
    data_ptr = torch.Tensor.data_ptr

    def remembered(tensor: torch.Tensor) -> int:
        address = data_ptr(tensor)
        ADDRESSED[address] = tensor
        return address

    torch.Tensor.data_ptr = remembered  # type: ignore[method-assign]


def memory(arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The bytes that each argument leads to: the whole storage of a tensor, and of those that it holds addresses of."""
    reached = {}
    for name, value in arguments.items():
        if not torch.is_tensor(value):
            continue
        reached[name] = value
        if value.dtype in (torch.uint64, torch.int64):
            for at, address in enumerate(value.flatten().tolist()):
                if address in ADDRESSED:
                    reached[f"{name}[{at}]"] = ADDRESSED[address]
    return {
        name: torch.tensor([], dtype=torch.uint8).set_(tensor.untyped_storage())
        for name, tensor in reached.items()
    }


def name_of(kernel: Any) -> str:
    return f"{kernel.fn.__module__}:{kernel.fn.__qualname__}"


def compare(kernel: Any, stand_in: Any, grid: Any, arguments: dict[str, Any]) -> None:
    """Lets the kernel do its work, undoes that, and lets the stand-in do it."""
    reached = memory(arguments)
    before = {name: kept.clone() for name, kept in reached.items()}
    kernel[grid](**arguments)
    theirs = {name: kept.clone() for name, kept in reached.items()}
    for name, kept in reached.items():
        kept.copy_(before[name])
    stand_in(**arguments)
    said = report[name_of(kernel)]
    said[0] += 1
    said[1] = sorted({*said[1], *(at for at in reached if not torch.equal(reached[at], theirs[at]))})


def beside(stand_in: type[Any]) -> type[Any]:
    """A stand-in that compares itself with its kernel whenever it is launched."""

    class Beside(stand_in):  # type: ignore[misc]
        def __init__(self, kernel: Any, function: Any) -> None:
            assert type(kernel).__name__ == "InterpretedFunction"
            super().__init__(kernel, function)
            self.kernel = kernel
            report.setdefault(name_of(kernel), [0, []])

        def __getitem__(self, grid: Any) -> Any:
            ours = super().__getitem__(grid)

            def launch(*positional: Any, **named: Any) -> None:
                arguments = dict(zip(self.arg_names, positional, strict=False)) | named
                known = {name: value for name, value in arguments.items() if name in self.arg_names}
                compare(self.kernel, ours, grid, known)

            return launch

    return Beside


def launch_at_random(place: str) -> None:
    """Launches of what `module:name` names, if this release has it."""
    module, _, names = place.partition(":")
    first, *rest = names.split(".")
    found = compat.optional(module, first)
    for name in rest:
        found = getattr(found, name, None)
    for seed in range(LAUNCHES if found is not None else 0):
        grid, made = KERNELS[place](Random(seed))
        found[(grid,)](**{name: made[name.removesuffix("_ptr")] for name in found.arg_names})


def main() -> None:
    from triton.backends import backends

    # vLLM uses Triton where it finds one device for it; the interpreter needs none.
    backends.clear()
    backends["interpreter"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))
    answers, sys.stdout = sys.stdout, sys.stderr
    target.activate(target.resolve(sys.argv[1]), target.Platform.CPU)
    logging.disable(logging.CRITICAL)
    remember_addresses()
    from harness.worker.device.kernels import launch, v1

    launch.StandIn = beside(launch.StandIn)  # type: ignore[misc]
    launch.install(v1.STAND_INS)
    for place in KERNELS:
        launch_at_random(place)
    shown = [
        violation.message
        for line in sys.stdin.buffer
        for violation in execute(decode(line), worker=Kind.DEVICE).violations
    ]
    print(json.dumps({"kernels": report, "shown": shown}), file=answers)


if __name__ == "__main__":
    main()

"""A V2 model runner whose stand-ins run beside vLLM's own Triton kernels, launch by launch, in a process of its own.

    TRITON_INTERPRET=1 python beside.py VERSION < scenarios.jsonl

The answer is one JSON object on standard output: for each kernel that was launched, how often, and the arguments whose
memory the two left different; and what the scenarios showed. Only what a kernel can reach is compared: the whole
storage of each tensor that it was handed, also of those that it was handed as addresses.
"""

import json
import sys
from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any

import torch

from harness import target
from harness.codec import decode
from harness.execute import execute
from harness.worker.interface import Kind

ADDRESSED: dict[int, torch.Tensor] = {}
"""Tensors whose address was asked for, which is how a kernel gets several at once."""
launches: Counter[str] = Counter()
differ: dict[str, set[str]] = defaultdict(set)


def remember_addresses() -> None:
    data_ptr = torch.Tensor.data_ptr

    def remembered(tensor: torch.Tensor) -> int:
        address = data_ptr(tensor)
        ADDRESSED[address] = tensor
        return address

    torch.Tensor.data_ptr = remembered  # type: ignore[method-assign]


def memory(arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The bytes that each argument leads to."""
    reached = {}
    for name, value in arguments.items():
        if not torch.is_tensor(value):
            continue
        reached[name] = value
        if value.dtype in (torch.uint64, torch.int64) and value.ndim <= 1:
            for at, address in enumerate(value.tolist()):
                if address in ADDRESSED:
                    reached[f"{name}[{at}]"] = ADDRESSED[address]
    return {
        name: torch.tensor([], dtype=torch.uint8).set_(tensor.untyped_storage())
        for name, tensor in reached.items()
    }


class Both:
    """Launches a kernel and its stand-in on the same memory; the stand-in's results stay."""

    def __init__(self, name: str, kernel: Any, stand_in: Any) -> None:
        self.name, self.kernel, self.stand_in = name, kernel, stand_in
        self.arg_names, self.constexprs = stand_in.arg_names, stand_in.constexprs

    def __getitem__(self, grid: Any) -> Any:
        def launch(*positional: Any, **named: Any) -> None:
            arguments = dict(zip(self.arg_names, positional, strict=False)) | named
            arguments = {name: value for name, value in arguments.items() if name in self.arg_names}
            reached = memory(arguments)
            before = {name: kept.clone() for name, kept in reached.items()}
            self.kernel[grid](**arguments)
            theirs = {name: kept.clone() for name, kept in reached.items()}
            for name, kept in reached.items():
                kept.copy_(before[name])
            self.stand_in[grid](**arguments)
            launches[self.name] += 1
            differ[self.name] |= {name for name in reached if not torch.equal(reached[name], theirs[name])}

        return launch


def main() -> None:
    from triton.backends import backends

    # vLLM uses Triton where it finds one device for it; the interpreter needs none.
    backends.clear()
    backends["interpreter"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True))
    answers, sys.stdout = sys.stdout, sys.stderr
    target.activate(target.resolve(sys.argv[1]), target.Platform.CPU, target.Runner.V2)
    remember_addresses()
    from harness.worker.device.kernels import launch

    class StandIn(launch.StandIn):
        def __init__(self, kernel: Any, function: Any) -> None:
            super().__init__(kernel, function)
            self.both = Both(kernel.__name__, kernel, super())

        def __getitem__(self, grid: Any) -> Any:
            return self.both[grid]

    launch.StandIn = StandIn  # type: ignore[misc]
    shown = [
        violation.fingerprint
        for line in sys.stdin.buffer
        for violation in execute(decode(line), worker=Kind.DEVICE).violations
    ]
    kernels = {name: [count, sorted(differ[name])] for name, count in sorted(launches.items())}
    print(json.dumps({"kernels": kernels, "shown": shown}), file=answers)


if __name__ == "__main__":
    main()

"""Puts stand-ins in the place of kernels, and of compiled functions that nobody has loaded."""

import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

Arguments = Mapping[str, Any]
StandIns = Mapping[str, Mapping[str, Callable[[Arguments], None]]]
"""By the module that defines a kernel, and the kernel's name in it."""


class StandIn:
    """Looks like a Triton kernel to those who launch it, `kernel[grid](...)`."""

    def __init__(self, kernel: Any, function: Callable[[Arguments], None]) -> None:
        names = getattr(kernel, "arg_names", None)
        if names is None:
            code = getattr(kernel, "fn", kernel).__code__
            names = code.co_varnames[: code.co_argcount]
        self.arg_names = tuple(names)
        self.constexprs = getattr(kernel, "constexprs", None)
        self._function = function

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*positional: Any, **named: Any) -> None:
            arguments = dict(zip(self.arg_names, positional, strict=False)) | named
            self._function({"grid": grid} | {name.removesuffix("_ptr"): at for name, at in arguments.items()})

        return launch


def install(stand_ins: StandIns) -> None:
    """Puts the stand-ins where the loaded vLLM keeps or has imported the kernels. Safe to call again."""
    from vllm.triton_utils import triton

    if not hasattr(triton, "next_power_of_2"):  # vLLM's placeholder for a missing Triton, up to 0.24
        triton.next_power_of_2 = lambda n: 1 << max(n - 1, 0).bit_length()
    for home, functions in stand_ins.items():
        try:
            module = importlib.import_module(home)
        except ModuleNotFoundError:
            continue  # of another release
        for name, function in functions.items():
            owner_name, _, attribute = name.rpartition(".")
            owner = getattr(module, owner_name, None) if owner_name else module
            kernel = vars(owner).get(attribute) if owner is not None else None
            if isinstance(kernel, staticmethod):
                kernel = kernel.__func__
            if kernel is None or isinstance(kernel, StandIn):
                continue
            _rebind(kernel, StandIn(kernel, function))
            setattr(owner, attribute, StandIn(kernel, function))


def _rebind(kernel: Any, stand_in: StandIn) -> None:
    """Other modules have imported the kernel by name, and launchers of newer releases hold it as an attribute."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("vllm.") or module is None:
            continue
        for attribute, value in list(vars(module).items()):
            if value is kernel:
                setattr(module, attribute, stand_in)
            elif hasattr(value, "__dict__") and vars(value).get("kernel") is kernel:
                value.kernel = stand_in
                if not isinstance(value, type):
                    vars(value).pop("_kernel_arg_names", None)


def greedy_argmax(logits: torch.Tensor) -> torch.Tensor:
    """The CPU build's compiled op of 0.32 and later."""
    return logits.argmax(dim=-1)


@functools.cache
def define_missing_ops() -> torch.library.Library:
    """Defines, in `torch.ops._C`, the compiled functions that a greedy step calls and that nobody has loaded."""
    library = torch.library.Library("_C", "FRAGMENT")
    if not hasattr(torch.ops._C, "greedy_argmax"):
        library.define("greedy_argmax(Tensor logits) -> Tensor")
        library.impl("greedy_argmax", greedy_argmax, "CompositeExplicitAutograd")
    return library

"""O1: no exception on legal input."""

import linecache
import traceback
from pathlib import Path
from types import TracebackType
from typing import ClassVar

from harness.oracles.base import Oracle
from harness.verdict import HarnessError
from harness.worker.observation import DeviceAssertion

_HARNESS = str(Path(__file__).resolve().parent.parent)


class Exceptions(Oracle):
    """O1: scheduler and engine loop raise nothing while the input is legal and the worker keeps its contract.

    Promised by vLLM in deed: an exception in `EngineCore.step` kills the engine process and every request in it; its
    assertions state its own invariants. The anchor is the innermost vLLM function and the source line that raised, so
    that two assertions of one function are two findings.

    Ledger: 48245, 57562, 42492, 23347, 54284, 39528, 24084, 30320, 53799.
    """

    family: ClassVar[str] = "O1"

    def raised(self, error: Exception) -> None:
        # A device's assertion is raised in our network, for what vLLM's runner fed it.
        frame = _innermost(error.__traceback__, through_ours=isinstance(error, DeviceAssertion))
        if frame is None or self._missing_from_us(error):
            raise HarnessError(f"{type(error).__name__} that the harness answers for: {error}") from error
        module, function, line = frame
        detail = str(error).splitlines()[0] if str(error) else line
        self.report(
            "exception",
            f"{module}:{function}:{type(error).__name__}:{line}",
            f"{type(error).__name__} in {module}.{function}: {detail}",
        )

    def _missing_from_us(self, error: Exception) -> bool:
        """Whether vLLM asked one of our objects, or the EngineCore that we made, for what it does not have."""
        if not isinstance(error, AttributeError):
            return False
        return error.obj is self.world.core or type(error.obj).__module__.startswith("harness.")


def _innermost(trace: TracebackType | None, *, through_ours: bool = False) -> tuple[str, str, str] | None:
    """(module, function, source line) of the innermost frame that is vLLM's; None if one of ours is deeper."""
    for frame, number in reversed(list(traceback.walk_tb(trace))):
        name = frame.f_globals.get("__name__", "")
        if name == "vllm" or name.startswith("vllm."):
            line = linecache.getline(frame.f_code.co_filename, number).strip()
            return name, frame.f_code.co_qualname, line
        if not through_ours and str(Path(frame.f_code.co_filename).resolve()).startswith(_HARNESS):
            return None
    return None

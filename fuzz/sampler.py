"""Where the time goes: samples of the innermost frame that is vLLM's, the harness's or the fuzzer's.

A timer of processor time interrupts the main thread; library code counts for the one that called it. No thread, so
forking stays safe; a sample costs microseconds. Time outside Python (libFuzzer itself) counts for the frame that runs
next, which is ours.
"""

import signal
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

INTERVAL = 0.004
"""Seconds of processor time between samples; the tick of common kernels, which bounds the rate."""
VLLM, HARNESS, FUZZ, OTHER = "vllm", "harness", "fuzz", "other"
_OURS = Path(__file__).resolve().parent.parent


class Sampler:
    """Counts samples by (package, module path)."""

    def __init__(self) -> None:
        import vllm

        self._roots = {
            f"{Path(vllm.__file__ or '').resolve().parent}/": VLLM,
            f"{_OURS / 'harness'}/": HARNESS,
            f"{_OURS / 'fuzz'}/": FUZZ,
        }
        self._known: dict[CodeType, tuple[str, str] | None] = {}
        self.counts: Counter[tuple[str, str]] = Counter()
        self.vllm = self.total = 0

    def start(self) -> None:
        """From the main thread. ValueError in any other."""
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL, INTERVAL)

    def stop(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    @property
    def share(self) -> float:
        """Share of samples inside vLLM's code, 0 to 1; 0 without samples."""
        return self.vllm / self.total if self.total else 0.0

    def _sample(self, number: int, frame: FrameType | None) -> None:
        place: tuple[str, str] | None = None
        while frame is not None and place is None:
            code = frame.f_code
            if code in self._known:
                place = self._known[code]
            else:
                place = self._known[code] = self._classify(code)
            frame = frame.f_back
        place = place or (OTHER, "")
        self.counts[place] += 1
        self.total += 1
        self.vllm += place[0] is VLLM

    def _classify(self, code: CodeType) -> tuple[str, str] | None:
        name = code.co_filename
        if not name.startswith("/"):
            return None
        if name.startswith(str(_OURS / "fuzz" / "sampler.py")):
            return None
        for root, package in self._roots.items():
            if name.startswith(root):
                return package, name[len(root) :]
        return None

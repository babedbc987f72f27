"""A call in a forked process: its output goes to a log, its crash or hang is the parent's to see.

The parent has imported vLLM once and runs no thread, so a fork costs 50 ms instead of an import of 10 s. The child
never returns into the parent's code and flushes none of its buffers.
"""

import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

POLL_SECONDS = 0.01
"""Far below what a job takes, far above what a look costs."""
FAILED = 70
"""Exit status of a child whose call raised; the traceback is in the log."""


class Job:
    """Starts at once. OSError if no process can be made or the log cannot be written."""

    def __init__(self, call: Callable[[], None], log: Path, seconds: float | None = None) -> None:
        self.log = log
        self.status: int | None = None
        """Exit status, negative for a signal; None while it runs."""
        self.timed_out = False
        self._deadline = None if seconds is None else time.monotonic() + seconds
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self.pid = os.fork()
        if self.pid == 0:
            _child(call, descriptor)
        os.close(descriptor)

    def poll(self) -> int | None:
        """The exit status, or None while the process runs; kills it at its deadline."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            elif self._deadline is not None and time.monotonic() > self._deadline:
                self.timed_out = True
                self.kill()
        return self.status

    def wait(self) -> int:
        """Waits for the end, or for the deadline; the exit status."""
        while self.poll() is None:
            time.sleep(POLL_SECONDS)
        assert self.status is not None
        return self.status

    def kill(self) -> None:
        """Ends the process and waits for it. Does nothing if it has ended."""
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
            self.status = os.waitstatus_to_exitcode(status)

    def why(self) -> str:
        """How it ended, with the last line of the log, for a one-line message."""
        if self.timed_out:
            return "it took too long and was killed"
        if self.status is not None and self.status < 0:
            return f"it was killed by {signal.Signals(-self.status).name}"
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return f"it ended with status {self.status}: {lines[-1] if lines else 'nothing in its log'}"


def _child(call: Callable[[], None], log: int) -> None:
    status = FAILED
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        logging.disable(logging.CRITICAL)
        call()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)

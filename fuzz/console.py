"""The command line's two channels and its exit statuses.

Standard output belongs to the answer alone: `Console` keeps it for itself and points file descriptor 1 at standard
error, so that nothing that vLLM, a library or a child prints there can end up in the JSON. An error of the user's is
one line on standard error.
"""

import contextlib
import enum
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, NoReturn

import msgspec
import typer

from fuzz.corpus import shown
from harness.codec import ScenarioError
from harness.releases import TargetError
from harness.target import hash_seed_is_fixed
from harness.verdict import HarnessError


class Status(enum.IntEnum):
    """Exit statuses of every command."""

    CLEAN = 0
    FINDINGS = 1
    BAD_INPUT = 2
    OUR_FAULT = 3


class BadInput(Exception):
    """What the user gave cannot be used; the message is `WHAT: problem; remedy`."""


class Console:
    """Take one at the start of a command, before anything is imported that may print."""

    def __init__(self) -> None:
        sys.stdout.flush()
        try:
            kept = os.dup(sys.stdout.fileno())
            os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        except (OSError, ValueError):  # captured by a test, or closed: nothing to protect
            self.out: IO[str] = sys.stdout
        else:
            self.out = os.fdopen(kept, "w", encoding="utf-8", errors="backslashreplace")

    def print(self, text: str) -> None:
        """A part of the answer. A reader that has gone away (a closed pipe) is no error of ours."""
        try:
            print(text, file=self.out, flush=True)
        except BrokenPipeError:
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, self.out.fileno())

    def json(self, value: object) -> None:
        """The whole answer as one JSON value."""
        self.print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def complain(message: str) -> None:
    """One line on standard error, with our name in front."""
    text = " ".join(message.split())
    text = "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text
    )
    with contextlib.suppress(OSError):
        print(f"schedfuzz: {text}", file=sys.stderr, flush=True)


def fix_hash_seed() -> None:
    """Starts this command again with PYTHONHASHSEED=0 unless strings already hash alike in every run."""
    if not hash_seed_is_fixed():
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def leave(status: int) -> NoReturn:
    """Ends the process; interpreter shutdown with vLLM loaded takes a second and does nothing for us."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def first_free(parent: Path, name: str) -> Path:
    """`parent/name-1`, or the first number that is free."""
    number = 1
    while (parent / f"{name}-{number}").exists():
        number += 1
    return parent / f"{name}-{number}"


def check_writable(path: Path) -> None:
    """Before minutes of work: BadInput unless a file can be made there."""
    name = shown(path)
    if path.is_dir():
        raise BadInput(f"{name}: is a folder; give the name of a file")
    if not path.parent.is_dir():
        raise BadInput(f"{name}: its folder does not exist; make it first")
    if not os.access(path.parent, os.W_OK):
        raise BadInput(f"{name}: its folder is not writable; choose another")


def answer(command: Callable[[], object]) -> int:
    """Runs a command; its exit status. What the user can remedy is one line, never a traceback."""
    try:
        return int(command() or 0)  # type: ignore[call-overload, no-any-return]
    except typer.Exit as request:
        return request.exit_code
    except (typer.Abort, KeyboardInterrupt):
        complain("interrupted")
        return 130
    except (BadInput, TargetError, ScenarioError) as error:
        complain(str(error))
        return Status.BAD_INPUT
    except (OSError, UnicodeError) as error:
        name = getattr(error, "filename", None)
        reason = getattr(error, "strerror", None) or str(error)
        complain(
            f"{shown(name)}: {reason}; give another path" if name else f"{reason}; check the paths given"
        )
        return Status.BAD_INPUT
    except HarnessError as error:
        complain(f"a fault of schedfuzz itself: {error}")
        return Status.OUR_FAULT
    except Exception as error:
        if hasattr(error, "format_message"):  # a usage error, as typer raises it
            complain(f"{error.format_message().rstrip('.')}; see: schedfuzz --help")
            return Status.BAD_INPUT
        traceback.print_exc()
        complain(f"a fault of schedfuzz itself: {type(error).__name__}: {error}")
        return Status.OUR_FAULT

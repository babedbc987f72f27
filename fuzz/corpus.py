"""Scenarios on disk: strict reading of single files, and a folder of `<content hash>.json`.

Files appear by one rename, so that other processes see whole scenarios or none. Reading refuses what is no regular file
and what is too large before it reads it. Errors are ScenarioError with the file's name in front; nothing that is loaded
can execute.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from harness.codec import MAX_BYTES, ScenarioError, decode, encode
from harness.scenario import Scenario, content_hash


def shown(path: Path | str) -> str:
    """A path for a one-line message: without line breaks or undecodable bytes, and not longer than 300 characters."""
    text = str(path).encode("utf-8", "backslashreplace").decode()
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= 300 else "..." + text[-297:]


def read_bytes(path: Path) -> bytes:
    """The contents of a regular file of at most MAX_BYTES. ScenarioError names the file otherwise."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ScenarioError(
            f"{shown(path)}: cannot be read: {reason}; give a readable scenario file"
        ) from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
        raise ScenarioError(f"{shown(path)}: is {kind}; give a scenario file (JSON)")
    with os.fdopen(descriptor, "rb") as file:
        if status.st_size > MAX_BYTES:
            raise ScenarioError(
                f"{shown(path)}: $: {status.st_size} bytes; a scenario has at most {MAX_BYTES}"
            )
        try:
            return file.read(MAX_BYTES + 1)
        except OSError as error:
            raise ScenarioError(
                f"{shown(path)}: cannot be read: {error.strerror}; give a readable scenario file"
            ) from None


def read(path: Path) -> Scenario:
    """The scenario in a file. ScenarioError: one line, `FILE: PLACE: problem; remedy`."""
    data = read_bytes(path)
    if not data.strip():
        raise ScenarioError(f"{shown(path)}: $: the file is empty; give a scenario (JSON)")
    try:
        return decode(data)
    except ScenarioError as error:
        message = "".join(c if c.isprintable() else " " for c in str(error))
        message = message if len(message) <= 500 else message[:497] + "..."
        remedy = "" if ";" in message else "; correct it there"
        raise ScenarioError(f"{shown(path)}: {message}{remedy}") from None


def write(path: Path, data: bytes) -> None:
    """Writes a file by rename. OSError as open, write and rename raise it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


class Corpus:
    """A folder of scenarios, shared by the workers of a campaign. The folder is made if it is missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)

    def __len__(self) -> int:
        """Scenarios that this object has added or read."""
        return len(self._known)

    def add(self, scenario: Scenario) -> bool:
        """Keeps a scenario; False if it is there already."""
        name = content_hash(scenario)
        if name in self._known:
            return False
        self._known.add(name)
        path = self.folder / f"{name}.json"
        if path.exists():
            return False
        write(path, encode(scenario))
        return True

    def fresh(self) -> Iterator[Scenario]:
        """The scenarios that are new since the last call, by name. ScenarioError at the first broken file."""
        for path in files(self.folder):
            if path.stem not in self._known:
                self._known.add(path.stem)
                yield read(path)


def files(folder: Path) -> list[Path]:
    """The scenario files of a folder, by name. ScenarioError if the folder cannot be listed."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == ".json" and path.name[0] != ".")
    except OSError as error:
        raise ScenarioError(f"{shown(folder)}: cannot be listed: {error.strerror}; give a folder") from None


def load(folder: Path) -> list[Scenario]:
    """All scenarios of a folder that the user named. ScenarioError names the first broken file."""
    return [read(path) for path in files(folder)]

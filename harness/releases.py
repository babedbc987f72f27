"""Official vLLM releases, kept as trees of Python sources in a cache on this machine.

A release is fetched once: pip downloads the official wheel, whose sha256 is pinned in ``releases.toml``,
and only its Python sources are kept (30-70 MB; no compiled code, no dependencies). A cache entry appears by
one rename, under a lock, with a manifest in it: it is whole or not there. Damage done to it later is noticed
by every use (number, names and sizes of files; milliseconds) or by `check` with ``full=True`` (contents;
0.1 s). Everything but `fetch` works offline.

Errors that the user can remedy are `TargetError`, one line each. Which vLLM a run uses is decided in
`harness.target`.
"""

from __future__ import annotations

import compileall
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

__all__ = [
    "ESSENTIAL",
    "RELEASES",
    "SUPPORTED",
    "TargetError",
    "cache_dir",
    "check",
    "entry_path",
    "fetch",
    "is_whole",
]

MANIFEST = "schedfuzz-manifest.json"
FORMAT = 1  # of a cache entry; one of another format is fetched again
COMPILED = ("vllm/v1", "vllm/config")  # compiled at fetch: seconds there instead of in the first campaign
ESSENTIAL = "vllm/v1/core/sched/scheduler.py"  # a tree without it is no vLLM that we can drive
RELEASES: Mapping[str, Mapping[str, str]] = tomllib.loads(
    Path(__file__).with_name("releases.toml").read_text(encoding="utf-8")
)
SUPPORTED: tuple[str, ...] = tuple(RELEASES)
"""The releases we support, oldest first."""

Log = Callable[[str], None]


class TargetError(Exception):
    """A target that cannot be used; the message is one line that names it and the remedy."""


def cache_dir() -> Path:
    """Where releases are kept: $SCHEDFUZZ_CACHE, else $XDG_CACHE_HOME/schedfuzz, else ~/.cache/schedfuzz."""
    if own := os.environ.get("SCHEDFUZZ_CACHE"):
        return Path(own).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(xdg) if os.path.isabs(xdg) else Path.home() / ".cache") / "schedfuzz"  # noqa: PTH117


def entry_path(version: str) -> Path:
    """Where the cache keeps, or would keep, a release."""
    return cache_dir() / "targets" / version


def is_whole(version: str) -> bool:
    """Whether the cache has the release, undamaged as far as names and sizes tell."""
    return _damage(entry_path(version), version) is None


def check(version: str, *, full: bool = False) -> None:
    """Raise TargetError unless the release is in the cache and whole; ``full`` reads every file (0.1 s)."""
    if (damage := _damage(entry_path(version), version, full=full)) is not None:
        raise TargetError(
            f"vLLM {version} in the cache: {damage}; repair with: schedfuzz targets fetch {version}"
        )


def fetch(version: str, log: Log | None = None, *, full: bool = False) -> Path:
    """Return the tree of a supported release, fetching it unless the cache has it whole.

    Safe to call from several processes at once: one fetches, the others wait. ``full`` also compares the contents of a
    cache entry before trusting it. Raises TargetError when the release cannot be had.
    """
    say = log or (lambda line: None)
    if version not in RELEASES:
        raise TargetError(f"vLLM {version} is not supported; choose one of: {' '.join(SUPPORTED)}")
    entry = entry_path(version)
    if _damage(entry, version, full=full) is None:
        return entry
    try:
        with _locked(entry.with_name(f"{version}.lock")):
            damage = _damage(entry, version, full=full)
            if damage is None:  # another process was quicker
                return entry
            say(f"fetching vLLM {version}" + (f" again: {damage}" if entry.exists() else ""))
            for leftover in entry.parent.glob(f".{version}-*"):  # of a fetch that was killed
                shutil.rmtree(leftover, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=entry.parent, prefix=f".{version}-") as work:
                wheel = _download(version, Path(work))
                tree = Path(work, "tree")
                _extract(wheel, version, tree)
                if entry.exists():
                    shutil.rmtree(entry)
                tree.rename(entry)
                _fsync(entry.parent)
    except OSError as error:
        reason = f"{error.strerror or error}: {error.filename or entry}"
        raise TargetError(
            f"cannot keep vLLM {version} in the cache ({reason}); set SCHEDFUZZ_CACHE"
        ) from error
    return entry


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # closing the file unlocks it
        yield


def _download(version: str, into: Path) -> Path:
    """Let pip download the official wheel, and check it. The platform is the wheel's, not this machine's."""
    name, sha256 = RELEASES[version]["wheel"], RELEASES[version]["sha256"]
    platforms = name.removesuffix(".whl").rsplit("-", 1)[1].split(".")
    wanted = into / "requirements.txt"
    wanted.write_text(f"vllm=={version} --hash=sha256:{sha256}\n", encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-input",
        "--no-cache-dir",
        "--no-deps",
    ]
    command += ["--disable-pip-version-check", "--only-binary=:all:", "--require-hashes", "--dest", str(into)]
    command += ["--implementation=cp", "--python-version=3.12", "--abi=abi3"]
    command += [f"--platform={platform}" for platform in platforms] + ["-r", str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(into.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        with wheels[0].open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == sha256:
                return wheels[0]
        raise TargetError(
            f"vLLM {version}: {wheels[0].name} does not have the sha256 that we expect; check pip's index"
        )
    output = (done.stderr.strip() or "no reason given").splitlines()
    if any("HASHES" in line or "hashes are required" in line for line in output):
        raise TargetError(
            f"vLLM {version}: pip's index has a wheel of another sha256 than we expect; check the index"
        )
    reason = next((line for line in reversed(output) if line.startswith("ERROR")), output[-1])
    raise TargetError(
        f"cannot fetch vLLM {version}: pip says: {reason}; check the network and pip's configuration"
    )


def _extract(wheel: Path, version: str, tree: Path) -> None:
    """Unpack a release's Python sources and metadata, compile what every run imports, and write the manifest."""
    metadata = f"vllm-{version}.dist-info/METADATA"
    contents: dict[str, str] = {}
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                name = member.filename
                if name == metadata or (
                    name.startswith("vllm/") and name.endswith(".py") and ".." not in name
                ):
                    data = archive.read(member)
                    file = tree / name
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(data)
                    contents[name] = hashlib.sha256(data).hexdigest()
    except (zipfile.BadZipFile, EOFError) as error:
        raise TargetError(f"vLLM {version}: the wheel is not readable ({error}); fetch it again") from error
    if metadata not in contents or ESSENTIAL not in contents:
        raise TargetError(
            f"vLLM {version}: the wheel lacks {metadata} or {ESSENTIAL}; it is not the official one"
        )
    wheel.unlink()  # large, and what comes next writes everything to disk
    for folder in COMPILED:
        compileall.compile_dir(tree / folder, quiet=2)
    digest = _digest(f"{name} {contents[name]}" for name in contents)
    manifest = {"format": FORMAT, "files": len(contents), "listing": _listing(tree)[1], "contents": digest}
    (tree / MANIFEST).write_text(json.dumps(manifest) + "\n", encoding="utf-8")
    os.sync()  # one call for thousands of small files, before the rename makes them visible


def _damage(entry: Path, version: str, *, full: bool = False) -> str | None:
    """What is wrong with a cache entry, in words, or None."""
    try:
        manifest = json.loads((entry / MANIFEST).read_bytes())
        if manifest["format"] != FORMAT:
            return "it was made by another version of schedfuzz"
        count, listing = _listing(entry)
        if (count, listing) != (manifest["files"], manifest["listing"]):
            return f"its files were changed ({count} of {manifest['files']})"
        if full:
            lines = (
                f"{name} {hashlib.sha256((entry / name).read_bytes()).hexdigest()}"
                for name, _ in _files(entry)
            )
            if _digest(lines) != manifest["contents"]:
                return "the contents of its files were changed"
    except FileNotFoundError:
        return "it is incomplete" if entry.exists() else "it is not there"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "its manifest is damaged"
    return None


def _listing(tree: Path) -> tuple[int, str]:
    """How many files a tree has, and a digest of their names and sizes."""
    lines = [f"{name} {size}" for name, size in _files(tree)]
    return len(lines), _digest(lines)


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def _files(tree: Path) -> Iterator[tuple[str, int]]:
    """The files of a tree that matter, as (relative name, bytes): all but the manifest and compiled code."""
    folders = [("", str(tree))]
    while folders:
        prefix, folder = folders.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "__pycache__":
                        folders.append((f"{prefix}{entry.name}/", entry.path))
                elif entry.name != MANIFEST:
                    yield prefix + entry.name, entry.stat(follow_symlinks=False).st_size


def _fsync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

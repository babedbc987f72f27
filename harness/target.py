"""Which vLLM runs: the installed one, a source tree, or a release (`harness.releases` fetches and keeps those).

`activate` puts a target ahead on the path and pins what would let one vLLM differ from machine to machine: the
environment variables that vLLM reads, its plugins, and the platform, which is vLLM's "unspecified" one (the CPU
platform switches asynchronous scheduling off, and an accelerator's depends on the machine) unless a device worker
is to run.

Errors that the user can remedy are `TargetError`, one line each. This module imports no vLLM.
"""

from __future__ import annotations

import enum
import importlib
import importlib.machinery
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType

from harness.releases import (
    ESSENTIAL,
    RELEASES,
    SUPPORTED,
    Log,
    TargetError,
    cache_dir,
    check,
    entry_path,
    fetch,
    is_whole,
)

__all__ = [
    "Platform",
    "SUPPORTED",
    "Target",
    "TargetError",
    "activate",
    "cache_dir",
    "cached",
    "check",
    "fetch",
    "hash_seed_is_fixed",
    "platform",
    "resolve",
]

UNKNOWN = "unknown"  # the version of a source tree that carries none

# What vLLM gets to see of the environment: every other VLLM_* variable is removed by `activate`.
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",  # nothing may depend on a network
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",  # threads would not survive a fork
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "",  # load none
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # an execution says which (compat.model_runner)
}
_KEPT = ("VLLM_LOGGING_LEVEL", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT")
_on_path: list[str] = []  # what `activate` put on sys.path


class Platform(enum.StrEnum):
    """What vLLM takes the machine for. Device workers need a real one; `CUDA` is what vLLM detects for itself."""

    NONE = "none"
    CPU = "cpu"
    CUDA = "cuda"


_platform = Platform.NONE  # of the vLLM that `activate` chose


def platform() -> Platform:
    """The platform that `activate` chose in this process."""
    return _platform


@dataclass(frozen=True)
class Target:
    """One vLLM to run.

    ``spec`` is what the user can say to get the release again, ``version`` its number ("unknown" for a source tree
    that carries none), ``path`` the tree to put first on sys.path; None stands for the installed vLLM. ``plant`` names
    a bug to plant into it (`harness.planting`) once it is imported.
    """

    spec: str
    version: str
    path: Path | None
    plant: str | None = None

    @property
    def label(self) -> str:
        """For people: which vLLM this is."""
        return self.version if self.plant is None else f"{self.version} with planted bug {self.plant}"

    @property
    def options(self) -> list[str]:
        """What the command line must say to get it again."""
        return ["--vllm", self.spec, *(["--plant", self.plant] if self.plant else [])]

    @property
    def quoted(self) -> str:
        """The same for a shell, without the leading `--vllm`."""
        return shlex.join(self.options[1:])


def resolve(spec: str | None, log: Log | None = None) -> Target:
    """Find the vLLM that ``spec`` means: "installed", a release number or the path of a source tree.

    None means the installed vLLM if there is one, else the newest release we support. A release that is missing from
    the cache, or damaged there, is fetched; ``log`` gets a line about that. Raises TargetError.
    """
    if spec is None or spec == "installed":
        if (root := _installed_root()) is not None:
            return Target("installed", _tree_version(root), None)
        if spec is not None:
            raise TargetError("no vLLM is installed for this Python; give a release number or a source tree")
        spec = SUPPORTED[-1]
    if spec in RELEASES:
        return Target(spec, spec, fetch(spec, log))
    if re.fullmatch(r"v?\d+(\.\d+)+[\w.+]*", spec):
        raise TargetError(f"vLLM {spec} is not supported; choose one of: {' '.join(SUPPORTED)}")
    path, shown = Path(spec), repr(spec if len(spec) <= 200 else spec[:200] + "...")
    try:
        if spec == "" or not path.exists():
            raise TargetError(
                f"no such vLLM: {shown}; give 'installed', a release number or a source tree's path"
            )
        for needed in ("vllm/__init__.py", ESSENTIAL):
            if not (path / needed).is_file():
                raise TargetError(
                    f"no vLLM source tree: {shown} has no {needed}; give the folder that holds vllm/"
                )
    except OSError as error:
        raise TargetError(f"cannot read {shown} ({error.strerror}); give a readable source tree") from error
    return Target(spec, _tree_version(path), path.resolve())


def cached() -> list[Target]:
    """The releases that the cache has, undamaged as far as names and sizes tell; oldest first."""
    return [Target(version, version, entry_path(version)) for version in SUPPORTED if is_whole(version)]


def root_of(target: Target) -> Path:
    """The folder that holds a target's ``vllm``. Raises TargetError if it is the installed one, and there is none."""
    root = target.path or _installed_root()
    if root is None:
        raise TargetError("no vLLM is installed for this Python; give a release number or a source tree")
    return root


def activate(target: Target, platform: Platform = Platform.NONE) -> None:
    """Make ``import vllm`` mean the target, in this process and in those that it starts.

    Call it before anything imports vllm. Raises TargetError when another vLLM, or the same for another platform, has
    been imported already.
    """
    global _platform
    root = root_of(target)
    loaded = sys.modules.get("vllm")
    if loaded is not None:
        origin = Path(loaded.__file__ or "?").resolve().parent
        if origin != (root / "vllm").resolve():
            raise TargetError(
                f"another vLLM is already imported, from {origin}; use a new process for {target.spec}"
            )
        if _platform is not platform:
            raise TargetError(
                f"vLLM is already imported for platform {_platform}; use a new process for {platform}"
            )
    _platform = platform
    paths = []
    if target.path is not None:
        paths = [str(target.path)]
        if target.path != entry_path(target.version):
            paths.insert(0, str(_synthetic_metadata(target.version)))

    for name in [name for name in os.environ if name.startswith("VLLM_") and name not in _KEPT]:
        del os.environ[name]
    os.environ.update(_ENVIRONMENT)
    # vLLM dumps its configuration at ERROR level when a step fails; the oracles say what happened.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
    # On PYTHONPATH, too: vLLM starts processes (to inspect a model class, for one) that must import the same vLLM.
    others = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and not _is_ours(p)]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths + [p for p in others if p not in paths])
    sys.path[:] = paths + [p for p in sys.path if p not in paths and not _is_ours(p)]
    _on_path[:] = paths
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _PinPlatform)]
    sys.meta_path.insert(0, _PinPlatform(platform))


def hash_seed_is_fixed() -> bool:
    """Whether strings hash alike in every run: PYTHONHASHSEED was set to a number when this process started.

    (The variable set later, from inside, is taken for one set in time unless it is "0".)
    """
    seed = os.environ.get("PYTHONHASHSEED", "")
    return not sys.flags.hash_randomization or (seed.isdecimal() and int(seed) != 0)


class _PinPlatform(MetaPathFinder):
    """Gives ``vllm.platforms`` our platform as soon as it is imported, instead of what it would detect."""

    def __init__(self, platform: Platform) -> None:
        self.platform = platform

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "vllm.platforms":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self.platform is Platform.NONE:
                vars(module)["_current_platform"] = module.interface.UnspecifiedPlatform()
            elif self.platform is Platform.CPU:
                cpu = importlib.import_module("vllm.platforms.cpu")
                # A tree of sources has none; and 0.17 fails in looking for the machine's instruction sets.
                cpu.CpuPlatform.import_kernels = classmethod(lambda cls: None)
                vars(module)["_current_platform"] = cpu.CpuPlatform()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _is_ours(path: str) -> bool:
    """Whether an entry of the path was put there by `activate`, here or in the process that started this one."""
    return path in _on_path or (path != "" and Path(path).absolute().is_relative_to(cache_dir()))


def _installed_root() -> Path | None:
    """The folder that holds the installed ``vllm``, targets that `activate` put on the path left out."""
    before = sys.path[:]
    sys.path[:] = [p for p in before if not _is_ours(p)]
    try:
        spec = importlib.util.find_spec("vllm")
    except (ImportError, ValueError):
        return None
    finally:
        sys.path[:] = before
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent.parent
    return None if _is_ours(str(root)) or not (root / ESSENTIAL).is_file() else root


def _tree_version(root: Path) -> str:
    """The release number that a tree carries, without a local part such as "+cpu"; "unknown" if it carries none."""
    candidates = [
        root / "vllm/_version.py",
        root / "PKG-INFO",
        *sorted(root.glob("vllm-*.dist-info/METADATA")),
    ]
    for file in candidates:
        try:
            text = file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if found := re.search(
            r"^(?:Version:|__version__\b.*=)\s*['\"]?(\d+(?:\.\d+)+[\w.]*)", text, re.MULTILINE
        ):
            return found[1]
    return UNKNOWN


def _synthetic_metadata(version: str) -> Path:
    """A folder for the path with a distribution "vllm" in it: what vLLM asks for its own version.

    A source tree has none, and a local part in its version, such as "+cpu", would choose a platform.
    """
    version = "0.0.0" if version == UNKNOWN else version
    folder = cache_dir() / "metadata" / version
    file = folder / f"vllm-{version}.dist-info" / "METADATA"
    if not file.is_file():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            draft = file.with_name(f"METADATA.{os.getpid()}")
            draft.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", encoding="utf-8")
            draft.replace(file)
        except OSError as error:
            raise TargetError(
                f"cannot write to {file.parent} ({error.strerror}); set SCHEDFUZZ_CACHE"
            ) from error
    return folder

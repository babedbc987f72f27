"""Choosing, fetching and activating a vLLM, with a small made-up wheel instead of the network."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from harness import releases, target
from harness.target import SUPPORTED, Target, TargetError, activate, cached, check, fetch, resolve

VERSION = "0.19.0"
WHEEL = f"vllm-{VERSION}-cp38-abi3-manylinux_2_31_x86_64.whl"
SOURCES = {
    "vllm/__init__.py": "__version__ = 'made up'\n",
    "vllm/_version.py": f"__version__ = version = '{VERSION}+cpu'\n",
    "vllm/platforms/__init__.py": "from . import interface\n_current_platform = None\n",
    "vllm/platforms/interface.py": "class UnspecifiedPlatform: pass\n",
    "vllm/v1/__init__.py": "",
    "vllm/v1/core/sched/scheduler.py": "class Scheduler: pass\n",
    "vllm/config/__init__.py": "",
}
METADATA = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}\n"
REST = {
    "vllm/_C.abi3.so": "compiled code",
    f"vllm-{VERSION}.dist-info/METADATA": METADATA,
    f"vllm-{VERSION}.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: cp38-abi3-manylinux_2_31_x86_64\n",
    f"vllm-{VERSION}.dist-info/RECORD": "",
}


def write_wheel(folder: Path, files: dict[str, str]) -> str:
    """Writes the wheel and returns its sha256."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return hashlib.sha256((folder / WHEEL).read_bytes()).hexdigest()


@pytest.fixture
def pip_index(tmp_path, monkeypatch):
    """A folder that pip takes wheels from, an empty cache, and the release pinned to the made-up wheel."""
    folder = tmp_path / "index"
    monkeypatch.setenv("SCHEDFUZZ_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    sha256 = write_wheel(folder, SOURCES | REST)
    monkeypatch.setitem(releases.RELEASES, VERSION, {"wheel": WHEEL, "sha256": sha256})
    return folder


@pytest.fixture
def index(pip_index, monkeypatch):
    """The same without pip, whose start takes a second: for tests of what comes after the download."""

    def copy(version: str, into: Path) -> Path:
        if not (pip_index / WHEEL).exists():
            raise TargetError("the index is gone; bring it back")
        return Path(shutil.copy(pip_index / WHEEL, into))

    monkeypatch.setattr(releases, "_download", copy)
    return pip_index


@pytest.fixture
def no_pip(monkeypatch):
    """Returns a function after whose call starting pip fails the test."""

    def refuse(*args, **kwargs):
        raise AssertionError("pip was started")

    return lambda: monkeypatch.setattr(releases.subprocess, "run", refuse)


@pytest.fixture
def tree(tmp_path):
    """A source tree."""
    root = tmp_path / "checkout"
    for name, text in SOURCES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def line_of(error) -> str:
    message = str(error.value)
    assert "\n" not in message
    assert ";" in message, "the line must name a remedy"
    return message


def child(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a new process of this Python, in an empty folder, with our package on the path."""
    root = str(Path(target.__file__).parent.parent)
    env = (
        {k: v for k, v in os.environ.items() if not k.startswith("VLLM_")}
        | {"PYTHONPATH": root}
        | environment
    )
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


# Fetching -------------------------------------------------------------------------------------------------------------


def test_fetch_keeps_sources_and_metadata_only(pip_index):
    entry = fetch(VERSION)
    kept = {str(p.relative_to(entry)) for p in entry.rglob("*") if p.is_file() and p.suffix != ".pyc"}
    assert kept == {*SOURCES, f"vllm-{VERSION}.dist-info/METADATA", releases.MANIFEST}
    check(VERSION, full=True)
    assert cached() == [Target(VERSION, VERSION, entry)] == [resolve(VERSION)]


def test_a_fetched_release_needs_no_network(pip_index, no_pip):
    entry = fetch(VERSION)
    no_pip()
    assert fetch(VERSION) == entry
    assert resolve(VERSION).path == entry


def test_fetch_leaves_only_the_entry_and_its_lock(index):
    entry = fetch(VERSION)
    assert {p.name for p in entry.parent.iterdir()} == {VERSION, f"{VERSION}.lock"}


@pytest.mark.parametrize("fault", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_fetch_leaves_no_entry_and_can_be_repeated(index, monkeypatch, fault):
    def stop_before_manifest(*args, **kwargs):
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(releases, "_listing", stop_before_manifest)
        with pytest.raises(fault):
            fetch(VERSION)
    assert cached() == []
    assert [p.name for p in releases.entry_path(VERSION).parent.iterdir()] == [f"{VERSION}.lock"]
    fetch(VERSION)
    check(VERSION, full=True)


def test_what_a_killed_fetch_left_is_removed(index):
    leftover = releases.entry_path(VERSION).parent / f".{VERSION}-left" / "tree"
    leftover.mkdir(parents=True)
    entry = fetch(VERSION)
    assert not leftover.exists()
    assert entry.is_dir()


def test_of_two_processes_one_fetches_and_both_get_it(pip_index):
    code = f"""
        import json
        from harness import releases
        releases.RELEASES[{VERSION!r}] = json.loads({json.dumps(json.dumps(releases.RELEASES[VERSION]))})
        said = []
        releases.fetch({VERSION!r}, said.append)
        releases.check({VERSION!r}, full=True)
        print(len(said))
    """
    root = str(Path(target.__file__).parent.parent)
    command = [sys.executable, "-c", textwrap.dedent(code)]
    env = os.environ | {"PYTHONPATH": root}
    both = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert sum(int(process.communicate(timeout=120)[0]) for process in both) == 1


def test_a_wheel_with_another_hash_is_refused(pip_index, monkeypatch):
    monkeypatch.setitem(releases.RELEASES, VERSION, {"wheel": WHEEL, "sha256": "0" * 64})
    with pytest.raises(TargetError) as error:
        fetch(VERSION)
    assert "sha256" in line_of(error)
    assert cached() == []


def test_a_release_that_pip_cannot_get_is_one_line(pip_index):
    (pip_index / WHEEL).unlink()
    with pytest.raises(TargetError) as error:
        resolve(VERSION)
    assert f"cannot fetch vLLM {VERSION}" in line_of(error)


def test_a_wheel_without_a_scheduler_is_refused(index, monkeypatch):
    sha256 = write_wheel(index, REST | {"vllm/__init__.py": ""})
    monkeypatch.setitem(releases.RELEASES, VERSION, {"wheel": WHEEL, "sha256": sha256})
    with pytest.raises(TargetError) as error:
        fetch(VERSION)
    assert releases.ESSENTIAL in line_of(error)


def test_a_cache_that_cannot_be_written_is_one_line(index, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SCHEDFUZZ_CACHE", str(tmp_path / "file"))
    with pytest.raises(TargetError) as error:
        fetch(VERSION)
    assert "SCHEDFUZZ_CACHE" in line_of(error)


# Damage ---------------------------------------------------------------------------------------------------------------


def remove_a_file(entry: Path) -> None:
    (entry / "vllm/platforms/interface.py").unlink()


def add_a_file(entry: Path) -> None:
    (entry / "vllm/torch.py").write_text("")


def truncate_a_file(entry: Path) -> None:
    (entry / "vllm/__init__.py").write_text("")


def remove_the_manifest(entry: Path) -> None:
    (entry / releases.MANIFEST).unlink()


def truncate_the_manifest(entry: Path) -> None:
    (entry / releases.MANIFEST).write_bytes((entry / releases.MANIFEST).read_bytes()[:20])


def replace_the_manifest(entry: Path) -> None:
    (entry / releases.MANIFEST).write_text("[]")


def another_format(entry: Path) -> None:
    manifest = json.loads((entry / releases.MANIFEST).read_text()) | {"format": releases.FORMAT + 1}
    (entry / releases.MANIFEST).write_text(json.dumps(manifest))


DAMAGES = [
    remove_a_file,
    add_a_file,
    truncate_a_file,
    remove_the_manifest,
    truncate_the_manifest,
    replace_the_manifest,
    another_format,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_noticed_and_repaired_by_the_next_use(index, damage):
    entry = fetch(VERSION)
    damage(entry)
    assert cached() == []
    with pytest.raises(TargetError) as error:
        check(VERSION)
    assert f"targets fetch {VERSION}" in line_of(error)
    said = []
    assert resolve(VERSION, said.append).path == entry
    assert len(said) == 1
    assert "again" in said[0]
    check(VERSION, full=True)


def test_damage_that_cannot_be_repaired_offline_is_one_line(index):
    entry = fetch(VERSION)
    remove_a_file(entry)
    shutil.rmtree(index)
    with pytest.raises(TargetError) as error:
        resolve(VERSION)
    line_of(error)


def test_a_full_check_reads_contents(index):
    entry = fetch(VERSION)
    file = entry / "vllm/v1/core/sched/scheduler.py"
    file.write_text(file.read_text().replace("pass", "9999"))
    check(VERSION)
    with pytest.raises(TargetError) as error:
        check(VERSION, full=True)
    assert "contents" in line_of(error)
    fetch(VERSION, full=True)
    check(VERSION, full=True)


def test_compiled_code_is_no_damage(index):
    entry = fetch(VERSION)
    (entry / "vllm/__pycache__").mkdir()
    (entry / "vllm/__pycache__/__init__.cpython-399.pyc").write_bytes(b"x")
    check(VERSION, full=True)


# Choosing -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["0.1.0", "0.19", "99.0.0", "v0.19.0", "0.19.0rc1", "0.19.0+cpu"])
def test_an_unsupported_release_names_the_supported_ones(index, spec):
    with pytest.raises(TargetError) as error:
        resolve(spec)
    assert "not supported" in line_of(error)
    assert SUPPORTED[-1] in str(error.value)


@pytest.mark.parametrize("spec", ["", "no/such/tree", "\0", "a\nb"])
def test_a_missing_path(index, spec):
    with pytest.raises(TargetError) as error:
        resolve(spec)
    assert "no such vLLM" in line_of(error)


def test_an_impossible_path_is_one_short_line(index):
    with pytest.raises(TargetError) as error:
        resolve("x" * 5000)
    assert len(line_of(error)) < 400


def test_fetching_an_unsupported_release(index):
    with pytest.raises(TargetError) as error:
        fetch("../0.19.0")
    assert "not supported" in line_of(error)


def test_a_source_tree(index, tree):
    assert resolve(str(tree)) == Target(str(tree), VERSION, tree)


def test_a_source_tree_without_a_version(index, tree):
    (tree / "vllm/_version.py").unlink()
    assert resolve(str(tree)).version == "unknown"
    (tree / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.20.2\n")
    assert resolve(str(tree)).version == "0.20.2"


@pytest.mark.parametrize("name", ["vllm/__init__.py", releases.ESSENTIAL])
def test_a_broken_source_tree_names_what_it_lacks(index, tree, name):
    (tree / name).unlink()
    with pytest.raises(TargetError) as error:
        resolve(str(tree))
    assert name in line_of(error)


def test_a_file_is_no_source_tree(index, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TargetError) as error:
        resolve(str(tmp_path / "file"))
    line_of(error)


@pytest.mark.skipif(target._installed_root() is not None, reason="this environment has vLLM installed")
def test_nothing_installed(index, monkeypatch):
    with pytest.raises(TargetError) as error:
        resolve("installed")
    assert "no vLLM is installed" in line_of(error)
    with pytest.raises(TargetError):
        activate(Target("installed", VERSION, None))
    newest = []
    monkeypatch.setattr(target, "fetch", lambda version, log: newest.append(version) or Path())
    resolve(None)
    assert newest == [SUPPORTED[-1]]


def test_the_installed_vllm_is_the_default(index, tree, monkeypatch):
    monkeypatch.syspath_prepend(str(tree))
    assert resolve(None) == resolve("installed") == Target("installed", VERSION, None)


def test_the_table_of_releases_is_sound():
    numbers = [tuple(map(int, version.split("."))) for version in SUPPORTED]
    assert numbers == sorted(numbers)
    for version, release in releases.RELEASES.items():
        assert release["wheel"].startswith(f"vllm-{version}-")
        assert release["wheel"].endswith("x86_64.whl")
        assert len(bytes.fromhex(release["sha256"])) == 32


# Activating (each in its own process) ---------------------------------------------------------------------------------

SHOW = """
    import importlib.metadata, json, os, sys
    import vllm.platforms
    print(json.dumps({
        "file": vllm.__file__, "version": importlib.metadata.version("vllm"),
        "platform": type(vllm.platforms._current_platform).__name__,
        "environment": {k: v for k, v in os.environ.items() if k.startswith(("VLLM_", "HF_"))},
        "pythonpath": os.environ["PYTHONPATH"].split(os.pathsep), "path": sys.path,
    }))
"""


def activated(code: str, **environment: str) -> dict:
    done = child(
        "from harness.target import *\n" + textwrap.dedent(code) + textwrap.dedent(SHOW), **environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_activating_a_release(index):
    entry = fetch(VERSION)
    seen = activated("activate(cached()[0]); activate(cached()[0])")
    assert seen["file"] == str(entry / "vllm/__init__.py")
    assert seen["version"] == VERSION
    assert seen["platform"] == "UnspecifiedPlatform"
    assert seen["path"][0] == seen["pythonpath"][0] == str(entry)
    assert seen["path"].count(str(entry)) == 1


def test_activating_a_source_tree_gives_it_a_version_without_a_platform(index, tree):
    seen = activated(f"activate(resolve({str(tree)!r}))")
    assert seen["file"] == str(tree / "vllm/__init__.py")
    assert seen["version"] == VERSION
    assert seen["platform"] == "UnspecifiedPlatform"


def test_activating_another_target_before_the_import_replaces_the_first(index, tree):
    entry = fetch(VERSION)
    seen = activated(f"activate(resolve({str(tree)!r})); activate(cached()[0])")
    assert seen["file"] == str(entry / "vllm/__init__.py")
    assert str(tree) not in seen["path"] + seen["pythonpath"]


@pytest.mark.skipif(target._installed_root() is not None, reason="this environment has vLLM installed")
def test_a_target_inherited_from_the_parent_process_is_not_the_installed_one(index):
    entry = fetch(VERSION)
    own = str(Path(target.__file__).parent.parent)
    code = "from harness.target import *\nresolve('installed')"
    done = child(code, PYTHONPATH=os.pathsep.join([str(entry), own]))
    assert "no vLLM is installed" in done.stderr


def test_the_environment_does_not_change_what_runs(index):
    fetch(VERSION)
    seen = activated(
        "activate(cached()[0])", VLLM_USE_V2_MODEL_RUNNER="1", VLLM_ODD="1", VLLM_LOGGING_LEVEL="DEBUG"
    )
    assert seen["environment"] == {
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PLUGINS": "",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
    }


def test_another_vllm_that_is_already_imported_is_an_error(index, tree):
    fetch(VERSION)
    code = f"""
        import sys
        sys.path.insert(0, {str(tree)!r})
        import vllm
        from harness.target import *
        try:
            activate(cached()[0])
        except TargetError as error:
            print(error)
    """
    done = child(code)
    assert "already imported" in done.stdout, done.stderr
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize(("seed", "fixed"), [("0", True), ("7", True), ("random", False), ("", False)])
def test_whether_the_hash_seed_is_fixed(seed, fixed):
    done = child("from harness.target import *\nprint(hash_seed_is_fixed())", PYTHONHASHSEED=seed)
    assert done.stdout.strip() == str(fixed), done.stderr

"""The Dockerfile, as far as it can be checked without Docker.

Its work is done by scripts/setup.sh, which is also what make uses: CI exercises the script in a fresh clone through
`make lint` and `make test`. So it is enough here that the Dockerfile does nothing else.
"""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED = {"useradd", "mkdir", "chown", "scripts/setup.sh"}


@pytest.fixture(scope="module")
def instructions() -> list[tuple[str, str]]:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    logical = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(word, " ".join(rest.split())) for word, _, rest in (line.partition(" ") for line in logical)]


def arguments(instructions: list[tuple[str, str]], name: str) -> list[str]:
    return [rest for word, rest in instructions if word == name]


def commands(run: str) -> list[list[str]]:
    """The simple commands of a RUN line, without the variables set for them."""
    found = []
    for part in run.split("&&"):
        words = shlex.split(part)
        while words and "=" in words[0]:
            words.pop(0)
        found.append(words)
    return found


def test_run_lines_only_make_the_user_and_call_the_shared_script(instructions):
    programs = [command[0] for run in arguments(instructions, "RUN") for command in commands(run)]
    assert set(programs) <= ALLOWED
    assert programs.count("scripts/setup.sh") == 1


def test_the_shared_script_is_the_one_that_make_uses():
    script = ROOT / "scripts/setup.sh"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert "scripts/setup.sh" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_runs_a_campaign_as_an_ordinary_user(instructions):
    assert arguments(instructions, "USER")[-1] not in ("root", "0")
    assert json.loads(arguments(instructions, "ENTRYPOINT")[0]) == ["schedfuzz"]
    assert json.loads(arguments(instructions, "CMD")[0])[0] == "run"
    names = [word for word, _ in instructions]
    assert names.index("USER") < names.index("COPY"), "what is copied and installed must belong to the user"


def test_results_and_cache_are_volumes_and_the_hash_seed_is_fixed(instructions):
    assert set(json.loads(arguments(instructions, "VOLUME")[0])) == {"/out", "/cache"}
    environment = dict(pair.split("=", 1) for pair in arguments(instructions, "ENV")[0].split())
    assert environment["PYTHONHASHSEED"] == "0"
    assert environment["SCHEDFUZZ_CACHE"] == "/cache"


def test_the_image_does_not_get_this_checkouts_environment():
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {".git", ".venv", "out"} <= set(ignored)

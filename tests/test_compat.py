"""Where releases differ, the loaded code says so: drift is seen here before it turns into false alarms."""

import pytest

from conftest import ask
from harness import compat
from harness.worker.traits import Traits


@pytest.mark.parametrize(
    ("version", "falls_back", "without_room", "clamped"),
    [
        ("0.12.0", False, "none", False),
        ("0.19.0", False, "zeros if async", False),
        ("0.23.0", False, "zeros", False),
        ("0.24.0", True, "zeros", False),
        ("0.33.0", True, "zeros", True),
    ],
)
def test_the_runner_s_traits(version, falls_back, without_room, clamped):
    release = ask(version)
    assert (release.version, release.traits) == (version, Traits(falls_back, without_room, clamped))


class Base:
    def __init__(self, one: int, two: int = 2) -> None:
        self.values = (one, two)


class Passing(Base):
    """As AsyncScheduler: everything goes on to the base."""

    def __init__(self, *arguments, **keywords) -> None:
        super().__init__(*arguments, **keywords)


@pytest.mark.parametrize("cls", [Base, Passing])
def test_construct_leaves_out_what_a_release_does_not_know(cls):
    assert compat.construct(cls, one=1, three=3).values == (1, 2)


def test_a_module_or_name_that_a_release_lacks_is_none():
    assert compat.optional("harness.nothing", "x") is None
    assert compat.optional("harness.compat", "nothing") is None
    assert compat.optional("harness.compat", "construct") is compat.construct

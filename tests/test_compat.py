"""Where releases differ, the loaded code says so: drift is seen here before it turns into false alarms."""

import pytest

from conftest import ask
from harness import compat
from harness.worker.traits import Traits, TraitsV2
from scenarios import LEGAL_V2


@pytest.mark.parametrize(
    ("version", "traits"),
    [
        (
            "0.19.0",
            Traits(
                False,
                "zeros if async",
                False,
                masks_are_strided=False,
                rows_keep_prompt_logprobs=False,
                one_embedding_spreads=False,
            ),
        ),
        ("0.23.0", Traits(False, "zeros", False, masks_are_strided=False)),
        ("0.24.0", Traits(True, "zeros", False, masks_are_strided=False)),
        ("0.33.0", Traits()),
    ],
)
def test_the_runner_s_traits(version, traits):
    """Those of 0.12 to 0.18, which the tests do not fetch, are what the device's tests run against."""
    release = ask(version)
    assert (release.version, release.traits) == (version, traits)


@pytest.mark.parametrize(
    ("version", "lacks", "traits"),
    [
        ("0.19.0", {"v2_runner", "v2_ngram"}, TraitsV2()),
        ("0.23.0", {"v2_ngram"}, TraitsV2(False, False, False, False)),
        ("0.24.0", {"v2_ngram"}, TraitsV2(True, False, False, False)),
        ("0.32.0", set(), TraitsV2(True, True, False)),
        ("0.33.0", set(), TraitsV2()),
    ],
)
def test_the_v2_runner_s_traits(version, lacks, traits):
    """Of a release without it the newest's: nobody asks."""
    release = ask(version)
    assert release.lacking & {"v2_runner", "v2_ngram"} == lacks
    assert release.traits_v2 == traits


def test_a_scenario_on_a_runner_that_a_release_lacks_is_rejected():
    assert ask("0.19.0", (LEGAL_V2["plain, V2"],)).shown[0].verdict == "rejected"


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

"""Scenarios on disk: what is read, what is refused and how, and that files appear whole."""

import os
from pathlib import Path

import pytest

from fuzz.corpus import Corpus, load, read, shown, write
from harness.codec import ScenarioError, encode
from harness.scenario import Arrive, Request, Scenario, content_hash

ONE = Scenario(format=1, requests=(Request(),), timeline=(Arrive(0),))
OTHER = Scenario(format=1, requests=(Request(max_tokens=2),), timeline=(Arrive(0),))


def test_a_scenario_comes_back_under_its_hash(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path / "corpus")
    assert corpus.add(ONE)
    assert not corpus.add(ONE)
    file = tmp_path / "corpus" / f"{content_hash(ONE)}.json"
    assert file.read_bytes() == encode(ONE)
    assert read(file) == ONE
    assert [path.name for path in file.parent.iterdir()] == [file.name], "no draft is left"


def test_two_workers_see_what_the_other_added_once(tmp_path: Path) -> None:
    mine, theirs = Corpus(tmp_path), Corpus(tmp_path)
    mine.add(ONE)
    theirs.add(OTHER)
    assert list(mine.fresh()) == [OTHER]
    assert list(mine.fresh()) == []
    assert not mine.add(OTHER)
    assert len(mine) == 2


def test_load_reads_all_by_name_and_names_the_broken_one(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    corpus.add(ONE)
    corpus.add(OTHER)
    (tmp_path / "notes.txt").write_text("not a scenario")
    assert sorted(map(content_hash, load(tmp_path))) == sorted(map(content_hash, (ONE, OTHER)))
    (tmp_path / "broken.json").write_text('{"format": 1, "engine": {"max_num_seqs": "four"}}')
    with pytest.raises(ScenarioError, match=r"broken\.json: \$\.engine\.max_num_seqs: .*; correct it there$"):
        load(tmp_path)


def test_a_missing_folder_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot be listed: No such file"):
        load(tmp_path / "nowhere")


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.json"
    os.mkfifo(fifo)
    with pytest.raises(ScenarioError, match="is no regular file"):
        read(fifo)
    with pytest.raises(ScenarioError, match="is a folder"):
        read(tmp_path)


def test_names_are_shown_on_one_line() -> None:
    assert "\n" not in shown(Path("a\nb"))
    assert shown("x" * 1000).endswith("x") and len(shown("x" * 1000)) < 310
    assert shown(os.fsdecode(b"a\xff.json")).startswith("a\\")


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "file").touch()
    with pytest.raises(OSError):
        write(tmp_path / "target", b"data")
    assert [path.name for path in tmp_path.iterdir()] == ["target"]

"""`convert`: names, what they replace, and what they never do."""

from __future__ import annotations

from pathlib import Path

import pytest

from offline_data.config import Settings
from offline_data.errors import NotFoundError, UsageError
from offline_data.ingest import Options, convert
from offline_data.store.library import list_datasets
from offline_data.store.reader import open_reader
from offline_data.testing.batches import assert_same_batch
from offline_data.testing.minari_toy import write_minari
from offline_data.testing.minari_values import toy_episode


@pytest.fixture
def one(tmp_path: Path) -> Path:
    return write_minari(tmp_path / "one-v0", [toy_episode(e, 4) for e in range(3)])


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return write_minari(tmp_path / "other-v0", [toy_episode(7, 9)])


def ids(settings: Settings) -> list[str]:
    return [str(entry.id) for entry in list_datasets(settings.root)]


def test_the_same_files_are_converted_once(settings: Settings, one: Path) -> None:
    first = convert(one, "mine", settings, Options())
    assert not first.existed
    assert convert(one, "mine", settings, Options()).existed
    assert ids(settings) == [str(first.id)]


def test_another_file_takes_a_name_only_by_force(
    settings: Settings, one: Path, other: Path
) -> None:
    first = convert(one, "mine", settings, Options())
    with pytest.raises(UsageError, match="other files"):
        convert(other, "mine", settings, Options())
    assert ids(settings) == [str(first.id)]
    second = convert(other, "mine", settings, Options(force=True))
    assert ids(settings) == [str(second.id)]
    assert second.manifest.counts["transitions"] == 9


@pytest.mark.parametrize("force", [False, True])
def test_some_episodes_never_replace_all(
    settings: Settings,
    one: Path,
    other: Path,
    force: bool,
) -> None:
    whole = convert(one, "mine", settings, Options())
    some = convert(other, "mine", settings, Options(episodes=(0, 1), force=force))
    assert ids(settings) == sorted([str(whole.id), str(some.id)])


def test_a_dataset_directory_becomes_the_other_layout(settings: Settings, one: Path) -> None:
    compact = convert(one, "mine", settings, Options())
    ted = convert(compact.path, "plain", settings, Options(layout="ted"))
    assert ted.manifest.parents == (str(compact.id),)
    batches = [open_reader(result.path).episode_batch(0, 3) for result in (compact, ted)]
    assert_same_batch(*batches)
    in_place = convert(compact.path, "mine", settings, Options(layout="ted"))
    assert in_place.path == compact.path
    assert in_place.manifest.layout == "ted"
    assert_same_batch(open_reader(in_place.path).episode_batch(0, 3), batches[0])


def test_what_is_not_there(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no file or folder"):
        convert(tmp_path / "nothing", "mine", settings, Options())
    (tmp_path / "text.txt").write_text("hello")
    with pytest.raises(NotFoundError, match="none"):
        convert(tmp_path / "text.txt", "mine", settings, Options())

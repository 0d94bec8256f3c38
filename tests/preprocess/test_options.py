"""Arguments that cannot be meant are refused, and where a new dataset goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.config import Settings
from offline_data.errors import InvalidIdError, UsageError
from offline_data.preprocess.options import Options, target_of

REVISION = "0123456789ab"


@pytest.mark.parametrize(
    "options",
    [
        {"num_frames": 0},
        {"num_frames": -3},
        {"num_frames": 2.5},
        {"num_frames": 1e6},
        {"num_frames": "5"},
        {"workers": 0},
        {"worker_threads": 0},
        {"max_tasks_per_child": 0},
        {"num_chunks": 0},
        {"chunksize": -1},
        {"chunksize": 0.5},
        {"chunksize": 5, "num_chunks": 5},
    ],
)
def test_numbers_that_cannot_be_meant(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        Options(**options)


def test_whole_numbers_of_numpy_are_taken() -> None:
    found = Options(num_frames=np.int64(5), num_chunks=np.uint8(3))
    assert (type(found.num_frames), found.num_frames, found.num_chunks) == (int, 5, 3)


def test_rows_of_a_task() -> None:
    assert Options().task_rows(100) is None
    assert Options(chunksize=0).task_rows(100) is None
    assert Options(chunksize=7).task_rows(100) == 7
    assert [Options(num_chunks=n).task_rows(100) for n in (1, 3, 100, 1000)] == [100, 34, 1, 1]


def test_a_name_goes_under_the_root(settings: Settings) -> None:
    for name in ("mine", "local:mine"):
        target = target_of(name, None, REVISION, settings)
        assert str(target.id) == f"local:mine@{REVISION}"
        assert target.destination == settings.root / "local" / "mine" / REVISION
        assert target.work.parent == settings.staging
        assert (target.lock, target.named) == ("local/mine", True)


def test_a_folder_of_ones_own(settings: Settings, tmp_path: Path) -> None:
    target = target_of(None, tmp_path / "new", REVISION, settings)
    assert str(target.id) == f"local:new@{REVISION}"
    assert (target.destination, target.named) == (tmp_path / "new", False)
    assert target.work == tmp_path / ".new.preprocess"


def test_a_folder_is_the_same_however_it_is_written(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "big")
    wanted = target_of(None, tmp_path / "big", REVISION, settings)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for other in ("big", "./big/", "big/../big", "link", "~/big", tmp_path / "link"):
        assert target_of(None, Path(other), REVISION, settings) == wanted


def test_a_link_to_what_is_not_there_yet(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "later")
    target = target_of(None, tmp_path / "link", REVISION, settings)
    assert target.destination == tmp_path / "later"


def test_names_that_ids_cannot_have(settings: Settings, tmp_path: Path) -> None:
    for name, wanted in [("a@b", "ab"), ("…", "preprocessed"), ("-x", "x"), (".", None)]:
        path = tmp_path / name
        target = target_of(None, path, REVISION, settings)
        assert target.id.name == (wanted or target.destination.name)
        assert target.work.parent == target.destination.parent


def test_long_names_leave_room_for_the_work_folder(settings: Settings, tmp_path: Path) -> None:
    names = ["x" * 240 + end for end in "ab"]
    works = {target_of(None, tmp_path / name, REVISION, settings).work for name in names}
    assert len(works) == 2
    assert all(len(work.name) < 100 for work in works)


def test_places_that_are_none(settings: Settings, tmp_path: Path) -> None:
    for name, dest in [(None, None), ("x", tmp_path), ("minari:x", None), ("local:x@1", None)]:
        with pytest.raises(UsageError):
            target_of(name, dest, REVISION, settings)
    with pytest.raises(UsageError, match="cannot be made a dataset"):
        target_of(None, Path("/"), REVISION, settings)
    for name in ("../x", "", "a/../../b"):
        with pytest.raises(InvalidIdError):
            target_of(name, None, REVISION, settings)

"""Where a new dataset goes, what may be there already, and who else is at work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import UsageError
from offline_data.base.progress import Progress
from offline_data.pipeline.preprocess.engine import preprocess
from offline_data.pipeline.preprocess.job import Job, RunOptions, Target
from offline_data.store.cache import cache_usage, plan_prune, remove_items
from offline_data.store.library import entry_at, list_datasets
from offline_data.store.publish import staging_folder
from tests.pipeline.preprocess.oracle import check, episodes_of, mapped
from tests.pipeline.preprocess.pairs import clipped
from tests.pipeline.preprocess.runs import Shuffled, Stopping, make, small_groups, write_plain

REVISION = "0123456789ab"


def test_a_folder_is_the_same_however_it_is_written(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "big").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "big")
    wanted = Target.of(None, tmp_path / "big", REVISION, settings)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for other in ("big", "./big/", "big/../big", "link", "~/big", tmp_path / "link"):
        assert Target.of(None, Path(other), REVISION, settings) == wanted


def test_names_that_ids_cannot_have(settings: Settings, tmp_path: Path) -> None:
    for name, wanted in [("a@b", "ab"), ("…", "preprocessed"), ("-x", "x"), (".", None)]:
        path = tmp_path / name
        target = Target.of(None, path, REVISION, settings)
        assert target.id.name == (wanted or target.destination.name)
        assert target.work.parent == target.destination.parent


def test_long_names_leave_room_for_the_work_folder(settings: Settings, tmp_path: Path) -> None:
    names = ["x" * 240 + end for end in "ab"]
    works = {Target.of(None, tmp_path / name, REVISION, settings).work for name in names}
    assert len(works) == 2
    assert all(len(work.name) < 100 for work in works)


CLIP, OTHER = "clip:action,low=-5000", "clip:action,low=-6000"


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    return write_plain(tmp_path / "toy")


def test_the_same_dataset_is_there(parent: Path, tmp_path: Path, settings: Settings) -> None:
    found = make(parent, [CLIP], tmp_path / "out", settings)
    made_of = found.manifest.converter["options"]["fingerprint"]
    place = Target.of(None, tmp_path / "out", "r", settings)
    assert place.existing(made_of, None)
    assert place.existing(made_of, "compact")
    assert not Target.of(None, tmp_path / "none", "r", settings).existing(made_of, None)
    found = make(parent, [OTHER], tmp_path / "out", settings, force=True)
    assert found.manifest.converter["options"]["recipe"][0]["low"] == -6000


def test_the_dataset_of_a_name_that_is_replaced(tmp_path: Path, settings: Settings) -> None:
    """What is damaged can be replaced, too; the parent of that name cannot."""
    home = settings.root / "local"
    write_plain(home / "mine" / "1")
    (home / "damaged" / "2").mkdir(parents=True)
    (home / "damaged" / "2" / "manifest.json").write_text("{")
    mine, damaged = (Target.of(name, None, "2", settings) for name in ("mine", "damaged"))
    mine.check(entry_at(write_plain(tmp_path / "elsewhere")))
    found = mine.older(settings.root, force=True)
    assert found is not None
    assert found.path == home / "mine" / "1"
    assert damaged.older(settings.root, force=True) is None


def test_a_link_to_an_empty_folder_stays_a_link(
    parent: Path, tmp_path: Path, settings: Settings
) -> None:
    (tmp_path / "big" / "disk").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "big" / "disk")
    found = make(parent, [CLIP], tmp_path / "link", settings)
    assert found.path == tmp_path / "big" / "disk"
    assert (tmp_path / "link").is_symlink()
    assert entry_at(tmp_path / "link").id.name == "disk"


def test_folders_that_are_in_use(
    parent: Path, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(parent, [CLIP], Path("below"), settings)
    assert (tmp_path / "below" / "manifest.json").exists()
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda _: True)
    monkeypatch.setattr(Path, "is_mount", lambda _: True)
    with pytest.raises(UsageError, match="is in use"):
        make(parent, [CLIP], tmp_path / "disk", settings)


CLIP_LOW = "clip:action,low=-4004,high=-1002"


@pytest.fixture
def eight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    small_groups(monkeypatch, rows=4, width=50)
    return write_plain(tmp_path / "toy", [4] * 8)


def named(eight: Path, settings: Settings, stage: str = CLIP_LOW, **options: Any) -> Path:
    """Make `local:mine`."""
    job = Job(eight, (stage,), "mine", None, RunOptions(**options))
    return preprocess(job, settings).path


def stopped(eight: Path, settings: Settings) -> Path:
    """Leave a run of that name behind; returns its work folder."""
    with pytest.raises(KeyboardInterrupt):
        named(eight, settings, executor=Stopping(2))
    (work,) = [path for path in settings.staging.iterdir() if path.is_dir()]
    return work


def test_a_stopped_run_can_be_pruned(eight: Path, settings: Settings) -> None:
    work = stopped(eight, settings)
    (item,) = plan_prune(settings).removed
    assert (item.kind, item.path, item.in_use) == ("staging", work, False)
    remove_items([item], settings)
    assert not work.exists()
    executor = Shuffled()
    path = named(eight, settings, executor=executor, resume=True)
    assert len(executor.ran) > 3
    check(path, mapped(episodes_of(eight), clipped))


class Looking(Shuffled):
    """Looks at the root while tasks run, and tries to prune."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.seen: list[bool] = []

    def run(
        self, job: Callable[[Any], Any], tasks: Sequence[Any], progress: Progress
    ) -> Iterator[tuple[int, Any]]:
        for answer in super().run(job, tasks, progress):
            items = [item for item in cache_usage(self.settings).items if item.kind == "staging"]
            self.seen += [item.in_use for item in items]
            assert not plan_prune(self.settings).removed
            assert not remove_items(items, self.settings).removed
            assert list_datasets(self.settings.root) == []
            yield answer


def test_a_run_under_way_is_left_alone(eight: Path, settings: Settings) -> None:
    executor = Looking(settings)
    path = named(eight, settings, executor=executor)
    assert len(executor.seen) > 3
    assert all(executor.seen)
    check(path, mapped(episodes_of(eight), clipped))
    assert not [one for one in settings.staging.iterdir() if one.is_dir()]


def test_a_conversion_to_the_same_name(eight: Path, settings: Settings) -> None:
    """It takes the name; what the stopped run left goes, and is not gone on with."""
    work = stopped(eight, settings)
    other = settings.root / "local" / "mine" / "1"
    with staging_folder(settings.staging, "local/mine", other) as folder:
        write_plain(folder / "dataset")
        assert not work.exists()
        other.parent.mkdir(parents=True)
        (folder / "dataset").rename(other)
    with pytest.raises(UsageError, match="already exists and was made by another recipe"):
        named(eight, settings, resume=True)
    path = named(eight, settings, force=True)
    check(path, mapped(episodes_of(eight), clipped))
    assert [entry.path for entry in list_datasets(settings.root)] == [path]


def test_what_fails_replaces_nothing(eight: Path, settings: Settings) -> None:
    first = named(eight, settings)
    with pytest.raises(KeyboardInterrupt):
        named(eight, settings, "clip:action,low=-3000", force=True, executor=Stopping(1))
    assert [entry.path for entry in list_datasets(settings.root)] == [first]
    check(first, mapped(episodes_of(eight), clipped))

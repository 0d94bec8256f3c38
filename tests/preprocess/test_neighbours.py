"""What other verbs do beside a run that is under way or was stopped, and roots that cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offline_data.config import Settings
from offline_data.errors import AccessError, UsageError
from offline_data.preprocess.engine import preprocess
from offline_data.preprocess.options import Options, target_of
from offline_data.preprocess.plan import fingerprint
from offline_data.preprocess.spec import recipe_of
from offline_data.progress import Progress
from offline_data.store.cache import cache_usage, plan_prune, remove_items
from offline_data.store.library import entry_at, list_datasets
from offline_data.store.publish import staging_folder
from offline_data.store.reader import open_reader
from tests.preprocess.oracle import check, episodes_of, mapped
from tests.preprocess.pairs import clipped
from tests.preprocess.runs import Shuffled, Stopping, make, small_groups, write_plain

CLIP = "clip:action,low=-4004,high=-1002"


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    small_groups(monkeypatch, rows=4, width=50)
    return write_plain(tmp_path / "toy", [4] * 8)


def named(parent: Path, settings: Settings, stage: str = CLIP, **options: Any) -> Path:
    """Make `local:mine`."""
    recipe = recipe_of([stage])
    made_of = fingerprint(open_reader(parent), recipe, None)
    target = target_of("mine", None, made_of[:12], settings)
    return preprocess(entry_at(parent), recipe, target, settings, Options(**options)).path


def stopped(parent: Path, settings: Settings) -> Path:
    """Leave a run of that name behind; returns its work folder."""
    with pytest.raises(KeyboardInterrupt):
        named(parent, settings, executor=Stopping(2))
    (work,) = [path for path in settings.staging.iterdir() if path.is_dir()]
    return work


def test_a_stopped_run_can_be_pruned(parent: Path, settings: Settings) -> None:
    work = stopped(parent, settings)
    (item,) = plan_prune(settings).items
    assert (item.kind, item.path, item.in_use) == ("staging", work, False)
    remove_items([item], settings)
    assert not work.exists()
    executor = Shuffled()
    path = named(parent, settings, executor=executor, resume=True)
    assert len(executor.ran) > 3
    check(path, mapped(episodes_of(parent), clipped))


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
            assert not plan_prune(self.settings).items
            assert not remove_items(items, self.settings).removed
            assert list_datasets(self.settings.root) == []
            yield answer


def test_a_run_under_way_is_left_alone(parent: Path, settings: Settings) -> None:
    executor = Looking(settings)
    path = named(parent, settings, executor=executor)
    assert len(executor.seen) > 3
    assert all(executor.seen)
    check(path, mapped(episodes_of(parent), clipped))
    assert not [one for one in settings.staging.iterdir() if one.is_dir()]


def test_a_conversion_to_the_same_name(parent: Path, settings: Settings) -> None:
    """It takes the name; what the stopped run left goes, and is not gone on with."""
    work = stopped(parent, settings)
    other = settings.root / "local" / "mine" / "1"
    with staging_folder(settings.staging, "local/mine", other) as folder:
        write_plain(folder / "dataset")
        assert not work.exists()
        other.parent.mkdir(parents=True)
        (folder / "dataset").rename(other)
    with pytest.raises(UsageError, match="already exists and was made by another recipe"):
        named(parent, settings, resume=True)
    path = named(parent, settings, force=True)
    check(path, mapped(episodes_of(parent), clipped))
    assert [entry.path for entry in list_datasets(settings.root)] == [path]


def test_another_recipe_takes_the_name_only_by_force(parent: Path, settings: Settings) -> None:
    first = named(parent, settings)
    second = "clip:action,low=-3000"
    with pytest.raises(UsageError, match="was made by another recipe"):
        named(parent, settings, second)
    assert first.exists()
    path = named(parent, settings, second, force=True)
    assert [entry.path for entry in list_datasets(settings.root)] == [path] != [first]


def test_what_fails_replaces_nothing(parent: Path, settings: Settings) -> None:
    first = named(parent, settings)
    with pytest.raises(KeyboardInterrupt):
        named(parent, settings, "clip:action,low=-3000", force=True, executor=Stopping(1))
    assert [entry.path for entry in list_datasets(settings.root)] == [first]
    check(first, mapped(episodes_of(parent), clipped))


def test_a_root_that_cannot_be_used(parent: Path, tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "file").touch()
    nowhere = replace(settings, root=tmp_path / "file" / "root")
    with pytest.raises(AccessError, match="cannot be written"):
        named(parent, nowhere)
    with pytest.raises(AccessError):
        make(parent, [CLIP], tmp_path / "file" / "out", settings)
    assert not (tmp_path / "out").exists()

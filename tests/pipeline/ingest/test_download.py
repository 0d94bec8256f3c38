"""`download` of datasets on this machine: when it converts, and when it uses what is here."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import NotFoundError
from offline_data.base.ids import parse_id
from offline_data.pipeline.ingest import Options, download, ensure
from offline_data.store.library import entry_at, list_datasets
from tests.toys.minari import toy_episode, write_minari

ID = parse_id("minari:my/set-v0")


def record(settings: Settings, episodes: int) -> Path:
    assert settings.minari_path is not None
    folder = settings.minari_path / "my" / "set-v0"
    shutil.rmtree(folder, ignore_errors=True)
    return write_minari(folder, [toy_episode(e, 3) for e in range(episodes)])


def transitions(path: Path) -> int:
    return int(entry_at(path).manifest.counts["transitions"])


@pytest.mark.parametrize("options", [Options(), Options(episodes=(0, 2))])
def test_a_set_recorded_anew_is_converted_anew(settings: Settings, options: Options) -> None:
    record(settings, 2)
    first = download(ID, settings, options)
    assert download(ID, settings, options).existed
    record(settings, 5)
    second = download(ID, settings, options)
    assert not second.existed
    assert second.id != first.id
    assert second.manifest.counts["episodes"] == (5 if options.episodes is None else 2)


def test_without_download_what_is_here_is_used_as_it_is(settings: Settings) -> None:
    with pytest.raises(NotFoundError, match="not on this disk"):
        ensure(str(ID), settings=settings, download=False)
    record(settings, 2)
    path = ensure(str(ID), settings=settings)
    record(settings, 5)
    assert ensure(str(ID), settings=settings, download=False) == path
    assert transitions(path) == 6
    ted = ensure(str(ID), settings=settings, download=False, layout="ted")
    assert (ted, entry_at(ted).manifest.layout) == (path, "ted")
    assert transitions(ensure(str(ID), settings=settings)) == 15


def test_what_is_here_outlives_its_source(settings: Settings) -> None:
    record(settings, 2)
    first = download(ID, settings, Options())
    gone = replace(settings, minari_path=settings.root / "nowhere")
    again = download(ID, gone, Options())
    assert (again.existed, again.path) == (True, first.path)


def test_some_episodes_are_not_taken_for_all(settings: Settings) -> None:
    record(settings, 4)
    some = download(ID, settings, Options(episodes=(1, 3)))
    assert some.manifest.counts["episodes"] == 2
    whole = download(ID, settings, Options())
    assert not whole.existed
    assert whole.manifest.counts["episodes"] == 4
    assert len(list_datasets(settings.root)) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_force_converts_what_is_here_again(settings: Settings) -> None:
    record(settings, 2)
    first = download(ID, settings, Options())
    (first.path / "stranger").write_text("x")
    again = download(ID, settings, Options(force=True))
    assert (again.path, again.existed) == (first.path, False)
    assert (first.path / "stranger").read_text() == "x"


def test_the_other_layout_is_made_from_what_is_here(settings: Settings) -> None:
    folder = record(settings, 2)
    compact = download(ID, settings, Options(episodes=(0, 2)))
    shutil.rmtree(folder)
    ted = download(ID, settings, Options(layout="ted", episodes=(0, 2)))
    assert ted.path == compact.path
    assert ted.manifest.layout == "ted"
    assert ted.manifest.converter["options"]["episodes"] == [0, 2]
    assert ted.manifest.files == compact.manifest.files

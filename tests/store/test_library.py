"""Datasets under a root: listed, found by id or path, removed without touching others."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import AccessError, ManifestError, NotFoundError
from offline_data.base.ids import parse_id
from offline_data.store.layout import FORMAT_VERSION, MANIFEST
from offline_data.store.library import (
    LocalDataset,
    at_hand,
    entry_at,
    find,
    list_datasets,
    list_local,
    locate,
    remove,
    survey,
)
from offline_data.store.manifest import dump_manifest, read_manifest
from offline_data.store.reader import open_reader
from offline_data.testing.toy import toy_batch, write_toy
from tests.toys.stored import write_stored


def put(root: Path, text: str, created: str = "", *, partial: bool = False) -> Path:
    folder = write_stored(root, text, toy_batch([2]))
    options = {"episodes": [0, 1] if partial else None}
    manifest = replace(read_manifest(folder), created=created, converter={"options": options})
    (folder / MANIFEST).write_text(dump_manifest(manifest))
    return folder


def revision(settings: Settings, text: str) -> str | None:
    found = find(settings.root, parse_id(text))
    return None if found is None else found.id.revision


def test_list_finds_all_and_passes_over_damage(settings: Settings, tmp_path: Path) -> None:
    root = settings.root
    assert list_datasets(root) == []
    put(root, "minari:a/b-v0@1")
    put(root, "minari:a/b-v0@2")
    put(root, "local:x@1")
    (put(root, "d4rl:broken@1") / MANIFEST).write_text("{")
    (root / ".staging" / "half").mkdir(parents=True)
    (root / ".staging" / "half" / MANIFEST).write_text("{}")
    write_toy(tmp_path / "elsewhere", [toy_batch([1])])
    (root / "local" / "toy").symlink_to(tmp_path / "elsewhere")
    (root / "local" / "circle").symlink_to(root)
    ids = ["local:toy@1", "local:x@1", "minari:a/b-v0@1", "minari:a/b-v0@2"]
    assert [str(entry.id) for entry in list_datasets(root)] == ids
    assert list(survey(root)[1]) == [root / "d4rl" / "broken" / "1"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format_version", True),
        ("format_version", FORMAT_VERSION + 1),
        ("id", "../x:y@1"),
        ("id", 3),
        ("layout", "tables"),
        ("layout", ["compact"]),
        ("counts", {"transitions": 3.0, "episodes": 1}),
        ("counts", {"transitions": 3}),
        ("counts", {"transitions": 0, "episodes": 0}),
        ("digests", {"episodes/meta.json": {"size": -1}}),
        ("digests", {"episodes/meta.json": {"size": "1"}}),
        ("digests", [1]),
    ],
)
def test_a_list_checks_what_it_shows(settings: Settings, key: str, value: Any) -> None:
    """And nothing else: what is wrong elsewhere in a manifest is said where the dataset is opened."""
    folder = put(settings.root, "local:x@1")
    (shown,) = list_local(settings.root)
    assert shown == LocalDataset.of(entry_at(folder))
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**manifest, "spaces": 3}))
    assert list_local(settings.root)[0] == shown
    with pytest.raises(ManifestError, match="spaces"):
        entry_at(folder)
    (folder / MANIFEST).write_text(json.dumps({**manifest, key: value}))
    found = list_local(settings.root)
    assert not found
    assert str(folder) in found.notes[0]


def test_without_a_revision_the_newest_whole_one_is_meant(settings: Settings) -> None:
    put(settings.root, "minari:a/b-v0@new", "2026-02-01")
    put(settings.root, "minari:a/b-v0@old", "2026-01-01")
    put(settings.root, "minari:a/b-v0@old+episodes-0-1", "2026-03-01", partial=True)
    assert revision(settings, "minari:a/b-v0") == "new"
    named = find(settings.root, parse_id("minari:a/b-v0@old+episodes-0-1"))
    assert named is not None
    assert named.partial
    assert find(settings.root, parse_id("minari:a/b-v0@none")) is None
    # of two that were made in the same second, the one that was written last
    for first, last in (("zzz", "aaa"), ("aaa", "zzz")):
        for name in (first, last):
            put(settings.root, f"local:of-{last}@{name}", "2026-01-01T00:00:00+00:00")
        assert revision(settings, f"local:of-{last}") == last
        made = []
        for name in (first, last):
            folder = write_stored(settings.root, f"local:b-{last}@{name}", toy_batch([1]))
            made.append(read_manifest(folder).created)
        assert made[0] < made[1]
        assert revision(settings, f"local:b-{last}") == last


def test_the_only_part_of_a_dataset_needs_no_revision(settings: Settings) -> None:
    for source in ("local", "d4rl"):
        first = put(settings.root, f"{source}:part@a+episodes-0-3", partial=True)
        assert locate(f"{source}:part", settings).path == first
        with pytest.raises(NotFoundError, match="not on this disk") as caught:
            locate(f"{source}:part@other", settings)
        assert f"did you mean {source}:part@{first.name}?" in str(caught.value.hint)
        # the whole of a source's dataset can be downloaded: a part does not stand for it
        assert at_hand(f"{source}:part", settings.root) == (first if source == "local" else None)
        second = put(settings.root, f"{source}:part@a+episodes-3-6", partial=True)
        with pytest.raises(NotFoundError, match=f"{source}:part is ambiguous: 2 parts") as caught:
            locate(f"{source}:part", settings)
        for part in (first, second):
            assert f"`offline-data info {source}:part@{part.name}`" in str(caught.value.shell_hint)
        whole = put(settings.root, f"{source}:part@a")
        assert locate(f"{source}:part", settings).path == whole


def test_locate_takes_ids_and_paths_and_offers_the_nearest(settings: Settings) -> None:
    folder = put(settings.root, "minari:a/hopper-v0@1")
    assert locate("minari:a/hopper-v0", settings).path == folder
    assert locate(str(folder), settings).path == folder
    with pytest.raises(NotFoundError) as caught:
        locate("minari:a/hoper-v0", settings)
    assert "minari:a/hopper-v0" in str(caught.value.hint)
    assert "offline-data download minari:a/hoper-v0" in str(caught.value.shell_hint)
    with pytest.raises(NotFoundError):
        locate(str(folder.parent), settings)


def refuse(number: int) -> Any:
    def call(path: object, *_: object, **__: object) -> Any:
        raise OSError(number, os.strerror(number), str(path))

    return call


def test_remove_takes_one_dataset_and_its_empty_folders(settings: Settings, tmp_path: Path) -> None:
    gone = put(settings.root, "minari:a/b-v0@1")
    kept = put(settings.root, "minari:a/c-v0@1")
    entry = entry_at(gone)
    remove(entry)
    assert not gone.parent.exists()
    assert entry_at(kept).manifest.name == "a/c-v0"
    with pytest.raises(NotFoundError):
        remove(entry)
    home = tmp_path / "mine"  # elsewhere than an id says: its parent stays
    write_toy(home / "d", [toy_batch([1])])
    (tmp_path / "link").symlink_to(home / "d")
    with pytest.raises(AccessError, match="is a link"):
        remove(entry_at(tmp_path / "link"))
    remove(entry_at(home / "d"))
    assert list(home.iterdir()) == []


def test_a_dataset_that_cannot_be_deleted(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = entry_at(put(settings.root, "local:a@1"))
    monkeypatch.setattr(Path, "unlink", refuse(errno.EACCES))
    with pytest.raises(AccessError, match=r"manifest\.json cannot be deleted: Permission denied"):
        remove(entry)


def test_unknown_manifest_fields_are_kept(tmp_path: Path) -> None:
    write_toy(tmp_path / "d", [toy_batch([1])])
    manifest = replace(read_manifest(tmp_path / "d"), extra={"later": {"field": 1}})
    (tmp_path / "d" / MANIFEST).write_text(dump_manifest(manifest))
    assert read_manifest(tmp_path / "d") == manifest


def test_only_the_datasets_own_files_are_removed(tmp_path: Path) -> None:
    folder, outside = tmp_path / "d", tmp_path / "outside"
    write_toy(folder, [toy_batch([1])])
    (folder / "notes.txt").write_text("mine")
    (folder / "steps" / "more.memmap").write_text("mine")
    outside.mkdir()
    (outside / "rows.memmap").write_text("not here")
    for file in (folder / "episodes").iterdir():
        file.unlink()
    (folder / "episodes").rmdir()
    (folder / "episodes").symlink_to(outside)
    remove(entry_at(folder))
    left = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    assert left == ["episodes", "notes.txt", "steps", "steps/more.memmap"]
    assert (outside / "rows.memmap").read_text() == "not here"


def test_a_damaged_revision_does_not_hide_another(settings: Settings) -> None:
    folder = put(settings.root, "local:a@1")
    (put(settings.root, "local:a@2") / MANIFEST).write_text("{")
    with pytest.warns(UserWarning, match="is passed over"):
        assert revision(settings, "local:a") == "1"
    (folder / MANIFEST).write_text("{")
    with pytest.raises(ManifestError):
        find(settings.root, parse_id("local:a"))


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES])
def test_limits_of_the_system_are_not_called_damage(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    folder = put(settings.root, "local:a@1")
    reader = open_reader(folder)
    for place, name in ((os, "open"), (np, "memmap"), (Path, "open")):
        monkeypatch.setattr(place, name, refuse(number))
    for act in (
        lambda: read_manifest(folder),
        lambda: reader.step(("action",)),
        lambda: find(settings.root, parse_id("local:a")),
    ):
        with pytest.raises(AccessError, match=os.strerror(number)):
            act()
    assert [type(e) for e in survey(settings.root)[1].values()] == [AccessError]

"""Datasets under a root: listed, found by id or path, removed without touching others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from offline_data.config import Settings
from offline_data.errors import AccessError, NotFoundError
from offline_data.ids import parse_id
from offline_data.store.layout import MANIFEST
from offline_data.store.library import (
    entry_at,
    find,
    list_datasets,
    locate,
    remove,
    survey,
)
from offline_data.store.manifest import dump_manifest, read_manifest
from offline_data.testing.toy import toy_batch, write_toy


def put(root: Path, text: str, created: str = "", *, partial: bool = False) -> Path:
    dataset = parse_id(text)
    folder = root / dataset.folder / str(dataset.revision)
    write_toy(folder, [toy_batch([2])], dataset=text)
    options = {"episodes": [0, 1] if partial else None}
    manifest = replace(read_manifest(folder), created=created, converter={"options": options})
    (folder / MANIFEST).write_text(dump_manifest(manifest))
    return folder


def test_list_finds_all_and_passes_over_damage(settings: Settings) -> None:
    root = settings.root
    assert list_datasets(root) == []
    put(root, "minari:a/b-v0@1")
    put(root, "minari:a/b-v0@2")
    put(root, "local:x@1")
    (put(root, "d4rl:broken@1") / MANIFEST).write_text("{")
    (root / ".staging" / "half").mkdir(parents=True)
    (root / ".staging" / "half" / MANIFEST).write_text("{}")
    ids = ["local:x@1", "minari:a/b-v0@1", "minari:a/b-v0@2"]
    assert [str(entry.id) for entry in list_datasets(root)] == ids
    assert survey(root)[1] == [root / "d4rl" / "broken" / "1"]


def test_without_a_revision_the_newest_whole_one_is_meant(settings: Settings) -> None:
    put(settings.root, "minari:a/b-v0@new", "2026-02-01")
    put(settings.root, "minari:a/b-v0@old", "2026-01-01")
    put(settings.root, "minari:a/b-v0@old+episodes-0-1", "2026-03-01", partial=True)
    newest = find(settings.root, parse_id("minari:a/b-v0"))
    assert newest is not None
    assert newest.id.revision == "new"
    named = find(settings.root, parse_id("minari:a/b-v0@old+episodes-0-1"))
    assert named is not None
    assert named.partial
    assert find(settings.root, parse_id("minari:a/b-v0@none")) is None


def test_locate_takes_ids_and_paths_and_offers_the_nearest(settings: Settings) -> None:
    folder = put(settings.root, "minari:a/hopper-v0@1")
    assert locate("minari:a/hopper-v0", settings).path == folder
    assert locate(str(folder), settings).path == folder
    with pytest.raises(NotFoundError) as caught:
        locate("minari:a/hoper-v0", settings)
    assert "minari:a/hopper-v0" in str(caught.value.hint)
    assert "offline-data download minari:a/hoper-v0" in str(caught.value.hint)
    with pytest.raises(NotFoundError):
        locate(str(folder.parent), settings)


def test_remove_takes_one_dataset_and_its_empty_folders(settings: Settings) -> None:
    gone = put(settings.root, "minari:a/b-v0@1")
    kept = put(settings.root, "minari:a/c-v0@1")
    entry = entry_at(gone)
    assert remove(entry) == entry.bytes > 0
    assert not gone.parent.exists()
    assert entry_at(kept).manifest.name == "a/c-v0"
    with pytest.raises(NotFoundError):
        remove(entry)


def test_removing_a_dataset_elsewhere_leaves_its_parent(tmp_path: Path) -> None:
    home = tmp_path / "mine"
    write_toy(home / "d", [toy_batch([1])])
    remove(entry_at(home / "d"))
    assert home.is_dir()


def test_a_link_is_not_followed_to_delete(tmp_path: Path) -> None:
    write_toy(tmp_path / "d", [toy_batch([1])])
    (tmp_path / "link").symlink_to(tmp_path / "d")
    with pytest.raises(AccessError, match="is a link"):
        remove(entry_at(tmp_path / "link"))
    assert entry_at(tmp_path / "d").manifest.counts["transitions"] == 1


def test_unknown_manifest_fields_are_kept(tmp_path: Path) -> None:
    write_toy(tmp_path / "d", [toy_batch([1])])
    manifest = replace(read_manifest(tmp_path / "d"), extra={"later": {"field": 1}})
    (tmp_path / "d" / MANIFEST).write_text(dump_manifest(manifest))
    assert read_manifest(tmp_path / "d") == manifest

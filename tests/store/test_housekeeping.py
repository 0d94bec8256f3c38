"""`cache`: sizes that add up, and nothing removed that somebody needs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from offline_data.config import Settings
from offline_data.progress import SILENT
from offline_data.store.housekeeping import cache_usage, plan_prune, remove_items
from offline_data.store.locks import dataset_lock, lock_name
from offline_data.testing.toy import toy_batch, write_toy


@pytest.fixture
def full(settings: Settings) -> Settings:
    """A root with one of everything."""
    write_toy(settings.root / "local" / "toy" / "1", [toy_batch([3])])
    whole = settings.downloads / "sha256" / "ab" / ("ab" * 32)
    part = settings.downloads / "partial" / ("c" * 64 + ".part")
    staged = settings.staging / f"{lock_name('local/x')}.dead" / "dataset" / "rows"
    for path, size in ((whole, 100), (part, 20), (staged, 3)):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x" * size)
    raw = settings.downloads / "raw" / "d4rl" / "toy" / "v"
    raw.mkdir(parents=True)
    os.link(whole, raw / "toy.hdf5")
    return settings


def kinds(settings: Settings) -> dict[str, int]:
    return {f"{item.kind} {item.path.name[:4]}": item.bytes for item in cache_usage(settings)}


def test_usage_lists_everything_once(full: Settings) -> None:
    found = kinds(full)
    dataset = found.pop("dataset 1")
    assert found == {
        "download abab": 100,
        "download v": 0,
        "partial cccc": 20,
        "staging x-" + lock_name("local/x")[2:4]: 3,
    }
    manifest = (full.root / "local" / "toy" / "1" / "manifest.json").stat().st_size
    on_disk = sum(p.stat().st_size for p in (full.root / "local").rglob("*") if p.is_file())
    assert dataset == on_disk - manifest


def test_prune_keeps_datasets_and_young_parts(full: Settings) -> None:
    pruned = plan_prune(full)
    assert {item.kind for item in pruned} == {"download", "staging"}
    assert remove_items(pruned, full) == 103
    assert set(kinds(full)) == {"dataset 1", "partial cccc"}
    old = time.time() - 8 * 86_400
    part = next((full.downloads / "partial").glob("*.part"))
    os.utime(part, (old, old))
    assert [item.kind for item in plan_prune(full)] == ["partial"]
    assert plan_prune(full, older_than_days=9) == ()
    remove_items(plan_prune(full), full)
    assert set(kinds(full)) == {"dataset 1"}


def test_a_conversion_under_way_is_left_alone(full: Settings) -> None:
    with dataset_lock(full.staging, "local/x", SILENT):
        assert not [item for item in cache_usage(full) if item.kind == "staging"]
    items = [item for item in cache_usage(full) if item.kind == "staging"]
    with dataset_lock(full.staging, "local/x", SILENT):
        assert remove_items(items, full) == 0
    assert items[0].path.exists()


def test_a_dataset_made_here_is_not_refetchable(full: Settings) -> None:
    item = next(item for item in cache_usage(full) if item.kind == "dataset")
    assert not item.refetchable
    assert remove_items([item], full) == item.bytes
    assert not Path(item.path).exists()

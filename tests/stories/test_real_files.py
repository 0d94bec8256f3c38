"""Real files, converted, and every value on disk compared with h5py, which this package is not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from offline_data.base.config import Settings
from offline_data.episode.fields import next_of
from offline_data.pipeline.ingest import Options, convert
from offline_data.store.layout import LAYOUTS, LayoutName
from offline_data.store.reader import DatasetReader, decode, open_reader
from tests.pipeline.ingest.here import convert_here

pytestmark = pytest.mark.slow


def written(path: Path, settings: Settings, layout: LayoutName, source: str) -> DatasetReader:
    result = convert(path, "real", replace(settings), Options(layout=layout), source=source)
    return open_reader(result.path)


def minari_files(realdata: Path) -> list[Path]:
    folders = ("minari", "minari_v043", "minari_door_human_v2")
    return sorted(p for name in folders for p in (realdata / name).rglob("main_data.hdf5"))


def arrays(node: Any, key: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(node, h5py.Dataset):
        yield key, node
        return
    for name, child in node.items():
        yield from arrays(child, (*key, name.removeprefix("_index_")))


def plain(dataset: Any) -> Any:
    """Values of a dataset; None where it holds encoded images."""
    if h5py.check_string_dtype(dataset.dtype):
        return np.array(dataset.asstr()[()], dtype=object)
    if dataset.dtype == object or (dataset.ndim == 2 and bytes(dataset[0, :2]) == b"\xff\xd8"):
        return None
    return dataset[()]


def test_minari_files(realdata: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    convert_here(monkeypatch)
    compared = 0
    for number, path in enumerate(minari_files(realdata)):
        here = replace(settings, root=settings.root / str(number))
        reader = written(path.parents[1], here, LAYOUTS[number % len(LAYOUTS)], "minari")
        with h5py.File(path) as file:
            for episode in range(reader.episode_count):
                group = file[f"episode_{episode}"]
                compared += compare_episode(reader, episode, group)
                if "seed" in group.attrs:
                    seed = np.uint64(group.attrs["seed"]).astype(np.int64)
                    assert reader.episodes["seed",][episode] == seed
    assert compared > 600


def compare_episode(reader: DatasetReader, episode: int, group: Any) -> int:
    start, length = int(reader.starts[episode]), int(reader.lengths[episode])
    found = reader.transitions_at(np.arange(start, start + length))
    for key in found:
        words = reader.words(key)
        found[key] = found[key] if words is None else decode(found[key], words)
    np.testing.assert_array_equal(found["next", "reward"][:, 0], group["rewards"][()])
    np.testing.assert_array_equal(found["next", "terminated"][:, 0], group["terminations"][()])
    np.testing.assert_array_equal(found["next", "truncated"][:, 0], group["truncations"][()])
    for key, dataset in arrays(group["actions"], ("action",)):
        np.testing.assert_array_equal(found[key], plain(dataset), strict=True)
    compared = 4
    observed = [*arrays(group["observations"], ("observation",))]
    infos = [*arrays(group["infos"], ("info",))] if "infos" in group else []
    for key, dataset in observed + infos:
        values = plain(dataset)
        if values is None:
            continue
        if len(values) == length + 1:
            np.testing.assert_array_equal(found[key], values[:-1])
            values = values[1:]
        np.testing.assert_array_equal(found[next_of(key)], values)
        compared += 2
    return compared

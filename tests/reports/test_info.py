"""What is said of a dataset here, and of one that only a catalogue knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offline_data.errors import InvalidIdError, NotFoundError
from offline_data.ids import DatasetId
from offline_data.reports import catalog, info
from offline_data.reports.catalog import CatalogDataset
from offline_data.store.layout import LAYOUTS, LayoutName
from offline_data.testing.toy import toy_batch, write_toy

if TYPE_CHECKING:
    from pathlib import Path

    from offline_data.config import Settings

REMOTE = CatalogDataset("d4rl:x-v2", "d4rl", "x-v2", False, 10, None, 99, "x", ())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[DatasetId]:
    """Ids that the catalogue was asked for; it knows one."""
    ids: list[DatasetId] = []

    def find(dataset: DatasetId, settings: Settings) -> CatalogDataset | None:
        ids.append(dataset)
        return REMOTE if dataset.name == "x-v2" else None

    monkeypatch.setattr(catalog, "find_in_catalog", find)
    return ids


def _write(settings: Settings, layout: LayoutName = "compact") -> Path:
    path = settings.root / "local" / "toy" / "1"
    path.mkdir(parents=True)
    write_toy(path, [toy_batch([3, 2], text=True)], layout=layout)
    return path


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_dataset_here_is_described_whatever_its_layout(
    settings: Settings, layout: LayoutName, asked: list[DatasetId]
) -> None:
    path = _write(settings, layout)
    found = info.dataset_info("local:toy", settings)
    assert isinstance(found, info.DatasetInfo)
    assert (found.id, found.path, found.layout) == ("local:toy@1", str(path), layout)
    assert (found.transitions, found.episodes, found.source) == (5, 2, "local")
    assert found.bytes == sum(
        file.stat().st_size
        for file in path.rglob("*")
        if file.name != "manifest.json" and file.is_file()
    )
    assert found.schema == {
        "action": info.LeafInfo("float32", (1,), "steps", False),
        "info/code": info.LeafInfo("int64", (), "observations", False),
        "next/reward": info.LeafInfo("float64", (1,), "steps", False),
        "next/terminated": info.LeafInfo("bool", (1,), "steps", False),
        "next/truncated": info.LeafInfo("bool", (1,), "steps", False),
        "observation/mission": info.LeafInfo("int32", (), "observations", True),
        "observation/state": info.LeafInfo("float32", (3,), "observations", False),
    }
    assert asked == []


def test_a_path_is_as_good_as_an_id(settings: Settings, asked: list[DatasetId]) -> None:
    path = _write(settings)
    assert info.dataset_info(str(path), settings) == info.dataset_info("local:toy@1", settings)


def test_a_dataset_that_is_not_here_comes_from_the_catalogue(
    settings: Settings, asked: list[DatasetId]
) -> None:
    assert info.dataset_info("d4rl:x-v2", settings) == REMOTE
    assert asked == [DatasetId("d4rl", "x-v2")]
    assert REMOTE.command == "offline-data download d4rl:x-v2"


def test_unknown_everywhere(settings: Settings, asked: list[DatasetId]) -> None:
    with pytest.raises(NotFoundError, match="d4rl:y-v2 is not on this disk"):
        info.dataset_info("d4rl:y-v2", settings)


def test_a_path_is_never_looked_up_in_a_catalogue(
    settings: Settings, tmp_path: Path, asked: list[DatasetId]
) -> None:
    with pytest.raises(NotFoundError, match="no manifest"):
        info.dataset_info(str(tmp_path), settings)
    assert asked == []


def test_neither_id_nor_path(settings: Settings, asked: list[DatasetId]) -> None:
    with pytest.raises(InvalidIdError):
        info.dataset_info("d4rl:../x", settings)

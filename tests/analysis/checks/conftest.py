"""The fixture that writes batches as dataset directories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from offline_data.store.layout import LayoutName
from offline_data.store.manifest import Manifest
from offline_data.store.writer import DatasetWriter
from tests.analysis.checks.planted import Write

if TYPE_CHECKING:
    from offline_data.episode import EpisodeBatch


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes a batch as a dataset directory."""
    number = 0

    def written(
        batch: EpisodeBatch,
        *,
        layout: LayoutName = "compact",
        name: str = "",
        dataset: str = "",
        **manifest: Any,
    ) -> Path:
        nonlocal number
        number += 1
        folder = tmp_path / f"set{number}"
        dataset = dataset or f"local:{name or folder.name}@1"
        source, _, rest = dataset.partition(":")
        name, _, revision = rest.partition("@")
        described = {"licence": "CC-BY-4.0", "citation": "@misc{x}", **manifest}
        header = Manifest(
            dataset, source, name, revision, layout, tables={}, counts={}, **described
        )
        with DatasetWriter(folder, header, audit="all") as writer:
            writer.append(batch)
            writer.finish()
        return folder

    return written

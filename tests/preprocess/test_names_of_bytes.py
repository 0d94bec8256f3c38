"""Places whose names are no UTF-8, as Linux allows: they work as any other."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from offline_data.store.library import entry_at
from tests.preprocess.runs import make, write_plain

if TYPE_CHECKING:
    from pathlib import Path

    from offline_data.config import Settings

BYTES = os.fsdecode(b"\xff\xfe")


def test_a_destination_and_the_file_of_a_function(tmp_path: Path, settings: Settings) -> None:
    parent = write_plain(tmp_path / "toy")
    folder = tmp_path / BYTES
    folder.mkdir()
    (folder / "scale.py").write_text("def scale(td):\n    return td\n")
    found = make(parent, [f"fn:{folder / 'scale.py'}:scale"], folder / BYTES, settings)
    assert found.path == folder / BYTES
    assert entry_at(found.path).manifest.counts["transitions"] > 0

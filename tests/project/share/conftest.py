"""A hub that takes pushes, a user who is logged in there, and two machines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import huggingface_hub.constants
import pytest

from offline_data.base.config import Settings
from offline_data.store.library import Entry, entry_at
from offline_data.testing.toy import toy_batch
from tests.pipeline.ingest.here import conversions_start_no_process
from tests.toys.hub import TOKEN, WritableHub
from tests.toys.stored import write_stored

__all__ = ["conversions_start_no_process"]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_waits: None) -> Iterator[WritableHub]:
    """A hub without repositories; huggingface_hub does not sleep, and uses its plain protocol."""
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "users-cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    with WritableHub() as running:
        yield running


@pytest.fixture
def here(tmp_path: Path, hub: WritableHub) -> Settings:
    """The machine that pushes."""
    return Settings(tmp_path / "root", workers=1, hub_endpoint=hub.url, hub_token=TOKEN)


@pytest.fixture
def elsewhere(here: Settings, tmp_path: Path) -> Settings:
    """Another machine of the same user."""
    return replace(here, root=tmp_path / "elsewhere")


@pytest.fixture
def toy(here: Settings) -> Entry:
    """`local:toy`: text, images, an episode without a last observation; no licence."""
    batch = toy_batch([3, 1, 40], text=True, images=True, unknown_final=(1,))
    return entry_at(write_stored(here.root, "local:toy@1", batch))

"""A root with one of everything that can lie under one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from offline_data.base.config import Settings
from offline_data.fetch.cache import FetchRecord, partial_path, write_record
from offline_data.store.layout import MANIFEST
from offline_data.store.publish import lock_name
from offline_data.testing.toy import toy_batch, write_toy

SHAS = {"plain": "a" * 64, "laid out": "b" * 64}
"""Digests of the raw files of `full`, of 100 and 200 bytes."""

NOTE = b'{"url": "http://host.example/part"}'


@pytest.fixture
def full(settings: Settings) -> Settings:
    """A root with one of everything, all of it recognisable by its size."""
    write_toy(settings.root / "local" / "toy" / "1", [toy_batch([3])])
    _write(settings.root / "local" / "broken" / "1" / MANIFEST, b"{")
    _write(settings.root / "local" / "broken" / "1" / "steps" / "rows.memmap", b"b" * 300)
    for sha256, size in zip(SHAS.values(), (100, 200), strict=True):
        _write(settings.downloads / "sha256" / sha256[:2] / sha256, b"x" * size)
        url = f"http://host.example/{sha256[:2]}"
        write_record(settings, FetchRecord(url, sha256, size, url, "2024-01-01"))
    laid_out = settings.downloads / "raw" / "d4rl" / "toy" / "v"
    laid_out.mkdir(parents=True)
    os.link(settings.downloads / "sha256" / "bb" / SHAS["laid out"], laid_out / "toy.hdf5")
    part = partial_path(settings, "http://host.example/part")
    _write(part, b"p" * 20)
    _write(part.with_suffix(".json"), NOTE)
    staged = settings.staging / f"{lock_name('local/x')}.dead" / "dataset" / "rows"
    _write(staged, b"s" * 3)
    _write(settings.root / "local" / "notes of the user.txt", b"n" * 7)
    return settings


def edit_manifest(folder: Path, **fields: Any) -> None:
    """Let a dataset's manifest say something else."""
    path = folder / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)

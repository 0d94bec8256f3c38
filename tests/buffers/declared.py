"""Datasets whose manifest declares something."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import offline_data
from offline_data.buffers.dataset import Dataset
from offline_data.store.layout import MANIFEST
from offline_data.store.manifest import dump_manifest
from offline_data.testing.toy import toy_batch, write_toy


def declaring(
    folder: Path, batch: Any = None, *, layout: Any = "compact", **fields: Any
) -> Dataset:
    """Write a toy whose manifest has these fields, and open it."""
    given = toy_batch([3, 2, 4], text=True, images=True) if batch is None else batch
    manifest = replace(write_toy(folder, [given], layout=layout), **fields)
    (folder / MANIFEST).write_text(dump_manifest(manifest), encoding="utf-8")
    return offline_data.open_dataset(folder)


def acting(folder: Path, actions: Any, space: Any = None) -> Dataset:
    """Write a toy with these actions, and a declared space of them or none."""
    toy = toy_batch([len(actions)])
    batch = replace(toy, steps={**toy.steps, ("action",): actions})
    return declaring(folder, batch, spaces={"action": space} if space else {})

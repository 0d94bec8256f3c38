"""One dataset with every kind of leaf and a hostile manifest, written once."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from offline_data.episode import EpisodeBatch
from offline_data.store.encoded import EncodedColumn
from offline_data.store.library import Entry, entry_at
from offline_data.store.manifest import Manifest
from offline_data.store.writer import DatasetWriter

HOSTILE = (
    "<img src=x onerror=\"document.title='run'\"></script><script>document.title='run'</script>"
)
"""Markup that changes the title of a page where it is not escaped."""

LENGTHS = (7, 1, 30)


def rich_batch(seed: int = 0, rewards: float = 1.0) -> EpisodeBatch:
    """Return episodes with nested, text, image, depth, stacked, encoded, NaN and discrete leaves."""
    rng = np.random.default_rng(seed)
    counts = np.array(LENGTHS)
    rows, every = int(counts.sum()), int(counts.sum() + len(counts))
    terminated, truncated = np.zeros((2, rows, 1), bool)
    last = np.cumsum(counts) - 1
    terminated[last[:2]] = True
    truncated[last[2]] = True
    state = rng.normal(0, 1, (every, 3)).astype(np.float32)
    state[3, 1] = np.nan
    files = []
    for row in range(every):
        file = io.BytesIO()
        Image.fromarray(np.full((32, 40, 3), row * 6, np.uint8)).save(file, "JPEG")
        files.append(file.getvalue())
    words = np.array([f"go {row // 4} {HOSTILE}" for row in range(rows)], object)
    return EpisodeBatch(
        lengths=counts,
        steps={
            ("action",): rng.integers(0, 4, rows),
            ("instruction",): words,
            ("next", "reward"): np.arange(rows)[:, None] * rewards,
            ("next", "terminated"): terminated,
            ("next", "truncated"): truncated,
        },
        observations={
            ("observation", "state"): state,
            ("observation", "pixels"): np.broadcast_to(
                np.arange(every, dtype=np.uint8)[:, None, None, None], (every, 24, 20, 3)
            ),
            ("observation", "depth"): np.broadcast_to(
                np.arange(every, dtype=np.uint16)[:, None, None] * 1000, (every, 20, 18)
            ),
            ("observation", "stack"): np.broadcast_to(
                np.arange(4, dtype=np.uint8)[None, :, None, None] * 50, (every, 4, 16, 16)
            ),
            ("observation", "camera"): EncodedColumn.of(files, ("jpeg", "uint8", (32, 40, 3))),
        },
        final_observation=np.array([True, True, False]),
    )


def flat_batch(state: np.ndarray) -> EpisodeBatch:
    """Return one episode of these states, `[n + 1, features]`, and of no reward."""
    rows = len(state) - 1
    terminated = np.zeros((rows, 1), bool)
    terminated[-1] = True
    return EpisodeBatch(
        lengths=np.array([rows]),
        steps={
            ("action",): np.zeros((rows, 2), np.float32),
            ("next", "reward"): np.zeros((rows, 1)),
            ("next", "terminated"): terminated,
            ("next", "truncated"): ~terminated & False,
        },
        observations={("observation",): state},
        final_observation=np.array([True]),
    )


def write(root: Path, name: str, batch: EpisodeBatch, **manifest: Any) -> Entry:
    """Write a batch as `local:NAME@1` under a root."""
    folder = root / "local" / name / "1"
    folder.parent.mkdir(parents=True)
    header = Manifest(
        f"local:{name}@1", "local", name, "1", "compact", tables={}, counts={}, **manifest
    )
    with DatasetWriter(folder, header, audit="none") as writer:
        writer.append(batch)
        writer.finish()
    return entry_at(folder)


@pytest.fixture(scope="session")
def pages_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with `local:rich@1` and `local:other@1`; not to be changed."""
    root = tmp_path_factory.mktemp("pages") / "root"
    write(
        root,
        "rich",
        rich_batch(),
        about={"description": HOSTILE, "authors": [HOSTILE], HOSTILE: {"a": 1}},
        notes=(HOSTILE,),
        licence=HOSTILE,
        citation="@misc{" + HOSTILE,
        environment={"id": HOSTILE},
        spaces={"action": {HOSTILE: HOSTILE}},
        dropped=({"key": HOSTILE, "reason": HOSTILE},),
        skipped=({"where": HOSTILE, "reason": HOSTILE},),
        files=({"path": HOSTILE, "url": "https://me:hush@host.example/x", "sha256": HOSTILE},),
        parents=(HOSTILE,),
    )
    write(root, "other", rich_batch(1, 2.0))
    return root


@pytest.fixture(scope="session")
def rich(pages_root: Path) -> Entry:
    """`local:rich@1`."""
    return entry_at(pages_root / "local" / "rich" / "1")

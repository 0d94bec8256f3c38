"""Datasets with known values, written to disk, and the findings of rules on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from offline_data.analysis.checks import Finding
from offline_data.analysis.checks.registry import select_rules
from offline_data.analysis.checks.run import run_checks
from offline_data.episode import EpisodeBatch
from tests.toys.stored import write_stored

Write: TypeAlias = Callable[..., Path]
"""`write(batch, layout="compact", **fields of the manifest)` returns a dataset directory."""


def clean_batch(lengths: Sequence[int] = (12, 20, 9), seed: int = 0) -> EpisodeBatch:
    """Return episodes without a defect: Gaussian observations, actions in [-1, 1], rewards.

    Even episodes end terminated, odd ones truncated. Take it apart with `changed`.
    """
    rng = np.random.default_rng(seed)
    counts = np.array(lengths, np.int64)
    rows, episodes = int(counts.sum()), len(counts)
    terminated, truncated = np.zeros((2, rows, 1), bool)
    last = np.cumsum(counts) - 1
    terminated[last[::2]] = True
    truncated[last[1::2]] = True
    return EpisodeBatch(
        lengths=counts,
        steps={
            ("action",): rng.uniform(-0.9, 0.9, (rows, 2)).astype(np.float32),
            ("next", "reward"): rng.normal(1, 0.3, (rows, 1)),
            ("next", "terminated"): terminated,
            ("next", "truncated"): truncated,
        },
        observations={("observation",): rng.normal(0, 1, (rows + episodes, 3)).astype(np.float32)},
        final_observation=np.ones(episodes, bool),
    )


def changed(batch: EpisodeBatch, **tables: Any) -> EpisodeBatch:
    """Return a batch with other columns, added to or in place of its own, or other fields."""
    columns = {
        name: {**getattr(batch, name), **value}
        for name, value in tables.items()
        if name in {"steps", "observations", "episodes"}
    }
    return replace(batch, **{**tables, **columns})


def write_clean_and_bad(root: Path) -> Path:
    """Write `local:clean` and `local:bad`, which has one NaN and a constant feature, to a root."""
    seen = clean_batch().observations["observation",].copy()
    seen[14, 1], seen[:, 0] = np.nan, 7
    write_stored(root, "local:clean@1", clean_batch())
    bad = changed(clean_batch(), observations={("observation",): seen})
    write_stored(root, "local:bad@1", bad)
    return root


def found(
    path: Path | Sequence[Path], code: str, *, items: int = 1 << 19, **thresholds: float
) -> list[Finding]:
    """Return the findings of one rule; the same in small blocks and with two threads."""
    paths = [path] if isinstance(path, Path) else list(path)
    rules = select_rules([code], thresholds={code: thresholds} if thresholds else None)
    report = run_checks(paths, rules, block_items=items)
    again = run_checks(paths, rules, block_items=40, workers=2)
    assert again.findings == report.findings
    return list(report.findings)

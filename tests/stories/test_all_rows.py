"""Statistics are those of the T rows that a policy sees, wherever they are computed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

import offline_data
from offline_data.base.config import Settings
from offline_data.store.layout import LayoutName
from offline_data.store.quantiles import LEVELS
from offline_data.testing.toy import toy_batch, write_toy
from tests.pipeline.preprocess.runs import make
from tests.slow import every_second

STATE = ("observation", "state")
Found: TypeAlias = "dict[str, Any]"


def of_stats(path: Path, root: Path) -> Found:
    leaf: Any = offline_data.stats(path)["observation/state"]
    found = leaf.features
    assert leaf.rows == found.count[0] == 13
    levels = dict(zip(offline_data.stats(path).quantile_levels, found.quantiles.T, strict=True))
    named = {name: levels[level] for name, level in LEVELS.items()}
    return {"mean": found.mean, "std": found.std, "min": found.min, "max": found.max, **named}


def of_openpi(path: Path, root: Path) -> Found:
    return offline_data.stats(path).norm_stats()["norm_stats"]["state"]


def of_view(path: Path, root: Path) -> Found:
    leaf: Any = offline_data.open_dataset(path).filter("length > 0").describe()[STATE]
    found = leaf.features
    return {"mean": found.mean, "std": found.std, "min": found.min, "max": found.max}


def of_step(path: Path, root: Path) -> Found:
    found: Found = {}
    for by in ("std", "quantile"):
        step = f"normalize:observation.state,by={by}"
        made = make(path, [step], root / by, Settings(root=root))
        learnt = made.manifest.converter["options"]["recipe"][0]["leaves"]["observation/state"]
        found |= learnt
    return {name: found[name] for name in ("mean", "std", "q01", "q99")}


def of_derived(path: Path, root: Path) -> Found:
    ds = offline_data.open_dataset(path)
    (mean, std), (low, high) = (
        [*offline_data.normalize([STATE], by=by).fit(ds).statistics["observation/state"]]
        for by in ("std", "quantile")
    )
    return {"mean": mean, "std": std, "q01": low, "q99": high}


def of_lerobot(path: Path, root: Path) -> Found:
    offline_data.export(path, root / "lerobot", to="lerobot", fps=10, progress=False)
    found = json.loads((root / "lerobot/meta/stats.json").read_text())["observation.state"]
    assert found.pop("count") == [13]
    return {name: values for name, values in found.items() if name not in {"min", "max"}}


@pytest.mark.parametrize(
    ("find", "unknown", "layout"),
    every_second(
        [of_stats, of_openpi, of_view, of_step, of_derived, of_lerobot],
        [(), (1,), (0, 1, 2)],
        ["compact", "ted"],
    ),
)
def test_statistics_of_observations(
    find: Callable[[Path, Path], Found],
    unknown: tuple[int, ...],
    layout: LayoutName,
    tmp_path: Path,
) -> None:
    batch = toy_batch([4, 2, 7], unknown_final=unknown)
    write_toy(tmp_path / "toy", [batch], layout=layout)
    whole = batch.observations[STATE].astype(np.float64)
    rows = whole[batch.root_rows]
    known = np.concatenate([rows, whole[batch.next_rows[batch.last_rows[batch.final_observation]]]])
    wanted = {
        "mean": rows.mean(0), "std": rows.std(0), "min": known.min(0), "max": known.max(0),
        **{name: np.quantile(rows, level, axis=0) for name, level in LEVELS.items()},
    }  # fmt: skip
    found = find(tmp_path / "toy", tmp_path)
    assert {"mean", "std"} <= found.keys()
    for name, values in found.items():
        np.testing.assert_allclose(np.ravel(values), wanted[name], rtol=1e-6, err_msg=name)


def test_a_final_observation_that_alone_is_finite(tmp_path: Path) -> None:
    batch = toy_batch([2])
    batch.observations[STATE][:2] = np.nan
    write_toy(tmp_path / "toy", [batch])
    leaf: Any = offline_data.stats(tmp_path / "toy")["observation/state"]
    assert (leaf.mean, leaf.nan, leaf.min) == (None, 6, batch.observations[STATE][2].min())
    assert np.isnan(leaf.features.mean).all()
    assert leaf.features.max.tolist() == batch.observations[STATE][2].tolist()

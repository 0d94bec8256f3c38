"""Computed columns of episodes in expressions, views, mixtures, priorities and recipes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import offline_data
from offline_data.analysis.checks.block import RowBlock
from offline_data.base.config import Settings
from offline_data.base.errors import NotFoundError, StepError, UnknownLeafError, UsageError
from offline_data.buffers.dataset import Dataset
from offline_data.rows.samplers import PrioritizedSampler
from tests.analysis.test_episodes import walks
from tests.pipeline.preprocess.runs import make
from tests.toys.stored import write_stored


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_stored(tmp_path / "root", "local:walks@1", walks())


@pytest.fixture
def ds(path: Path) -> Dataset:
    return offline_data.open_dataset(path)


def test_columns_are_computed_only_when_asked(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("rows were read")

    monkeypatch.setattr(RowBlock, "__init__", fail)
    table = ds.episodes
    assert "jerk" not in table.keys()  # noqa: SIM118 - the table has it
    assert "jerk" in table
    ds.filter("length > 2"), repr(table), list(table), dir(table), hasattr(table, "nope")
    with pytest.raises(AssertionError, match="rows were read"):
        _ = table.jerk


def test_names_are_those_of_the_table(ds: Dataset) -> None:
    found = ds.episodes.quality()
    for name, column in found.items():
        np.testing.assert_array_equal(np.asarray(ds.episodes[name]), column, err_msg=name)
    assert ds.episodes.jerk_p95 is ds.episodes["jerk_p95"]
    with pytest.raises(NotFoundError, match="Episodes have no column 'jerc'") as error:
        ds.episodes["jerc"]
    assert error.value.hint == "did you mean jerk?"
    with pytest.raises(ValueError, match="read-only"):
        found["jerk"][0] = 0


def test_expressions_and_views(ds: Dataset) -> None:
    found = ds.episodes.quality()
    view = ds.filter("jerk < 3.6 and idle <= 0.5")
    expected = np.flatnonzero((found["jerk"] < 3.6) & (found["idle"] <= 0.5))
    assert 1 < len(expected) < len(found["jerk"])
    assert view.episodes.numbers.tolist() == expected.tolist()
    np.testing.assert_array_equal(view.episodes["jerk"].numpy(), found["jerk"][expected])
    np.testing.assert_array_equal(view.episodes.quality()["length"], found["length"][expected])
    again = view.filter("velocity >= max(velocity)")
    best = expected[np.argmax(found["velocity"][expected])]
    assert again.episodes.numbers.tolist() == [best]
    cut = ds.subset([0]).episodes.quality("action")
    assert cut["length"].tolist() == found["length"][:1].tolist()
    long = ds.subset([12]).episodes
    assert long.quality("action")["velocity"] == ds.episodes.quality("action")["velocity"][4]
    assert [long["length"].tolist(), long.quality()["length"].tolist()] == [[1], [40]]
    near = view.episodes.quality(similar=True)
    np.testing.assert_array_equal(
        near["nearest"], ds.episodes.quality(similar=True)["nearest"][expected]
    )
    none = ds.episodes_at([])
    assert none.episodes.quality()["jerk"].shape == none.episodes["jerk"].shape == (0,)
    with pytest.raises(UnknownLeafError, match="episodes have no 'jerc'") as error:
        ds.filter("jerc < 3")
    assert error.value.hint == "did you mean 'jerk'?"
    with pytest.raises(StepError, match="leaves none of 10 episodes by 'jerk < 0'"):
        ds.filter("jerk < 0")


def test_mixtures(ds: Dataset, tmp_path: Path) -> None:
    other = write_stored(tmp_path / "root", "local:other@1", walks([5, 6], seed=3))
    mixture = offline_data.DatasetMixture(ds, offline_data.open_dataset(other), batch_size=8)
    table = mixture.episodes
    parts = [ds.episodes["idle"], offline_data.open_dataset(other).episodes["idle"]]
    np.testing.assert_array_equal(table["idle"], torch.cat(parts))
    found, own = table.quality(), ds.episodes.quality()
    assert (found.leaf, found.rate, len(found["length"])) == (own.leaf, own.rate, 12)
    for name in own:
        np.testing.assert_array_equal(found[name], table[name], err_msg=name)
    assert found["source"].tolist() == [0] * 10 + [1] * 2
    rows = found.rows(found.order("jerk"))
    assert sorted(row["episode"] for row in rows) == list(range(12))
    assert [len(row["outliers"]) for row in found.rows(np.arange(12))] == table["outliers"].tolist()
    with pytest.raises(UsageError, match="one dataset"):
        table.quality(similar=True)
    assert table.where("idle >= 0").sum() == int((torch.cat(parts) >= 0).sum())


def test_a_mixture_of_datasets_with_different_columns(ds: Dataset, tmp_path: Path) -> None:
    batch = walks([5, 6, 40], seed=3)
    steps = {key: column for key, column in batch.steps.items() if key != ("timestamp",)}
    path = write_stored(tmp_path / "root", "local:other@1", replace(batch, steps=steps))
    view = ds.episodes_at([4, 2])
    mixture = offline_data.DatasetMixture(view, offline_data.open_dataset(path), batch_size=8)
    found = mixture.episodes.quality("action")
    assert "lag" in ds.episodes.quality("action")
    assert "lag" not in found
    assert found["length"].tolist() == [40, 3, 5, 6, 40]
    expected = [view.episodes.quality("action"), mixture.sources[1].episodes.quality("action")]
    np.testing.assert_array_equal(
        found["velocity"], np.concatenate([part["velocity"] for part in expected])
    )
    assert [len(row["outliers"]) for row in found.rows(np.arange(5))] == found["outliers"].tolist()
    assert found.leaf == "action"
    with pytest.raises(UnknownLeafError):
        mixture.episodes.quality("observation/none")


def test_weights(path: Path) -> None:
    ds = offline_data.open_dataset(
        path, 256, sampler=PrioritizedSampler(len(walks().steps["action",]), 1.0, 0.0)
    )
    weight = (ds.episodes["outliers"] == 0).double() + 1e-12
    ds.update_priority(torch.arange(len(ds)), weight[ds["episode"]])
    drawn = ds.sample()["episode"]
    assert set(drawn.tolist()) <= set(torch.nonzero(weight > 0.5).ravel().tolist())


def test_recipes(path: Path, settings: Settings, tmp_path: Path) -> None:
    ds = offline_data.open_dataset(path)
    expected = int((ds.episodes["jerk"] < 3.6).sum())
    steps = ["subsample:every=1", "filter:jerk < 3.6"]
    kept = make(path, steps, tmp_path / "kept", settings)
    assert len(offline_data.open_dataset(kept.path).episodes) == expected
    with pytest.raises(StepError, match="'jerk' is computed from the rows of local:walks@1"):
        make(path, ["clip:action,low=0", "filter:jerk < 3"], tmp_path / "bad", settings)
    long = make(path, ["clip:action,low=0", "filter:length > 3"], tmp_path / "long", settings)
    assert len(offline_data.open_dataset(long.path).episodes) == 5

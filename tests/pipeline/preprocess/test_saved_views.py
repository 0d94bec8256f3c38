"""Steps that only select rows are saved as views: the rows are those of a new dataset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import offline_data
from offline_data.base.config import Settings
from offline_data.pipeline.preprocess.subsets import save_view
from offline_data.store.reader import DatasetReader
from offline_data.testing.toy import toy_batch
from tests.cli.conftest import (
    Cli,
    cli,  # noqa: F401 - a fixture
)
from tests.pipeline.preprocess.runs import make, small_groups
from tests.toys.stored import write_stored

LENGTHS = [3, 1, 4, 2, 7, 1, 5]


@pytest.fixture
def parent(settings: Settings) -> Path:
    return write_stored(settings.root, "local:toy@1", toy_batch(LENGTHS))


@pytest.mark.parametrize(
    "stages",
    [
        ["filter:length > 2"],
        ["subsample:every=2", "filter:return > 0 or length > 0"],
        ["split:b,a=0.5,b=0.5,seed=3"],
        ["trim:start=1,end=1"],
        ["filter:length > 2", "trim:end=2"],
    ],
)
def test_the_rows_of_a_view(
    stages: list[str],
    parent: Path,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_groups(monkeypatch)
    stored = save_view(parent, stages, "some", settings)
    view = offline_data.open_dataset(parent).saved_view("some")
    copy = DatasetReader(make(parent, stages, tmp_path / "copy", settings).path)
    assert (stored.transitions, stored.episodes) == (copy.transitions, copy.episode_count)
    assert len(view) == copy.transitions
    np.testing.assert_array_equal(view[:]["action"].numpy(), copy.step(("action",)))
    assert not list((settings.root / "local").glob("*/view"))


def test_a_view_of_that_name_is_replaced(parent: Path, settings: Settings) -> None:
    for length, episodes in ((2, 4), (4, 2)):
        stored = save_view(parent, [f"filter:length > {length}"], "some", settings, force=True)
        assert stored.episodes == episodes


def test_the_commands(parent: Path, settings: Settings, cli: Cli) -> None:  # noqa: F811
    at = ("--root", str(settings.root))
    ran = cli("filter", "local:toy", "length > 2", "--out", "long", "--view", "--json", *at)
    assert (ran.code, ran.json[0]["transitions"], ran.json[0]["view"]) == (0, 3 + 4 + 7 + 5, "long")
    parts = cli("split", "local:toy", "a=0.5", "b=0.5", "--view", "-q", *at)
    assert parts.out.split() == ["a", "b"]
    ran = cli(
        "preprocess", "local:toy", "--step", "trim:end=1", "--out", "cut", "--view", "-q", *at
    )
    assert (ran.code, ran.out) == (0, "cut\n")
    assert len(offline_data.open_dataset(parent).saved_view("cut")) == sum(LENGTHS) - len(LENGTHS)
    steps = cli("info", "local:toy", "--history", "--view", "cut", "--json", *at).json["history"]
    assert [(step["action"], step["id"]) for step in steps] == [
        ("convert", "local:toy@1"),
        ("view", "cut"),
    ]
    assert steps[-1]["parents"] == ["local:toy@1"]
    assert (steps[-1]["recipe"][0]["step"], steps[-1]["recipe"][0]["end"]) == ("trim", 1)
    refused = cli("info", "local:toy", "--view", "cut", *at)
    assert (refused.code, "add --history" in refused.err) == (2, True)
    refused = cli("preprocess", "local:toy", "--step", "dedupe", "--dest", "x", "--view", *at)
    assert (refused.code, "--view takes --step and --out only" in refused.err) == (2, True)
    assert cli("list", "-q", *at).out.split() == ["local:toy@1"]

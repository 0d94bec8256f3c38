"""What checks, statistics and replays refuse: the cases are the lines of `refusals.json`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import offline_data
from offline_data.analysis.checks.baseline import read_baseline
from offline_data.analysis.checks.registry import select_rules
from offline_data.analysis.episodes import episode_quality
from offline_data.base.config import Settings
from offline_data.episode.fields import Key
from offline_data.rows.derived import normalize
from offline_data.store.layout import MANIFEST
from offline_data.store.manifest import dump_manifest, read_manifest
from offline_data.store.reader import open_reader
from offline_data.testing import assert_clean
from offline_data.testing.toy import write_toy
from tests.analysis.checks.planted import write_clean_and_bad
from tests.analysis.test_replay import SUMMARY, played, record, store
from tests.analysis.test_robot_statistics import LENGTHS, robot
from tests.refusals import Refusals

REFUSALS = Refusals(Path(__file__).with_name("refusals.json"))


def robot_with(folder: Path, leaf: str, values: Any) -> Path:
    """Write an episode of three steps whose only observation is another one."""
    observations: dict[Key, Any] = {("observation", leaf): values}
    write_toy(folder, [replace(robot([3]), observations=observations)])
    return folder


def summarised(path: Path) -> Callable[..., object]:
    """Return what reads a manifest whose summary of a replay has other fields."""
    sound = read_manifest(path)

    def summary(**fields: Any) -> object:
        changed = replace(sound, replay={**SUMMARY, **fields})
        (path / MANIFEST).write_text(dump_manifest(changed), encoding="utf-8")
        return read_manifest(path).replay

    assert summary() == SUMMARY
    return summary


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Whatever the texts name; `arm` is a robot's dataset, `cart` one of CartPole without its name."""
    folder = tmp_path_factory.mktemp("datasets")
    write_toy(folder / "arm", [robot(LENGTHS)])
    root = write_clean_and_bad(folder / "root")
    cart = record(gymnasium.make("CartPole-v1"), [1])
    return {
        "nan": math.nan,
        "inf": math.inf,
        "check": partial(offline_data.check, settings=Settings(root)),
        "assert_clean": partial(assert_clean, root=root),
        "select_rules": select_rules,
        "read_baseline": read_baseline,
        "arm": folder / "arm",
        "unknown": robot_with(folder / "nan", "state", np.full((4, 3), np.nan, np.float32)),
        "image": robot_with(folder / "image", "image", np.zeros((4, 2, 2), np.uint8)),
        "stats": offline_data.stats,
        "quality": episode_quality(open_reader(folder / "arm")),
        "quality_of": partial(episode_quality, open_reader(folder / "arm")),
        "normalize": normalize,
        "cart": store(folder / "cart", cart, None),
        "old_cart": store(folder / "old", cart, "CartPole-v9"),
        "played": played,
        "summary": summarised(store(folder / "summary", cart, "CartPole-v1")),
        "folder": folder,
    }


@REFUSALS.cases
def test_refusals(kind: str, text: str, tmp_path: Path, names: dict[str, Any]) -> None:
    def preprocess(*steps: str) -> object:
        arm = offline_data.open_dataset(names["arm"])
        return arm.preprocess(list(steps), dest=tmp_path / "made")

    shown = {tmp_path: "OUT", names["folder"]: "FOLDER"}
    REFUSALS.check(kind, text, lambda: eval(text, {**names, "preprocess": preprocess}), shown)  # noqa: S307
    assert list(tmp_path.iterdir()) == []

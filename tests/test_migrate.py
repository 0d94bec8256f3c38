"""`docs/migrate.md`: our side of every table runs as written, and so does that of Minari and TorchRL."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import minari
import pytest
import torch
from packaging.version import Version

import offline_data
from tests.documented import read
from tests.stories.conftest import Shell
from tests.toys.hosts import published

SECTIONS = dict(
    re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", read("docs/migrate.md"), re.MULTILINE | re.DOTALL)
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with published(tmp_path_factory.mktemp("hosts")) as environment:
        yield environment


@pytest.fixture
def run(environment: dict[str, str], tmp_path: Path) -> Iterator[Any]:
    """Return a function that runs a side of a section, and returns its names."""
    torch.set_num_threads(1)

    def run(section: str, side: int, **names: Any) -> dict[str, Any]:
        rows = re.findall(r"^\| `(.*?)` \| `(.*?)` \|$", SECTIONS[section], re.MULTILINE)
        assert len(rows) == SECTIONS[section].count("\n|") - 2 > 3
        for row in rows:
            exec(row[side], names)  # noqa: S102 - the page is ours
        return names

    with patch.dict(os.environ, Shell(tmp_path, environment).environ, clear=True):
        yield run


def here(run: Any, section: str) -> dict[str, Any]:
    names: dict[str, Any] = run(section, 1, offline_data=offline_data, torch=torch)
    if "stream" in names:
        assert len(names["stream"].sample()) > 0
        names["stream"].close()
    return names


def test_d4rl(run: Any) -> None:
    names = here(run, "D4RL")
    assert names["score"].shape == (10,)
    assert "timeouts" in names["data"]


@pytest.mark.slow
def test_minari(run: Any, environment: dict[str, str]) -> None:
    if Version(minari.__version__) < Version("0.5.4"):
        pytest.skip("an older Minari refuses to read files of a newer one")
    root = Path(os.environ["MINARI_DATASETS_PATH"]) / "D4RL/door"
    root.mkdir(parents=True)
    published = Path(environment["HUB"]) / "door/human-v2"
    (root / "human-v2").symlink_to(published)
    theirs, ours = run("Minari", 0, minari=minari), here(run, "Minari")
    assert (ours["steps"], ours["count"]) == (theirs["steps"], theirs["count"]) == (6729, 25)
    assert ours["total"] == pytest.approx(theirs["total"])
    assert len(ours["good"].episodes) == len(theirs["good"])
    assert [len(part.episodes) for part in ours["parts"].values()] == [20, 5]
    assert ours["space"] == theirs["space"]
    assert len(ours["few"]) == len(theirs["few"]) == 2


@pytest.mark.slow
def test_torchrl(run: Any) -> None:
    ours = here(run, "TorchRL")
    datasets = pytest.importorskip("torchrl.data.datasets")

    def made_of_our_files(_name: str, **options: Any) -> Any:
        return ours["replay"].to_torchrl(**options)

    with patch.object(datasets, "D4RLExperienceReplay", made_of_our_files):
        theirs = run("TorchRL", 0)
    assert type(theirs["replay"]).__module__.startswith("torchrl.")
    assert theirs["slices"].shape == ours["slices"].shape == (32, 8)


@pytest.mark.slow
def test_lerobot(run: Any) -> None:
    names = here(run, "LeRobot")
    assert len(names["part"].episodes) == 2
    assert names["ds"].sample()["action"].shape[:2] == (64, 2)


@pytest.mark.slow
def test_d3rlpy(run: Any) -> None:
    names = here(run, "d3rlpy")
    assert names["stored"].transitions == len(names["ds"])


@pytest.mark.slow
def test_hugging_face_datasets(run: Any) -> None:
    names = here(run, "`datasets`")
    assert len(names["rows"]) == 8
    assert sum(len(part) for part in names["parts"].values()) == len(names["ds"])

"""Whole Minari folders, converted by the command: every value on disk is the oracle's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from offline_data.store.reader import open_reader
from offline_data.testing.minari_toy import STORAGES, write_minari
from offline_data.testing.minari_values import box, discrete, toy_episode
from offline_data_cli.main import main
from tests.oracles_minari import minari_episodes

if TYPE_CHECKING:
    from numpy.typing import NDArray

REAL = Path(__file__).resolve().parents[4] / "shared" / "realdata"
FOLDERS = sorted(
    path.parents[1].relative_to(REAL).as_posix()
    for path in REAL.glob("minari*/**/data/*")
    if path.name in {"main_data.hdf5", "metadata.json"}
)
KEYS = {
    "observations": ("observation",),
    "actions": ("action",),
    "rewards": ("next", "reward"),
    "terminations": ("next", "terminated"),
    "truncations": ("next", "truncated"),
    "infos": ("info",),
}


def converted(folder: Path, root: Path) -> Path:
    """Convert a folder by the command and return the dataset directory."""
    arguments = ["convert", str(folder), "it", "--from", "minari", "--audit", "none"]
    assert main(["--root", str(root), "-q", *arguments]) == 0
    return next(root.rglob("manifest.json")).parent


def assert_is_the_oracles(folder: Path, dataset: Path) -> None:
    """Compare every leaf of every episode; neither may have one that the other has not."""
    reader = open_reader(dataset)
    expected = list(minari_episodes(folder))
    assert reader.episode_count == len(expected)
    for number, episode in enumerate(expected):
        batch = reader.episode_batch(number, number + 1)
        found: dict[Any, NDArray[Any]] = {**batch.steps, **batch.observations}
        for name, values in episode.items():
            section, *names = name.split("/")
            key = (*KEYS[section], *names)
            if key[0] == "next":
                values = values.reshape(-1, 1)
            np.testing.assert_array_equal(found.pop(key), values, err_msg=f"{number} {name}")
        assert not found


@pytest.mark.parametrize("name", sorted(set(FOLDERS)))
def test_real_folders(realdata: Path, tmp_path: Path, name: str) -> None:
    assert_is_the_oracles(realdata / name, converted(realdata / name, tmp_path))


@pytest.mark.parametrize("storage", STORAGES)
def test_toy_folders(tmp_path: Path, storage: str) -> None:
    deep = {"type": "Tuple", "subspaces": [discrete(), box(2, 3, dtype="float64")]}
    spaces: dict[str, Any] = {
        "observation": {
            "type": "Dict",
            "subspaces": {"deep": deep, "pixels": box(4, 5, dtype="uint8")},
        },
        "action": {"type": "MultiDiscrete", "dtype": "int64", "nvec": [[2, 2], [3, 3]]},
    }
    info = {"goal": box(3, 2), "note": {"type": "Text", "max_length": 9}}
    episodes = [toy_episode(n, 3 + n, info=info, **spaces) for n in range(12)]
    folder = write_minari(tmp_path / "toy-v0", episodes, storage, **spaces)
    assert_is_the_oracles(folder, converted(folder, tmp_path / "root"))

"""Minari folders that are not what they say: listed as dropped, or noted; never believed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.formats.minari.dataset import NOTE_ID, NOTE_STEPS
from offline_data.formats.minari.leaves import NOTE_NO_SEED
from offline_data.store.manifest import Manifest, read_manifest
from offline_data.store.reader import DatasetReader
from offline_data_cli.main import main
from tests.formats.minari.conftest import edit_json, hdf5
from tests.slow import slow_but
from tests.toys.minari import (
    STORAGES,
    ToyEpisode,
    box,
    read_minari,
    toy_episode,
    toy_rows,
    write_minari,
)

Ran = Callable[..., tuple[int, str]]
EVERY_STORAGE = pytest.mark.parametrize("storage", STORAGES)


@pytest.fixture
def convert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ran:
    """Convert a folder by the command; returns the exit code and what was said on stderr."""

    def run(folder: Path, *more: str) -> tuple[int, str]:
        capsys.readouterr()
        arguments = ["convert", str(folder), "it", "--from", "minari", *more]
        code = main(["--root", str(tmp_path / "root"), *arguments])
        return code, capsys.readouterr().err

    return run


def manifest(tmp_path: Path) -> Manifest:
    (found,) = (tmp_path / "root").rglob("manifest.json")
    return read_manifest(found.parent)


def reader(tmp_path: Path) -> DatasetReader:
    (found,) = (tmp_path / "root").rglob("manifest.json")
    return DatasetReader(found.parent)


def replace(group: Any, name: str, values: Any) -> None:
    del group[name]
    group[name] = values


def toys(count: int = 3, length: int = 6, **more: Any) -> list[ToyEpisode]:
    return [toy_episode(n, length, **more) for n in range(count)]


def test_infos_of_another_shape_in_the_first_episode_are_dropped(tmp_path: Path) -> None:
    """They have no row for each step."""
    folder = write_minari(tmp_path / "t-v0", toys(info={"m": box(2, 3)}))
    with hdf5(folder) as file:
        replace(file["episode_0"], "infos/m", file["episode_0/infos/m"][()].reshape(-1, 1, 3))
    assert [entry.key for entry in read_minari(folder).dropped] == ["infos/m"]


class TestLaterLeaves:
    """Leaves that only some episodes have."""

    def episodes(self, count: int, at: int, **leaves: Any) -> Sequence[ToyEpisode]:
        """`count` episodes with nested infos; number `at` has more leaves."""
        made = []
        for n in range(count):
            infos = {"a": {"b": toy_rows(box(), n, 3)}}
            made.append(toy_episode(n, 2, infos=infos, **self.parts(n)))
        for name, value in leaves.items():
            nest = getattr(made[at], name)
            nest.update(value if name != "infos" else {"a": {**nest["a"], **value}})
        return made

    def parts(self, n: int) -> dict[str, Any]:
        return {
            "observations": {"p": {"q": toy_rows(box(2), n, 3)}},
            "actions": {"u": toy_rows(box(), n, 2)},
        }

    def spaces(self) -> dict[str, Any]:
        inner = {"type": "Dict", "subspaces": {"q": box(2)}}
        return {
            "observation": {"type": "Dict", "subspaces": {"p": inner}},
            "action": {"type": "Dict", "subspaces": {"u": box()}},
        }

    @pytest.mark.parametrize(
        ("section", "storage", "count"),
        slow_but(
            lambda *case: (
                case
                in {("infos", "hdf5", 3), ("observations", "hdf5", 40), ("actions", "parquet", 40)}
            ),
            ["observations", "actions", "infos"],
            ["hdf5", "parquet"],
            [3, 40],
        ),
    )
    def test_are_listed_as_dropped(
        self, tmp_path: Path, convert: Ran, storage: str, count: int, section: str
    ) -> None:
        at = count - 2
        rows = 2 if section == "actions" else 3
        name = "infos/a/late" if section == "infos" else f"{section}/late"
        episodes = self.episodes(count, at, **{section: {"late": toy_rows(box(), at, rows)}})
        folder = write_minari(tmp_path / "t-v0", episodes, storage, **self.spaces())
        code, said = convert(folder, "--strict")
        if section == "infos" and count == 3:  # looked at in time, so it is kept
            assert code == 0
            values = reader(tmp_path).observations_at(
                ("info", "a", "late"), np.arange(6), after=False
            )
            np.testing.assert_array_equal(
                values, [np.nan, np.nan, *toy_rows(box(), at, 2), np.nan, np.nan]
            )
            return
        assert code == 5
        assert name in said
        code, said = convert(folder)
        assert code == 0
        dropped = {entry["key"]: entry["reason"] for entry in manifest(tmp_path).dropped}
        assert list(dropped) == [name]
        assert "some episodes" in dropped[name]

    @pytest.mark.parametrize(("count", "at"), [(3, 1), (40, 38)])
    def test_a_section_of_its_own(self, tmp_path: Path, count: int, at: int) -> None:
        folder = write_minari(tmp_path / "t-v0", toys(count, 2))
        with hdf5(folder) as file:
            file[f"episode_{at}/extra"] = np.arange(2)
            file[f"episode_{at}/infos/late"] = np.arange(3)
            file[f"episode_{at}/infos/none"] = np.arange(0)
        late = {"infos/late"} if count == 40 else set()
        dropped = {entry.key for entry in read_minari(folder).dropped}
        assert dropped == {"extra", "infos/none", *late}

    def test_empty_groups_are_no_leaves(self, tmp_path: Path) -> None:
        folder = write_minari(tmp_path / "t-v0", toys(40, 2))
        with hdf5(folder) as file:
            for number in range(40):
                file.create_group(f"episode_{number}/infos/empty")
        assert read_minari(folder).dropped == ()


class TestStatedAndFound:
    """Metadata that differ from the rows."""

    @EVERY_STORAGE
    def test_another_number_is_noted(self, tmp_path: Path, convert: Ran, storage: str) -> None:
        """Nor does memory follow what is stated."""
        folder = write_minari(tmp_path / "t-v0", toys(), storage)
        for stated in (0, 5, 10_000):
            edit_json(folder / "data" / "metadata.json", total_steps=stated, total_episodes=2)
            assert convert(folder, "--force")[0] == 0
            found = manifest(tmp_path)
            assert f"The source states {stated:,} transitions; it has 18." in found.notes
            assert "The source states 2 episodes; it has 3." in found.notes
            assert found.counts["transitions"] == 18

    @EVERY_STORAGE
    def test_a_number_that_the_files_cannot_have_is_not_a_full_disk(
        self, tmp_path: Path, convert: Ran, storage: str
    ) -> None:
        folder = write_minari(tmp_path / "t-v0", toys(1, 5), storage)
        edit_json(folder / "data" / "metadata.json", total_steps=10**18)
        code, said = convert(folder)
        assert code == 5
        assert "has 1,000,000,000,000,000,000 steps according to its metadata" in said
        assert not list((tmp_path / "root").rglob("manifest.json"))

    @pytest.mark.parametrize("more", [(), ("--episodes", "0:2")])
    def test_the_truth_gets_no_note(
        self, tmp_path: Path, convert: Ran, more: tuple[str, ...]
    ) -> None:
        assert convert(write_minari(tmp_path / "t-v0", toys()), *more)[0] == 0
        assert manifest(tmp_path).notes == ()

    @pytest.mark.parametrize(
        ("space", "says"),
        [
            (box(2), "float32 [2]"),
            (box(3, dtype="float64"), "float64 [3]"),
            (box(1, 3), "float32 [1, 3]"),
            ({"type": "Discrete", "dtype": "int64", "n": 3}, "int64 []"),
            ({"type": "Text", "max_length": 3}, "text"),
        ],
    )
    def test_spaces(self, tmp_path: Path, space: Any, says: str) -> None:
        folder = write_minari(tmp_path / "t-v0", toys(), observation=space)
        note = f"The space declares observations as {says}; the rows are float32 [3]."
        assert note in read_minari(folder).notes

    @EVERY_STORAGE
    def test_ids_and_lengths_of_episodes(self, tmp_path: Path, storage: str) -> None:
        folder = write_minari(tmp_path / "t-v0", toys(), storage)
        if storage == "hdf5":
            with hdf5(folder) as file:
                file["episode_1"].attrs["id"] = 7
                file["episode_2"].attrs["total_steps"] = 5
        else:
            edit_json(folder / "data" / "1" / "metadata.json", id=7)
        batch = read_minari(folder)
        assert batch.episodes["id",].tolist() == [0, 1, 2]
        assert NOTE_ID in batch.notes
        assert (NOTE_STEPS in batch.notes) == (storage == "hdf5")

    @pytest.mark.parametrize("seed", [3.7, float("nan"), -1e300])
    @pytest.mark.parametrize("storage", ["hdf5", "arrow"])
    def test_seeds(self, tmp_path: Path, storage: str, seed: float) -> None:
        folder = write_minari(tmp_path / "t-v0", toys(), storage)
        for number, value in ((1, seed), (2, 4.0)):
            if storage == "hdf5":
                with hdf5(folder) as file:
                    file[f"episode_{number}"].attrs["seed"] = value
            else:
                edit_json(folder / "data" / str(number) / "metadata.json", seed=value)
        batch = read_minari(folder)
        assert batch.episodes["seed",].tolist() == [-1, -1, 4]
        assert NOTE_NO_SEED in batch.notes

"""imitation: every leaf of every row against numpy, split as imitation's own `load` does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError
from offline_data.formats.imitation import Imitation
from offline_data.formats.registry import source_accepting
from offline_data.pipeline.ingest import Options, convert
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.sources import SourceCase, SourceContract
from tests.toys.imitation import LENGTHS, TERMINAL, toy_arrays, write_imitation


class TestImitation(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        path = write_imitation(tmp_path / "raw.npz")
        return SourceCase(Imitation(), Imitation().release_of(path, "x"), path)


def stored(path: Path, settings: Settings) -> DatasetReader:
    return open_reader(convert(path, "toy", settings, Options(audit="all")).path)


@pytest.mark.parametrize("lengths", [LENGTHS, (4,), (1, 1)])
@pytest.mark.parametrize("rewards", [True, False])
def test_every_leaf_of_every_row(
    tmp_path: Path, rewards: bool, lengths: tuple[int, ...], settings: Settings
) -> None:
    arrays = toy_arrays(rewards=rewards, lengths=lengths)
    np.savez_compressed(path := tmp_path / "x.npz", **arrays)
    assert source_accepting(path).name == "imitation"
    reader = stored(path, settings)
    assert reader.lengths.tolist() == list(lengths)
    table = reader.transitions_at(np.arange(sum(lengths)))
    cuts = arrays["indices"].astype(int)
    obs = np.split(arrays["obs"], cuts + np.arange(len(cuts)) + 1)
    expected = {
        ("observation",): np.concatenate([one[:-1] for one in obs]),
        ("next", "observation"): np.concatenate([one[1:] for one in obs]),
        ("action",): arrays["acts"],
    }
    if rewards:
        expected["next", "reward"] = arrays["rews"][:, None]
    for key, values in expected.items():
        assert table[key].dtype == values.dtype
        np.testing.assert_array_equal(table[key], values, err_msg=str(key))
    assert (("next", "reward") in table) == rewards
    assert np.asarray(reader.episodes["terminated",]).tolist() == list(TERMINAL[: len(lengths)])
    truncated = [not one for one in TERMINAL[: len(lengths)]]
    assert np.asarray(reader.episodes["truncated",]).tolist() == truncated
    assert np.asarray(reader.episodes["final_observation",]).all()
    (dropped,) = reader.manifest.dropped_leaves
    assert (dropped.key, dropped.reason) == ("infos", "It has Python objects, which are a pickle.")


class Bomb:
    """Says by a file that it was unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.file}",)


def test_infos_are_not_unpickled(tmp_path: Path, settings: Settings) -> None:
    infos = np.array([Bomb(tmp_path / "ran")] * sum(LENGTHS), object)
    assert stored(write_imitation(tmp_path / "x.npz", infos=infos), settings).transitions == 14
    assert not (tmp_path / "ran").exists()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "not ascending": ({"indices": np.array([5, 4, 11])}, "episode 1 has 0 rows, too few"),
    "twice the same": ({"indices": np.array([4, 4, 11])}, "episode 1 has 0 rows, too few"),
    "below 0": ({"indices": np.array([-4, 5, 11])}, "episode 0 has 0 rows"),
    "beyond the end": ({"indices": np.array([4, 5, 99])}, "'indices' is int64 up to 99"),
    "at the end": ({"indices": np.array([4, 5, 14])}, "episode 3 has 0 rows"),
    "fractions": ({"indices": np.array([4.0, 5, 11])}, "'indices' is float64.*whole numbers"),
    "an index less": ({"indices": np.array([4, 5])}, "3 episodes of 14 steps need 14 rows"),
    "an index more": ({"indices": np.array([4, 5, 6, 11])}, "5 episodes of 14 steps need 14 rows"),
    "a flag less": ({"terminal": np.ones(3, bool)}, "'terminal' has 3 rows, expected 4"),
    "flags of rows": ({"terminal": np.ones(14, bool)}, "'terminal' has 14 rows, expected 4"),
    "flags that are none": ({"terminal": np.full(4, 2)}, "values besides 0 and 1"),
    "an observation less": ({"obs": np.zeros((17, 3))}, "4 episodes of 14 steps need 14 rows"),
    "as many observations": ({"obs": np.zeros((14, 3))}, "expected as many, or one more"),
    "rewards of a row less": ({"rews": np.zeros(13)}, "'rews' has 13 rows"),
    "pickled actions": ({"acts": np.array([{}] * 14, object)}, "has Python objects"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused(tmp_path: Path, name: str, settings: Settings) -> None:
    changed, said = BAD[name]
    path = write_imitation(tmp_path / "x.npz", **changed)
    with pytest.raises(FormatError, match=said) as caught:
        stored(path, settings)
    assert "mapping" not in caught.value.message
    assert not list(settings.root.rglob("manifest.json"))


def test_without_indices_it_is_not_recognised(tmp_path: Path) -> None:
    path = write_imitation(tmp_path / "x.npz", indices=None)
    with pytest.raises(FormatError, match=r"nearly imitation.*, but has no indices"):
        source_accepting(path)
    with pytest.raises(FormatError, match="not of imitation: it has no indices"):
        Imitation().open(Imitation().release_of(path, "x"), path)

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from offline_data.base.errors import IntegrityError, NotFoundError, UsageError
from offline_data.rows.state import load_tree, save_tree

SCALARS = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, st.tuples(inner))
    ),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state") / "state"


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(tree=TREES)
def test_plain_values_come_back_as_they_were(place: Path, tree: Any) -> None:
    save_tree(tree, place)
    assert load_tree(place) == tree


@pytest.mark.parametrize("name", ["bfloat16", "complex64", "uint8", "bool"])
def test_tensors_of_every_kind_come_back(tmp_path: Path, name: str) -> None:
    dtype = getattr(torch, name)
    tree: dict[Any, Any] = {
        "flat": torch.arange(1, 8).to(dtype),
        "scalar": torch.tensor(3).to(dtype),
        "none": torch.zeros((0, 4), dtype=dtype),
        "turned": torch.arange(1, 13).to(dtype).reshape(3, 4).T,
        ("a", 1): [torch.arange(2).to(dtype)],
    }
    save_tree(tree, tmp_path / "state")
    read = load_tree(tmp_path / "state")
    assert list(read) == list(tree)
    for key in list(tree)[:-1]:
        assert read[key].dtype == dtype
        assert read[key].shape == tree[key].shape
        assert torch.equal(read[key], tree[key])
    assert read["a", 1][0].tolist() == tree["a", 1][0].tolist()


def test_arrays_and_tensordicts_come_back(tmp_path: Path) -> None:
    inner = TensorDict({"b": torch.arange(6).reshape(2, 3)}, [2])
    tree = [np.arange(3, dtype=np.int16), np.float32(0.5), TensorDict({"a": inner}, [2]), math.nan]
    save_tree(tree, tmp_path / "state")
    for _ in range(2):  # changing what was read changes no file
        array, number, rows, nan = load_tree(tmp_path / "state")
        assert array.tolist() == [0, 1, 2]
        assert number.item() == 0.5
        assert rows.batch_size == (2,)
        assert rows["a", "b"].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert math.isnan(nan)
        array.zero_()


def test_what_needs_pickle_is_refused_and_the_old_state_stays(tmp_path: Path) -> None:
    save_tree("old", tmp_path / "state")
    with pytest.raises(UsageError, match="Path cannot be saved without pickle"):
        save_tree([torch.ones(3), tmp_path], tmp_path / "state")
    assert load_tree(tmp_path / "state") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_a_state_whose_replacement_was_killed_is_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "state"
    save_tree({"a": 1}, place)
    rename = Path.rename

    def killed(path: Path, target: Path) -> Path:
        if target == place:
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            save_tree({"a": 2}, place)
    assert not place.exists()
    assert load_tree(place) == {"a": 1}
    save_tree({"a": 3}, place)
    assert load_tree(place) == {"a": 3}
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_a_folder_with_other_files_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(UsageError, match="not a saved state"):
        save_tree(1, tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "x"
    empty = tmp_path / "empty"
    empty.mkdir()
    save_tree(1, empty)
    save_tree(2, empty)
    assert load_tree(empty) == 2


def test_bytes_cut_short_are_said_in_words(tmp_path: Path) -> None:
    save_tree(torch.ones(300), tmp_path / "state")
    file = tmp_path / "state" / "state.bin"
    file.write_bytes(file.read_bytes()[:64])
    with pytest.raises(IntegrityError, match="damaged"):
        load_tree(tmp_path / "state")
    (tmp_path / "state" / "state.json").write_text("{")
    with pytest.raises(IntegrityError, match="damaged"):
        load_tree(tmp_path / "state")
    (tmp_path / "state" / "state.json").unlink()
    with pytest.raises(NotFoundError, match="No saved state"):
        load_tree(tmp_path / "state")

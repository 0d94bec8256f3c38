from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from offline_data.base.errors import (
    AccessError,
    IntegrityError,
    NotFoundError,
    UsageError,
)
from offline_data.buffers.dataset import Dataset
from offline_data.buffers.load import load_dataset, open_view
from offline_data.rows.samplers import SamplerWithoutReplacement
from offline_data.store.library import list_datasets
from offline_data.store.verify import verify
from offline_data.testing.toy import toy_batch, write_toy

from .conftest import LENGTHS, UNKNOWN, rows_of


@pytest.fixture
def toy(toys: Callable[..., Path], tmp_path: Path) -> Path:
    """A copy of the dataset, beside which views are saved."""
    return shutil.copytree(toys(LENGTHS, unknown_final=UNKNOWN), tmp_path / "toy")


def contents(path: Path) -> dict[str, Any]:
    """Read a file of a view with numpy alone."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    about = json.loads(arrays.pop("about").tobytes())
    return {**about, **{name: array.tolist() for name, array in arrays.items()}}


def test_a_view_is_saved_beside_its_dataset(many: Dataset, toy: Path) -> None:
    path = many.episodes_at([3, 0]).save("some")
    assert path == toy.parent / ".views" / "toy" / "some.npz"
    found = contents(path)
    assert len(found.pop("identity")) == 64
    assert found == {
        "format_version": 1, "dataset": "local:toy@1", "path": str(toy), "episodes": [3, 0],
    }  # fmt: skip
    assert verify(toy) == ()
    assert [entry.path for entry in list_datasets(toy.parent)] == [toy]


def test_a_view_below_a_folder_that_is_not_utf_8(toy: Path) -> None:
    moved = toy.parent / os.fsdecode(b"\xff") / "toy"
    shutil.copytree(toy, moved)
    dataset = load_dataset(str(moved), batch_size=2)
    path = dataset.episodes_at([3, 0]).save("some")
    again = open_view(path)
    assert torch.equal(again[:]["index"], dataset.episodes_at([3, 0])[:]["index"])


def test_every_kind_of_view_comes_back(many: Dataset) -> None:
    kinds = {
        "episodes": (many.filter(lambda e: e.length > 3), {"episodes"}),
        "pieces": (many.subset(slice(3, 190)), {"first", "lengths"}),
        "rows": (many.subset([9, 3, 100, 3]), {"rows"}),
        "nothing": (many.subset([]), {"episodes"}),
    }
    for name, (view, arrays) in kinds.items():
        path = view.save(name)
        assert set(contents(path)) - {"format_version", "dataset", "path", "identity"} == arrays
        for again in (
            many.saved_view(name),
            open_view(path),
            many.episodes_at([0]).saved_view(path),
        ):
            assert again.rows.tolist() == view.rows.tolist()
            assert again.manifest.counts == view.manifest.counts
            assert torch.equal(again[:]["action"], view[:]["action"])
            assert again.episodes.numbers.tolist() == view.episodes.numbers.tolist()


def test_opening_takes_the_datasets_options(many: Dataset, toy: Path, tmp_path: Path) -> None:
    many.episodes_at([5, 2]).save("two")
    assert load_dataset(toy, 4, view="two")[:]["dataset_index"].tolist() == rows_of(5, 2)
    path = many.episodes_at([5, 2]).save(tmp_path / "deep" / "v.npz")
    view = open_view(str(path), 3, keys=["action"], sampler=SamplerWithoutReplacement(seed=0))
    assert set(view.sample().keys()) == {"action", "index", "dataset_index"}
    view = open_view(path, 3, sampler=SamplerWithoutReplacement(seed=0))
    drawn = sorted(row for batch in view for row in batch["dataset_index"].tolist())
    assert drawn == rows_of(2, 5)
    assert all(len(b) <= 3 for b in view)


def test_views_hold_in_the_other_layout(tmp_path: Path, many: Dataset) -> None:
    path = many.subset([9, 3, 100]).save(tmp_path / "v.npz")
    write_toy(tmp_path / "ted", [toy_batch(LENGTHS, unknown_final=UNKNOWN)], layout="ted")
    ted = Dataset(tmp_path / "ted")
    assert torch.equal(ted.saved_view(path)[:]["action"], many[[9, 3, 100]]["action"])


def test_another_dataset_is_refused(tmp_path: Path, many: Dataset) -> None:
    path = many.episodes_at([1]).save(tmp_path / "v.npz")
    changed = toy_batch(LENGTHS, unknown_final=UNKNOWN)
    changed.steps["next", "reward"][0] += 1
    write_toy(tmp_path / "values", [changed])
    write_toy(tmp_path / "fewer", [toy_batch(LENGTHS[:-1], unknown_final=UNKNOWN)])
    for name in ("values", "fewer"):
        with pytest.raises(IntegrityError, match="local:toy@1 with other rows") as caught:
            Dataset(tmp_path / name).saved_view(path)
        assert "save it again" in str(caught.value.hint)
    write_toy(
        tmp_path / "named", [toy_batch(LENGTHS, unknown_final=UNKNOWN)], dataset="local:other@1"
    )
    with pytest.raises(IntegrityError, match=r"is of local:toy@1, and .* is local:other@1:"):
        Dataset(tmp_path / "named").saved_view(path)


def test_the_dataset_is_found_where_it_is_now(tmp_path: Path) -> None:
    batch = toy_batch([2, 3])
    first = tmp_path / "a" / "local" / "toy" / "1"
    write_toy(first, [batch])
    inside = Dataset(first).episodes_at([1]).save("v")
    outside = Dataset(first).episodes_at([1]).save(tmp_path / "v.npz")
    (tmp_path / "a").rename(tmp_path / "b")
    moved = tmp_path / "b" / inside.relative_to(tmp_path / "a")
    assert open_view(moved).data_path == tmp_path / "b" / "local" / "toy" / "1"
    assert open_view(outside, root=tmp_path / "b")[0]["action"].item() == -2001
    shutil.rmtree(tmp_path / "b")
    with pytest.raises(NotFoundError, match=r"of local:toy@1, which is neither") as caught:
        open_view(outside, root=tmp_path / "b")
    assert "offline-data convert PATH toy" in str(caught.value.shell_hint)


def test_a_view_that_is_not_there(many: Dataset) -> None:
    many.episodes_at([1]).save("val")
    many.episodes_at([2]).save("train")
    with pytest.raises(NotFoundError, match="no view") as caught:
        many.saved_view("test")
    assert "train, val" in str(caught.value.hint)


def test_whole_episodes_as_rows_and_as_transitions(toy: Path, many: Dataset) -> None:
    padded = Dataset(toy, split_trajs=True)
    padded.episodes_at([7, 3]).save("a")
    many.episodes_at([9, 4]).save("b")
    many.subset([9, 4]).save("c")
    assert many.saved_view("a").rows.tolist() == rows_of(7, 3)
    assert padded.saved_view("b").rows.tolist() == [9, 4]
    with pytest.raises(UsageError, match="split_trajs"):
        padded.saved_view("c")


def rewrite(path: Path, about: dict[str, Any] | None = None, **arrays: Any) -> None:
    """Replace parts of a file of a view; an array that is None goes."""
    with np.load(path, allow_pickle=False) as file:
        content = {name: file[name] for name in file.files}
    text = json.loads(content.pop("about").tobytes())
    content = {name: a for name, a in {**content, **arrays}.items() if a is not None}
    coded = np.frombuffer(json.dumps({**text, **(about or {})}).encode(), np.uint8)
    np.savez(path, about=coded, **content)


def test_damage_is_named(many: Dataset) -> None:
    bad: list[dict[str, Any]] = [
        {"episodes": np.array([40])},
        {"episodes": np.array([-1])},
        {"episodes": np.array([[0]])},
        {"episodes": None},
        {"episodes": None, "rows": np.array([sum(LENGTHS)])},
        {"episodes": None, "first": np.array([0, 1]), "lengths": np.array([1])},
        {"episodes": None, "first": np.array([0]), "lengths": np.array([0])},
        {"episodes": None, "first": np.array([0]), "lengths": np.array([LENGTHS[0] + 1])},
        {"episodes": None, "rows": np.array([-1])},
        {"episodes": None, "first": np.array([0]), "lengths": np.array([2**62])},
        {"episodes": None, "first": np.array([2**62]), "lengths": np.array([1])},
        {"episodes": np.array([{}], dtype=object)},
    ]
    for arrays in bad:
        path = many.episodes_at([0]).save("v")
        rewrite(path, **arrays)
        with pytest.raises(IntegrityError, match=r"v\.npz"):
            many.saved_view("v")


def test_a_folder_in_the_way(many: Dataset, tmp_path: Path) -> None:
    (tmp_path / "v.npz").mkdir()
    with pytest.raises(IntegrityError, match="not a file"):
        many.saved_view(tmp_path / "v.npz")
    (tmp_path / "file").write_text("")
    with pytest.raises(AccessError):
        many.episodes_at([0]).save(tmp_path / "file" / "v.npz")

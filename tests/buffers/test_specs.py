"""TorchRL specs of a dataset: of declared spaces, of dtypes, or of the data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import offline_data
from offline_data.base.errors import FormatError, MissingDependencyError
from offline_data.buffers import specs as module
from offline_data.store.layout import LAYOUTS, MANIFEST
from offline_data.store.manifest import dump_manifest, read_manifest
from offline_data.testing.toy import toy_batch, write_tokens

from .declared import acting, declaring

torchrl = pytest.importorskip("torchrl.data")

BOX = {"type": "Box", "dtype": "float32", "shape": [3], "low": [-5, -5, 0], "high": [5e3, 5e3, 5e3]}


NESTED = {"type": "Dict", "subspaces": {"state": BOX}}


def _far(row: Any) -> Any:
    row["observation", "state"] *= 1000
    row["next", "observation", "state"] *= 1000
    return row


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bounds_of_the_data_are_its_extremes(tmp_path: Path, layout: Any) -> None:
    batch = toy_batch([3, 2, 4], text=True, images=True)
    specs = declaring(tmp_path / "toy", batch, layout=layout).specs
    for spec, values in (
        (specs.action, batch.steps["action",]),
        (specs.reward, batch.steps["next", "reward"]),
        (specs.observation["state"], batch.observations["observation", "state"]),
    ):
        np.testing.assert_array_equal(spec.space.low.numpy(), values.min(0))
        np.testing.assert_array_equal(spec.space.high.numpy(), values.max(0))
    assert specs.batch["next", "observation", "state"] == specs.observation["state"]
    assert {key: space.origin for key, space in specs.spaces.items()} == {
        "action": "data",
        "next/reward": "data",
        "next/terminated": "dtype",
        "next/truncated": "dtype",
        "observation/image": "dtype",
        "observation/mission": "dtype",
        "observation/state": "data",
    }
    assert set(specs.done.keys()) == {"done", "terminated", "truncated"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_row_is_within_and_none_beside(tmp_path: Path, layout: Any) -> None:
    ds = declaring(tmp_path / "toy", layout=layout)
    rows = ds[:]
    assert ds.specs.is_in(rows)
    for row in range(len(ds)):
        assert ds.specs.is_in(ds[row])
    for key in ("action", ("next", "reward"), ("observation", "state")):
        beyond = rows.clone()
        beyond[key] = beyond[key].clone()
        beyond[key][4] += 1e5
        assert not ds.specs.is_in(beyond)
    wrong = rows.clone()
    wrong["action"] = wrong["action"].double()
    assert not ds.specs.is_in(wrong)


def test_declared_spaces_are_taken_as_they_are(tmp_path: Path) -> None:
    batch = toy_batch([3, 2])
    steps = {**batch.steps, ("action",): np.array([0, 3, 2, 1, 0])}
    spaces = {"observation": NESTED, "action": {"type": "Discrete", "n": 5}}
    ds = declaring(tmp_path / "toy", replace(batch, steps=steps), spaces=spaces)
    assert ds.specs.action == torchrl.Categorical(5, shape=(), dtype=torch.int64)
    assert ds.specs.observation["state"].space.low.tolist() == [-5, -5, 0]
    space = ds.specs.spaces["observation/state"]
    assert (space.origin, str(space)) == (
        "declared",
        "float32[3], [-5, -5, 0] to 5000",
    )
    assert ds.specs.is_in(ds[:])
    assert ds.observation_space["state"].contains(ds[0]["observation", "state"].numpy())


def test_data_beyond_a_declared_space_are_not_within_and_the_check_names_them(
    tmp_path: Path,
) -> None:
    low = {"type": "Dict", "subspaces": {"state": {**BOX, "high": [2003.0, 2003.0, 2003.0]}}}
    ds = declaring(tmp_path / "toy", toy_batch([3, 2, 4]), spaces={"observation": low})
    inside = [
        bool(ds.specs.observation.is_in(row["observation"]))
        for row in map(ds.__getitem__, range(len(ds)))
    ]
    assert sorted(set(inside)) == [False, True]
    (found,) = offline_data.check(ds.data_path, select=["RL023"])
    assert (found.leaf, found.row) == ("observation/state", inside.index(False))
    assert float(ds.specs.observation["state"].space.high.max()) == 2003


LOW, TOP = -(2**63), 2**63 - 1
KINDS: list[tuple[str, dict[str, Any], str, list[Any], str]] = [
    (
        "MultiDiscrete",
        {"nvec": [3, 9]},
        "i8",
        [[2, 8], [0, 0]],
        "MultiCategorical([3, 9], dtype=int64)",
    ),
    ("Discrete", {"n": 3, "start": -1}, "i8", [-1, 1], "Bounded(-1, 1, (), dtype=int64)"),
    ("MultiBinary", {"n": 2}, "i1", [[0, 1], [1, 1]], "Categorical(2, (2,), dtype=int8)"),
    ("Box", {"shape": [2]}, "f4", [[0, 1], [1, 1]], "Unbounded((2,), dtype=float32)"),
    (
        "Box",
        {"dtype": "int64", "shape": [], "low": 0, "high": None},
        "i8",
        [0, 2**62],
        "Bounded(0, TOP, (), dtype=int64)",
    ),
    (
        "Box",
        {"dtype": "int64", "low": LOW, "high": TOP},
        "i8",
        [LOW, TOP],
        "Bounded(LOW, TOP, (), dtype=int64)",
    ),
    ("Box", {"low": 0, "high": 2**40}, "i4", [3, 9], "Bounded(0, 2**31 - 1, (), dtype=int32)"),
    ("Box", {"low": -1, "high": 1}, "?", [False, True], "Categorical(2, (), dtype=torch.bool)"),
    ("Discrete", {"n": 300}, "u1", [3, 255], "Bounded(0, 255, (), dtype=uint8)"),
    ("Discrete", {"n": 3}, "f4", [0, 2], "Categorical(3, (), dtype=float32)"),
    (
        "Box",
        {"shape": [1], "low": [-1], "high": [1]},
        "f4",
        [0.5, 1],
        "Bounded(-1, 1, (), dtype=float32)",
    ),
    ("", {}, "f8", [[0, np.nan]] * 2, "Unbounded((2,), dtype=float64)"),
    ("", {}, "u2", [[7], [9]], "Unbounded((1,), dtype=uint16)"),
    ("", {}, "i8", [7, 9], "Bounded(7, 9, (), dtype=int64)"),
]


@pytest.mark.parametrize(("kind", "fields", "dtype", "values", "spec"), KINDS)
def test_kinds_of_actions(
    tmp_path: Path, kind: str, fields: dict[str, Any], dtype: str, values: Any, spec: str
) -> None:
    given = {"dtype": "float32"} if kind == "Box" else {}
    space = {"type": kind, **given, **fields} if kind else None
    ds = acting(tmp_path / "toy", np.array(values, dtype), space)
    names = {**vars(torch), **vars(torchrl), "LOW": LOW, "TOP": TOP, "torch": torch}
    assert ds.specs.action == eval(spec, names)  # noqa: S307 - of the table above
    assert ds.specs.action.is_in(ds[:]["action"])


def test_a_space_of_another_shape_is_found(tmp_path: Path) -> None:
    space = {"type": "Box", "dtype": "float32", "shape": [4], "low": [0] * 4, "high": [1] * 4}
    spaces = {"action": space, "observation": {"type": "Dict", "subspaces": {"state": space}}}
    ds = declaring(tmp_path / "toy", spaces=spaces)
    found = {one.code: one for one in offline_data.check(ds.data_path, select=["RL023", "RL030"])}
    assert {code: one.leaf for code, one in found.items()} == {
        "RL023": "observation/state",
        "RL030": "action",
    }
    assert found["RL023"].message == "the declared Box has shape [4], rows [3]"
    assert ds.specs.is_in(ds[:])  # by the bounds of the data


UNIT = {"type": "Box", "dtype": "float32", "shape": [1], "low": [-1], "high": [1]}


@pytest.mark.parametrize(
    ("space", "values", "said"),
    [
        ({"type": "Discrete", "n": 9}, np.array([[1], [2]]), "Discrete has shape [], rows [1]"),
        (UNIT, np.array([0.5, 1], np.float32), "Box has shape [1], rows []"),
        ({"type": "Discrete", "n": 2}, np.array([True, False]), "whole numbers, rows are bool"),
    ],
)
def test_a_space_that_contains_no_row_is_found(
    tmp_path: Path, space: Any, values: Any, said: str
) -> None:
    ds = acting(tmp_path / "toy", values, space)
    assert not ds.action_space.contains(ds[0]["action"].numpy())
    (found,) = offline_data.check(ds.data_path, select=["RL030"])
    assert found.leaf == "action"
    assert found.message.endswith(said)
    assert ds.specs.is_in(ds[:])


def test_info_says_what_is_declared(tmp_path: Path) -> None:
    ds = declaring(tmp_path / "toy", toy_batch([3, 2]), spaces={"observation": NESTED})
    found: Any = offline_data.info(ds.data_path)
    assert found.values == {
        "action": "float32[1], not declared",
        "observation/state": "float32[3], [-5, -5, 0] to 5000",
    }


def test_observations_that_have_another_name(tmp_path: Path) -> None:
    batch = toy_batch([3, 2])
    state = batch.observations["observation", "state"]
    code = {("pixels",): state, ("info", "code"): batch.observations["info", "code"]}
    ds = declaring(tmp_path / "toy", replace(batch, observations=code))
    assert list(ds.specs.observation.keys()) == ["pixels"]
    assert ds.specs.batch["next", "pixels"] == ds.specs.observation["pixels"]
    assert ds.specs.is_in(ds[:])
    assert ds.observation_space["pixels"].contains(ds[0]["pixels"].numpy())
    assert "info/code" not in ds.specs.spaces


def test_tokens(tmp_path: Path) -> None:
    write_tokens(tmp_path / "text", [[3, 9, 1], [5]], prompts=[1, 0])
    specs = offline_data.open_dataset(tmp_path / "text").specs
    assert (specs.observation, specs.action) == (None, None)
    assert specs.batch["input_ids"] == torchrl.Bounded(1, 9, (), dtype=torch.int32)
    manifest = replace(read_manifest(tmp_path / "text"), about={"tokenizer": {"vocabulary": 300}})
    (tmp_path / "text" / MANIFEST).write_text(dump_manifest(manifest), encoding="utf-8")
    ds = offline_data.open_dataset(tmp_path / "text")
    assert ds.specs.batch["input_ids"] == torchrl.Categorical(300, shape=(), dtype=torch.int32)
    assert ds.specs.is_in(ds[:])


def test_what_preprocess_moves_out_of_the_space_has_none(tmp_path: Path) -> None:
    ds = declaring(tmp_path / "toy", toy_batch([3, 2]), spaces={"observation": NESTED})
    ds.preprocess(_far, name="far", root=tmp_path / "r", progress=False)
    far = offline_data.load_dataset("local:far", root=tmp_path / "r")
    assert far.specs.spaces["observation/state"].origin == "data"
    assert far.specs.is_in(far[:])
    assert not ds.specs.is_in(far[:])
    assert offline_data.check(far.data_path, select=["RL023"]) == []


@pytest.mark.parametrize(
    ("space", "why"),
    [
        ({**BOX, "low": "low"}, "could not convert"),
        ({**BOX, "low": [{}]}, "must be a string or a real number"),
        ({**BOX, "high": [-9]}, "a lower bound is above"),
        ({"type": "Discrete", "n": 0}, "a lower bound is above"),
        ({"type": "Discrete", "n": 10**30}, "too large"),
        ({"type": "MultiDiscrete", "nvec": ["x"]}, "invalid literal"),
    ],
)
def test_spaces_that_are_none(tmp_path: Path, space: dict[str, Any], why: str) -> None:
    spaces = {"observation": {"type": "Dict", "subspaces": {"state": space}}}
    ds = declaring(tmp_path / "toy", spaces=spaces)
    with pytest.raises(FormatError, match=f"observation space of local:toy@1 .*{why}"):
        _ = ds.specs


@pytest.mark.parametrize(
    "space",
    [
        {"type": "Graph"},
        {"type": "Dict", "subspaces": [1]},
        {"type": "Discrete", "n": "x"},
        {**BOX, "low": [0] * 7, "high": [1] * 7},
        "float32 [1]",
    ],
)
def test_what_is_no_space_of_the_leaf_declares_nothing(tmp_path: Path, space: Any) -> None:
    ds = declaring(tmp_path / "toy", spaces={"action": space})
    assert ds.specs.spaces["action"].origin == "data"


def test_an_image_without_bounds_has_those_of_its_dtype(tmp_path: Path) -> None:
    image = {"type": "Box", "dtype": "uint8", "shape": [48, 48, 3]}
    spaces = {"observation": {"type": "Dict", "subspaces": {"image": image}}}
    spec = declaring(tmp_path / "toy", spaces=spaces).specs.observation["image"]
    assert (int(spec.space.low.max()), int(spec.space.high.min())) == (0, 255)


def test_without_torchrl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = declaring(tmp_path / "toy")
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(MissingDependencyError, match="TorchRL's") as caught:
        _ = ds.specs
    assert "observation_space" in str(caught.value.hint)

"""`load_arrays`: the arrays of `to_numpy`, as a dict that scripts may change, without torch."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import offline_data
from offline_data.base.errors import NotFoundError, UsageError
from offline_data.store import arrays
from offline_data.store.arrays import STYLES
from offline_data.store.layout import LAYOUTS
from offline_data.testing.toy import toy_batch, write_toy
from tests.slow import slow_but

STATE = "observation/state"
ARRAYS = ("observations", "actions", "rewards", "terminals", "timeouts")


def is_map(array: Any) -> bool:
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return isinstance(array, mmap.mmap)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("unknown", [(), (1, 2)], ids=["all known", "some unknown"])
def test_they_are_those_of_to_numpy(
    toys: Callable[..., Path], style: Any, layout: Any, unknown: Any
) -> None:
    folder = toys([3, 1, 4, 2], layout=layout, unknown_final=unknown)
    found = offline_data.load_arrays(folder, style, observation_key=STATE)
    expected = offline_data.open_dataset(folder).to_numpy(style, observation_key=STATE)
    assert list(found) == list(expected)
    assert len(found) == len(expected)
    for name, array in found.items():
        assert array.dtype == expected[name].dtype
        np.testing.assert_array_equal(array, expected[name], name)


def test_values_against_the_source(toys: Callable[..., Path]) -> None:
    lengths = [3, 1, 4, 2]
    found = offline_data.load_arrays(
        toys(lengths, unknown_final=[1]), observation_key=("observation", "state")
    )
    first = [1000 * (e + 1) + t + 1 for e, n in enumerate(lengths) for t in range(n) if e != 1]
    assert found["observations"][:, 0].tolist() == first
    assert found["next_observations"][:, 0].tolist() == [one + 1 for one in first]
    assert found["actions"][:, 0].tolist() == [-one for one in first]
    np.testing.assert_array_equal(found["rewards"], (np.array(first) + 1) / 10)
    ends = [e % 2 == 0 and t == n - 1 for e, n in enumerate(lengths) for t in range(n) if e != 1]
    assert found["terminals"].tolist() == ends


@pytest.mark.parametrize(
    ("layout", "lengths", "mapped"),
    [
        ("compact", [5, 2], {"images"}),  # the other leaves share a file
        ("ted", [5, 2], {"images", *ARRAYS}),
        ("compact", [5], {"images"}),
        ("ted", [5], {"images", *ARRAYS}),
    ],
)
def test_leaves_with_a_file_of_their_own_are_private_maps(
    tmp_path: Path, layout: Any, lengths: list[int], mapped: set[str]
) -> None:
    rows = sum(lengths)
    steps: dict[Any, Any] = {
        ("extra", "images"): np.arange(rows * 5000, dtype=np.uint8).reshape(rows, 5000)
    }
    folder = tmp_path / "toy"
    batch = toy_batch(lengths)
    write_toy(folder, [replace(batch, steps={**batch.steps, **steps})], layout=layout)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found = offline_data.load_arrays(folder, "dataset", observation_key=STATE)
    assert type(found) is dict
    assert {*ARRAYS, "images"} <= {*found}
    for name, array in found.items():
        if name in {*ARRAYS, "images"}:
            assert is_map(array) == (name in mapped), name
        array[...] = 1  # also of maps
    if layout == "compact":
        assert all(array.flags.c_contiguous for array in found.values())
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def normalize(data: Any, name: str) -> None:
    data[name] = (data[name] - data[name].mean(0)) / (data[name].std(0) + 1e-3)


def load_buffer(data: Any) -> None:
    buffer = torch.zeros(len(data["rewards"]) + 5, 1)
    buffer[: len(data["rewards"])] = torch.tensor(data["rewards"][..., None], dtype=torch.float32)
    data["buffer"] = buffer.numpy()


def negate(data: Any) -> None:
    tree_util = pytest.importorskip("jax.tree_util")
    data.update(tree_util.tree_map(lambda leaf: np.asarray(leaf, np.float32) * -1, data))


def keep_best(data: Any) -> None:
    order = np.argsort(-data["rewards"], kind="stable")[:5]
    for name in list(data):
        data[name] = data[name][order]


LINES: dict[str, Callable[[Any], Any]] = {
    "rewards divided": lambda data: data["rewards"].__itruediv__(2.5),
    "rewards multiplied": lambda data: data["rewards"].__imul__(1000),
    "rewards shifted": lambda data: data.update(rewards=data["rewards"].__isub__(1.0)),
    "scale and bias": lambda data: data.update(rewards=data["rewards"] * 10 - 5),
    "observations": lambda data: normalize(data, "observations"),
    "next observations": lambda data: normalize(data, "next_observations"),
    "a new array": lambda data: data.setdefault("mc_returns", np.cumsum(data["rewards"])),
    "the best rows": keep_best,
    "a torch buffer": load_buffer,
    "JAX": negate,
}
"""What each line of CORL's scripts does with the dict of `d4rl.qlearning_dataset(env)`."""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("line", slow_but(lambda line: line != "JAX", LINES))
def test_lines_of_corl(toys: Callable[..., Path], layout: Any, line: str) -> None:
    folder = toys([3, 1, 4, 2], layout=layout)
    found, expected = (
        offline_data.load_arrays(folder, "qlearning", observation_key=STATE),
        offline_data.open_dataset(folder).to_numpy("qlearning", observation_key=STATE),
    )
    for data in (found, expected):
        LINES[line](data)
    assert list(found) == list(expected)
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], name)


def test_names_choose_arrays(toys: Callable[..., Path]) -> None:
    folder = toys([3, 2])
    for names in (["rewards", "actions"], ("rewards", "actions"), {"rewards": 1, "actions": 2}):
        found = offline_data.load_arrays(folder, observation_key=STATE, names=names)
        assert list(found) == ["rewards", "actions"]
    assert list(offline_data.load_arrays(folder, observation_key=STATE, names="rewards")) == [
        "rewards"
    ]
    with pytest.raises(UsageError, match="names has 'reward'; the arrays are observations, ac"):
        offline_data.load_arrays(folder, observation_key=STATE, names=["reward"])


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_copies_larger_than_free_memory(
    toys: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, style: Any, layout: Any
) -> None:
    folder, needed = toys([3, 1, 4, 2], layout=layout), 0
    found = offline_data.load_arrays(folder, style, observation_key=STATE)
    for array in found.values():
        needed += 0 if is_map(array) else array.nbytes
    for free in (None, needed):
        monkeypatch.setattr(arrays, "free_memory", lambda free=free: free)
        assert len(offline_data.load_arrays(folder, style, observation_key=STATE)) == len(found)
    monkeypatch.setattr(arrays, "free_memory", lambda: 0)
    if needed > 10:  # timeouts are made, not read
        with pytest.raises(
            UsageError, match=r"need [\d.]+ K?i?B of memory .*, and 0 B are"
        ) as error:
            offline_data.load_arrays(folder, style, observation_key=STATE)
        assert "names=" in str(error.value.hint)
        assert "load_dataset" in str(error.value.hint)
    offline_data.load_arrays(folder, style, observation_key=STATE, names=[])


CODE = """
import json, sys
import offline_data
sums = {}
for style in sys.argv[2:]:
    data = offline_data.load_arrays(sys.argv[1], style, observation_key="observation/state")
    sums[style] = {name: float(array.sum()) for name, array in data.items()}
heavy = {"torch", "tensordict", "torchrl", "jax", "pandas", "rich", "h5py"} & set(sys.modules)
print(json.dumps([sums, sorted(heavy)]))
"""


def test_no_torch_is_imported(toys: Callable[..., Path]) -> None:
    folder = toys([3, 2])
    run = [sys.executable, "-c", CODE, str(folder), *STYLES]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sums, heavy = json.loads(done.stdout)
    assert heavy == []
    dataset = offline_data.open_dataset(folder)
    for style in STYLES:
        expected = dataset.to_numpy(style, observation_key=STATE)
        assert sums[style] == {name: float(array.sum()) for name, array in expected.items()}


def test_a_layout_and_an_id(tmp_path: Path) -> None:
    write_toy(tmp_path / "local" / "toy" / "1", [toy_batch([2, 2])])
    found = offline_data.load_arrays("local:toy", root=tmp_path, observation_key=STATE)
    assert len(found["actions"]) == 4
    again = offline_data.load_arrays(
        "local:toy", root=tmp_path, revision="1", observation_key=STATE, download=False
    )
    assert len(again["actions"]) == 4
    with pytest.raises(NotFoundError, match="local:tuy"):
        offline_data.load_arrays("local:tuy", root=tmp_path)


def test_what_is_wrong_is_said_at_once(toys: Callable[..., Path]) -> None:
    folder = toys([2, 2], text=True)
    with pytest.raises(UsageError, match="observation is 2 features") as error:
        offline_data.load_arrays(folder)
    assert error.value.hint is not None
    assert STATE in error.value.hint
    with pytest.raises(UsageError, match="style is 'rows'"):
        offline_data.load_arrays(folder, "rows")  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        offline_data.load_arrays(folder, observation_key=STATE)["timeouts"]
    with pytest.raises(UsageError, match="download is 'yes'"):
        offline_data.load_arrays(folder, observation_key=STATE, download="yes")  # type: ignore[arg-type]

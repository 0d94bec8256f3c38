"""`load_arrays`: the arrays of `to_numpy`, from files that are mapped read-only, without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offline_data
from offline_data.errors import NotFoundError, UsageError
from offline_data.store.arrays import STYLES
from offline_data.store.layout import LAYOUTS
from offline_data.testing.toy import toy_batch, write_toy

STATE = "observation/state"


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


def test_rows_that_follow_each_other_are_mapped_and_cannot_be_written(tmp_path: Path) -> None:
    write_toy(tmp_path / "toy", [toy_batch([5])])
    found = offline_data.load_arrays(tmp_path / "toy", observation_key=STATE)
    for name in ("observations", "actions", "rewards", "next_observations", "terminals"):
        base: Any = found[name]
        while base.base is not None and not isinstance(base, np.memmap):
            base = base.base
        assert isinstance(base, np.memmap), name
        with pytest.raises(ValueError, match="read-only"):
            found[name][0] = 0
    write_toy(tmp_path / "two", [toy_batch([5, 2])])
    found = offline_data.load_arrays(tmp_path / "two", observation_key=STATE)
    assert found["observations"] is found["observations"]  # read once
    with pytest.raises(ValueError, match="read-only"):
        found["observations"][0] = 0


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
    with pytest.raises(UsageError, match="observation is 2 leaves") as error:
        offline_data.load_arrays(folder)
    assert error.value.hint is not None
    assert STATE in error.value.hint
    with pytest.raises(UsageError, match="style is 'rows'"):
        offline_data.load_arrays(folder, "rows")  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        offline_data.load_arrays(folder, observation_key=STATE)["timeouts"]
    with pytest.raises(UsageError, match="download is 'yes'"):
        offline_data.load_arrays(folder, observation_key=STATE, download="yes")  # type: ignore[arg-type]

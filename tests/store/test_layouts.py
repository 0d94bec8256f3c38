"""Both layouts keep the contract, over shapes that hypothesis chooses too."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_data.episodes import EpisodeBatch, Key
from offline_data.store.layout import LAYOUTS, LayoutName
from offline_data.store.reader import open_reader
from offline_data.store.tables import Column, pack
from offline_data.testing.batches import assert_same_batch, concatenate
from offline_data.testing.stores import LayoutContract
from offline_data.testing.toy import toy_batch, write_toy


class TestCompact(LayoutContract):
    layout = "compact"


class TestTed(LayoutContract):
    layout = "ted"


DTYPES = ("bool", "uint8", "int16", "int64", "float16", "float32", "float64", "uint32")
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
leaves = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")),
    st.tuples(st.sampled_from(DTYPES), shapes),
    max_size=4,
)


def random_batch(
    lengths: list[int], seen: dict[tuple[str, str], tuple[str, tuple[int, ...]]], seed: int
) -> EpisodeBatch:
    rng = np.random.default_rng(seed)
    toy = toy_batch(lengths, first_episode=seed)
    rows = toy.transitions + len(lengths)
    observations: dict[Key, np.ndarray] = dict(toy.observations)
    for (group, leaf), (dtype, shape) in seen.items():
        values = rng.integers(0, 256, (rows, *shape, np.dtype(dtype).itemsize), np.uint8)
        raw = np.ascontiguousarray(values).view(dtype)[..., 0]
        observations["info", group, leaf] = raw if dtype != "bool" else values[..., 0] > 127
    return EpisodeBatch(toy.lengths, toy.steps, observations, toy.final_observation, toy.episodes)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=3),
    seen=leaves,
    layout=st.sampled_from(LAYOUTS),
)
def test_any_shapes_lengths_and_dtypes_come_back(
    lengths: list[list[int]],
    seen: dict[tuple[str, str], tuple[str, tuple[int, ...]]],
    layout: LayoutName,
) -> None:
    firsts = np.cumsum([0, *map(len, lengths)])
    batches = [
        random_batch(run, seen, int(first)) for run, first in zip(lengths, firsts, strict=False)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "d"
        write_toy(path, batches, layout=layout)
        reader = open_reader(path)
        assert_same_batch(reader.episode_batch(0, reader.episode_count), concatenate(batches))


@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.integers(1, 9)), min_size=1, max_size=12))
def test_packed_leaves_are_aligned_and_do_not_overlap(leaf_types: list[tuple[str, int]]) -> None:
    columns = [
        Column(("info", str(i)), np.dtype(dtype), (size,))
        for i, (dtype, size) in enumerate(leaf_types)
    ]
    spec = pack("steps", columns)
    taken = np.zeros(spec.leaves[0].stride, int)
    for leaf in spec.leaves:
        assert leaf.offset % np.dtype(leaf.dtype).itemsize == 0
        assert leaf.stride % 8 == 0
        taken[leaf.offset : leaf.offset + leaf.nbytes] += 1
    assert taken.max() == 1
    assert {leaf.key for leaf in spec.leaves} == {column.key for column in columns}


def test_info_lies_behind_what_algorithms_read() -> None:
    columns = [
        Column(key, np.dtype("float32"), (2,))
        for key in (("info", "a"), ("state",), ("observation", "x"), ("action",))
    ]
    order = [leaf.key[0] for leaf in pack("observations", columns).leaves]
    assert order == ["observation", "action", "state", "info"]


def test_one_copy_takes_about_half_of_two(tmp_path: Path) -> None:
    batch = toy_batch([200] * 5, width=60)
    sizes = [write_toy(tmp_path / name, [batch], layout=name).bytes for name in LAYOUTS]
    assert sizes[0] <= 0.55 * sizes[1]


@pytest.mark.parametrize("dtype", ["complex64", "float64"])
def test_nan_and_infinity_are_kept_and_reported(tmp_path: Path, dtype: str) -> None:
    batch = toy_batch([3, 2])
    values = np.ones(7, dtype)
    values[2], values[4] = np.nan, np.inf
    observations = {**batch.observations, ("info", "v"): values}
    odd = EpisodeBatch(batch.lengths, batch.steps, observations, batch.final_observation)
    manifest = write_toy(tmp_path / "d", [odd])
    assert manifest.non_finite == {"info/v": {"nan": 1, "inf": 1}}
    back = open_reader(tmp_path / "d").leaf("observations", ("info", "v"))
    np.testing.assert_array_equal(back, values)

"""Flat files of any format: other names, other leaves, and next observations compared in blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.episode import Key
from offline_data.episode.cut import lengths_of
from offline_data.formats.flat import next_column
from offline_data.formats.flat.episodes import FlatEpisodes
from offline_data.formats.flat.hdf5 import (
    FlatColumn,
    FlatFile,
    FlatFormat,
    has_columns,
    inspect,
)
from offline_data.formats.flat.next_column import compare_next


def leaf_of(name: str) -> Key:
    return ("extra", name)


AGENT = FlatFormat(
    "Agent",
    leaf_of,
    observation="obs",
    action="act",
    reward="rew",
    terminated="done",
    truncated="cut",
    next_observation="next_obs",
    foreign={"terminals": "d4rl"},
)


def test_a_format_with_names_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "agent.hdf5"
    code = np.arange(7.0) + 1
    with h5py.File(path, "w") as file:
        columns = {
            "obs": code[:, None],
            "act": -code,
            "rew": code / 4,
            "next_obs": code[:, None] + 1,
        }
        columns |= {"done": code == 3, "cut": code == 5, "cost": code + 0.5}
        for name, values in columns.items():
            file[name] = values
        assert has_columns(file, AGENT)
        flat = inspect(file, path, AGENT)
        terminated, truncated, notes = flat.read_flags(file)
        assert truncated is not None
        after = compare_next(flat, file, terminated | truncated)
    episodes = FlatEpisodes(flat, lengths_of(terminated | truncated), terminated, truncated, after)
    assert (notes, flat.scalars, flat.dropped) == ([], {}, ())
    assert episodes.runs(1) == [(0, 1, 3), (1, 2, 2), (2, 3, 2)]
    batch = episodes.read_run(1, 3)
    assert batch.lengths.tolist() == [2, 2]
    assert batch.observations["observation",].ravel().tolist() == [4, 5, 6, 6, 7, 8]
    assert batch.steps["action",].tolist() == [-4, -5, -6, -7]
    assert batch.steps["next", "reward"].ravel().tolist() == [1, 1.25, 1.5, 1.75]
    assert batch.steps["next", "truncated"].ravel().tolist() == [False, True, False, True]
    assert batch.steps["extra", "cost"].tolist() == [4.5, 5.5, 6.5, 7.5]
    with h5py.File(path, "r+") as file:
        file["virtual/0/obs"] = code[:3]  # no pieces in this format: a column like others
        file["terminals"] = code
        assert not has_columns(file, AGENT)
        with pytest.raises(FormatError, match="not a Agent file: it has 'terminals', which d4rl"):
            inspect(file, path, AGENT)
        del file["terminals"], file["rew"]
        with pytest.raises(FormatError, match="not a Agent file: expected datasets 'rew'"):
            inspect(file, path, AGENT)


def flat_file(values: Mapping[str, NDArray[np.float64]]) -> FlatFile:
    columns = {name: FlatColumn(v.dtype, v.shape[1:]) for name, v in values.items()}
    return FlatFile(Path("memory"), AGENT, (("", len(values["obs"])),), columns)


@settings(deadline=None, max_examples=20)
@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=8),
    changed=st.sets(st.integers(0, 55)),
    missing=st.sets(st.integers(0, 55)),
    block=st.integers(1, 200),
    chunk=st.integers(0, 4),
)
def test_blocks_give_what_a_loop_gives(
    lengths: Sequence[int], changed: set[int], missing: set[int], block: int, chunk: int
) -> None:
    rows = sum(lengths)
    observation = np.arange(2.0 * rows + 2).reshape(-1, 2)
    observation[[row for row in missing if row <= rows], 1] = np.nan
    after = observation[1:].copy()
    after[[row for row in changed if row < rows], 0] -= 0.5
    values = {"obs": observation[:-1], "next_obs": after}
    ends = np.zeros(rows, bool)
    ends[np.cumsum(lengths) - 1] = True
    jumps = np.isin(np.arange(rows), list(changed)) & ~ends
    with h5py.File("memory", "w", driver="core", backing_store=False) as file:
        for name, column in values.items():
            packed = {"chunks": (min(chunk, rows), 1), "compression": "gzip"} if chunk else {}
            file.create_dataset(name, data=column, **packed)
        flat = flat_file(values)
        for keep in (False, True):
            found = compare_next(flat, file, ends, keep_episodes=keep, block=block)
            assert found.jumps.tolist() == jumps.tolist()
            assert found.explicit == (keep and jumps.any())
            last = ends if keep else ends | jumps
            np.testing.assert_array_equal(found.final, after[last])
            if chunk:
                np.testing.assert_array_equal(found.observations, values["obs"])
            else:
                assert found.observations is None


def compressed(path: Path, rows: int, chunks: tuple[int, int]) -> FlatFile:
    values = {name: np.arange(2.0 * rows).reshape(rows, 2) for name in ("obs", "next_obs")}
    with h5py.File(path, "w") as file:
        for name, column in values.items():
            file.create_dataset(name, data=column, chunks=chunks, compression="gzip")
    return replace(flat_file(values), path=path)


def test_compressed_columns_are_read_in_bands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = compressed(tmp_path / "x.hdf5", 50, (3, 1))
    ends = np.arange(50) % 5 == 4
    expected = {}
    for read in ("read", "chunks"):
        with monkeypatch.context() as patch, flat.open() as file:
            patch.setattr(FlatFile, read, lambda *_: None)
            expected[read] = compare_next(flat, file, ends, block=4 * 6 * 16)
            patch.setattr(next_column, "HELD", 0)
            assert compare_next(flat, file, ends, block=4 * 6 * 16).observations is None
    one, other = expected["read"], expected["chunks"]
    for name in ("jumps", "final", "observations"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.jumps.sum() == 40


@pytest.mark.parametrize("damaged", [{"obs": 30}, {"next_obs": 0}, {"obs": 24, "next_obs": 0}])
def test_the_first_damage_in_order_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: dict[str, int]
) -> None:
    """Whatever threads met first: the observations are read up to 12 rows before the others."""
    flat = compressed(tmp_path / "x.hdf5", 50, (3, 1))
    with h5py.File(flat.path, "r+") as file:
        for name, row in damaged.items():
            file[name].id.write_direct_chunk((row, 1), b"damage")
    said = set()
    for patched in (False, True):
        with monkeypatch.context() as patch, flat.open() as file:
            if patched:
                patch.setattr(next_column, "_bands_of", lambda *_: None)
            with pytest.raises(FormatError, match="is damaged") as raised:
                compare_next(flat, file, np.zeros(50, bool), block=24 * 16)
        said.add(str(raised.value))
    assert len(said) == 1
    assert repr(f"/{next(iter(damaged))}") in said.pop()

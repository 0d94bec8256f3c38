"""Comparing `next_observations` in blocks gives what a plain loop over rows gives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_data.sources.d4rl.file import Column, FlatFile
from offline_data.sources.d4rl.successors import compare_next

if TYPE_CHECKING:
    from collections.abc import Sequence


def flat_file(values: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]) -> FlatFile:
    columns = {name: Column(v.dtype, v.shape[1:]) for name, v in values.items()}
    return FlatFile(Path("memory"), (("", len(values["observations"])),), columns, {}, ())


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 7), min_size=1, max_size=8),
    changed=st.sets(st.integers(0, 55)),
    missing=st.sets(st.integers(0, 55)),
    block=st.integers(1, 200),
)
def test_blocks_give_what_a_loop_gives(
    lengths: Sequence[int], changed: set[int], missing: set[int], block: int
) -> None:
    rows = sum(lengths)
    observation = np.arange(2.0 * rows + 2).reshape(-1, 2)
    observation[[row for row in missing if row <= rows], 1] = np.nan
    after = observation[1:].copy()
    after[[row for row in changed if row < rows], 0] -= 0.5
    values = {"observations": observation[:-1], "next_observations": after}
    ends = np.zeros(rows, bool)
    ends[np.cumsum(lengths) - 1] = True
    jumps = np.isin(np.arange(rows), list(changed)) & ~ends
    with h5py.File("memory", "w", driver="core", backing_store=False) as file:
        for name, column in values.items():
            file[name] = column
        flat = flat_file(values)
        for keep in (False, True):
            found = compare_next(flat, file, ends, keep_episodes=keep, block=block)
            assert found.jumps.tolist() == jumps.tolist()
            assert found.explicit == (keep and jumps.any())
            last = ends if keep else ends | jumps
            np.testing.assert_array_equal(found.final, after[last])

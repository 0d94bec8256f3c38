"""The column of next observations of a flat file, compared with the observations that follow."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.plurals import plural
from offline_data.episode.assembly import differing_rows
from offline_data.raw.inflate import THREADS

if TYPE_CHECKING:
    from offline_data.formats.flat.hdf5 import FlatFile
    from offline_data.raw.inflate import Chunks

    _Block: TypeAlias = tuple[int, NDArray[Any], NDArray[Any], NDArray[Any]]
    """First row of some rows, both columns of them, and the observation that follows them, if any."""

COMPARED = 16 << 20
"""Bytes of each of the two columns held at once while they are compared."""
KEPT = 16 << 20
"""Bytes of final observations that are kept, so that the column need not be read again."""
HELD = 128 << 20
"""Bytes of compressed observations that are held, so that they are not inflated again."""
BAND = 1 << 20
"""Bytes of each of the two columns that a thread reads at once; the processor's cache holds them."""


@dataclass(frozen=True, eq=False)
class NextColumn:
    """Result of comparing the column of next observations."""

    jumps: NDArray[np.bool_]
    """`[N]` rows inside episodes whose next observation is not the following row."""
    inside: int
    """Number of rows inside episodes: all but the last of each."""
    final: NDArray[Any] | None
    """`[E, …]` its rows at the ends of episodes; None where they are more than `KEPT` bytes."""
    observations: NDArray[Any] | None
    """`[N, …]` the observations; None where they are not compressed, or more than `HELD` bytes."""
    explicit: bool
    """Whether episodes continue at jumps, so that the whole column must be stored. Otherwise they are
    cut there, and only its rows at the ends are."""

    def describe(self, name: str) -> tuple[str, tuple[str, ...]]:
        """Return what becomes of the column of this name: a note, and warnings."""
        note = f"The final observation of every episode is that of {name}."
        done = "episodes end there, as truncated (--keep-episodes keeps them whole)."
        if self.explicit:
            note = f"Every next observation is that of {name}."
            done = "the episodes are kept, and both are stored."
        count = int(np.count_nonzero(self.jumps))
        rows = f"{count:,} of {plural(self.inside, 'row')}"
        said = f"In {rows} inside episodes, {name} is not the next row's observation: {done}"
        return note, (said,) if count else ()


def compare_next(
    flat: FlatFile,
    file: Any,
    ends: NDArray[np.bool_],
    *,
    keep_episodes: bool = False,
    block: int = COMPARED,
) -> NextColumn:
    """Compare every row of the next observations with the observation that follows.

    ```
    row                  t      t+1              compared unless t is an episode's last row
    observations         s_t    s_t+1  ◄─┐
    next_observations    n_t  ───────────┘
    ```

    Values are compared as numbers, without tolerance; NaN equals NaN. Both columns are read once,
    in blocks of at most about `block` bytes that end where chunks do.

    Args:
        flat: The file; it has next observations.
        file: The same, open.
        ends: `[N]` True at the last row of each episode; the last row of the file always counts.
        keep_episodes: Whether episodes go on where the two differ.
        block: Bytes of a column to read at once.
    """
    name = flat.format.observation
    column, compressed = flat.columns[name], flat.rows_of_chunk(file, name) > 0
    held = None
    if compressed and flat.rows * column.nbytes <= HELD:
        held = np.empty((flat.rows, *column.shape), column.dtype)
    if compressed:
        # read again in order where they are damaged, to name the first place
        with suppress(FormatError, OSError, RuntimeError):
            if bands := _bands_of(flat, file, block // 4):
                with closing(_read_bands(flat, bands, held)) as blocks:
                    return _compare(flat, blocks, ends, held, keep_episodes=keep_episodes)
    blocks = _read_blocks(flat, file, block, held)
    return _compare(flat, blocks, ends, held, keep_episodes=keep_episodes)


def _compare(
    flat: FlatFile,
    blocks: Iterator[_Block],
    ends: NDArray[np.bool_],
    observations: NDArray[Any] | None,
    *,
    keep_episodes: bool,
) -> NextColumn:
    nbytes = max(1, flat.columns[flat.format.next_observation].nbytes)
    jumps = np.zeros(flat.rows, bool)
    final: list[NDArray[Any]] | None = []
    kept = 0
    for start, before, after, following in blocks:
        stop = start + len(after)
        jumps[start + differing_rows(after[:-1], before[1:])] = True
        jumps[stop - 1] = len(differing_rows(after[-1:][: len(following)], following)) > 0
        jumps[start:stop] &= ~ends[start:stop]
        last = ends[start:stop].copy() if keep_episodes else ends[start:stop] | jumps[start:stop]
        last[-1] |= stop == flat.rows
        kept += nbytes * np.count_nonzero(last)
        final = None if final is None or kept > KEPT else [*final, after[last]]
    joined = None if final is None else np.concatenate(final)
    inside = flat.rows - int(np.count_nonzero(ends[:-1])) - (flat.rows > 0)
    explicit = keep_episodes and bool(jumps.any())
    return NextColumn(jumps, inside, joined, observations, explicit)


def _read_blocks(
    flat: FlatFile, file: Any, block: int, held: NDArray[Any] | None
) -> Generator[_Block]:
    """Read both columns in order, the observations also into `held`."""
    seen, name = flat.format.observation, flat.format.next_observation
    size = max(1, block // max(1, flat.columns[name].nbytes))
    chunk = flat.rows_of_chunk(file, seen)
    size = size // max(1, chunk) * chunk or size
    following = flat.read(file, seen, 0, size)
    for start in range(0, flat.rows, size):
        stop = min(start + size, flat.rows)
        before, following = following, flat.read(file, seen, stop, min(stop + size, flat.rows))
        if held is not None:
            held[start:stop] = before
        yield start, before, flat.read(file, name, start, stop), following[:1]


def _bands_of(flat: FlatFile, file: Any, most: int) -> tuple[Chunks, Chunks, int] | None:
    """Return the chunks of both columns and the rows to read of them at once, at most `most` bytes.

    None where the columns have no chunks, or chunks of different numbers of rows, or larger ones.
    """
    names = (flat.format.observation, flat.format.next_observation)
    before, after = (flat.chunks(file, name) for name in names)
    if before is None or after is None or before.shape[0] != after.shape[0]:
        return None
    nbytes, chunk = max(1, *(flat.columns[name].nbytes for name in names)), after.shape[0]
    size = min(most, BAND) // (nbytes * chunk) * chunk or chunk
    return (before, after, size) if size * nbytes <= most else None


def _read_bands(
    flat: FlatFile, bands: tuple[Chunks, Chunks, int], held: NDArray[Any] | None
) -> Generator[_Block]:
    """Read both columns in several threads, the observations into `held`.

    The rows of a band stay in the processor's cache until they are compared, and take memory only
    until then.
    """
    seen, later, size = bands
    names = (flat.format.observation, flat.format.next_observation)
    column, other = (flat.columns[name] for name in names)

    def read(start: int) -> tuple[NDArray[Any], NDArray[Any]]:
        rows = min(size, flat.rows - start)
        if held is None:
            before = np.empty((rows, *column.shape), column.dtype)
        else:
            before = held[start : start + rows]
        after = np.empty((rows, *other.shape), other.dtype)
        for chunks, out in ((seen, before), (later, after)):
            chunks.read(start, start + rows, out)
        return before, after

    with ThreadPoolExecutor(THREADS) as pool:
        starts = range(0, flat.rows, size)
        to_come = iter(starts)
        reading = deque(pool.submit(read, start) for start in islice(to_come, THREADS + 1))
        try:
            for start in starts:
                before, after = reading.popleft().result()
                reading.extend(pool.submit(read, more) for more in islice(to_come, 1))
                yield start, before, after, reading[0].result()[0][:1] if reading else before[:0]
        finally:
            pool.shutdown(cancel_futures=True)

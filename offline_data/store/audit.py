"""Audit: rows read back by `DatasetReader` are compared with those computed from the batch."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import AuditError
from offline_data.base.plurals import plural
from offline_data.episode.fields import DONE, TERMINATED, TRUNCATED, Key, join_key, next_of
from offline_data.raw.pixels import at_once
from offline_data.store.encoded import as_encoded
from offline_data.store.layout import (
    AUDITED_SHARE,
    AUDITED_WHOLE,
    DEFAULT_AUDIT,
    EPISODE,
    EPISODES,
    OBSERVATIONS,
    ROOT_FLAGS,
    STEPS,
    TED,
    AuditMode,
)
from offline_data.store.reader import DatasetReader

if TYPE_CHECKING:
    from offline_data.episode import EpisodeBatch

try:
    _compiled: Any = import_module("offline_data.store._compare")
except ImportError:  # no C compiler at installation
    _compiled = None

_BLOCK = 8192
"""Rows of a feature that are compared at once, so that they stay in the processor's cache."""


@dataclass
class Audit:
    """Compares batches with the rows on disk, and counts what was compared.

    With any fraction, the first and last row of every episode and every terminated or truncated row
    are compared. `auto` counts the bytes of batches, so that it does the same on every machine.
    """

    mode: AuditMode = DEFAULT_AUDIT
    part: float = 1.0
    """Share of the dataset that the batches are: it has this share of what `auto` compares whole."""
    seen: int = 0  # bytes of the batches so far
    rows: int = 0
    episodes: int = 0
    _random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def check(
        self,
        batch: EpisodeBatch,
        reader: DatasetReader,
        first_row: int,
        first_episode: int,
        compared: Collection[str] = (),
    ) -> None:
        """Compare some rows of `batch` with `reader`, in which it begins at this row and episode.

        Encoded images are compared by their bytes, frames of videos by file and number; some are
        decoded. Files in `compared` have been compared whole. Raises `AuditError`, and `FormatError`
        for an image that cannot be decoded.
        """
        if self.mode == "none":
            return
        chosen = self.choose(batch)
        place = first_row, first_episode
        if self.mode in ("auto", "all") and _is_stored(batch, reader, *place, compared):
            self.rows += batch.transitions
            # every value is in its place in the file; these show that a reader finds them there
            chosen = _ends_and_some(batch, 0, AUDITED_SHARE, np.random.default_rng(0))
        else:
            self.rows += len(chosen)
        step = max(1, int(len(chosen) / (self._share * batch.transitions or 1)))
        most = at_once(_row_bytes(batch), copies=4)
        for begin in range(0, len(chosen), most):
            some = chosen[begin : begin + most]
            _check_rows(batch, reader, some, first_row, first_episode, step)
        self.seen += batch.nbytes
        self.episodes += len(batch.lengths)

    def choose(self, batch: EpisodeBatch) -> NDArray[np.int64]:
        """Return the step rows of a batch to compare, ascending."""
        whole = batch.transitions if self.mode == "all" else 0
        if self.mode == "auto":
            left = AUDITED_WHOLE * self.part - self.seen
            whole = int(batch.transitions * min(1.0, max(0.0, left / max(1, batch.nbytes))))
        if whole == batch.transitions:
            return np.arange(whole)
        return _ends_and_some(batch, whole, self._share, self._random)

    @property
    def _share(self) -> float:
        """The share of rows that is compared anyway, and of images that are decoded."""
        shares = {"all": 1.0, "auto": AUDITED_SHARE}
        return shares[self.mode] if isinstance(self.mode, str) else float(self.mode)

    def to_json(self, transitions: int) -> dict[str, Any]:
        """Return the manifest's entry; only a dataset without differences gets one."""
        return {
            "mode": self.mode,
            "rows": self.rows,
            "of": transitions,
            "episodes": self.episodes,
            "differences": 0,
        }


def _ends_and_some(
    batch: EpisodeBatch, whole: int, share: float, random: np.random.Generator
) -> NDArray[np.int64]:
    """Return the first `whole` rows, those at ends of episodes, and a share of the others; ascending."""
    wanted = np.arange(batch.transitions) < whole
    wanted[batch.starts] = wanted[batch.last_rows] = True
    for flag in (TERMINATED, TRUNCATED):
        wanted |= batch.steps[flag][:, 0].astype(bool)
    count = int(np.ceil(share * (batch.transitions - whole)))
    wanted[random.integers(0, batch.transitions, count)] = True
    return np.flatnonzero(wanted)


def _is_stored(
    batch: EpisodeBatch,
    reader: DatasetReader,
    first_row: int,
    first_episode: int,
    compared: Collection[str],
) -> bool:
    """Return True if the mapped files have the bits of every value, in order; False if unknown."""
    # gathering rows and computing what they should be takes six times as long
    if TED in reader.manifest.tables:
        return False
    episodes = (batch.episode_of + first_episode).astype(reader.step_leaves[EPISODE].dtype)
    pairs = []
    for table, columns, leaves, first in (
        (STEPS, {**batch.steps, EPISODE: episodes}, reader.step_leaves, first_row),
        (OBSERVATIONS, batch.observations, reader.observation_leaves, first_row + first_episode),
    ):
        for key, column in columns.items():
            if key not in leaves or not isinstance(column, np.ndarray):
                return False
            if leaves[key].file in compared:
                continue
            stored = reader.leaf(table, key)[first : first + len(column)]
            known = (stored.dtype, stored.shape) == (column.dtype, column.shape)
            if not known or column.dtype.kind not in "fiub":
                return False
            pairs.append((stored, column))
    return all(has_bits(*pair) for pair in pairs)


def has_bits(stored: NDArray[Any], column: NDArray[Any]) -> bool:
    """Return True if two arrays of one dtype and shape have the same bits: -0.0 is not 0.0."""
    if _compiled is not None and all(x[:1].flags.c_contiguous for x in (stored, column)):
        row = column.itemsize * math.prod(column.shape[1:])
        places = (y for x in (stored, column) for y in (x.ctypes.data, x.strides[0]))
        return bool(_compiled.same_rows(*places, row, len(column)))
    bits = np.dtype(f"u{column.itemsize}")
    one, other = stored.view(bits), column.view(bits)
    return all(
        np.array_equal(one[begin : begin + _BLOCK], other[begin : begin + _BLOCK])
        for begin in range(0, len(one), _BLOCK)
    )


def _row_bytes(batch: EpisodeBatch) -> int:
    """Bytes of a row of the batch in TED, without those of encoded images, which stay encoded."""
    steps, observations = (
        sum(
            c.dtype.itemsize * math.prod(c.shape[1:])
            for c in columns.values()
            if as_encoded(c) is None
        )
        for columns in (batch.steps, batch.observations)
    )
    return steps + 2 * observations


def _check_rows(
    batch: EpisodeBatch,
    reader: DatasetReader,
    rows: NDArray[np.int64],
    first_row: int,
    first_episode: int,
    step: int,
) -> None:
    found = reader.transitions_at(rows + first_row)
    for key, values in expected_columns(batch, rows, first_episode).items():
        column = reader.as_text(key, found.pop(key))
        _compare(key, values, column, batch, rows)
        images = as_encoded(column)
        if images is not None:
            images.check_decoding(step)
    if found:
        names = ", ".join(sorted(map(join_key, found)))
        raise AuditError(f"The new files have features that the source lacks: {names}")


def expected_columns(
    batch: EpisodeBatch, rows: NDArray[np.int64], first_episode: int
) -> dict[Key, NDArray[Any]]:
    """Return the TED columns of `rows` of a batch, computed from the batch alone."""
    out: dict[Key, NDArray[Any]] = {key: values[rows] for key, values in batch.steps.items()}
    for key, values in batch.observations.items():
        out[key] = values[batch.root_rows[rows]]
        out[next_of(key)] = values[batch.root_rows[rows] + 1]
    out[EPISODE] = batch.episode_of[rows] + first_episode
    out[DONE] = out[TERMINATED] | out[TRUNCATED]
    for flag in ROOT_FLAGS:
        out[flag] = np.zeros((len(rows), 1), bool)
    return out


def _compare(
    key: Key,
    wanted: NDArray[Any],
    found: NDArray[Any],
    batch: EpisodeBatch,
    rows: NDArray[np.int64],
) -> None:
    name = f"Audit: {join_key(key)!r}"
    if wanted.shape != found.shape:
        raise AuditError(
            f"{name} was written as {list(found.shape)}, expected {list(wanted.shape)}"
        )
    same = equal_rows(wanted, found)
    if same.all():
        return
    wrong = np.flatnonzero(~same)
    at = wrong[0]
    episode = batch.episode_of[rows[at]]
    raise AuditError(
        f"{name} differs from the source in {len(wrong)} of {plural(len(rows), 'compared row')}, "
        f"first in episode {episode} of the part, step {rows[at] - batch.starts[episode]}: "
        f"expected {_short(wanted, at)}, found {_short(found, at)}",
        hint="nothing was published; please report this with `offline-data env`",
    )


def equal_rows(wanted: NDArray[Any], found: NDArray[Any]) -> NDArray[np.bool_]:
    """Return for each row whether all values are equal, NaN equal to NaN; `[n]`.

    Integers are compared exactly with other types, not as float64, where 2^53 equals 2^53 + 1.
    """
    one, other = as_encoded(wanted), as_encoded(found)
    if one is not None and other is not None:
        return one.same_rows(other)
    wanted, found = np.asarray(wanted), np.asarray(found)
    if wanted.dtype != found.dtype and {wanted.dtype.kind, found.dtype.kind} & {"i", "u"}:
        wanted, found = wanted.astype(object), found.astype(object)
    same = np.asarray(wanted == found, bool)
    if wanted.dtype.kind in "fc" and not same.all():
        same |= np.isnan(wanted) & np.isnan(found)
    return np.asarray(same.reshape(len(wanted), -1).all(axis=1))


def _short(values: NDArray[Any], row: int) -> str:
    images = as_encoded(values)
    value = values[row] if images is None else np.frombuffer(images.images()[row], np.uint8)
    return np.array2string(np.asarray(value), threshold=6, edgeitems=2, precision=6)


def check_episodes(reader: DatasetReader, columns: Mapping[Key, NDArray[Any]]) -> None:
    """Compare the episode table on disk with its columns; raises `AuditError`."""
    for key, wanted in columns.items():
        values = reader.as_text(key, np.asarray(reader.episodes[key]), EPISODES)
        if wanted.shape != values.shape or not equal_rows(wanted, values).all():
            raise AuditError(f"Audit: episode column {join_key(key)!r} differs from the source")

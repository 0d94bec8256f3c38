"""The proof of an export: what was written, read back and compared with the dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import IntegrityError
from offline_data.base.exact import changes, holds
from offline_data.base.plurals import plural, shorten
from offline_data.base.progress import Progress
from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import TERMINATED, TRUNCATED, Key, join_key, next_of
from offline_data.formats.base import PART_BYTES, RawDataset
from offline_data.formats.writing.base import FINAL, ExportJob, ExportTarget, LeafPlace, Loss
from offline_data.formats.writing.episodes import Table
from offline_data.store.encoded import as_encoded

MEAN_ERROR = 10  # of 255: the most that an image encoded with loss may differ on average
_FLAGS = (TERMINATED, TRUNCATED)


def prove(
    written: RawDataset,
    job: ExportJob,
    target: ExportTarget,
    losses: Sequence[Loss],
    progress: Progress,
) -> tuple[int, tuple[Loss, ...]]:
    """Read all episodes back and compare them with the dataset.

    Returns the number of values that are equal, and those of `losses` that were found, with the
    numbers of rows. Raises `IntegrityError` for a value, dtype or shape that differs, or a row that
    is missing, and is not among `losses`; and for a feature that the dataset does not have.
    """
    tally = _Tally(job.name, losses)
    compared = first = 0
    with progress.task(f"compare {job.name}", job.episodes.transitions, "steps") as bar:
        for found, original in _pairs(_read(written), job.episodes.batches()):
            tally.where = f"of episodes {first} to {first + len(found.lengths) - 1}"
            compared += _compare(found, original, job, target, tally)
            first += len(found.lengths)
            bar.advance(found.transitions)
    if first != len(job.episodes.lengths):
        raise IntegrityError(
            f"{job.name}: {plural(first, 'episode')} came back of {len(job.episodes.lengths):,} written"
        )
    return compared, tally.occurring()


@dataclass
class _Tally:
    """Rows that differ, of each feature; more than the losses say are an error."""

    name: str
    losses: Sequence[Loss]
    where: str = ""  # episodes that are compared
    _rows: Counter[str] = field(default_factory=Counter)

    def add(self, leaf: str, rows: NDArray[Any] | int, of: int, hint: str | None = None) -> None:
        count = rows if isinstance(rows, int) else len(rows)
        self._rows[leaf] += count
        listed = [loss.rows for loss in self.losses if loss.leaf == leaf]
        if count and self._rows[leaf] > sum(inf if rows is None else rows for rows in listed):
            at = "" if isinstance(rows, int) else f", first in row {rows[0]} of these"
            raise IntegrityError(
                f"{self.name}: feature {shorten(leaf)!r} differs in {count:,} of {plural(of, 'row')} {self.where}"
                f"{at}, which is not in the list of losses",
                hint=hint,
            )

    def occurring(self) -> tuple[Loss, ...]:
        """Return the losses found; those of features with one reason by the rows counted."""
        reasons = Counter(loss.leaf for loss in self.losses)
        return tuple(
            replace(loss, rows=self._rows[loss.leaf])
            if loss.rows is not None and reasons[loss.leaf] == 1
            else loss
            for loss in self.losses
            if self._rows[loss.leaf]
        )


def _read(written: RawDataset) -> Iterator[EpisodeBatch]:
    for shard in written.shards():
        for batch in written.read(shard):
            if batch.skipped:
                raise IntegrityError(f"{batch.skipped[0].where} {batch.skipped[0].reason}")
            yield batch


def _pairs(
    one: Iterator[EpisodeBatch], other: Iterator[EpisodeBatch]
) -> Iterator[tuple[EpisodeBatch, EpisodeBatch]]:
    """Cut two streams of the same episodes into batches of the same ones."""
    found, wanted = next(one, None), next(other, None)
    while found is not None and wanted is not None:
        count = min(len(found.lengths), len(wanted.lengths))
        yield found.part(0, count), wanted.part(0, count)
        found = (
            found.part(count, len(found.lengths)) if count < len(found.lengths) else next(one, None)
        )
        wanted = (
            wanted.part(count, len(wanted.lengths))
            if count < len(wanted.lengths)
            else next(other, None)
        )


def _compare(
    found: EpisodeBatch,
    original: EpisodeBatch,
    job: ExportJob,
    target: ExportTarget,
    tally: _Tally,
) -> int:
    """Return the number of values that are equal in both; see `prove`."""
    if not np.array_equal(found.lengths, original.lengths):
        at = int((found.lengths != original.lengths).argmax())
        raise IntegrityError(
            f"{job.name}: an episode {tally.where} has {plural(found.lengths[at], 'step')}, "
            f"expected {original.lengths[at]}"
        )
    places = {one.leaf: one for one in job.places}
    if any(one.leaf.table == one.table == "observations" for one in job.places):
        differ = np.flatnonzero(found.final_observation != original.final_observation)
        tally.add(FINAL, differ, len(found.lengths))
    compared = 0
    for leaf in job.episodes.leaves:
        values = getattr(original, leaf.table)[leaf.key]
        if leaf.key in _FLAGS and leaf.table == "steps":
            differ = _unequal(np.asarray(found.steps[leaf.key]), np.asarray(values))
        elif leaf not in places:
            tally.add(leaf.label, len(values), len(values))
            continue
        else:
            differ = _compare_leaf(places[leaf], found, original, job.name, tally)
        tally.add(leaf.label, differ, len(values))
        compared += 0 if leaf in places and places[leaf].lossy else int(np.size(values))
    known = {(one.table, one.key) for one in job.places}
    known |= {("steps", next_of(one.key)) for one in job.places if one.after}
    known |= {("steps", key) for key in _FLAGS}
    for table in ("steps", "observations", "episodes"):
        for key, column in getattr(found, table).items():
            if (table, key) in known:
                continue
            if not {(table, key), (table, key[:1])} & target.added:
                raise IntegrityError(
                    f"{job.name} has a feature {shorten(join_key(key))!r} that was not written"
                )
            if any(loss.leaf == join_key(key) for loss in tally.losses):
                tally.add(join_key(key), len(column), len(column))
    return compared


def _compare_leaf(
    place: LeafPlace, found: EpisodeBatch, original: EpisodeBatch, name: str, tally: _Tally
) -> NDArray[Any]:
    """Return a feature's rows that differ, of its own rows; counts those that are not there."""
    leaf = place.leaf
    values: Any = getattr(original, leaf.table)[leaf.key]
    back = _column(found, place.table, place.key, name)
    decoded = as_encoded(values) is not None and as_encoded(back) is None
    if place.lossy or decoded or not (place.dtype == "text" or holds(place.dtype, leaf.dtype)):
        tally.add(leaf.label, len(values), len(values))
    if leaf.table != "observations":
        if leaf.table == place.table:
            return _differing(place, back, values, name)
        rows = _differing(place, back, place.step_rows(original), name)
        return np.unique(original.episode_of[rows])
    ends = np.cumsum(original.lengths + 1) - 1
    both = np.ones(len(values), bool)
    if place.table == "observations":  # final observations that one of both lacks are `FINAL`
        both[ends] = original.final_observation & found.final_observation
        rows = np.flatnonzero(both)
        if both.all():
            return _differing(place, back, values, name)
        return np.asarray(rows[_differing(place, back[rows], values[rows], name)])
    both[ends] = False
    missing = ends[original.final_observation]
    if place.after:
        after = _column(found, "steps", next_of(place.key), name)
        wrong = _differing(place, after, place.step_rows(original, after=True), name)
        missing = wrong + original.episode_of[wrong] + 1
    rows = np.flatnonzero(both)
    return np.union1d(rows[_differing(place, back, values[rows], name)], missing)


def _column(found: EpisodeBatch, table: Table, key: Key, name: str) -> Any:
    column = getattr(found, table).get(key)
    if column is None:
        raise IntegrityError(f"{name}: feature {shorten(join_key(key))!r} was not read back")
    return column


def _differing(place: LeafPlace, back: Any, values: Any, name: str) -> NDArray[np.int64]:
    """Return the rows that differ; `IntegrityError` for dtypes, shapes and images far apart."""
    dtype = np.dtype(object if place.dtype == "text" else place.dtype)
    if back.dtype != dtype or _plain(back) != _plain(values):
        raise IntegrityError(
            f"{name}: feature {shorten(join_key(place.key))!r} is {back.dtype} {list(back.shape[1:])} in "
            f"{plural(len(back), 'row')}, expected {dtype} {list(values.shape[1:])} in {len(values)}"
        )
    differ = _far_apart if place.lossy else _unequal
    rows = max(1, PART_BYTES // max(1, values.dtype.itemsize * prod(values.shape[1:])))
    found = [np.zeros(0, np.int64)]
    for at in range(0, len(values), rows):  # images are decoded a few at a time
        one, other = (np.asarray(column[at : at + rows]) for column in (back, values))
        found.append(differ(one.reshape(other.shape), other) + at)
    if place.lossy and np.concatenate(found).size:
        raise IntegrityError(
            f"{name}: feature {shorten(join_key(place.key))!r} differs in {len(np.concatenate(found)):,} of "
            f"{plural(len(values), 'row')} by more than {MEAN_ERROR} of 255 on average",
            hint="write images without loss: --video none",
        )
    return np.concatenate(found)


def _plain(column: Any) -> tuple[int, ...]:
    """Return a shape without axes of length 1 after the rows."""
    return (len(column), *(length for length in column.shape[1:] if length != 1))


def _unequal(back: NDArray[Any], values: NDArray[Any]) -> NDArray[np.int64]:
    """Return the rows that differ in a bit, or as text; of another dtype, also back in their own."""
    if values.dtype == object:
        return np.flatnonzero(
            [one != other for one, other in zip(back.ravel(), values.ravel(), strict=True)]
        )
    if values.dtype == back.dtype:
        one, other = (
            np.ascontiguousarray(c).reshape(len(values), -1).view(np.uint8) for c in (back, values)
        )
        return np.flatnonzero((one != other).any(axis=1))
    with np.errstate(invalid="ignore"):
        cast = values.astype(back.dtype)
    apart = changes(values, back).reshape(len(values), -1).any(axis=1)
    return np.union1d(_unequal(back, cast), np.flatnonzero(apart))


def _far_apart(back: NDArray[Any], values: NDArray[Any]) -> NDArray[np.int64]:
    apart = np.abs(back.astype(np.int16) - values).reshape(len(values), -1)
    return np.flatnonzero(apart.mean(axis=1) > MEAN_ERROR)

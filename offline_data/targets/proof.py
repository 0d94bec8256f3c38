"""The proof of an export: what was written, read back and compared with the dataset."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.episodes import EpisodeBatch
from offline_data.episodes.fields import TERMINATED, TRUNCATED, Key, join_key
from offline_data.errors import IntegrityError
from offline_data.plurals import plural
from offline_data.progress import Progress
from offline_data.sources.base import PART_BYTES, RawDataset
from offline_data.targets.base import ExportJob, ExportTarget, LeafPlace
from offline_data.targets.plan import stored_batch

MEAN_ERROR = 10
"""Largest mean difference of an image that was encoded with loss, of 255."""


def prove(written: RawDataset, job: ExportJob, target: ExportTarget, progress: Progress) -> int:
    """Read all episodes back and compare them with the dataset; return the number of values compared.

    Raises `IntegrityError` where a value, dtype or shape differs, or a leaf is there that the plan
    does not have.
    """
    expected = (stored_batch(one, job, target.holds) for one in job.episodes.batches())
    compared = first = 0
    with progress.task(f"compare {job.name}", job.episodes.transitions, "transitions") as bar:
        for found, wanted in _pairs(_read(written), expected):
            compared += _compare(found, wanted, job, target, first)
            first += len(found.lengths)
            bar.advance(found.transitions)
    if first != len(job.episodes.lengths):
        raise IntegrityError(
            f"{job.name}: {plural(first, 'episode')} came back of {len(job.episodes.lengths):,} written"
        )
    return compared


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
    found: EpisodeBatch, wanted: EpisodeBatch, job: ExportJob, target: ExportTarget, first: int
) -> int:
    if not np.array_equal(found.lengths, wanted.lengths):
        at = int((found.lengths != wanted.lengths).argmax())
        raise IntegrityError(
            f"{job.name}: episode {first + at} has {plural(found.lengths[at], 'transition')}, expected "
            f"{wanted.lengths[at]}"
        )
    compared = 0
    if target.holds.unknown_final:
        known = (found.final_observation, wanted.final_observation)
        _check_equal(*known, ("final_observation",), job, found, first)
    for key in (TERMINATED, TRUNCATED):
        _check_equal(found.steps.get(key), wanted.steps[key], key, job, found, first)
        compared += len(wanted.steps[key])
    for place in job.places:
        if place.leaf.key in {TERMINATED, TRUNCATED}:
            continue
        values = getattr(wanted, place.leaf.table)[place.leaf.key]
        back = getattr(found, place.table).get(place.key)
        values, back = _same_rows(place, values, back, wanted, target)
        _check_equal(back, values, place.key, job, found, first, near=bool(place.lossy))
        compared += 0 if place.lossy else int(np.size(values))
    planned = {(one.table, one.key) for one in job.places}
    planned |= {("steps", TERMINATED), ("steps", TRUNCATED), *target.added}
    for table in ("steps", "observations", "episodes"):
        for key in getattr(found, table):
            if (table, key) not in planned and (table, key[:1]) not in target.added:
                raise IntegrityError(
                    f"{job.name} has a leaf {join_key(key)!r} that was not written"
                )
    return compared


def _same_rows(
    place: LeafPlace, values: Any, back: Any, wanted: EpisodeBatch, target: ExportTarget
) -> tuple[Any, Any]:
    """Return the rows that both must have: without final observations that are not held."""
    if place.leaf.table == place.table != "observations" or back is None:
        return values, back
    if place.table == "steps":
        return place.step_rows(wanted), back
    if target.holds.final_observation:
        return values, back
    kept = np.ones(len(values), bool)
    kept[np.cumsum(wanted.lengths + 1) - 1] = False
    return values[kept], back[kept]


def _check_equal(
    back: Any,
    values: Any,
    key: Key,
    job: ExportJob,
    found: EpisodeBatch,
    first: int,
    *,
    near: bool = False,
) -> None:
    """Raise `IntegrityError` unless all rows are equal, or `near`: images of about the same pixels."""
    name = join_key(key)
    if back is None:
        raise IntegrityError(f"{job.name}: leaf {name!r} was not read back")
    kinds = back.dtype == values.dtype or {back.dtype.kind, values.dtype.kind} == {"O"}
    if not kinds or _plain(back, key) != _plain(values, key):
        raise IntegrityError(
            f"{job.name}: leaf {name!r} is {back.dtype} {list(back.shape[1:])} in {plural(len(back), 'row')}, "
            f"expected {values.dtype} {list(values.shape[1:])} in {len(values)}"
        )
    differ = _far_apart if near else _differing
    rows = max(1, PART_BYTES // max(1, values.dtype.itemsize * prod(values.shape[1:])))
    differing: list[int] = []
    for at in range(0, len(values), rows):  # images are decoded a few at a time
        one, other = (np.asarray(column[at : at + rows]) for column in (back, values))
        differing += (differ(one.reshape(other.shape), other) + at).tolist()
    if differing:
        raise IntegrityError(
            f"{job.name}: leaf {name!r} differs in {len(differing):,} of {plural(len(values), 'row')} of episodes "
            f"{first} to {first + len(found.lengths) - 1}, first in row {differing[0]} of these"
            + f": by more than {MEAN_ERROR} of 255 on average"
            * near,
            hint="write images without loss: --video none" if near else None,
        )


def _plain(column: NDArray[Any], key: Key) -> tuple[int, ...]:
    """Return a shape without axes of length 1 after the rows.

    What actions brought is flat where readers of flat files return it.
    """
    if key[0] == "next":
        return column.reshape(len(column), -1).shape
    return (len(column), *(length for length in column.shape[1:] if length != 1))


def _differing(back: NDArray[Any], values: NDArray[Any]) -> NDArray[np.int64]:
    """Return the rows that differ in a bit, or as text."""
    if values.dtype == object:
        return np.flatnonzero(
            [one != other for one, other in zip(back.ravel(), values.ravel(), strict=True)]
        )
    rows = len(values)
    one, other = (np.ascontiguousarray(c).reshape(rows, -1).view(np.uint8) for c in (back, values))
    return np.flatnonzero((one != other).any(axis=1))


def _far_apart(back: NDArray[Any], values: NDArray[Any]) -> NDArray[np.int64]:
    """Return the images whose pixels differ by more than `MEAN_ERROR` on average."""
    apart = np.abs(back.astype(np.int16) - values).reshape(len(values), -1)
    return np.flatnonzero(apart.mean(axis=1) > MEAN_ERROR)

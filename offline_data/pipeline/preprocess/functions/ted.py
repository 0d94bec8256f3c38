"""Converting chunks to tables of TED rows, or of observations, and back.

An observation is stored once if `next` of each row equals the root of the following one:

```
episode with T = 3     root           next                observations of the result
row 0                  s0             s1        s1 = s1?  s0
row 1                  s1             s2        s2 = s2?  s1
row 2                  s2             s3                  s2
                                                          s3 ← next of the last row
```
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError, StepError
from offline_data.episode.fields import (
    ACTION_ROOTS,
    DONE,
    RESERVED_ROOTS,
    TERMINATED,
    TRUNCATED,
    Key,
    join_key,
    next_of,
)
from offline_data.pipeline.preprocess.steps.leaves import outcomes
from offline_data.store.chunk import EpisodeChunk
from offline_data.store.layout import EPISODE, ROOT_FLAGS

if TYPE_CHECKING:
    Table = dict[Key, NDArray[Any]]  # `[n, …]` by key

    Made = Mapping[Key, NDArray[Any] | None]  # columns that a function returned; None: unchanged

On: TypeAlias = Literal["transitions", "observations"]  # unit of a row

INDEX: Key = ("index",)

GIVEN: tuple[Key, ...] = (INDEX, EPISODE, *ROOT_FLAGS)
"""Features that follow from a row's place, which a function may not change."""

ALL = slice(None)


class NeedsExplicitNext(Exception):  # noqa: N818 - a finding, not an error
    """Features whose `next` value differs from the root value of the following row."""

    def __init__(self, keys: Collection[Key]) -> None:
        super().__init__(", ".join(map(join_key, keys)))
        self.keys = tuple(keys)
        self.reason = (
            f"{self} after an action is not what stands before the next, so that both are stored"
        )


def fill_columns(made: Made, table: Table) -> Table:
    """Return the columns that a function returned, those of `table` where it changed nothing."""
    return {key: table[key] if values is None else values for key, values in made.items()}


def table_of(chunk: EpisodeChunk, on: On = "transitions", part: slice = ALL) -> Table:
    """Return `[n, …]` columns of a slice of the rows, as new, contiguous and writable arrays.

    For transitions all TED features with `index` and `episode`; for observations by root key.
    """
    batch = chunk.batch
    if on == "observations":
        return {key: _copy_rows(values[part]) for key, values in batch.observations.items()}
    rows = batch.root_rows[part]
    first, stop = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
    acted, seen = ~_ends(chunk)[first:stop], batch.observations
    table: Table = {key: _copy_rows(values[first:stop], acted) for key, values in seen.items()}
    table |= {key: _copy_rows(values[part]) for key, values in batch.steps.items()}
    table |= {next_of(k): _copy_rows(v[first + 1 : stop + 1], acted) for k, v in seen.items()}
    table[DONE] = table[TERMINATED] | table[TRUNCATED]
    return table | _place_leaves(chunk, part)


def _ends(chunk: EpisodeChunk) -> NDArray[np.bool_]:
    """Return a mask of the observation rows that follow an episode's last action, `[N + E]`."""
    ends = np.zeros(chunk.batch.transitions + len(chunk.batch.lengths), bool)
    ends[np.cumsum(chunk.batch.lengths + 1) - 1] = True
    return ends


def _items(rows: NDArray[Any]) -> NDArray[np.void]:
    """View contiguous rows as one item each, `[n]`: numpy copies these fastest."""
    flat = rows.reshape(len(rows), rows[:1].size or prod(rows.shape[1:]))
    return flat.view(f"V{flat.shape[1] * rows.itemsize}")[:, 0]


def _copy_rows(rows: NDArray[Any], where: NDArray[np.bool_] | None = None) -> NDArray[Any]:
    rows = np.asarray(rows)  # decodes images
    if rows.ndim == 1 or not rows[:1].flags.c_contiguous or not prod(rows.shape[1:]):
        return np.array(rows if where is None else rows[where], order="C")
    items = _items(rows)
    taken = np.array(items) if where is None else items[where]
    return taken.view(rows.dtype).reshape(len(taken), *rows.shape[1:])


def _place_leaves(chunk: EpisodeChunk, part: slice = ALL) -> Table:
    index = np.array(chunk.row_numbers[part])
    table: Table = {flag: np.zeros((len(index), 1), bool) for flag in ROOT_FLAGS}
    return {**table, INDEX: index, EPISODE: np.array(chunk.episode_numbers[part])}


def row_numbers(chunk: EpisodeChunk, on: On) -> NDArray[np.int64]:
    """Return `[n]` numbers, unique in the dataset, that seed the rows."""
    if on == "transitions":
        return chunk.row_numbers
    batch, last = chunk.batch, chunk.batch.last_rows
    numbers = np.empty(batch.transitions + len(batch.lengths), np.int64)
    numbers[batch.root_rows] = chunk.row_numbers + chunk.episode_numbers
    numbers[batch.next_rows[last]] = chunk.row_numbers[last] + chunk.episodes + 1
    return numbers


def rebuild(
    chunk: EpisodeChunk, on: On, made: Made, explicit_next: Collection[Key]
) -> tuple[EpisodeChunk, list[Key]]:
    """Return the chunk of a function's results, and the required features that it did not return.

    Raises `NeedsExplicitNext` for features of which root and `next` must both be stored, and
    `StepError` for a result that cannot be stored, or a change that a function may not make.
    """
    changed = {key: values for key, values in made.items() if values is not None}
    if on == "transitions":
        _check_given(chunk, changed)
        return from_ted(chunk, made, explicit_next)
    _check_tree(chunk.batch.steps, made)
    before = chunk.batch.observations
    try:
        return chunk.having(observations={k: changed.get(k, before.get(k)) for k in made}), []  # type: ignore[misc]
    except FormatError as error:
        raise StepError(
            f"What the function returned is not an observation: {error.message}",
            hint="rename the feature in the function",
        ) from error


def from_ted(
    chunk: EpisodeChunk, made: Made, explicit_next: Collection[Key]
) -> tuple[EpisodeChunk, list[Key]]:
    """Return the chunk of a table of TED rows, and the required features missing in it.

    Action, reward and flags that `made` lacks are taken from `chunk`. `explicit_next` are root keys
    that are stored together with their `next`.
    """
    batch, last = chunk.batch, chunk.batch.last_rows
    kept = [key for key in outcomes(chunk) if key not in made]
    if not any(key[0] in ACTION_ROOTS for key in made):
        kept += [key for key in batch.steps if key[0] in ACTION_ROOTS]
    found = {key: values for key, values in made.items() if key not in {*GIVEN, DONE}}
    found |= dict.fromkeys(kept)
    whole = {
        key
        for key in batch.observations
        if key not in explicit_next and {key, next_of(key)} <= found.keys()
        if found[key] is found[next_of(key)] is None
    }
    shared = {*whole, *map(next_of, whole)}
    missing = {k for k, v in found.items() if v is None and k not in shared}
    given = batch.steps if missing <= batch.steps.keys() else table_of(chunk) | dict(batch.steps)
    leaves: Table = {k: given[k] if v is None else v for k, v in found.items() if k not in shared}
    pairs = [key for key in leaves if _is_pair(key, leaves) and key not in explicit_next]
    different = []
    for key in pairs:  # within episodes, next of a row equals the root of the following one
        same = equal_rows(leaves[next_of(key)][:-1], leaves[key][1:])
        same[last[:-1]] = True
        if not same.all():
            different.append(key)
    if different:
        raise NeedsExplicitNext(different)
    observations: Table = {}
    for key in found:
        if key in whole:
            observations[key] = batch.observations[key]
        elif key in pairs:
            observations[key] = _merge_observations(
                chunk, leaves.pop(key), leaves.pop(next_of(key))
            )
    try:
        return chunk.having(steps=leaves, observations=observations, words=words_of(chunk)), kept
    except FormatError as error:
        raise StepError(
            f"What the function returned is not a transition: {error.message}",
            hint="return the TensorDict that it was given, with what is to be changed",
        ) from error


def _merge_observations(
    chunk: EpisodeChunk, root: NDArray[Any], after: NDArray[Any]
) -> NDArray[Any]:
    ends, last = _ends(chunk), chunk.batch.last_rows
    column = np.empty((len(ends), *root.shape[1:]), root.dtype)
    if root.ndim == 1 or not root[:1].size:
        column[~ends], column[ends] = root, after[last]
    else:
        items = _items(column)
        items[~ends] = _items(np.ascontiguousarray(root))
        column[ends] = after[last]
    return column


def equal_rows(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """Compare rows of one dtype and shape, `[n]`, by bytes: NaN equals NaN, -0.0 not 0.0."""
    same, size = np.ones(len(one), bool), one.dtype.itemsize
    if one.size:
        word = f"u{size}" if size in (1, 2, 4, 8) else "u8"
        flat = (np.ascontiguousarray(rows).reshape(-1).view(word) for rows in (one, other))
        differs = np.not_equal(*flat)
        same[np.flatnonzero(differs) // (differs.size // len(one))] = False
    return same


def words_of(chunk: EpisodeChunk) -> dict[Key, Sequence[str]]:
    """Return the vocabularies of text features by TED key."""
    seen = chunk.batch.observations
    return {**{next_of(k): w for k, w in chunk.words.items() if k in seen}, **chunk.words}


def _is_pair(key: Key, leaves: Table) -> bool:
    after = leaves.get(next_of(key))
    return (
        after is not None
        and key[0] not in RESERVED_ROOTS
        and (after.dtype, after.shape) == (leaves[key].dtype, leaves[key].shape)
    )


def _check_given(chunk: EpisodeChunk, changed: Table) -> None:
    """Check features that follow from others; `next/done` may also follow from the new flags."""
    if changed.keys().isdisjoint({*GIVEN, DONE}):
        return
    steps, given = chunk.batch.steps, _place_leaves(chunk)
    given[DONE] = np.logical_or(steps[TERMINATED], steps[TRUNCATED])
    for key in (*GIVEN, DONE):
        if key not in changed or (row := _first_difference(given[key], changed[key])) is None:
            continue
        if key == DONE:
            one, other = (
                now
                if (now := changed.get(flag)) is not None and now.shape == steps[flag].shape
                else steps[flag]
                for flag in (TERMINATED, TRUNCATED)
            )
            row = _first_difference(one.astype(bool) | other.astype(bool), changed[DONE])
        if row is not None:
            raise StepError(
                f"The function changed {join_key(key)!r} at {chunk.place(row)}, which follows from "
                "the place of a row, or from next/terminated and next/truncated",
                hint="leave it as it is; by='episode' may cut episodes and drop them",
            )


def _check_tree(steps: Collection[Key], observations: Collection[Key]) -> None:
    keys = [*steps, *observations, *map(next_of, observations)]
    known = set(keys)
    if len(known) < len(keys):
        clash = next(key for key in observations if key in steps or next_of(key) in steps)
    else:
        above = (key[:n] for key in keys for n in range(1, len(key)))
        clash = next((key for key in above if key in known), ())
    if clash:
        raise StepError(
            f"The function returned {join_key(clash)!r}, and there is another feature of that name",
            hint="rename the feature in the function",
        )


def _first_difference(before: NDArray[Any], after: NDArray[Any]) -> int | None:
    """Return the first row with another value, 0 for another shape; None if all are equal."""
    if before.shape != after.shape:
        return 0
    at = np.flatnonzero((before != after).any(axis=tuple(range(1, before.ndim))))
    return int(at[0]) if len(at) else None

"""Columns of a chunk: finding them by name, replacing and renaming them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError, StepError, UnknownLeafError
from offline_data.base.ids import did_you_mean
from offline_data.episode.fields import (
    ACTION_ROOTS,
    DONE,
    RESERVED_ROOTS,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Key,
    check_key,
    join_key,
    next_of,
    split_key,
)
from offline_data.store.chunk import EpisodeChunk

OUTCOMES = (REWARD, TERMINATED, TRUNCATED)
"""Step features of every dataset, besides at least one whose key starts with `action`; the reward is
only in datasets that have rewards."""

_SHORT: dict[str, Key] = {
    "obs": ("observation",),
    "reward": REWARD,
    "terminated": TERMINATED,
    "truncated": TRUNCATED,
}
"""Abbreviations of first parts of names, if there is no feature of that name."""


def matching(chunk: EpisodeChunk, names: Iterable[str]) -> list[Key]:
    """Return the columns selected by names, observations' then steps', in the order of the chunk.

    A name is a nested key (`observation.position`, `next/reward`), or a prefix of several;
    `obs`, `reward`, `terminated` and `truncated` are short for `observation` and for the features
    under `next`. An observation column stands for the feature before and after the action, so
    `next.observation` is another name for `observation`. Where the two are stored apart, the name
    of the root selects both, and `next.observation` only the second. A single string is one name.

    Raises:
        StepError: A name without a column; the hint has the nearest.
    """
    several = (names,) if isinstance(names, str) else names
    wanted = {key for name in several for key in below(chunk, meant(chunk, name))}
    return [key for key in leaves(chunk) if key in wanted]


def numbers(chunk: EpisodeChunk, names: Iterable[str], wanted: str = "iuf") -> list[Key]:
    """Return the columns of numbers selected by names, in the order of the chunk; see `matching`.

    A prefix selects only numeric features below it; a feature that is named itself must be numeric.
    `wanted` are the numpy kinds that count as numbers; text never is one. Raises `StepError` for a
    name without a column of numbers.
    """
    found: set[Key] = set()
    for name in names:
        kinds = {
            key: "text" if key in chunk.words else str(stored_column(chunk, key).dtype)
            for key in matching(chunk, [name])
        }
        fit = {k for k, kind in kinds.items() if kind != "text" and np.dtype(kind).kind in wanted}
        if not fit:
            text = ", ".join(f"{join_key(key)} is {kind}" for key, kind in kinds.items())
            raise StepError(f"{name!r} selects no feature of suitable numbers: {text}")
        found |= fit
    return [key for key in leaves(chunk) if key in found]


def meant(chunk: EpisodeChunk, name: str) -> Key:
    """Return the key, or prefix of keys, that a name refers to; see `matching`."""
    known, observed, key = leaves(chunk), chunk.batch.observations, split_key(name)
    # Possible keys of a name with their columns, most likely first.
    readings: list[tuple[Key, Collection[Key]]] = [(key, known)]
    if key[0] in _SHORT:
        readings.append(((*_SHORT[key[0]], *key[1:]), known))
    if key[0] == "next" and len(key) > 1:
        readings.append((key[1:], observed))
        if key[1] in _SHORT:
            readings.append(((*_SHORT[key[1]], *key[2:]), observed))
    for beginning, among in readings:
        if any(leaf[: len(beginning)] == beginning for leaf in among):
            return beginning
    names = [join_key(leaf) for leaf in known]
    raise UnknownLeafError(
        f"No feature is called {name!r}; there are {', '.join(names)}",
        hint=did_you_mean(join_key(key), names, shown=repr),
    )


def below(chunk: EpisodeChunk, beginning: Key) -> list[Key]:
    """Return the columns whose key, or that of their `root_of`, starts with `beginning`."""
    return [
        key
        for key in leaves(chunk)
        if any(name[: len(beginning)] == beginning for name in (key, root_of(chunk, key)))
    ]


def root_of(chunk: EpisodeChunk, key: Key) -> Key:
    """Return the root feature of a `next` feature that is stored apart from it, else the key itself."""
    root, steps = key[1:], chunk.batch.steps
    return root if key[0] == "next" and root in steps and key not in OUTCOMES else key


def leaves(chunk: EpisodeChunk) -> list[Key]:
    """Return the keys of all columns: observations', then steps'."""
    return [*chunk.batch.observations, *chunk.batch.steps]


def outcomes(chunk: EpisodeChunk) -> list[Key]:
    """Return the keys of `OUTCOMES` that a chunk has, which no step removes."""
    return [key for key in OUTCOMES if key in chunk.batch.steps]


def rewards(chunk: EpisodeChunk, step: str) -> NDArray[Any]:
    """Return the rewards `[N, 1]`; raises `StepError` if the dataset has none."""
    if REWARD not in chunk.batch.steps:
        raise StepError(
            f"Step {step!r} needs rewards, which this dataset does not have",
            hint="a function can add them: a feature ('next', 'reward') of shape [1]",
        )
    return chunk.batch.steps[REWARD]


def column(chunk: EpisodeChunk, key: Key) -> NDArray[Any]:
    """Return one column, `[N, …]` of steps or `[N + E, …]` of observations; images decoded."""
    return np.asarray(stored_column(chunk, key))


def stored_column(chunk: EpisodeChunk, key: Key) -> NDArray[Any]:
    """Return one column as stored, possibly an `EncodedColumn`."""
    batch = chunk.batch
    return batch.observations[key] if key in batch.observations else batch.steps[key]


def change_columns(
    chunk: EpisodeChunk, keys: Iterable[Key], change: Callable[[NDArray[Any]], NDArray[Any]]
) -> EpisodeChunk:
    """Return the chunk with `change` applied to some columns, `[n, …]` to new ones of as many rows."""
    return replace_columns(chunk, {key: change(column(chunk, key)) for key in keys})


def replace_columns(chunk: EpisodeChunk, columns: Mapping[Key, NDArray[Any]]) -> EpisodeChunk:
    """Return the chunk with these columns replaced; all others are unchanged."""
    batch = chunk.batch
    return chunk.having(
        steps={key: columns.get(key, old) for key, old in batch.steps.items()},
        observations={key: columns.get(key, old) for key, old in batch.observations.items()},
    )


def rebuilt(
    chunk: EpisodeChunk,
    step: str,
    names: Mapping[Key, Key | None],
    added: Mapping[Key, NDArray[Any]] | None = None,
    *,
    observed: bool = False,
) -> EpisodeChunk:
    """Return the chunk with renamed, removed or added columns.

    `names` are new keys of columns, None to remove them; all others are unchanged. `added` are new
    step columns, or `observed` ones. `step` is the name of the step, for messages.

    Raises:
        StepError: No action, reward or flag would be left; a new name that is not a valid file
            name, is reserved, or conflicts with another feature.
    """
    tables: list[list[tuple[Key, NDArray[Any]]]] = []
    for old in (chunk.batch.steps, chunk.batch.observations):
        named = [(names.get(key, key), column) for key, column in old.items()]
        tables.append([(key, column) for key, column in named if key])
    tables[observed] += (added or {}).items()
    steps, observations = tables
    new = [name for key, name in names.items() if name and name != key]
    keys = [key for key, _ in steps], [key for key, _ in observations]
    _check_names([*new, *(added or ())], *keys, outcomes(chunk), step)
    words = {key: words for old, words in chunk.words.items() if (key := names.get(old, old))}
    try:
        return chunk.having(steps=dict(steps), observations=dict(observations), words=words)
    except FormatError as error:  # a new reward or flag of the wrong shape
        raise StepError(f"Step {step!r}: {error.message}") from error


def without_overflow(
    chunk: EpisodeChunk,
    key: Key,
    values: NDArray[Any],
    operation: Callable[[NDArray[Any]], NDArray[Any]],
    step: str,
) -> NDArray[Any]:
    """Return `operation(values)`, elementwise, for the rows `[n, …]` of a column.

    Raises `StepError`, which names the row, if a finite number became infinite.
    """
    try:  # numpy finds overflows during the operation: nothing is read twice
        with np.errstate(over="raise", invalid="ignore"):
            return operation(values)
    except FloatingPointError as error:
        with np.errstate(over="ignore", invalid="ignore"):
            result = operation(values)
        lost = np.nonzero(np.isfinite(values) & ~np.isfinite(result))[0]
        if not len(lost):  # a parameter was too large for the type
            return result
        raise overflow(chunk, key, int(lost[0]), result.dtype, step) from error


def place_of(chunk: EpisodeChunk, key: Key, row: int) -> str:
    """Describe where a row of a column comes from, for a message."""
    return chunk.place(row, observed=key in chunk.batch.observations)


def overflow(chunk: EpisodeChunk, key: Key, row: int, dtype: np.dtype[Any], step: str) -> StepError:
    """Return the error for a row whose result overflows a type."""
    place = place_of(chunk, key, row)
    return StepError(
        f"Step {step!r} on {join_key(key)!r} in {place} gives what {dtype} cannot hold"
    )


def _check_names(
    new: Sequence[Key],
    steps: Sequence[Key],
    observations: Sequence[Key],
    required: Sequence[Key],
    step: str,
) -> None:
    missing = [join_key(key) for key in required if key not in steps]
    if not any(key[0] in ACTION_ROOTS for key in steps):
        missing.insert(0, "action")
    if missing:
        raise StepError(
            f"Step {step!r} would leave no {', no '.join(missing)}; every dataset has an action, "
            f"{', '.join(map(join_key, required))}"
        )
    taken = [*steps, *observations, *map(next_of, observations)]
    for key in new:
        observed = key in observations
        try:
            check_key(key)
        except FormatError as error:
            raise StepError(f"Step {step!r} cannot use that name: {error.message}") from error
        reserved = RESERVED_ROOTS | ACTION_ROOTS if observed else RESERVED_ROOTS - {"next"}
        if key[0] in reserved or key in {("next",), DONE}:
            what = f"{'an observation' if observed else 'a step'} feature {join_key(key)!r}"
            raise StepError(f"Step {step!r} cannot call {what}: the name is reserved")
        for here in (key, next_of(key)) if observed else (key,):
            if taken.count(here) > 1:
                raise StepError(
                    f"Step {step!r} would give two features the name {join_key(here)!r}"
                )
            for other in taken:
                short, long = sorted((here, other), key=len)
                if len(short) < len(long) and long[: len(short)] == short:
                    raise StepError(
                        f"Step {step!r} would make {join_key(short)!r} a feature, and "
                        f"{join_key(long)!r} is below it"
                    )

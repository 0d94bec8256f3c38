"""Which columns of a piece a step means by a name, and new columns in their place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.episodes.fields import REWARD, TERMINATED, TRUNCATED, Key, join_key, split_key
from offline_data.ids import nearest
from offline_data.preprocess.errors import StepError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from offline_data.preprocess.piece import Piece

_SHORT: dict[str, Key] = {
    "obs": ("observation",),
    "reward": REWARD,
    "terminated": TERMINATED,
    "truncated": TRUNCATED,
}
"""Short first parts of names, where no leaf is called so."""


def matching(piece: Piece, names: Iterable[str]) -> list[Key]:
    """Return the columns meant by names, steps' and observations', in the order of the piece.

    A name is a nested key (`observation.position`, `next/reward`), or the beginning of several;
    `obs`, `reward`, `terminated` and `truncated` are short for `observation` and for the leaves
    under `next`. An observation column stands for the leaf before and after the action, so
    `next.observation` is another name for `observation`.

    Args:
        piece: The episodes.
        names: Any number; a single string is one name.

    Raises:
        StepError: A name that means no column; the hint has the nearest.
    """
    wanted = {key for name in _several(names) for key in below(piece, meant(piece, name))}
    return [key for key in leaves(piece) if key in wanted]


def numbers(piece: Piece, names: Iterable[str], kinds: str = "iuf") -> list[Key]:
    """Return the columns of numbers meant by names, in the order of the piece.

    Of the leaves below the beginning of a key only those of numbers are meant; a leaf that is
    named itself must be one.

    Args:
        piece: The episodes.
        names: See `matching`.
        kinds: Letters of numpy's kinds that count as numbers; text never does.

    Raises:
        StepError: A name that means no column of numbers.
    """
    found = set()
    for name in _several(names):
        keys = matching(piece, [name])
        fit = [k for k in keys if k not in piece.words and column(piece, k).dtype.kind in kinds]
        if not fit:
            told = ", ".join(f"{join_key(k)} is {kind_of(piece, k)}" for k in keys)
            raise StepError(f"{name!r} means no leaf of numbers that this can be done on: {told}")
        found.update(fit)
    return [key for key in leaves(piece) if key in found]


def one(piece: Piece, name: str) -> Key:
    """Return the one column meant by a name; raises `StepError` where it means several."""
    found = matching(piece, [name])
    if len(found) > 1:
        listed = ", ".join(map(join_key, found))
        raise StepError(f"{name!r} means several leaves, and one is wanted: {listed}")
    return found[0]


def meant(piece: Piece, name: str) -> Key:
    """Return the key, or the beginning of keys, that a name stands for.

    Raises:
        StepError: No column is called so; the hint has the nearest.

    Example:
        >>> from offline_data.testing.pieces import toy_piece
        >>> meant(toy_piece([1]), "next.obs")
        ('observation',)
    """
    known = leaves(piece)
    for key, among in _readings(piece, split_key(name)):
        if any(leaf[: len(key)] == key for leaf in among):
            return key
    near = nearest(join_key(split_key(name)), [join_key(leaf) for leaf in known])
    raise StepError(
        f"No leaf is called {name!r}; there are {', '.join(map(join_key, known))}",
        hint=f"did you mean {near[0]!r}?" if near else None,
    )


def below(piece: Piece, beginning: Key) -> list[Key]:
    """Return the columns whose key is `beginning` or begins so, in the order of the piece."""
    return [key for key in leaves(piece) if key[: len(beginning)] == beginning]


def leaves(piece: Piece) -> list[Key]:
    """Return the keys of all columns: observations', then steps'."""
    return [*piece.batch.observations, *piece.batch.steps]


def column(piece: Piece, key: Key) -> NDArray[Any]:
    """Return one column, `[N, …]` of steps or `[N + E, …]` of observations."""
    batch = piece.batch
    return batch.observations[key] if key in batch.observations else batch.steps[key]


def kind_of(piece: Piece, key: Key) -> str:
    """Say of what a column is, for a message: `text`, or its dtype."""
    return "text" if key in piece.words else str(column(piece, key).dtype)


def changed(
    piece: Piece, keys: Iterable[Key], change: Callable[[NDArray[Any]], NDArray[Any]]
) -> Piece:
    """Return the piece with `change` done to some columns, steps' and observations'.

    Args:
        piece: The episodes.
        keys: Columns, as `matching` returns them.
        change: From `[n, …]` to a new array of as many rows; called once a column.
    """
    return replaced(piece, {key: change(column(piece, key)) for key in keys})


def replaced(piece: Piece, columns: Mapping[Key, NDArray[Any]]) -> Piece:
    """Return the piece with these columns in place of those of the same keys; all others stay."""
    batch = piece.batch
    return piece.having(
        steps={key: columns.get(key, old) for key, old in batch.steps.items()},
        observations={key: columns.get(key, old) for key, old in batch.observations.items()},
    )


def only(piece: Piece, keys: Collection[Key]) -> Piece:
    """Return the piece with these columns, in its own order; all others go."""
    batch = piece.batch
    return piece.having(
        steps={key: column for key, column in batch.steps.items() if key in keys},
        observations={key: column for key, column in batch.observations.items() if key in keys},
    )


def place(piece: Piece, key: Key, row: int) -> str:
    """Say where a row of a column comes from, for a message.

    Example:
        >>> from offline_data.testing.pieces import toy_piece
        >>> place(toy_piece([2, 1]), ("observation", "velocity"), 2)
        'the observation after row 1 (episode 0, step 1)'
    """
    batch = piece.batch
    if key in batch.steps:
        return piece.place(row)
    episode = int(np.searchsorted(batch.starts + np.arange(len(batch.lengths)), row, "right")) - 1
    final = row - episode == batch.starts[episode] + batch.lengths[episode]
    where = piece.place(row - episode - int(final))
    return f"the observation after {where}" if final else where


def _several(names: Iterable[str]) -> Iterable[str]:
    return (names,) if isinstance(names, str) else names


def _readings(piece: Piece, key: Key) -> Iterator[tuple[Key, list[Key]]]:
    """Yield what a name may stand for and among which columns, the likeliest first."""
    known, observed = leaves(piece), list(piece.batch.observations)
    yield key, known
    if key[0] in _SHORT:
        yield (*_SHORT[key[0]], *key[1:]), known
    if key[0] == "next" and len(key) > 1:
        yield key[1:], observed
        if key[1] in _SHORT:
            yield (*_SHORT[key[1]], *key[2:]), observed

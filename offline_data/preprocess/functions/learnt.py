"""What steps of functions learn, as JSON values and as sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offline_data.episodes.fields import join_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from offline_data.episodes import Key
    from offline_data.preprocess.functions.results import Schema
    from offline_data.preprocess.functions.ted import Table, TwoCopies


def schema_of_table(table: Table) -> Schema:
    """Describe the rows of a table.

    Example:
        >>> import numpy as np
        >>> schema_of_table({("x",): np.ones((2, 3))})
        {('x',): ('float64', (3,))}
    """
    return {key: (values.dtype.name, values.shape[1:]) for key, values in table.items()}


def schema_json(schema: Schema) -> list[Any]:
    """Return a schema as JSON values."""
    return [[list(key), dtype, list(shape)] for key, (dtype, shape) in schema.items()]


def schema_of_json(value: Iterable[Sequence[Any]]) -> Schema:
    """Read what `schema_json` wrote.

    Example:
        >>> schema_of_json([[["next", "reward"], "float32", [1]]])
        {('next', 'reward'): ('float32', (1,))}
    """
    return {tuple(key): (dtype, tuple(shape)) for key, dtype, shape in value}


def keys_of(names: Iterable[str]) -> set[Key]:
    """Read keys that `join_key` wrote: parts may have dots in them.

    Example:
        >>> keys_of(["observation/a.b"])
        {('observation', 'a.b')}
    """
    return {tuple(name.split("/")) for name in names}


def with_found(names: Iterable[str], found: TwoCopies) -> tuple[str, ...]:
    """Return names of leaves that are stored twice, with those that were found now, sorted."""
    return tuple(sorted({*names, *map(join_key, found.keys)}))


def reason_of(found: TwoCopies) -> str:
    """Say why everything is done again."""
    return f"{found} after an action is not what stands before the next, so that both are stored"


def notes_of(
    about: Mapping[str, Any], two_copies: Sequence[str], kept: Sequence[str], unsteady: str
) -> tuple[str, ...]:
    """Say what a function does not return, what it tells apart, and what else values depend on."""
    name = about.get("name", "the function")
    notes = []
    if kept:
        notes.append(f"{', '.join(kept)}: not returned by {name}, kept as they were")
    if two_copies:
        listed = ", ".join(two_copies)
        notes.append(f"{listed}: stored before and after every action, for {name} tells them apart")
    if unsteady:
        notes.append(
            f"What {name} gives may depend on the order of calls, and be different next time: "
            f"{unsteady}"
        )
    return tuple(notes)

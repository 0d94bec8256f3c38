"""Indices of an ensemble: members, and optionally rows of each."""

from __future__ import annotations

from types import EllipsisType
from typing import Any

from offline_data.buffers.indexing import rows_of
from offline_data.errors import UsageError


def split_index(index: Any, *, rows: bool = True) -> tuple[Any, tuple[Any, ...]]:
    """Split an index into which members, and which rows of them: none or one index.

    Args:
        index: The index as given in brackets.
        rows: Whether an index of rows may follow that of members.

    Raises:
        UsageError: Too many indices.

    Example:
        >>> split_index((0, [1, 2])), split_index(0)
        ((0, ([1, 2],)), (0, ()))
    """
    if not isinstance(index, tuple):
        return index, ()
    most = 1 + int(rows)
    if not 1 <= len(index) <= most:
        raise UsageError(
            f"An ensemble is indexed by its members{' and their rows' if rows else ''}, and "
            f"{len(index)} indices were given"
        )
    return index[0], index[1:]


def members_at(index: Any, count: int) -> int | list[int]:
    """Return the number of a member, or numbers of several.

    Args:
        index: See `rows_of`; not more than one dimension.
        count: How many members there are.

    Raises:
        IndexError: A member that is not there.
        UsageError: Something that is no index, or no member at all.

    Example:
        >>> members_at(-1, 3), members_at([True, False, True], 3)
        (2, [0, 2])
    """
    try:
        numbers = rows_of(index, count)
    except IndexError as error:
        raise IndexError(f"There are {count} members; found the index {index!r}") from error
    except UsageError as error:
        raise _no_index(index) from error
    if numbers.ndim > 1 or not numbers.numel():
        raise _no_index(index)
    found: int | list[int] = numbers.tolist()
    return found


def is_all(index: Any) -> bool:
    """Return True if an index selects all members as they are: `:` or `...`."""
    return isinstance(index, EllipsisType) or (
        isinstance(index, slice) and index == slice(None, None, None)
    )


def _no_index(index: Any) -> UsageError:
    return UsageError(
        f"{index!r} is not an index of members; expected an int, a slice, or a list, array or tensor "
        "of one dimension with one number or more",
        hint="rows of members follow after a comma: ensemble[:, 3], ensemble[0, [1, 2]]",
    )

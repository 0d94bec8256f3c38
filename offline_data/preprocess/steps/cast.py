"""`cast`: numbers of some leaves as another type, no value lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import Self

from offline_data.episodes.fields import REWARD, TERMINATED, TRUNCATED, Key, join_key
from offline_data.ids import nearest
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.arguments import read_pairs, usage_error
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.leaves import column, numbers, place, replaced
from offline_data.preprocess.steps.narrowing import first_lost, narrowed

if TYPE_CHECKING:
    from offline_data.preprocess.piece import Piece

DTYPES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
"""Types a leaf can be stored as."""


@dataclass(frozen=True)
class Cast(Step):
    """Store numbers of some leaves as another type; shapes stay as they are.

    To a floating-point or complex type values are rounded to the nearest, as numpy and torch do; a
    finite one must stay finite. To integers and bool every value must stay exactly what it is.
    Where two pairs mean a leaf, the later one holds: `obs=float32,obs.code=int32`.

    Raises:
        UsageError: No pair, or a type that cannot be stored; the hint has the nearest.
        StepError: A leaf that is not there or is text; a value the type cannot hold, with its row;
            a flag that would not be bool, a reward that would not be real.

    Example:
        >>> from offline_data.testing.pieces import toy_piece
        >>> smaller = Cast((("observation", "float32"),)).apply(toy_piece([2])).batch
        >>> smaller.observations["observation", "position"].dtype.name
        'float32'
    """

    name: ClassVar[str] = "cast"
    example: ClassVar[str] = "cast:observation=float32"

    types: tuple[tuple[str, str], ...]
    """Pairs of a leaf and numpy's name of a type; the beginning of a key stands for all leaves
    below it but text."""

    def __post_init__(self) -> None:
        if not self.types:
            raise usage_error(type(self), "needs a pair like observation=float32")
        for _, dtype in self.types:
            if dtype not in DTYPES:
                near = (nearest(dtype, DTYPES) or [""])[0]
                guess = f"did you mean {near!r}?" if near else f"there are {', '.join(DTYPES)}"
                raise usage_error(type(self), f"knows no type {dtype!r}; {guess}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `leaf=type[,leaf=type…]`; see `Step.parse`."""
        return cls(read_pairs(cls, text))

    def apply(self, piece: Piece) -> Piece:
        """Return the episodes with leaves of other types."""
        wanted: dict[Key, np.dtype[Any]] = {}
        for name, dtype in self.types:
            wanted.update(dict.fromkeys(numbers(piece, [name], "biufc"), np.dtype(dtype)))
        return replaced(piece, {key: _cast(piece, key, dtype) for key, dtype in wanted.items()})


def _cast(piece: Piece, key: Key, dtype: np.dtype[Any]) -> Any:
    must = {TERMINATED: "b", TRUNCATED: "b", REWARD: "iuf"}.get(key, dtype.kind)
    if dtype.kind not in must:
        kind = "bool" if must == "b" else "real numbers"
        raise StepError(f"Step 'cast' would make {join_key(key)!r} {dtype}; it must be {kind}")
    values = column(piece, key)
    cast = narrowed(values, dtype)
    if cast is not None:
        return cast
    row, value = first_lost(values, dtype)
    raise StepError(
        f"Step 'cast': {join_key(key)!r} is {value} in {place(piece, key, row)}, "
        f"which {dtype} cannot hold"
    )

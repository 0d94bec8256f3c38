"""`filter`: the episodes for which an expression over the episode table is true."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offline_data.ids import nearest
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.arguments import usage_error
from offline_data.preprocess.steps.base import Selection
from offline_data.preprocess.steps.evaluation import Text, flags_of
from offline_data.preprocess.steps.expressions import Expression
from offline_data.preprocess.steps.tables import episode_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray
    from typing_extensions import Self

    from offline_data.episodes import Key
    from offline_data.preprocess.piece import Piece
    from offline_data.preprocess.steps.evaluation import Column

_BY_VALUES = frozenset({"return", "terminated", "truncated", "final_observation"})
"""Fields that steps which keep lengths may change."""

_SHOWN = 40
"""Characters of a text in a message."""


@dataclass(frozen=True)
class Filter(Selection):
    """Keep the episodes for which an expression is true: `filter:return > 100 and not truncated`.

    Fields are the columns of the episode table at this point of the recipe: `length`, `return`,
    `terminated`, `truncated`, `final_observation`, `number` (in the parent), and what the source
    gives (`id`, `seed`, …); `a.b` is the nested key `a/b`. Text stands in quotes.

    There are `+ - * / %`, comparisons, also in a row (`10 <= length < 50`) and with lists
    (`id in ["3", "7"]`), `and`, `or`, `not`, and of all episodes `min(x)`, `max(x)`, `mean(x)` and
    `percentile(x, q)`: `return >= percentile(return, 90)` is the best tenth. Comparisons with NaN
    are false, but for `!=`. The text is read, not executed. In a shell it stands in quotes.

    Raises:
        UsageError: It cannot be read, or has something else in it.
        StepError: A field that is not there or has several numbers an episode; text where a
            number is wanted; nothing is left.

    Example:
        >>> table = {("return",): np.array([3.0, 7.0, 5.0]), ("length",): np.array([1, 2, 3])}
        >>> Filter("return >= mean(return) and length > 2").choose(table, {}).tolist()
        [False, False, True]
    """

    name: ClassVar[str] = "filter"
    example: ClassVar[str] = "filter:return > 100 and length >= 50"

    where: str
    """The expression."""

    def __post_init__(self) -> None:
        _ = self._expression

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read all of the text as the expression."""
        if not text.strip():
            raise usage_error(cls, "needs an expression")
        return cls(text.strip())

    @property
    def by_values(self) -> bool:
        """Whether a field follows from rewards or flags."""
        return not _BY_VALUES.isdisjoint(self._expression.fields)

    def settled(self, probe: Piece) -> Self:
        """Return the step as it is, once it is known that the fields are there."""
        self._keys(episode_columns(probe))
        return self

    def choose(
        self, table: Mapping[Key, NDArray[Any]], words: Mapping[Key, Sequence[str]]
    ) -> NDArray[np.bool_]:
        """Return `[E]` which episodes stay."""
        keys = self._keys(table)
        fields = {name: _field(name, table[key], words.get(key)) for name, key in keys.items()}
        chosen = flags_of(self._expression, fields, len(next(iter(table.values()))))
        if not chosen.any():
            raise StepError(
                f"Step 'filter' leaves none of {len(chosen)} episodes by {self.where!r}: "
                + ", ".join(_range(name, one) for name, one in fields.items() if len(chosen))
            )
        return chosen

    @cached_property
    def _expression(self) -> Expression:
        return Expression(self.where)

    def _keys(self, known: Iterable[Key]) -> dict[str, Key]:
        """Return the column of each field; raises `StepError` where there is none."""
        names = {".".join(key): key for key in known}
        for field in self._expression.fields:
            if field not in names:
                near = nearest(field, names, 1)
                raise StepError(
                    f"Step 'filter': episodes have no {field!r}; there are {', '.join(names)}",
                    hint=f"did you mean {near[0]!r}?" if near else None,
                )
        return {field: names[field] for field in self._expression.fields}


def _field(name: str, column: NDArray[Any], words: Sequence[str] | None) -> Column:
    """Return one value an episode, of a type that expressions compute with."""
    flat = np.asarray(column).reshape(len(column), -1)
    if flat.shape[1] != 1 or flat.dtype.kind not in "biuf":
        raise StepError(
            f"Step 'filter': {name!r} is {column.dtype} {list(column.shape[1:])} for each episode; "
            "expected one number, flag or text"
        )
    values = flat[:, 0]
    if words is not None:
        return Text(values, words)
    small = values.dtype.kind in "iu" and int(values.max(initial=0)) <= np.iinfo(np.int64).max
    return values.astype(np.int64) if small else values


def _range(name: str, field: Column) -> str:
    """Say what values a field has."""
    if not isinstance(field, Text):
        return f"{name} is from {field.min()} to {field.max()}"
    words = [one if len(one) <= _SHOWN else f"{one[:_SHOWN]}…" for one in field.words[:5]]
    return f"{name} is one of {words}" + ("…" if len(field.words) > len(words) else "")

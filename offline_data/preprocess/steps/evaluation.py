"""Values of expressions: whole columns at a time, `[E]` each."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.expressions import HINT, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from offline_data.preprocess.steps.expressions import Expression


@dataclass(frozen=True, eq=False)
class Text:
    """A column of text, as codes into its vocabulary."""

    codes: NDArray[np.int32]
    """`[E]`; -1 where there is none."""
    words: Sequence[str]

    def equal(self, word: str) -> NDArray[np.bool_]:
        """Tell which are `word`, `[E]`; a missing one is no word."""
        return np.array([*(one == word for one in self.words), False])[self.codes]


Column: TypeAlias = "NDArray[Any] | Text"
"""Bools, int64, uint64 or floats `[E]`, or text."""

_NUMBERS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.true_divide,
    ast.Mod: np.remainder,
    ast.USub: np.negative,
    ast.UAdd: np.positive,
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
}
_REDUCTIONS: dict[str, Callable[..., Any]] = {"min": np.min, "max": np.max, "mean": np.mean}


def flags_of(
    expression: Expression, columns: Mapping[str, Column], count: int
) -> NDArray[np.bool_]:
    """Return where the expression is true, bool `[count]`.

    Comparisons with NaN are false, but for `!=`; min, max, mean and percentile leave NaN out.

    Args:
        expression: What was read.
        columns: `[count]` for each of its fields.
        count: Rows.

    Raises:
        StepError: Text where a number is wanted, or the other way round, or a number where there
            should be true or false.

    Example:
        >>> from offline_data.preprocess.steps.expressions import Expression
        >>> columns = {"length": np.array([5, 9]), "id": Text(np.array([0, 1]), ["a", "b"])}
        >>> flags_of(Expression("length * 2 > 12 or id in ['a']"), columns, 2).tolist()
        [True, True]
    """
    with np.errstate(all="ignore"):  # 1 / 0 is infinite, and 0 / 0 is NaN, which is never equal
        flags = _flags(expression.tree, columns)
    return np.array(np.broadcast_to(flags, count))


def _value(node: ast.expr, columns: Mapping[str, Column]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.Name, ast.Attribute)):
        return columns[source_of(node)]
    if isinstance(node, ast.Call):
        return _call(node, columns)
    if isinstance(node, ast.BinOp):
        sides = (_number(side, columns) for side in (node.left, node.right))
        return _NUMBERS[type(node.op)](*sides)
    if isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not):
        return _NUMBERS[type(node.op)](_number(node.operand, columns))
    return _flags(node, columns)


def _flags(node: ast.expr, columns: Mapping[str, Column]) -> NDArray[np.bool_]:
    """Return true or false, `[E]` or a scalar."""
    if isinstance(node, ast.BoolOp):
        join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        return np.asarray(reduce(join, [_flags(one, columns) for one in node.values]))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return np.logical_not(_flags(node.operand, columns))
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        pairs = zip(node.ops, sides, sides[1:], strict=False)
        found = [_compared(op, one, two, columns) for op, one, two in pairs]
        return np.asarray(reduce(np.logical_and, found))
    value = _value(node, columns)
    if isinstance(value, (Text, str)) or np.asarray(value).dtype != np.bool_:
        kind = "text" if isinstance(value, (Text, str)) else "a number"
        raise StepError(
            f"{source_of(node)!r} is {kind}, where true or false is wanted",
            hint="compare it with something, as in length > 10; in a shell the step stands in quotes",
        )
    return np.asarray(value)


def _compared(
    operator: ast.cmpop, left: ast.expr, right: ast.expr, columns: Mapping[str, Column]
) -> NDArray[np.bool_]:
    if isinstance(operator, (ast.In, ast.NotIn)) and isinstance(right, (ast.List, ast.Tuple)):
        found = [_equal(left, one, columns) for one in right.elts]
        among = np.asarray(reduce(np.logical_or, found, np.asarray(False)))
        return ~among if isinstance(operator, ast.NotIn) else among
    if isinstance(operator, (ast.Eq, ast.NotEq)):
        equal = _equal(left, right, columns)
        return ~equal if isinstance(operator, ast.NotEq) else equal
    sides = (_number(side, columns) for side in (left, right))
    return np.asarray(_NUMBERS[type(operator)](*sides))


def _equal(left: ast.expr, right: ast.expr, columns: Mapping[str, Column]) -> NDArray[np.bool_]:
    one, two = _value(left, columns), _value(right, columns)
    if isinstance(one, str) and isinstance(two, Text):
        one, two = two, one
    if isinstance(one, Text) and isinstance(two, str):
        return one.equal(two)
    if isinstance(one, str) and isinstance(two, str):
        return np.asarray(one == two)
    if isinstance(one, (Text, str)) or isinstance(two, (Text, str)):
        both = isinstance(one, Text) and isinstance(two, Text)
        what = "two fields of text" if both else "text with a number"
        raise StepError(
            f"{source_of(left)!r} and {source_of(right)!r}: {what} cannot be compared",
            hint="text is compared with quoted text: id == '3'; numbers stand without quotes",
        )
    return np.asarray(np.equal(one, two))


def _number(node: ast.expr, columns: Mapping[str, Column]) -> Any:
    """Return numbers; true counts as 1."""
    value = _value(node, columns)
    if isinstance(value, (Text, str)):
        raise StepError(f"{source_of(node)!r} is text, where a number is wanted", hint=HINT)
    return np.asarray(value, np.int64) if np.asarray(value).dtype == np.bool_ else value


def _call(node: ast.Call, columns: Mapping[str, Column]) -> Any:
    values, *more = (np.asarray(_number(one, columns)) for one in node.args)
    known = values[~np.isnan(values)]
    name = source_of(node.func)
    if name == "percentile":
        return _percentile(node, known, more[0])
    if not known.size:
        return np.nan
    return _REDUCTIONS[name](known)


def _percentile(node: ast.Call, known: NDArray[Any], share: NDArray[Any]) -> Any:
    """Interpolate linearly between the two nearest values, as `numpy.percentile`."""
    if share.ndim or not 0 <= share <= 100:
        raise StepError(
            f"{source_of(node)!r}: expected a number from 0 to 100 after the comma",
            hint="return >= percentile(return, 90) keeps the best tenth",
        )
    return np.percentile(known, float(share)) if known.size else np.nan

"""Expressions over columns, `return > 100 and not truncated`: an `ast` allow-list and a visitor."""

from __future__ import annotations

import ast
import keyword
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import StepError, UsageError
from offline_data.base.pickles import pickled_by_name

HINT = (
    "an expression has fields, numbers, quoted text, + - * / %, == != < <= > >=, in [a, b], and, "
    "or, not, min(x), max(x), mean(x), percentile(x, 90)"
)

_MOST_CHARACTERS = 200_000  # numbers of some ten thousand episodes
_MOST_DEPTH = 50
_LEAST, _GREATEST = -(2**63), 2**64 - 1

_MARK = "_keyword_"
_WORDS = "|".join(sorted({*keyword.kwlist} - {"and", "or", "not", "in", "True", "False"}))
_KEYWORD = re.compile(rf"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?<!\w)({_WORDS})(?!\w)""")
"""Quoted text, or a word that is a name in expressions but not in Python, such as `return`."""

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": np.min,
    "max": np.max,
    "mean": np.mean,
    "percentile": np.percentile,
}
_UFUNCS: dict[type[ast.AST], Callable[..., Any]] = {
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
    ast.And: np.logical_and,
    ast.Or: np.logical_or,
    ast.Not: np.logical_not,
}
_OPERATORS = (*_UFUNCS, ast.Eq, ast.NotEq, ast.In, ast.NotIn)


@pickled_by_name
class Expression:
    """An expression of supported parts only; its text is never executed.

    Args:
        text: In Python's syntax, where every word but `and`, `or`, `not`, `in`, `True`, `False`
            and the names of functions may be a field; `a.b` is the nested key `a/b`.

    Raises:
        UsageError: The text cannot be parsed, has an unsupported part, or names no field.

    Example:
        >>> Expression("return >= percentile(return, 90) and id != '3'").fields
        ('return', 'id')
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = self._parse()
        """Python's keywords are marked, see `source_of`."""
        self.fields = tuple(dict.fromkeys(self._names(self.tree, 0)))
        """Names of the fields, each once, in the order of the text; parts joined by `.`."""
        if not self.fields:
            raise self._refuse("it names no field of the episodes")

    def _parse(self) -> ast.expr:
        if len(self.text) > _MOST_CHARACTERS:
            long = f"it has more than {_MOST_CHARACTERS} characters"
            raise self._refuse(long, f"{self.text[:40]}…")
        marked = _KEYWORD.sub(lambda m: m[1] or _MARK + m[2], self.text.strip())
        try:
            with warnings.catch_warnings():  # Python warns about `1or 2` or "\d"
                warnings.simplefilter("ignore")
                return ast.parse(marked, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            at = (getattr(error, "offset", None) or len(marked) + 1) - 1
            before, rest = (part.replace(_MARK, "") for part in (marked[:at], marked[at:]))
            position = f"after {before.rstrip()!r}" if rest and before.strip() else "as one"
            raise self._refuse(f"it cannot be read {position}") from error

    def evaluate(self, columns: Mapping[str, NDArray[Any]], count: int) -> NDArray[np.bool_]:
        """Return for which rows the expression is true, bool `[count]`.

        Comparisons with NaN are false, except `!=`; min, max, mean and percentile ignore NaN. There
        is a column `[count]` for each field: bools, int64, uint64, floats, or objects: text, or
        None if missing, which equals no text.

        Raises:
            StepError: Types that cannot be combined, or a number instead of true or false.

        Example:
            >>> columns = {"length": np.array([5, 9]), "id": np.array(["a", "b"], object)}
            >>> Expression("length * 2 > 12 or id in ['a']").evaluate(columns, 2).tolist()
            [True, True]
        """
        with np.errstate(all="ignore"):  # 1 / 0 is infinite, and 0 / 0 is NaN, which equals nothing
            return np.array(np.broadcast_to(_Evaluator(columns).flags(self.tree), count))

    def by_number(self, columns: Mapping[str, NDArray[Any]]) -> str:
        """Return the expression with comparisons of these columns of text as those of `number`.

        The text stands for the same rows where the columns are not at hand. A column is `[count]`
        of rows numbered from 0, of objects, each a field of the expression.

        Raises:
            StepError: Such a column is not compared with quoted text.

        Example:
            >>> marks = {"mark": np.array(["good", "bad", "", "bad", ""], object)}
            >>> Expression("mark != 'bad' and length > 2").by_number(marks)
            'number not in [1, 3] and length > 2'
        """
        inner = _ByNumber(columns)
        return source_of(inner.visit(ast.parse(ast.unparse(self.tree), mode="eval").body))

    def _names(self, node: ast.expr, depth: int) -> Iterator[str]:
        """Yield the names of fields below a node; raises for unsupported parts."""
        if depth > _MOST_DEPTH:
            raise self._refuse(f"more than {_MOST_DEPTH} nested levels")
        operators = [getattr(node, "op", None), *getattr(node, "ops", ())]
        if not all(op is None or isinstance(op, _OPERATORS) for op in operators):
            raise self._refuse(f"{source_of(node)!r} has an operator that is not known")
        inner, value = node, getattr(node, "value", None)
        while isinstance(inner, ast.Attribute):
            inner = inner.value
        if isinstance(inner, ast.Name):
            yield source_of(node)
        elif isinstance(node, ast.Constant) and isinstance(value, (bool, int, float, str)):
            if isinstance(value, int) and not _LEAST <= value <= _GREATEST:
                raise self._refuse(f"{value} is too large for a whole number of 64 bits")
        else:
            for child in self._children(node):
                yield from self._names(child, depth + 1)

    def _children(self, node: ast.expr) -> Sequence[ast.expr]:
        if isinstance(node, (ast.BoolOp, ast.UnaryOp, ast.BinOp)):
            return _operands(node)
        if isinstance(node, ast.Call):
            name = source_of(node.func)
            if not isinstance(node.func, ast.Name) or name not in _FUNCTIONS:
                raise self._refuse(f"there is no function {name!r}")
            if node.keywords or len(node.args) != 1 + (name == "percentile"):
                expected = "2 values" if name == "percentile" else "one value"
                raise self._refuse(f"{name} takes {expected}")
            return node.args
        if not isinstance(node, ast.Compare):
            raise self._refuse(f"{source_of(node)!r} is not part of expressions")
        children = [node.left]
        for operator, side in zip(node.ops, node.comparators, strict=True):
            among = isinstance(operator, (ast.In, ast.NotIn))
            if among and not isinstance(side, (ast.List, ast.Tuple)):
                raise self._refuse(f"in takes a list [a, b], not {source_of(side)!r}")
            if among and side is not node.comparators[-1]:
                raise self._refuse(f"nothing is compared with a list, as {source_of(side)!r}")
            children += side.elts if among else [side]  # type: ignore[attr-defined]
        return children

    def _refuse(self, reason: str, shown: str | None = None) -> UsageError:
        return UsageError(f"Expression {shown or self.text!r}: {reason}", hint=HINT)


class _Evaluator(ast.NodeVisitor):
    """Values of the nodes of an expression: whole columns `[E]`, scalars, or text."""

    def __init__(self, columns: Mapping[str, NDArray[Any]]) -> None:
        self._columns = columns
        self._values: dict[ast.AST, Any] = {}

    def visit(self, node: ast.AST) -> Any:
        # The b of a < b < c is compared twice, and may be such a chain itself.
        if node not in self._values:
            self._values[node] = super().visit(node)
        return self._values[node]

    def flags(self, node: ast.expr) -> NDArray[np.bool_]:
        value = self.visit(node)
        if np.asarray(value).dtype != np.bool_:
            kind = "text" if _is_text(value) else "a number"
            raise StepError(
                f"{source_of(node)!r} is {kind}, where true or false is wanted",
                hint="compare it with something, as in length > 10; in a shell the step stands in "
                "quotes",
            )
        return np.asarray(value)

    def number(self, node: ast.expr) -> Any:
        """Return numbers; True counts as 1."""
        value = self.visit(node)
        if _is_text(value):
            raise StepError(f"{source_of(node)!r} is text, where a number is wanted", hint=HINT)
        return np.asarray(value, np.int64) if np.asarray(value).dtype == np.bool_ else value

    def visit_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def visit_Name(self, node: ast.expr) -> Any:
        return self._columns[source_of(node)]

    visit_Attribute = visit_Name  # noqa: N815 - name set by `ast`

    def visit_BinOp(self, node: ast.BinOp | ast.BoolOp | ast.UnaryOp) -> Any:
        operate = _UFUNCS[type(node.op)]
        read = self.flags if isinstance(node.op, (ast.And, ast.Or, ast.Not)) else self.number
        sides = [read(side) for side in _operands(node)]
        return operate(*sides) if len(sides) == 1 else reduce(operate, sides)

    visit_BoolOp = visit_UnaryOp = visit_BinOp  # noqa: N815

    def visit_Compare(self, node: ast.Compare) -> Any:
        sides = [node.left, *node.comparators]
        return reduce(np.logical_and, map(self._compare, node.ops, sides, sides[1:]))

    def visit_Call(self, node: ast.Call) -> Any:
        values, *more = (np.asarray(self.number(arg)) for arg in node.args)
        for share in more:  # of percentile
            if share.ndim or not 0 <= share <= 100:
                raise StepError(
                    f"{source_of(node)!r}: expected a number from 0 to 100 after the comma",
                    hint="return >= percentile(return, 90) keeps the best tenth",
                )
        known = values[~np.isnan(values)]
        if not known.size:
            return np.nan
        return _FUNCTIONS[source_of(node.func)](known, *map(float, more))

    def _compare(self, operator: ast.cmpop, left: ast.expr, right: ast.expr) -> NDArray[np.bool_]:
        if type(operator) in _UFUNCS:
            return np.asarray(_UFUNCS[type(operator)](self.number(left), self.number(right)))
        among = right.elts if isinstance(right, (ast.List, ast.Tuple)) else [right]
        equal = [self._equal(left, side) for side in among]
        found = np.asarray(reduce(np.logical_or, equal, np.asarray(False)))
        return ~found if isinstance(operator, (ast.NotIn, ast.NotEq)) else found

    def _equal(self, left: ast.expr, right: ast.expr) -> NDArray[np.bool_]:
        sides = self.visit(left), self.visit(right)
        texts = [_is_text(side) for side in sides]
        if texts[0] != texts[1] or (all(texts) and str not in map(type, sides)):
            what = "two fields of text" if all(texts) else "text with a number"
            raise StepError(
                f"{source_of(left)!r} and {source_of(right)!r}: {what} cannot be compared",
                hint="text is compared with quoted text: id == '3'; numbers are not quoted",
            )
        return np.asarray(sides[0] == sides[1])


class _ByNumber(ast.NodeTransformer):
    """Replaces comparisons of some columns of text by those of the rows for which they are true."""

    def __init__(self, columns: Mapping[str, NDArray[Any]]) -> None:
        self._columns = columns

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        fields = {source_of(one) for one in _fields_of(node)}
        if not fields or not fields <= self._columns.keys():
            return self.generic_visit(node)
        flags = _Evaluator(self._columns).flags(node)
        few, word = (flags, "in") if 2 * flags.sum() <= len(flags) else (~flags, "not in")
        return ast.parse(f"number {word} {np.flatnonzero(few).tolist()}", mode="eval").body

    def visit_Name(self, node: ast.expr) -> ast.AST:
        if (name := source_of(node)) in self._columns:
            raise StepError(
                f"Field {name!r} is compared with quoted text only, in {name} != 'bad' or "
                f"{name} in ['good', 'unsure']"
            )
        return node

    visit_Attribute = visit_Name  # noqa: N815 - name set by `ast`


def _fields_of(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the names of fields below a node, each with its parts."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        yield node
    else:
        for child in ast.iter_child_nodes(node):
            yield from _fields_of(child)


def _operands(node: ast.expr) -> list[ast.expr]:
    return [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or getattr(value, "dtype", None) == object


def source_of(node: ast.expr) -> str:
    """Return the text of a node as the user wrote it."""
    return ast.unparse(node).replace(_MARK, "")

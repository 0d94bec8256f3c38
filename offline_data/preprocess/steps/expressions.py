"""Expressions over columns, `return > 100 and not truncated`: read into a tree, and checked."""

from __future__ import annotations

import ast
import keyword
import re
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

FUNCTIONS = {"min": 1, "max": 1, "mean": 1, "percentile": 2}
"""Functions of a whole column, and how many arguments each takes."""

HINT = (
    "an expression has fields, numbers, quoted text, + - * / %, == != < <= > >=, in [a, b], and, "
    "or, not, min(x), max(x), mean(x), percentile(x, 90)"
)

_MOST_CHARACTERS = 20_000
_MOST_DEPTH = 50

_MARK = "_keyword_"
_WORDS = "|".join(sorted({*keyword.kwlist} - {"and", "or", "not", "in", "True", "False"}))
_KEYWORD = re.compile(rf"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")|(?<!\w)({_WORDS})(?!\w)""")
"""Quoted text, or a word that is a name here and not in Python, such as `return`."""

_OPERATORS = (
    *(ast.And, ast.Or, ast.Not, ast.USub, ast.UAdd),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Mod),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn),
)
_LEAST, _GREATEST = -(2**63), 2**64 - 1


@dataclass(frozen=True)
class Expression:
    """An expression that has only parts that are known; nothing of it is ever executed.

    Args:
        text: In Python's syntax, where every word but `and`, `or`, `not`, `in`, `True`, `False`
            and the names of functions may be a field; `a.b` is the nested key `a/b`.

    Raises:
        UsageError: It cannot be read, has something else in it, or names no field.

    Example:
        >>> Expression("return >= percentile(return, 90) and id != '3'").fields
        ('return', 'id')
    """

    text: str

    def __post_init__(self) -> None:
        if not self.fields:
            raise refused(self.text, "it names no field of the episodes")

    @cached_property
    def tree(self) -> ast.expr:
        """What was read; words that Python keeps for itself stand there marked, see `source_of`."""
        if len(self.text) > _MOST_CHARACTERS:
            shown = f"{self.text[:40]}…"
            raise refused(shown, f"it has more than {_MOST_CHARACTERS} characters")
        marked = _KEYWORD.sub(lambda m: m[1] or _MARK + m[2], self.text.strip())
        try:
            with warnings.catch_warnings():  # what Python would say of `1or 2`, or of "\d"
                warnings.simplefilter("ignore")
                return ast.parse(marked, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            offset = getattr(error, "offset", None) or len(marked) + 1
            before, rest = (
                part.replace(_MARK, "") for part in (marked[: offset - 1], marked[offset - 1 :])
            )
            where = f"after {before.rstrip()!r}" if rest and before.strip() else "as one"
            raise refused(self.text, f"it cannot be read {where}") from error

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields, each once, in the order of the text; parts joined by `.`."""
        return tuple(dict.fromkeys(self._checked(self.tree, 0)))

    def _checked(self, node: ast.expr, depth: int) -> Iterator[str]:
        """Yield the names below a node; raises where something is no part of expressions."""
        if depth > _MOST_DEPTH:
            raise refused(self.text, f"more than {_MOST_DEPTH} levels lie in one another")
        self._check_operators(node)
        if isinstance(node, (ast.Name, ast.Attribute)):
            yield self._checked_name(node)
        elif isinstance(node, ast.Constant):
            self._check_constant(node)
        else:
            for child in self._children(node):
                yield from self._checked(child, depth + 1)

    def _children(self, node: ast.expr) -> list[ast.expr]:
        if isinstance(node, ast.BoolOp):
            return node.values
        if isinstance(node, ast.UnaryOp):
            return [node.operand]
        if isinstance(node, ast.BinOp):
            return [node.left, node.right]
        if isinstance(node, ast.Compare):
            return [node.left, *(x for side in self._sides(node) for x in side)]
        if isinstance(node, ast.Call):
            self._check_call(node)
            return node.args
        raise refused(self.text, f"{source_of(node)!r} is no part of expressions")

    def _sides(self, node: ast.Compare) -> Iterator[list[ast.expr]]:
        """Yield what stands right of each comparison: one thing, or the items of a list."""
        for operator, side in zip(node.ops, node.comparators, strict=True):
            if not isinstance(operator, (ast.In, ast.NotIn)):
                yield [side]
            elif isinstance(side, (ast.List, ast.Tuple)):
                yield side.elts
            else:
                raise refused(self.text, f"in takes a list [a, b], not {source_of(side)!r}")

    def _check_operators(self, node: ast.expr) -> None:
        for one in (getattr(node, "op", None), *getattr(node, "ops", ())):
            if one is not None and not isinstance(one, _OPERATORS):
                what = f"{source_of(node)!r} has an operator that is not known"
                raise refused(self.text, what)

    def _check_call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else None
        if name not in FUNCTIONS:
            raise refused(self.text, f"there is no function {source_of(node.func)!r}")
        if node.keywords or len(node.args) != FUNCTIONS[name]:
            takes = "one value" if FUNCTIONS[name] == 1 else f"{FUNCTIONS[name]} values"
            raise refused(self.text, f"{name} takes {takes}")

    def _checked_name(self, node: ast.Name | ast.Attribute) -> str:
        inner: ast.expr = node
        while isinstance(inner, ast.Attribute):
            inner = inner.value
        if not isinstance(inner, ast.Name):
            raise refused(self.text, f"{source_of(node)!r} is no part of expressions")
        return source_of(node)

    def _check_constant(self, node: ast.Constant) -> None:
        value = node.value
        if not isinstance(value, (bool, int, float, str)):
            raise refused(self.text, f"{source_of(node)!r} is no part of expressions")
        if isinstance(value, int) and not _LEAST <= value <= _GREATEST:
            raise refused(self.text, f"{value} is too large for a whole number of 64 bits")


def refused(text: str, what: str) -> UsageError:
    """Return the error of an expression that cannot be meant."""
    return UsageError(f"Expression {text!r}: {what}", hint=HINT)


def source_of(node: ast.expr) -> str:
    """Write a node as the user does.

    Example:
        >>> source_of(Expression("return>1").tree)
        'return > 1'
    """
    return ast.unparse(node).replace(_MARK, "")

"""Decoding of JSON and TOML into dataclasses by their annotations.

Files that people write or strangers made are read this way: the value is complete and of the stated
types, or refused with one sentence that names file, place, found and expected.

An annotation is `str`, `bool`, `int`, `float` (an `int` is kept), `bytes` (text of hex digits),
`Path`, `None`, `Any`, `Literal`, a dataclass, a `TypedDict` (a checked table, with its unknown keys), a list (`list`, `tuple[X, ...]`, `tuple[X, Y]`), a table (`dict`, `Mapping`), or a union of
those whose JSON types differ; `Annotated` adds checks and functions that convert:
`Annotated[DatasetId, str, parse_id]` is a text in the file. Fields with a default may be missing.
Unknown ones are refused, unless the file is read as `lenient`; with `dashed = True` the names of a
class have dashes in the file; the metadata `key` of a field is its name in the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from itertools import count, repeat
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from offline_data.base.errors import FormatError, InvalidIdError, OfflineDataError, UsageError
from offline_data.base.ids import did_you_mean
from offline_data.base.json import MAX_COUNT, shown

T = TypeVar("T")


class Check:
    """A condition that values meet, and its description for messages."""

    def __init__(self, expected: str, holds: Callable[[Any], object]) -> None:
        self.expected, self.holds = expected, holds


def matching(pattern: str, expected: str) -> Check:
    """Return the check that a text matches a regular expression as a whole."""
    return Check(expected, re.compile(pattern).fullmatch)


def at_least(low: int) -> Check:
    """Return the check of numbers from `low` to the greatest int64."""
    expected = f"a whole number from {low} to 2**63 - 1"
    return Check(expected, lambda number: low <= number <= MAX_COUNT)


Count: TypeAlias = Annotated[int, at_least(0)]
Sha256: TypeAlias = Annotated[str, matching("[0-9a-f]{64}", "64 hex digits")]
_OBJECT = "an object"


def decode(
    kind: type[T],
    value: object,
    where: str,
    place: str = "",
    *,
    toml: bool = False,
    lenient: bool = False,
) -> T:
    """Return a value of a file as `kind`, an annotation, usually a dataclass.

    `where` is the file, `place` the place in it (empty: all of it), for messages; `toml`: a user
    wrote it. `lenient` ignores unknown fields, which a later version may have added. Raises
    `FormatError` for another form (`toml`: `UsageError`), and `InvalidIdError` for a wrong id.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Limits:
        ...     rows: int
        ...     names: tuple[str, ...] = ()
        >>> decode(Limits, {"rows": 3, "names": ["a"]}, "limits.json")
        Limits(rows=3, names=('a',))
        >>> decode(Limits, {"rows": 3, "names": ["a", 4]}, "limits.json")
        Traceback (most recent call last):
        offline_data.errors.FormatError: limits.json: names[1] is 4; expected text
    """
    try:
        return cast("T", _form(cast("Any", kind), lenient).read(value))
    except _WrongError as wrong:
        for part in wrong.place:
            is_plain = isinstance(part, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,60}", part)
            name = part if is_plain else shown(part)
            place += f"[{name}]" if isinstance(part, int) else f".{name}" if place else str(name)
        said = wrong.said.replace(_OBJECT, "a table") if toml else wrong.said
        error: type[OfflineDataError] = UsageError if toml else FormatError
        if isinstance(wrong.__cause__, InvalidIdError):
            error = InvalidIdError
        message = f"{where}: {place}{said}" if place else where + said
        raise error(message, hint=wrong.hint) from wrong


class _WrongError(Exception):
    """A value of another form; the place of its holder is put before its own on the way out."""

    def __init__(self, said: str, hint: str | None = None, *place: str | int) -> None:
        self.said, self.hint, self.place = said, hint, place


def _call(function: Callable[..., Any], *args: Any, **given: Any) -> Any:
    try:
        return function(*args, **given)
    except OfflineDataError as error:
        if isinstance(error.__cause__, _WrongError):  # decoded by a conversion
            raise error.__cause__ from None
        raise _WrongError(f": {error.message}", error.shell_hint) from error


class _Form:
    """Values that an annotation accepts: their types when parsed (none: any), and the rest."""

    def __init__(
        self, types: tuple[type, ...], expected: str, *rules: Check | Callable[[Any], Any]
    ) -> None:
        self.types, self.expected, self._rules = types, expected, rules
        steps = [(r.holds, r.expected) if isinstance(r, Check) else (r, None) for r in rules]

        def read(value: Any) -> Any:
            if types and type(value) not in types:
                raise _WrongError(f" is {shown(value)}; expected {expected}")
            for step, wanted in steps:
                if wanted is None:
                    value = step(value)
                elif not step(value):
                    raise _WrongError(f" is {shown(value)}; expected {wanted}")
            return value

        self.read = read

    def then(self, rules: Iterable[Check | Callable[[Any], Any]]) -> _Form:
        """Return the form with checks and conversions, whose errors are ours."""
        expected = [rule.expected for rule in rules if isinstance(rule, Check)]
        more = (rule if isinstance(rule, Check) else partial(_call, rule) for rule in rules)
        return _Form(self.types, (expected or [self.expected])[0], *self._rules, *more)


def _read_all(items: Iterable[tuple[str | int, Callable[[Any], Any], Any]]) -> list[Any]:
    found: list[Any] = []
    place: str | int = 0
    try:
        for place, read, value in items:  # noqa: B007 - of an error
            found.append(read(value))
    except _WrongError as wrong:
        wrong.place = (place, *wrong.place)
        raise
    return found


_PLAIN: dict[Any, _Form] = {
    Any: _Form((), "any value"),
    str: _Form((str,), "text"),
    bool: _Form((bool,), "true or false"),
    int: _Form((int,), "a whole number"),
    float: _Form((float, int), "a number"),
    NoneType: _Form((NoneType,), "null"),
    dict: _Form((dict,), _OBJECT),
}
_NAME = Check("the path of a file", lambda text: text and "\0" not in text)
_PLAIN[Path] = _PLAIN[str].then((_NAME, Path))
_PLAIN[bytes] = _PLAIN[str].then((matching("([0-9a-f]{2})*", "hex digits"), bytes.fromhex))


@cache
def _form(kind: Any, lenient: bool) -> _Form:
    origin, parts = get_origin(kind), get_args(kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if is_dataclass(kind) or is_typeddict(kind):
        return _form_of_class(cast("type[Any]", kind), lenient)
    if origin is Annotated:
        read, *rules = parts[1:] if isinstance(parts[1], type) or get_origin(parts[1]) else parts
        return _form(read, lenient).then(rules)
    if origin is Literal:
        types = tuple({type(choice) for choice in parts})
        words = " or ".join(map(str, parts)) if len(parts) < 3 else f"one of {', '.join(parts)}"
        return _Form(types, words).then((Check(words, parts.__contains__),))
    if origin in {Union, UnionType}:
        forms = [_form(part, lenient) for part in parts]
        by_type = {each: form for form in reversed(forms) for each in form.types}
        words = " or ".join(form.expected for form in forms if form.types != (NoneType,))
        return _Form(tuple(by_type), words, lambda value: by_type[type(value)].read(value))
    if origin in {dict, Mapping}:
        return _form_of_table(*(_form(part, lenient) for part in parts))
    if origin in {list, tuple, Sequence}:
        forms = [_form(part, lenient) for part in parts if part is not ...]
        return _form_of_list(origin, forms, fixed=origin is tuple and parts[-1] is not ...)
    raise TypeError(f"{kind} cannot be decoded")


def _form_of_table(name: _Form, inner: _Form) -> _Form:
    def key(text: str) -> Any:
        try:
            return name.read(text)
        except _WrongError as wrong:
            said = f" has the key {shown(text)}; expected {name.expected}"
            raise _WrongError(said) from wrong

    def convert(table: dict[str, Any]) -> Any:
        values = _read_all(zip(table, repeat(inner.read), table.values()))
        return dict(zip(map(key, table), values, strict=True))

    return _Form((dict,), _OBJECT, convert)


def _form_of_list(origin: Any, forms: list[_Form], *, fixed: bool) -> _Form:
    words, reads = f"a list of {len(forms)}" if fixed else "a list", [form.read for form in forms]
    size = Check(words, lambda values: not fixed or len(values) == len(forms))

    def convert(values: list[Any]) -> Any:
        items = zip(count(), reads if fixed else repeat(reads[0]), values)
        return _read_all(items) if origin is list else tuple(_read_all(items))

    return _Form((list,), words, size, convert)


def _form_of_class(cls: type[Any], lenient: bool) -> _Form:
    dashed, is_table = getattr(cls, "dashed", False), is_typeddict(cls)
    hints = get_type_hints(cls, include_extras=True)
    all_fields = {} if is_table else {f.name: f for f in fields(cls)}
    known = {f.metadata.get("key", n): n for n, f in all_fields.items()} or {n: n for n in hints}
    known = {name.replace("_", "-") if dashed else name: field for name, field in known.items()}
    forms = {name: _form(hints[field], lenient) for name, field in known.items()}
    defaults = {n for n, f in all_fields.items() if not f.default is f.default_factory is MISSING}
    optional = cls.__optional_keys__ if is_table else defaults
    items = [(name, field, forms[name]) for name, field in known.items()]

    def convert(table: dict[str, Any]) -> Any:
        unknown = "" if lenient else min(table.keys() - known, default="")
        if unknown in table and not lenient:
            said = f" has the unknown key {shown(unknown)}; expected {', '.join(known)}"
            raise _WrongError(said, did_you_mean(unknown, known))
        given: dict[str, Any] = {}
        name = ""
        try:
            for name, field, form in items:
                if name in table:
                    given[field] = form.read(table[name])
                elif field not in optional:
                    raise _WrongError(  # noqa: TRY301 - gets its place below
                        f" is missing; expected {form.expected}"
                    )
        except _WrongError as wrong:
            wrong.place = (name, *wrong.place)
            raise
        return {**table, **given} if is_table else _call(cls, **given)

    return _Form((dict,), _OBJECT, convert)

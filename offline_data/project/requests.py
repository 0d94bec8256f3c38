"""`datasets.toml`: the datasets that a project uses, by short names.

```toml
[datasets]
door = "minari:D4RL/door/human-v2"
frames = { id = "atari_dqn:Pong/1", checkpoints = "0:2", images = "raw" }
sums = { id = "hf:openai/gsm8k:main", text = { tokenizer = "gpt2", max_length = 512 } }
```

`text` has the fields of `TextOptions`; the path of a tokenizer is relative to the file.

The file may come from a stranger: every error names it and the key, and has no other effect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offline_data.config import parse_toml
from offline_data.errors import FormatError, InvalidIdError, UsageError
from offline_data.ids import DatasetId, nearest, parse_id
from offline_data.ingest.options import Options, format_range, parse_range
from offline_data.sources.text_options import TextOptions
from offline_data.strict_json import MAX_COUNT, check_depth, read_whole, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

MAX_BYTES = 1 << 20
"""Bytes of the largest `datasets.toml` that is read."""

OPTIONS: dict[str, tuple[type, str]] = {
    "layout": (str, "compact|ted"),
    "episodes": (str, ""),
    "checkpoints": (str, ""),
    "images": (str, "encoded|raw"),
    "keep_episodes": (bool, ""),
    "skip_bad_episodes": (bool, ""),
    "allow_changed": (bool, ""),
    "text": (dict, ""),
}
"""Options of `download` that decide what is on this disk afterwards: types and patterns."""

_KINDS = {
    str: "text in quotes",
    int: "a whole number from 0 to 2**63 - 1",
    bool: "true or false",
    dict: "a table",
    list: "a list",
}
_ID = "an id in quotes, or a table"
_EXAMPLE = 'for example door = "minari:D4RL/door/human-v2" below [datasets]'


@dataclass(frozen=True)
class DatasetRequest:
    """A dataset as `datasets.toml` asks for it."""

    name: str
    """Its short name in the project."""
    id: DatasetId
    """Its id, with a revision if the project insists on one."""
    options: Options


def read_requests(file: Path) -> dict[str, DatasetRequest]:
    """Read `datasets.toml`: requests by short name, sorted.

    Raises:
        NotFoundError: There is no such file.
        UsageError: It is not TOML, or not of this form; the message names the key.
        AccessError: It cannot be read.
    """
    found: dict[str, DatasetRequest] = {}
    places: dict[tuple[str | None, ...], DatasetRequest] = {}
    for name, value in read_datasets(file, MAX_BYTES).items():
        where = f"{file}: datasets.{name}"
        table = {"id": value} if isinstance(value, str) else checked(value, dict, where, "", _ID)
        check_keys(table, {"id", *OPTIONS}, where)
        options = options_of({k: v for k, v in table.items() if k != "id"}, where)
        one = DatasetRequest(name, id_of(table.get("id"), f"{where}.id"), options)
        text = options.text
        tokenizer = (text.tokenizer, text.tokenizer_revision) if text else ()
        other = places.setdefault((options.revision_of(f"{one.id}@"), *tokenizer), one)
        if other.options != options:
            raise UsageError(
                f"{where} is the dataset of datasets.{other.name} with other options, and one "
                "directory on this disk holds only one of both",
                hint="give both the same options, or use two projects with two roots",
            )
        found[name] = one
    return found


def read_datasets(file: Path, max_bytes: int, version: int | None = None) -> dict[str, Any]:
    """Read the table `datasets` of a TOML file, sorted, which has this `version` beside it or none.

    Raises `NotFoundError`, `AccessError`, and `UsageError` naming file and key.
    """
    try:
        whole = parse_toml(read_whole(file, max_bytes).decode(), file, _EXAMPLE)
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not TOML: it is not UTF-8: {error.reason}") from error
    except FormatError as error:
        raise UsageError(f"{error.message}; expected TOML", hint=_EXAMPLE) from error
    try:
        check_depth(whole)
    except ValueError as error:
        raise UsageError(f"{file} cannot be used: {error}") from error
    if version is not None:
        found = checked(whole.pop("version", None), int, f"{file}: version")
        if found != version:
            raise UsageError(
                f"{file} has version {found}; this version of offline-data reads {version}",
                hint="pip install --upgrade offline-data",
            )
    check_keys(whole, {"datasets"}, str(file))
    table = checked(whole.get("datasets"), dict, f"{file}: datasets")
    for name in table:
        expected = "up to 100 letters, digits, - and _"
        checked(name, str, f"{file}: a name in datasets", "[A-Za-z0-9_-]{1,100}", expected)
    return dict(sorted(table.items()))


def check_keys(table: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Raise `UsageError` for a key that is not known, with the nearest one that is."""
    for key in sorted(table.keys() - known):
        near = nearest(key, known, 1)
        raise UsageError(
            f"{where} has the unknown key {shown(key)}; expected {', '.join(sorted(known))}",
            hint=f"did you mean {near[0]}?" if near else None,
        )


def checked(value: Any, kind: type[Any], where: str, pattern: str = "", expected: str = "") -> Any:
    """Return a value of this type that matches the pattern; raises `UsageError` naming it."""
    right = type(value) is kind and (type(value) is not int or 0 <= value <= MAX_COUNT)
    if not right or (pattern and not re.fullmatch(pattern, value)):
        found = "missing" if value is None else shown(value)
        expected = expected or pattern.replace("|", " or ") or _KINDS[kind]
        raise UsageError(f"{where} is {found}; expected {expected}", hint=_EXAMPLE)
    return value


def id_of(value: Any, where: str) -> DatasetId:
    """Return the dataset id in a field; raises `UsageError` naming the field."""
    try:
        return parse_id(checked(value, str, where))
    except InvalidIdError as error:
        raise InvalidIdError(f"{where}: {error.message}", hint=error.shell_hint) from error


def options_of(
    table: Mapping[str, Any],
    where: str,
    text_of: Callable[[Mapping[str, Any]], TextOptions] = TextOptions.from_json,
) -> Options:
    """Return the options in a table; raises `UsageError` naming the key."""
    check_keys(table, OPTIONS, where)
    given: dict[str, Any] = {}
    for name, value in table.items():
        kind, pattern = OPTIONS[name]
        given[name] = checked(value, kind, f"{where}.{name}", pattern)
        if name in {"episodes", "checkpoints"}:
            given[name] = parse_range(value, f"{where}.{name}")
        if name == "text":
            try:
                given[name] = text_of(value)
            except UsageError as error:
                said = f"{where}.{name}: {error.message}"
                raise UsageError(said, hint=error.shell_hint) from error
    try:
        return Options(**given)
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}") from error


def options_table(options: Options) -> dict[str, Any]:
    """Return the options that are not the defaults, as `options_of` reads them.

    Example:
        >>> options_table(Options(episodes=(0, 10), audit="all"))
        {'episodes': '0:10'}
    """
    given = {name: getattr(options, name) for name in OPTIONS}
    given["text"] = options.text and options.text.given()
    return {
        name: format_range(value) if isinstance(value, tuple) else value
        for name, value in given.items()
        if value
    }

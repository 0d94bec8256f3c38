"""`datasets.toml`: the datasets that a project uses, by short names.

```toml
[datasets]
door = "minari:D4RL/door/human-v2"
frames = { id = "atari_dqn:Pong/1", checkpoints = "0:2", images = "raw" }
```

The file may come from a stranger: every error names it and the key, and has no other effect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from offline_data.config import parse_toml
from offline_data.errors import FormatError, InvalidIdError, UsageError
from offline_data.ids import DatasetId, nearest, parse_id
from offline_data.ingest.options import Options, format_range, parse_range
from offline_data.store.layout import LAYOUTS
from offline_data.strict_json import check_depth, read_whole, shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

MAX_BYTES = 1 << 20
"""Bytes of the largest `datasets.toml` that is read."""

OPTIONS = ("layout", "episodes", "checkpoints", "images", "keep_episodes", "skip_bad_episodes")
"""Options of `download` that decide what is on this disk afterwards."""

_RANGES = ("episodes", "checkpoints")
_CHOICES: dict[str, tuple[Any, ...]] = {
    "layout": LAYOUTS,
    "images": ("encoded", "raw"),
    "keep_episodes": (True, False),
    "skip_bad_episodes": (True, False),
}
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}\Z")
_EXAMPLE = 'for example door = "minari:D4RL/door/human-v2" below [datasets]'


@dataclass(frozen=True)
class Request:
    """A dataset as `datasets.toml` asks for it."""

    name: str
    """Its short name in the project."""
    id: DatasetId
    """Its id, with a revision if the project insists on one."""
    options: Options


def read_requests(file: Path) -> dict[str, Request]:
    """Read `datasets.toml`: requests by short name, sorted.

    Raises:
        NotFoundError: There is no such file.
        UsageError: It is not TOML, or not of this form; the message names the key.
        AccessError: It cannot be read.
    """
    whole = read_toml(file, MAX_BYTES, _EXAMPLE)
    check_keys(whole, {"datasets"}, str(file))
    found = {}
    for name, value in sorted(datasets_of(whole, file).items()):
        where = f"{file}: datasets.{name}"
        table = {"id": value} if isinstance(value, str) else value
        if not isinstance(table, dict):
            raise UsageError(f"{where} is {shown(value)}; expected an id or a table", hint=_EXAMPLE)
        check_keys(table, {"id", *OPTIONS}, where)
        options = options_of({k: v for k, v in table.items() if k != "id"}, where)
        found[name] = Request(name, id_of(table.get("id"), f"{where}.id"), options)
    check_places(((one.name, one.id, one.options) for one in found.values()), file)
    return found


def read_toml(file: Path, max_bytes: int, hint: str) -> dict[str, Any]:
    """Read a TOML file; raises `NotFoundError`, `AccessError`, `UsageError` for what is not one."""
    try:
        value = parse_toml(read_whole(file, max_bytes).decode(), file, hint)
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not TOML: it is not UTF-8: {error.reason}") from error
    except FormatError as error:
        raise UsageError(f"{error.message}; expected TOML", hint=hint) from error
    try:
        check_depth(value)
    except ValueError as error:
        raise UsageError(f"{file} cannot be used: {error}", hint=hint) from error
    return value


def datasets_of(whole: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return the table `datasets` of either file, its names checked; raises `UsageError`."""
    table = whole.get("datasets")
    if not isinstance(table, dict):
        found = "no table" if table is None else shown(table)
        raise UsageError(f"{file}: datasets is {found}; expected [datasets]", hint=_EXAMPLE)
    for name in table:
        if not _NAME.match(name):
            raise UsageError(
                f"{file}: datasets has the name {shown(name)}; expected up to 100 letters, digits, "
                "- and _"
            )
    return table


def check_keys(table: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Raise `UsageError` for a key that is not known, with the nearest one that is."""
    for key in sorted(table.keys() - known):
        near = nearest(key, known, 1)
        raise UsageError(
            f"{where} has the unknown key {shown(key)}; expected {', '.join(sorted(known))}",
            hint=f"did you mean {near[0]}?" if near else None,
        )


def id_of(value: Any, where: str) -> DatasetId:
    """Return the dataset id in a field; raises `UsageError` naming the field."""
    if not isinstance(value, str):
        found = "missing" if value is None else shown(value)
        raise UsageError(f"{where} is {found}; expected an id in quotes", hint=_EXAMPLE)
    try:
        return parse_id(value)
    except InvalidIdError as error:
        raise InvalidIdError(f"{where}: {error.message}", hint=error.shell_hint) from error


def options_of(table: Mapping[str, Any], where: str) -> Options:
    """Return the options in a table that only has keys of `OPTIONS`; raises `UsageError`."""
    given = dict(table)
    for name, value in table.items():
        if name in _RANGES:
            if not isinstance(value, str):
                raise UsageError(
                    f"{where}.{name} is {shown(value)}; expected A:B in quotes",
                    hint=f'{name} = "0:10" takes the first ten',
                )
            given[name] = parse_range(value, f"{where}.{name}")
        elif not any(
            value is one or (type(value) is str and value == one) for one in _CHOICES[name]
        ):
            expected = " or ".join(str(one).lower() for one in _CHOICES[name])
            raise UsageError(f"{where}.{name} is {shown(value)}; expected {expected}")
    try:
        return Options(**given)
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}") from error


def options_table(options: Options) -> dict[str, str | bool]:
    """Return the options that are not the defaults, as `options_of` reads them.

    Example:
        >>> options_table(Options(episodes=(0, 10), audit="all"))
        {'episodes': '0:10'}
    """
    defaults = {field.name: field.default for field in fields(Options)}
    given = {name: getattr(options, name) for name in OPTIONS}
    return {
        name: format_range(value) if name in _RANGES else value
        for name, value in given.items()
        if value != defaults[name]
    }


def check_places(named: Iterable[tuple[str, DatasetId, Options]], file: Path) -> None:
    """Raise `UsageError` if two names want different data in the same directory."""
    places: dict[tuple[str, str], tuple[str, dict[str, Any]]] = {}
    for name, dataset, options in named:
        place = dataset.folder, options.revision_of(dataset.revision or "")
        other, table = places.setdefault(place, (name, options_table(options)))
        if table != options_table(options):
            raise UsageError(
                f"{file}: datasets.{other} and datasets.{name} are one dataset with different "
                "options, and one directory on this disk holds only one of them",
                hint="give both the same options, or use another --root for one of them",
            )

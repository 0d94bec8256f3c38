"""Configuration of checks: `[tool.offline-data.check]` of pyproject.toml, or offline-data.toml.

```toml
[tool.offline-data.check]          # in offline-data.toml: [check]
select = ["RL02", "constant-feature"]
ignore = ["RL022"]
fail-on = "warning"
baseline = "checks.json"           # relative to this file

[tool.offline-data.check.per-dataset-ignores]
"d4rl:*-human-v1" = ["RL021"]

[tool.offline-data.check.thresholds.RL030]
share = 0.1
```
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from offline_data.checks.names import unversioned
from offline_data.checks.registry import matches, rules_matching, select_rules
from offline_data.config import parse_toml
from offline_data.errors import FormatError, NotFoundError, UnknownNameError, UsageError
from offline_data.files import is_file
from offline_data.ids import nearest
from offline_data.strict_json import read_whole, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from offline_data.checks.finding import Finding

FailOn: TypeAlias = Literal["error", "warning", "info", "never"]
"""Least severity of findings that fail a run."""

Format: TypeAlias = Literal["human", "json", "junit", "sarif", "github", "markdown"]

FORMATS: tuple[Format, ...] = get_args(Format)
FAIL_ON: tuple[FailOn, ...] = get_args(FailOn)

OWN_FILE, PROJECT_FILE = "offline-data.toml", "pyproject.toml"
"""Files that are looked for in each folder, in this order."""

_MAX_BYTES = 1 << 20
_HINT = f"`--config FILE` reads another file; [tool.offline-data.check] of {PROJECT_FILE}"


@dataclass(frozen=True)
class CheckConfig:
    """Configuration of a run, from a file or the command line."""

    select: tuple[str, ...] = ()
    """Codes, their beginnings, or names; empty: all rules."""
    ignore: tuple[str, ...] = ()
    fail_on: FailOn = "error"
    baseline: Path | None = None
    output_format: Format = "human"
    per_dataset_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Selectors by pattern of dataset ids, with or without a revision, as `fnmatch` has them."""
    thresholds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By code or name of a rule."""
    file: Path | None = None
    """The file that says so."""

    def ignores(self, finding: Finding) -> bool:
        """Return True if `per_dataset_ignores` has a finding."""
        names = {finding.dataset, unversioned(finding.dataset)}
        return any(
            matches(selector, finding)
            for pattern, selectors in self.per_dataset_ignores.items()
            if any(fnmatchcase(name, pattern) for name in names)
            for selector in selectors
        )


def find_config(folder: Path) -> CheckConfig:
    """Read the nearest configuration of a folder or its parents, up to that of a repository.

    A `pyproject.toml` without the table is passed over. Without any, returns the defaults.

    Raises:
        UsageError, AccessError: See `read_config`.
    """
    for parent in (folder, *folder.parents):
        for name in (OWN_FILE, PROJECT_FILE):
            if is_file(parent / name):
                found = _read(parent / name)
                if found is not None:
                    return found
        if (parent / ".git").exists():
            break
    return CheckConfig()


def read_config(file: Path) -> CheckConfig:
    """Read a configuration file.

    Raises:
        UsageError: There is no such file, it has no table for checks, or a wrong one; the message
            names file and key.
        AccessError: It cannot be read.
    """
    found = _read(file)
    if found is None:
        raise UsageError(f"{file} has no table [tool.offline-data.check] and no [check]")
    return found


def _read(file: Path) -> CheckConfig | None:
    try:
        text = read_whole(file, _MAX_BYTES).decode()
    except NotFoundError as error:
        raise UnknownNameError(f"There is no file {file}") from error
    except (FormatError, UnicodeDecodeError) as error:
        said = error.message if isinstance(error, FormatError) else f"{file} is not UTF-8"
        raise UsageError(f"{said}; expected TOML", hint=_HINT) from error
    table: Any = parse_toml(text, file, _HINT)
    prefix = "check"
    if file.name == PROJECT_FILE or ("check" not in table and "tool" in table):
        prefix = "tool.offline-data.check"
    for part in prefix.split("."):
        table = table.get(part) if isinstance(table, dict) else None
    if table is None:
        return None
    return _Table(file, prefix, table).config()


class _Table:
    """A table of a file, whose values are checked as they are taken."""

    def __init__(self, file: Path, name: str, values: object) -> None:
        self.file, self.name = file, name
        if not isinstance(values, dict):
            raise self.wrong("", "a table", values)
        self.values: dict[str, Any] = values

    def wrong(self, key: str, expected: str, found: object) -> UsageError:
        place = f"{self.name}.{key}" if key else self.name
        return UsageError(f"{self.file}: {place} is {shown(found)}; expected {expected}")

    def config(self) -> CheckConfig:
        known = {
            "select": self.selectors,
            "ignore": self.selectors,
            "fail-on": lambda key: self.one_of(key, FAIL_ON),
            "baseline": self.path,
            "output-format": lambda key: self.one_of(key, FORMATS),
            "per-dataset-ignores": self.ignores,
            "thresholds": self.thresholds,
        }
        for key in self.values:
            if key not in known:
                near = nearest(key, known)
                raise UsageError(
                    f"{self.file}: {self.name} has the key {shown(key)}; expected only "
                    f"{', '.join(known)}",
                    hint=f"did you mean {near[0]}?" if near else None,
                )
        given: dict[str, Any] = {key.replace("-", "_"): known[key](key) for key in self.values}
        return CheckConfig(**given, file=self.file)

    def selectors(self, key: str) -> tuple[str, ...]:
        listed = self.values[key]
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            raise self.wrong(key, 'a list of codes or names: ["RL020"]', listed)
        with self.naming(key):
            for one in listed:
                rules_matching(one)
        return tuple(listed)

    def one_of(self, key: str, choices: Iterable[str]) -> str:
        value = self.values[key]
        if value not in tuple(choices):
            raise self.wrong(key, f"one of {', '.join(choices)}", value)
        return str(value)

    def path(self, key: str) -> Path:
        value = self.values[key]
        if not isinstance(value, str) or not value or "\0" in value:
            raise self.wrong(key, "the path of a file", value)
        return self.file.parent / value

    def ignores(self, key: str) -> dict[str, tuple[str, ...]]:
        inner = _Table(self.file, f"{self.name}.{key}", self.values[key])
        return {pattern: inner.selectors(pattern) for pattern in inner.values}

    def thresholds(self, key: str) -> dict[str, dict[str, float]]:
        inner = _Table(self.file, f"{self.name}.{key}", self.values[key])
        for rule in inner.values:
            _Table(self.file, f"{inner.name}.{rule}", inner.values[rule])
        with self.naming(key):
            select_rules(thresholds=inner.values)
        return inner.values

    @contextmanager
    def naming(self, key: str) -> Iterator[None]:
        """Name file and key in an error of the block."""
        try:
            yield
        except UsageError as error:
            message = f"{self.file}: {self.name}.{key}: {error.message}"
            raise UsageError(message, hint=error.shell_hint) from error

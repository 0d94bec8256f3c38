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

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_args

from offline_data.analysis.checks.finding import Finding
from offline_data.analysis.checks.names import without_revision
from offline_data.analysis.checks.registry import matches, rules_matching, select_rules
from offline_data.base.config import parse_toml
from offline_data.base.decode import decode
from offline_data.base.errors import FormatError, NotFoundError, UnknownNameError, UsageError
from offline_data.base.files import is_file
from offline_data.base.json import read_whole

FailOn: TypeAlias = Literal["error", "warning", "info", "never"]  # least severity that fails a run

Format: TypeAlias = Literal["human", "json", "junit", "sarif", "github", "markdown"]

FORMATS: tuple[Format, ...] = get_args(Format)

OWN_FILE, PROJECT_FILE = "offline-data.toml", "pyproject.toml"  # tried in this order in each folder

_MAX_BYTES = 1 << 20
_HINT = f"`--config FILE` reads another file; [tool.offline-data.check] of {PROJECT_FILE}"


def _known_selector(selector: str) -> str:
    rules_matching(selector)
    return selector


def _known_thresholds(thresholds: Mapping[str, Any]) -> Mapping[str, Any]:
    select_rules(thresholds=thresholds)
    return thresholds


Selectors: TypeAlias = tuple[Annotated[str, _known_selector], ...]
Thresholds: TypeAlias = Annotated[Mapping[str, Mapping[str, float]], _known_thresholds]


@dataclass(frozen=True)
class _CheckTable:
    """The table of a file."""

    dashed: ClassVar[bool] = True
    select: Selectors = ()  # codes, their beginnings, or names; empty: all rules
    ignore: Selectors = ()
    fail_on: FailOn = "error"
    baseline: Path | None = None
    output_format: Format = "human"
    # selectors by pattern (`fnmatch`) of ids, with or without revision
    per_dataset_ignores: Mapping[str, Selectors] = field(default_factory=dict)
    thresholds: Thresholds = field(default_factory=dict)  # by code or name of a rule


@dataclass(frozen=True)
class CheckConfig(_CheckTable):
    """Configuration of a run, from a file or the command line."""

    file: Path | None = None  # the file that says so

    def ignores(self, finding: Finding) -> bool:
        """Return True if `per_dataset_ignores` has a finding."""
        names = {finding.dataset, without_revision(finding.dataset)}
        return any(
            matches(selector, finding)
            for pattern, selectors in self.per_dataset_ignores.items()
            if any(fnmatchcase(name, pattern) for name in names)
            for selector in selectors
        )


def find_config(folder: Path) -> CheckConfig:
    """Read the nearest configuration of a folder or its parents, up to that of a repository.

    A `pyproject.toml` without the table is passed over. Without any, returns the defaults. Raises
    as `read_config`.
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

    Raises `AccessError`, and `UsageError` without such a file, a table for checks, or with a wrong
    one; the message names file and key.
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
    given = vars(decode(_CheckTable, table, str(file), prefix, toml=True))
    if given["baseline"]:
        given = {**given, "baseline": file.parent / given["baseline"]}
    return CheckConfig(**given, file=file)

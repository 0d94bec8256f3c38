"""Versions, settings and sources of this installation, for people and for bug reports."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from offline_data.base.config import Settings
from offline_data.base.errors import MissingDependencyError
from offline_data.base.files import free_bytes
from offline_data.base.urls import redact
from offline_data.formats.registry import get_source, source_names

DISTRIBUTION = "offline-data"


@dataclass(frozen=True)
class Environment:
    """Facts for a bug report, without secrets."""

    version: str | None  # version of this package, None if it is not installed
    python: str
    platform: str
    packages: Mapping[str, str | None]  # versions of what this one may use; None: not installed
    # Resolved, with `~` for the home directory; for the token only whether there is one. `config`
    # is the config file that was read, `config_place` its expected location; for `origins` see
    # `Settings`.
    settings: Mapping[str, Any]
    free_bytes: int  # bytes available to this user on the disk of the root
    # the C extension was built; without it, sampling takes two to four times as long
    compiled_gather: bool


@dataclass(frozen=True)
class SourceReport:
    """One adapter and its requirements."""

    name: str
    title: str  # its description, or why it cannot be imported, in half a line
    needs: tuple[str, ...]  # import names of packages that some of its datasets need
    missing: tuple[str, ...]
    install: str | None  # the command that installs missing packages, if any
    datasets: int  # number of datasets in the packaged catalogue


def environment(settings: Settings) -> Environment:
    """Collect versions and settings without importing the packages."""
    # importing the extension would import torch
    extension = f"_gather*{EXTENSION_SUFFIXES[-1]}"
    return Environment(
        version=installed_version(DISTRIBUTION),
        python=f"{platform.python_version()} ({platform.python_implementation()})",
        platform=platform.platform(),
        packages={name: installed_version(name) for name in _requirements()},
        settings=_list_settings(settings),
        free_bytes=free_bytes(settings.root),
        compiled_gather=any((Path(__file__).parents[1] / "rows" / "gather").glob(extension)),
    )


def installed_version(name: str) -> str | None:
    """Return the version of an installed distribution, else None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _requirements() -> list[str]:
    """Return the distributions that this one may use, except those for an older Python."""
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []
    names = set()
    for line in lines:
        bound = re.search(r"python_version *< *[\"']3\.(\d+)", line)
        if bound is None or sys.version_info[1] < int(bound[1]):
            names.add(re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0])
    return sorted(names - {DISTRIBUTION})


def _list_settings(settings: Settings) -> dict[str, Any]:
    read = settings.config is not None and settings.config.exists()
    return {
        **vars(settings),
        "root": _anonymize(settings.root),
        "minari_path": _anonymize(settings.minari_path),
        "minari_remote": _anonymize(settings.minari_remote),
        "mirrors": [_anonymize("=".join(pair)) for pair in settings.mirrors],
        "hub_endpoint": _anonymize(settings.hub_endpoint),
        "hub_token": "set" if settings.hub_token else None,
        "config": _anonymize(settings.config) if read else None,
        "config_place": _anonymize(settings.config),
        "origins": {_anonymize(name): origin for name, origin in settings.origins.items()},
    }


def _anonymize(setting: str | Path | None) -> str | None:
    """Hide the secrets of URLs, and write the home directory, which may be a name, as `~`."""
    if setting is None:
        return None
    home = os.path.expanduser("~").rstrip("/")  # noqa: PTH111 - `Path` raises without one
    text = redact(str(setting))
    return re.sub(rf"(?<![\w.-]){re.escape(home)}(?=/|$)", "~", text) if home else text


def source_reports() -> tuple[SourceReport, ...]:
    """Describe every source, ordered by name; including why one cannot be imported."""
    return tuple(map(_source_report, source_names()))


def _source_report(name: str) -> SourceReport:
    try:
        source = get_source(name)
    except MissingDependencyError as error:
        return SourceReport(name, str(error), (), (), error.shell_hint, 0)
    needs = tuple(source.needs)
    missing = tuple(need for need in needs if need not in sys.modules and not find_spec(need))
    extra = f"{DISTRIBUTION}[{source.extra}]" if source.extra else " ".join(missing)
    install = f"pip install '{extra}'" if missing else None
    return SourceReport(name, source.title, needs, missing, install, len(source.catalog()))

"""Compare declared lowest versions with the installed ones: what is not installed is not tested.

`make test-oldest` installs the lowest version of each requirement that the others allow; a bound
that they do not allow is raised in pyproject.toml to the version that this prints.
"""

import sys
from importlib.metadata import metadata, requires, version
from pathlib import Path

import tomli  # Python 3.10 has no tomllib
from packaging.requirements import Requirement
from packaging.version import Version

NAME = "offline-data"
EXTRAS = ("", *(metadata(NAME).get_all("Provides-Extra") or ()))

GROUPS = tomli.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]


def grouped(name: str) -> list[str]:
    """Return the requirements of a dependency group."""
    parts = [
        [part] if isinstance(part, str) else grouped(part["include-group"]) for part in GROUPS[name]
    ]
    return [line for part in parts for line in part]


rows = set()
for requirement in map(Requirement, [*(requires(NAME) or ()), *grouped("dev")]):
    marker = requirement.marker
    if marker and not any(marker.evaluate({"extra": extra}) for extra in EXTRAS):
        continue  # for another Python
    if requirement.name in {NAME, "torch"}:
        continue  # extras name each other, and constraints.txt pins torch
    (lowest,) = (part.version for part in requirement.specifier if part.operator == ">=")
    rows.add((requirement.name, lowest, version(requirement.name)))

for name, lowest, installed in sorted(rows):
    note = "" if Version(lowest) == Version(installed) else f"untested: installed is {installed}"
    print(f"{name:16} >= {lowest:8} {note}")  # noqa: T201 - a table for people
sys.exit(any(Version(lowest) != Version(installed) for _, lowest, installed in rows))

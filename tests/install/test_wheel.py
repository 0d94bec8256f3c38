"""What the sdist and the wheel contain, and the wheel in new environments of every Python here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.install.conftest import Tour
from tests.install.test_metadata import PROJECT
from tests.install.test_without_torch import FILE, check_tour

pytestmark = pytest.mark.slow

MORE = os.environ.get("TEST_PYTHONS", "")
"""Folders of more Pythons, separated by colons; with it, all that are found are tested."""
GENERATED = re.compile(r"PKG-INFO|setup\.cfg|(cli/)?offline_data\.egg-info/.*")


def test_the_sdist_has_every_file_of_the_repository(sdist: Path, tracked: list[str]) -> None:
    with tarfile.open(sdist) as archive:
        names = [one.name.partition("/")[2] for one in archive.getmembers() if one.isfile()]
    assert sorted(name for name in names if not GENERATED.fullmatch(name)) == tracked


def test_the_wheel_has_every_file_of_the_packages(wheel: Path, tracked: list[str]) -> None:
    packaged = {
        name.removeprefix("cli/")
        for name in tracked
        if name.startswith(("offline_data/", "cli/")) and not name.endswith((".c", ".h"))
    }
    names = set(zipfile.ZipFile(wheel).namelist())
    compiled = {name for name in names if name.endswith(".so")}
    assert len(compiled) == 3
    assert all(name.endswith(".abi3.so") for name in compiled)
    assert {name for name in names if ".dist-info/" not in name} - compiled == packaged
    assert re.fullmatch(r"offline_data-[\d.]+-cp310-abi3-[a-z0-9_.]+\.whl", wheel.name)


def test_the_metadata_of_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    found = re.findall(r"^([\w-]+): (.*)$", text.partition("\n\n")[0], re.MULTILINE)
    fields: dict[str, list[str]] = {}
    for key, value in found:
        fields.setdefault(key, []).append(value)
    assert fields["Version"] == [PROJECT["version"]]
    assert sorted(fields["Provides-Extra"]) == sorted(PROJECT["optional-dependencies"])
    assert sorted(fields["Project-URL"]) == sorted(
        f"{label}, {address}" for label, address in PROJECT["urls"].items()
    )
    assert fields["License-Expression"] == ["Apache-2.0"]
    assert fields["License-File"] == ["LICENSE"]
    assert fields["Description-Content-Type"] == ["text/markdown"]
    assert "pytest" not in str(fields["Requires-Dist"])
    assert PROJECT["urls"]["Repository"] + "/blob/main/" in text.partition("\n\n")[2]


def _pythons() -> dict[str, str]:
    """Find an interpreter of each version that the project supports; `TEST_PYTHONS` names more."""
    found = {f"{sys.version_info[0]}.{sys.version_info[1]}": sys.executable}
    folders = [Path.home() / ".pyenv" / "versions", *map(Path, filter(None, MORE.split(":")))]
    for path in sorted(file for folder in folders for file in folder.glob("*3.*/bin/python3.*")):
        if re.fullmatch(r"python3\.1\d", path.name):
            found[path.name.removeprefix("python")] = str(path)
    return dict(sorted(found.items(), key=lambda item: int(item[0].partition(".")[2])))


PYTHONS = _pythons()


@pytest.mark.parametrize(
    "version", list(PYTHONS) if MORE else sorted({*list(PYTHONS)[:1], *list(PYTHONS)[-1:]})
)
def test_the_wheel_in_a_new_environment_without_a_compiler(
    version: str, tmp_path: Path, take_tour: Tour, wheel: Path
) -> None:
    """Made as the file of requirements says, but for the wheel's place."""
    subprocess.run([PYTHONS[version], "-m", "venv", tmp_path / "environment"], check=True)
    python = tmp_path / "environment" / "bin" / "python"
    commands = re.findall(r"^# +pip (install .+)$", FILE.read_text("utf-8"), re.MULTILINE)
    assert len(commands) == 2
    hidden = {"CC": "/nonexistent", "CXX": "/nonexistent", "PATH": str(python.parent)}
    for command in commands:
        line = command.replace("requirements-without", str(FILE.parent / "requirements-without"))
        line = line.replace("offline-data", str(wheel)) if "--no-deps" in line else line
        quiet = [*line.split(), "--quiet", "--only-binary=:all:"]
        subprocess.run([python, "-m", "pip", *quiet], env={**os.environ, **hidden}, check=True)
    check_tour(take_tour(python, PYTHONPATH=""))

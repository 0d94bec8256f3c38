"""What pyproject.toml and setup.py say of the project: addresses, extras, PyPI's page."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from offline_data.formats.registry import iter_catalogs
from tests.install.conftest import ROOT, setup_options
from tests.remedy import assert_none

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
REPOSITORY: str = PROJECT["urls"]["Repository"]

ADDRESS = re.compile(
    r"github\.com/([\w.-]+/offline-data)\b|//([\w-]+\.github\.io/offline-data)\b"
    r"|uses: ([\w.-]+/offline-data)@|\b(OWNER/offline-data)\b"
)
SUFFIXES = {".py", ".md", ".toml", ".yml", ".yaml", ".cff", ".cfg", ""}
HINT = re.compile(r"offline-data\[([\w,]+)\]")


def _texts(*kept: str) -> Iterator[tuple[Path, str]]:
    """Iterate over the text files of the project, or those in some folders."""
    skipped = {"build", "dist", "site"}
    for top in sorted(ROOT.iterdir()):
        hidden = top.name[0] == "." and top.is_dir() and top.name not in {".github", ".ci"}
        if hidden or top.name in skipped or (kept and top.name not in kept):
            continue
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.suffix in SUFFIXES and path.is_file():
                yield path, path.read_text("utf-8", errors="replace")


@pytest.mark.slow
def test_every_file_has_the_addresses_of_the_project() -> None:
    owner, name = REPOSITORY.removeprefix("https://github.com/").split("/")
    site = f"{owner}.github.io/{name}"
    assert PROJECT["urls"]["Documentation"] == f"https://{site}/"
    found = {
        (path.relative_to(ROOT).as_posix(), *filter(None, address))
        for path, text in _texts()
        for address in ADDRESS.findall(text)
        if path != Path(__file__)
    }
    assert {place for place, _ in found} >= {"pyproject.toml", "docs/datasets-in-ci.md"}
    assert {(place, one) for place, one in found if one not in {f"{owner}/{name}", site}} == set()


def test_all_has_every_extra() -> None:
    named = {extra for line in EXTRAS["all"] for extra in Requirement(line).extras}
    assert_none(
        named ^ (EXTRAS.keys() - {"all"}), "the extra `all` in pyproject.toml names each other one"
    )


def test_each_package_is_in_one_extra_once() -> None:
    lines = [Requirement(line) for extra in EXTRAS.values() for line in extra]
    names = sorted((one.name, *sorted(one.extras)) for one in lines if one.name != "offline-data")
    assert_none(
        (name for name in set(names) if names.count(name) > 1),
        "pyproject.toml: name the package in one extra, and that one as offline-data[…] in the others",
    )


def test_every_extra_that_a_text_names_exists() -> None:
    hinted = {
        (path.name, extra)
        for path, text in _texts("offline_data", "cli", "docs", "README.md")
        for names in HINT.findall(text)
        for extra in names.split(",")
    }
    assert len(hinted) > 20
    assert_none(
        (
            f"{place}: offline-data[{extra}]"
            for place, extra in sorted(hinted)
            if extra not in EXTRAS and extra != "extra"  # catalogues explain their field so
        ),
        "name an extra of pyproject.toml",
    )
    printed = {catalog.extra for catalog in iter_catalogs()} - {None}
    assert len(printed) > 4
    assert_none(printed - EXTRAS.keys(), "sources name these extras: add them to pyproject.toml")


TEXT = """[![badge](https://a.example/b.svg)](https://a.example) ![bars](docs/pictures/bars.svg)
[![pic](docs/pictures/a.svg)](docs/index.md) [here](#install) [page](docs/a.md#b) [code](offline_data/)
<picture><source media="(dark)" srcset="docs/dark.svg"><img src="docs/light.svg"></picture>
<a href="docs/a.md">a</a> <a href="#b">b</a> <img src="https://a.example/c.svg">
"""


def test_links_of_the_readme_are_complete_on_pypi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob, raw = f"{REPOSITORY}/blob/main/", f"{REPOSITORY}/raw/main/"
    (tmp_path / "README.md").write_text(TEXT)
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    shown = setup_options(tmp_path, monkeypatch)["long_description"]
    assert shown == (
        TEXT.replace("](docs/pictures/", f"]({raw}docs/pictures/")
        .replace("](docs/index", f"]({blob}docs/index")
        .replace("](docs/a.md", f"]({blob}docs/a.md")
        .replace("](offline_data", f"]({blob}offline_data")
        .replace('="docs/dark', f'="{raw}docs/dark')
        .replace('="docs/light', f'="{raw}docs/light')
        .replace('="docs/a.md', f'="{blob}docs/a.md')
    )


def test_what_the_readme_links_to_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    shown = setup_options(ROOT, monkeypatch)["long_description"]
    code = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
    assert code.findall(shown) == code.findall(text)
    paths = re.findall(rf"{REPOSITORY}/(?:raw|blob)/main/([^)#\"]+)", shown)
    assert paths
    assert_none(
        (path for path in paths if not (ROOT / path).exists()),
        "README.md links to these, and they do not exist: write where the files are now",
    )
    assert re.findall(r"\]\((?!https?:|#)[^)]*|(?:src|srcset|href)=\"(?!https?:|#)", shown) == []


@pytest.mark.parametrize("module", ["offline_data", "offline_data_cli.main"])
def test_importing_on_windows_says_that_it_is_not_supported(module: str) -> None:
    code = f"import sys; sys.platform = 'win32'; import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: offline-data needs Linux or macOS; on Windows, install it in WSL 2 "
        "(https://learn.microsoft.com/windows/wsl/install)"
    )

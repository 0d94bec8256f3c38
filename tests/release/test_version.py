"""The version, dependencies and licence are the same wherever they are stated."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.release.conftest import ROOT
from tests.remedy import assert_none

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
CONDA_NAMES = {"torch": "pytorch"}


@pytest.fixture
def version(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("version")


@pytest.fixture
def repository(tmp_path: Path, version: ModuleType) -> Path:
    for name in version.PLACES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text("utf-8"), "utf-8")
    return tmp_path


def test_one_version(version: ModuleType) -> None:
    assert version.defects(ROOT) == []
    assert version.versions(ROOT)["pyproject.toml"] == PROJECT["version"]


def test_another_version_is_found_in_each_file(version: ModuleType, repository: Path) -> None:
    for name, pattern in version.PLACES.items():
        path, before = repository / name, (ROOT / name).read_text("utf-8")
        match = re.search(pattern, before, re.MULTILINE)
        assert match is not None
        path.write_text(before[: match.start(1)] + "9.9" + before[match.end(1) :], "utf-8")
        told = version.defects(repository)
        assert len(told) == (len(version.PLACES) - 1 if name == "pyproject.toml" else 1)
        assert "9.9" in told[0]
        path.write_text(before, "utf-8")


def test_tag_and_date(
    version: ModuleType, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes, tag = repository / "CHANGELOG.md", f"v{PROJECT['version']}"
    text = changes.read_text("utf-8")
    heading = f"## {PROJECT['version']} – "
    dated = re.sub(f"{re.escape(heading)}.*", f"{heading}2026-01-02", text, count=1)
    changes.write_text(dated, "utf-8")
    assert version.main(["--tag", tag, "--notes"], repository) == 0
    printed = capsys.readouterr().out
    assert len(printed) > 100
    assert heading not in printed
    assert version.main(["--tag", f"{tag}.1"], repository) == 1
    assert f"the tag is {tag}.1" in capsys.readouterr().err
    changes.write_text(dated.replace("2026-01-02", "unreleased", 1), "utf-8")
    assert version.main(["--tag", tag], repository) == 1
    assert "found 'unreleased'" in capsys.readouterr().err


def test_conda_recipe_has_the_requirements() -> None:
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text("utf-8"))
    assert recipe["context"]["name"] == PROJECT["name"]
    assert recipe["about"]["license"] == PROJECT["license"]
    assert recipe["about"]["summary"] == PROJECT["description"], (
        "conda/recipe.yaml: `summary` is the description of pyproject.toml"
    )
    wanted = [f"python {PROJECT['requires-python']}"]
    for requirement in PROJECT["dependencies"]:
        name, bound = re.fullmatch(r"([\w-]+)(>=[\d.]+)(?:;.*)?", requirement).groups()  # type: ignore[union-attr]
        if name != "deflate":  # optional, and not known to be on conda-forge
            wanted.append(f"{CONDA_NAMES.get(name, name)} {bound}")
    assert_none(
        set(recipe["requirements"]["run"]) ^ set(wanted),
        "conda/recipe.yaml: `run` has the dependencies of pyproject.toml, by their names in conda",
    )
    ((command, target),) = PROJECT["scripts"].items()
    assert recipe["build"]["python"]["entry_points"] == [f"{command} = {target}"]
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]
    assert {one.replace(">=", " >=") for one in tools} < set(recipe["requirements"]["host"])


def test_citation() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["title"] == PROJECT["name"]
    assert citation["license"] == PROJECT["license"]
    assert citation["abstract"] == PROJECT["description"], (
        "CITATION.cff: `abstract` is the description of pyproject.toml"
    )


def test_a_version_has_at_most_25_lines_in_the_changelog() -> None:
    _, *versions = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text("utf-8"), flags=re.MULTILINE)
    assert versions
    for section in versions:
        lines = len(re.findall(r"^- ", section, re.MULTILINE))
        assert lines <= 25, (
            f"CHANGELOG.md has {lines} lines for {section.partition(chr(10))[0]}, more than 25: add the change "
            "to the line of its subject (a source to **Sources**), or merge two lines"
        )

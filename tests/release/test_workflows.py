"""Workflows and forms of the repository: pinned, limited, and naming only what exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.release.conftest import ROOT
from tests.release.test_version import PROJECT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[0-9]-*.yml"))
KNOWN_COMMANDS = {"make", "python", "python3", "pipx", "cat", "cp", "git", "gh"}


def load(path: Path) -> dict[Any, Any]:
    content = yaml.safe_load(path.read_text("utf-8"))
    assert isinstance(content, dict)
    return content


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in load(path)["jobs"].values():
        yield from job.get("steps", ())


def commands(path: Path) -> Iterator[list[str]]:
    for step in steps(path):
        for line in step.get("run", "").splitlines():
            yield shlex.split(line)


def make_targets() -> set[str]:
    """Return the targets that `.PHONY` lists."""
    (line,) = re.findall(r"^\.PHONY: (.+)", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    return set(line.split())


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_is_limited(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert {"group", "cancel-in-progress"} == workflow["concurrency"].keys()
    for name, job in workflow["jobs"].items():
        called = "uses" in job  # the jobs of a called workflow have their own
        assert called or job["timeout-minutes"] <= 120, name
    for step in steps(path):
        if step.get("uses", "").startswith("actions/checkout@") and path.stem != "status":
            writes = path.stem == "publish" and "with" not in step
            assert writes or step["with"] == {"persist-credentials": False}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    used = re.findall(r"uses: (.*)", path.read_text("utf-8"))
    for action in used:
        local = re.fullmatch(r"\./(.+)", action)
        assert local or re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)
        assert not local or (ROOT / local[1]).is_file()
    assert used


def test_an_action_has_one_version() -> None:
    pins: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        for name, pin in re.findall(r"uses: (.+)@(.+)", path.read_text("utf-8")):
            pins.setdefault(name, set()).add(pin)
    assert {name: pin for name, pin in pins.items() if len(pin) > 1} == {}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_commands_exist(path: Path) -> None:
    targets = make_targets()
    extras = PROJECT["optional-dependencies"]
    for first, *rest in commands(path):
        assert first in KNOWN_COMMANDS
        if first == "make":
            named = {word for word in rest if "=" not in word}
            assert named
            assert named <= targets
        for word in rest:
            if word.startswith(".ci/"):
                assert (ROOT / word).is_file()
            if extra := re.fullmatch(r"\.\[(.+)\]", word):
                assert set(extra[1].split(",")) <= extras.keys()


def test_pythons_are_those_that_are_declared() -> None:
    declared = set(re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"])))
    matrix = load(ROOT / ".github" / "workflows" / "tests.yml")["jobs"]["unit"]["strategy"][
        "matrix"
    ]
    assert set(matrix["python"]) == declared
    assert all(row["experimental"] for row in matrix["include"])
    assert not {row["python"] for row in matrix["include"]} & declared
    lowest = PROJECT["requires-python"].removeprefix(">=")
    assert min(declared, key=lambda one: int(one[2:])) == lowest
    oldest = load(ROOT / ".github" / "workflows" / "tests.yml")["jobs"]["oldest"]["steps"]
    assert [step["with"]["python-version"] for step in oldest if "setup" in str(step)] == [lowest]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_form(path: Path) -> None:
    form = load(path)
    assert {"name", "description", "labels", "body"} == form.keys()
    ids = [field["id"] for field in form["body"]]
    assert len(set(ids)) == len(ids)
    for field in form["body"]:
        assert field["type"] in {"input", "textarea", "dropdown"}
        assert field["attributes"]["label"]
        assert field["type"] != "dropdown" or len(set(field["attributes"]["options"])) > 1


def test_other_files_parse() -> None:
    assert len(FORMS) == 3
    updates = load(ROOT / ".github" / "dependabot.yml")["updates"]
    assert [one["package-ecosystem"] for one in updates] == ["github-actions"]
    assert load(ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml")["contact_links"]


def test_the_checklist_names_what_exists() -> None:
    page = (ROOT / "docs" / "releasing.md").read_text("utf-8")
    targets = make_targets()
    for words in re.findall(r"\$ make (.+)", page):
        assert {word for word in words.split() if "=" not in word} <= targets
    for script in re.findall(r"\.ci/\w+\.py", page):
        assert (ROOT / script).is_file()
    for name in re.findall(r"(?:workflow run |workflow )`?([\w-]+)\b", page):
        assert (ROOT / ".github" / "workflows" / f"{name}.yml").is_file()
    labels = {label for path in FORMS for label in load(path)["labels"]}
    assert all(f"`{label}`" in page for label in labels)

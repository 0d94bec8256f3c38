"""Values, JSON, exit codes, texts and public names that a change of structure must not change.

`OFFLINE_DATA_FREEZE=1 pytest tests/frozen` writes the files of `golden` anew: in a commit of its
own, that says which change for users it records.
"""

from __future__ import annotations

import inspect
import json
import os
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any, get_origin

import pytest

import offline_data
import offline_data.plugins
from tests.cli.conftest import Cli
from tests.frozen import commands, values

GOLDEN = Path(__file__).parent / "golden"
STORAGES = ("LazyTensorStorage", "LazyMemmapStorage", "ListStorage")
DRAWN = [(name, storage) for name in values.samplers() for storage in STORAGES]


def compare(file: str, name: str, found: Any) -> None:
    """Compare a value with the one of this name in a golden file, or record it there."""
    path = GOLDEN / f"{file}.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if os.environ.get("OFFLINE_DATA_FREEZE"):
        known[name] = found
        path.parent.mkdir(exist_ok=True)
        text = json.dumps(known, indent=1, sort_keys=True, ensure_ascii=False)
        path.write_text(text + "\n", encoding="utf-8")
    assert found == known[name]


@pytest.mark.parametrize("name", values.CONVERSIONS)
def test_conversions(name: str, tmp_path: Path) -> None:
    compare("conversions", name, values.converted(name, tmp_path))


@pytest.mark.parametrize("name", values.samplers())
def test_batches_of_datasets(name: str, tmp_path: Path) -> None:
    compare("batches", f"dataset, {name}", values.on_dataset(name, tmp_path))


@pytest.mark.parametrize(("name", "storage"), DRAWN)
def test_batches_of_growing_buffers(name: str, storage: str, tmp_path: Path) -> None:
    compare("batches", f"growing, {name}", values.growing(name, storage, tmp_path))


@pytest.mark.parametrize("name", values.DERIVED)
def test_derived_leaves(name: str, tmp_path: Path) -> None:
    compare("batches", f"derived, {name}", values.derived(name, tmp_path))


@pytest.mark.parametrize("name", values.MIXED)
def test_batches_of_several_datasets(name: str, tmp_path: Path) -> None:
    compare("batches", f"mixed, {name}", values.MIXED[name](tmp_path))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory of a command, with two datasets under `root`."""
    commands.prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OFFLINE_DATA_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("OFFLINE_DATA_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_json(name: str, cli: Cli, folder: Path) -> None:
    words = [*shlex.split(commands.COMMANDS[name]), "--json"]
    compare("json", name, commands.run(words, cli, folder))


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_texts(name: str, cli: Cli, folder: Path) -> None:
    words = shlex.split(commands.COMMANDS[name])
    compare("texts", name, commands.run(words, cli, folder))


def test_help(cli: Cli, folder: Path) -> None:
    found = {verb: cli(*verb.split(), "--help").out.splitlines() for verb in commands.HELP}
    compare("texts", "help", found)


@pytest.mark.parametrize("module", [offline_data, offline_data.plugins])
def test_public_names(module: ModuleType) -> None:
    found = {}
    for name in module.__all__:
        value = getattr(module, name)
        if get_origin(value):  # an alias of a type
            continue
        try:
            found[name] = [str(parameter) for parameter in _parameters(value)]
        except (TypeError, ValueError):
            found[name] = []
    compare("names", module.__name__, found)


def _parameters(value: Any) -> list[str]:
    """Return the parameters of a function or class: name, kind, and whether there is a default."""
    given = inspect.signature(value).parameters.values()
    return [
        f"{p.name} {p.kind.name.lower()}{'' if p.default is p.empty else ', optional'}"
        for p in given
    ]

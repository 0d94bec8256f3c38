"""Values, JSON, exit codes, texts and public names that a change of structure must not change.

`OFFLINE_DATA_FREEZE=1 pytest -m '' tests/frozen` writes the files of `golden` anew: in a commit of its
own, that says which change for users it records. Dropped on purpose: `fragmented` of slice samplers.
"""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, get_origin

import pytest

import offline_data
import offline_data.agilerl
import offline_data.plugins
import offline_data.torchrl
from tests.cli.conftest import Cli
from tests.frozen import commands, conversions, exports, loading, values
from tests.frozen.recorded import GOLDEN, compare, compare_names
from tests.slow import slow_but

CASES: dict[str, dict[str, Callable[[Path], Any]]] = {
    "conversions": conversions.CASES,
    "batches": values.CASES,
    "loading": loading.CASES,
    "exports": exports.CASES,
}
"""What returns the value of each name of a golden file, in a folder of its own."""
SLOW = {"minari", "robomimic", "loader, 2 workers", "stream, 2 workers"} | {
    f"ReplayDataset, {name}, 2 workers"
    for name in ("SamplerWithoutReplacement", "SliceSamplerWithoutReplacement")
}
"""Names of values that are slow, each beside another one of its kind."""
SLOW_TWICE = {f"export --to {to}" for to in ("minari", "d4rl", "d3rlpy", "robomimic", "zarr")}
"""Commands whose JSON is tested in the slow run, and their texts by default."""
AS_JSON = {*[*commands.COMMANDS][::2]} - SLOW_TWICE
"""Commands whose JSON is tested by default, and their texts in the slow run."""


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores
@pytest.mark.filterwarnings("ignore:.*use of fork\\(\\)")  # torch has one thread here
@pytest.mark.parametrize(
    ("file", "name"),
    [
        pytest.param(file, name, marks=pytest.mark.slow if name in SLOW else ())
        for file in CASES
        for name in CASES[file]
    ],
)
def test_values(file: str, name: str, tmp_path: Path) -> None:
    compare(file, name, CASES[file][name](tmp_path))


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what each command finds; not to be written."""
    folder = tmp_path_factory.mktemp("prepared")
    commands.prepare(folder)
    return folder


@pytest.fixture
def folder(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory of a command, with two datasets under `root`."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OFFLINE_DATA_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("OFFLINE_DATA_OFFLINE", "1")
    monkeypatch.setenv("OFFLINE_DATA_WORKERS", "2")
    monkeypatch.setenv("COLUMNS", "80")
    commands.patch(monkeypatch)
    return tmp_path


@pytest.mark.parametrize("name", slow_but(AS_JSON.__contains__, commands.COMMANDS))
def test_json(name: str, cli: Cli, folder: Path) -> None:
    *first, last = commands.words_of(name)
    compare("json", name, commands.run([*first, [*last, "--json"]], cli, folder))


@pytest.mark.parametrize("name", slow_but(lambda name: name not in AS_JSON, commands.COMMANDS))
def test_texts(name: str, cli: Cli, folder: Path) -> None:
    compare("texts", name, commands.run(commands.words_of(name), cli, folder))


@pytest.mark.parametrize("verb", commands.EVERY)
def test_every_verb_is_run_and_fails(verb: str) -> None:
    words = verb.split()
    names = [n for n in commands.COMMANDS if commands.words_of(n)[-1][: len(words)] == words]
    texts = json.loads((GOLDEN / "texts.json").read_text(encoding="utf-8"))
    codes = {texts[name]["code"] for name in names if name in texts}
    assert 0 in codes, f"`{verb}` has no command line in COMMANDS that works"
    assert codes - {0}, f"`{verb}` has no command line in COMMANDS that fails"


MODULES = [offline_data, offline_data.agilerl, offline_data.plugins, offline_data.torchrl]
"""Where public names are."""


def test_help(cli: Cli, folder: Path) -> None:
    found = {verb: cli(*verb.split(), "--help").out.splitlines() for verb in commands.HELP}
    compare("texts", "help", found)


@pytest.mark.parametrize("module", MODULES)
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


def test_no_name_is_stale() -> None:
    """Last in the file: where files are written anew, others have been recorded before."""
    known = {file: {*names} for file, names in CASES.items()}
    known |= {"json": {*commands.COMMANDS}, "texts": {*commands.COMMANDS, "help"}}
    known["names"] = {module.__name__ for module in MODULES}
    known["digests"] = {"partial of public objects"}
    for file, names in known.items():
        compare_names(file, names)


def test_a_dataset_is_a_buffer_by_torchrls_names(tmp_path: Path) -> None:
    dataset = values._loaded(tmp_path)
    for name in ("ReplayBuffer", "TensorDictReplayBuffer"):
        assert isinstance(dataset, getattr(offline_data, name))
        assert issubclass(type(dataset.filter("length > 0")), getattr(offline_data, name))
    for name in ("TensorDictPrioritizedReplayBuffer", "PrioritizedReplayBuffer"):
        assert not isinstance(dataset, getattr(offline_data, name))

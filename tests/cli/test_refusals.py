"""Command lines that are refused: the cases are the lines of `refusals.json`, with exit code, message and hint."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from offline_data.testing.toy import toy_batch
from offline_data_cli.verbs import GROUPS, HIDDEN, VERBS
from tests.cli.conftest import Cli
from tests.frozen.commands import plain
from tests.refusals import Refusals
from tests.slow import every
from tests.toys.files import write_npz
from tests.toys.stored import write_stored

REFUSALS = Refusals(Path(__file__).with_name("refusals.json"))
CODES = {"unknown": 3, "malformed": 2}
"""Exit codes of a well-formed name of nothing, and of what cannot be meant."""
DATASETS = {
    "info": "", "head": "", "tail": "", "sample": "", "stats": "", "episodes": "", "replay": "", "plot": "", "view": " 0",
    "card": "", "path": "", "open": "", "check": "", "report": " --out a.html", "verify": "",
    "rm": " -y", "download": "", "preprocess": " --step clip:action,low=0 --out a",
    "filter": " length>1 --out a", "merge": " local:toy --out a", "split": " a=0.5 b=0.5", "rename": " a", "cp": " a",
    "diff": " local:toy", "align": "", "push": " pushed", "export": " x.hdf5 --to d4rl", "compare": " local:toy --out a.html",
}  # fmt: skip
"""Verbs whose first argument is a dataset, and the rest of their command line."""
FUNCTIONS = "def doubled(td):\n    return td\n"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a working directory with two datasets under `root`; not to be written."""
    folder = tmp_path_factory.mktemp("prepared")
    for name in ("toy", "other"):
        write_stored(folder / "root", f"local:{name}@1", toy_batch([3, 2], text=True))
    (folder / "functions.py").write_text(FUNCTIONS)
    (folder / "datasets.toml").write_text('[datasets]\ntoy = "local:toy"\n')
    (folder / "here.html").write_text("mine")
    (folder / "config.toml").touch()
    (folder / "local").mkdir()
    write_npz(folder / "own.npz", {"x": np.zeros(3)})
    return folder


@pytest.fixture
def folder(prepared: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OFFLINE_DATA_CONFIG", str(tmp_path / "config.toml"))
    return tmp_path


def content(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder, except locks and what Python compiles."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(one): one.read_bytes() for one in files if one.suffix not in {".lock", ".pyc"}}


@REFUSALS.cases
def test_refusals(kind: str, text: str, cli: Cli, folder: Path) -> None:
    """Both outputs say it, in words and as JSON, and nothing is written."""
    if "plan.json" in text.split() and text.startswith("worker"):
        step = ("--step", "clip:action,low=1", "--out", "new")
        cli("preprocess", "local:toy", *step, "--plan-only", "--plan", "plan.json")
    before, words = content(folder), shlex.split(text)
    ran = cli("--offline", *words)
    assert (ran.code, ran.out) == (CODES[kind], "")
    as_json = cli("--offline", "--json", *words)
    error = as_json.json["error"]
    assert (as_json.code, {*error}) == (ran.code, {"code", "message", "hint"})
    REFUSALS.compare(kind, text, f"{error['code']} {plain(ran.err, folder).rstrip()}")
    assert content(folder) == before


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("verb", every(3, DATASETS))
def test_names_of_datasets(cli: Cli, verb: str) -> None:
    unknown = ("nope", "local:nope", "d4rl:nope-v0", "nope:x", "local:toy@nope")
    for name in (*unknown, ":x", "local:", "local:../x", "Lo:x", "local:toy@"):
        line = f"{verb} {name}{DATASETS[verb]}"
        ran = cli("--offline", *line.split())
        assert (line, ran.code, ran.out) == (line, 3 if name in unknown else 2, "")
        assert ran.err.startswith("error: ")
        said = cli("--offline", "--json", *line.split()).json["error"]
        assert set(said) == {"code", "message", "hint"}


def test_every_verb_is_here() -> None:
    verbs = {*HIDDEN, *(verb for panel in VERBS.values() for verb in panel)}
    verbs |= {f"{group} {verb}" for group, (_, _, inner) in GROUPS.items() for verb in inner}
    tried = {*DATASETS, *(line for lines in REFUSALS.known.values() for line in lines)}
    assert [v for v in verbs if not any(f"{line} ".startswith(f"{v} ") for line in tried)] == []

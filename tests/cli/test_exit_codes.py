"""Exit codes of typing errors, for every verb: 3 for an unknown name, 2 for a wrong form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offline_data_cli.verbs import GROUPS, HIDDEN, VERBS

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

DATASETS = {
    "info": "", "head": "", "tail": "", "sample": "", "stats": "", "episodes": "", "replay": "", "plot": "", "view": " 0",
    "card": "", "path": "", "open": "", "check": "", "report": " --out a.html", "verify": "",
    "rm": " -y", "download": "", "preprocess": " --step clip:action,low=0 --out a",
    "filter": " length>1 --out a", "merge": " local:toy --out a", "split": " a=0.5 b=0.5", "rename": " a", "cp": " a",
    "diff": " local:toy", "align": "", "push": " pushed", "export": " x.hdf5 --to d4rl", "compare": " local:toy --out a.html",
}  # fmt: skip
"""Verbs whose first argument is a dataset, and the rest of their command line."""

UNKNOWN = (
    "list nope",
    "list nope --remote",
    "search zzzz",
    "search zzzz -q",
    "head local:toy --episode 99",
    "tail local:toy --episode 99",
    "view local:toy 99",
    "episodes local:toy --sort nope",
    "episodes local:toy --leaf nope",
    "diff local:toy nope",
    "align local:toy --pair observation:nope",
    "check local:toy --select RL999",
    "check local:toy --ignore nope",
    "check local:toy --baseline nope.json",
    "check local:toy --config nope.toml",
    "rule nope",
    "explain nope",
    "step nope",
    "preprocess local:toy --step nope --out a",
    "preprocess local:toy --step clip:nope,low=0 --out a",
    "preprocess local:toy --step normalize:nope --out a",
    "preprocess local:toy --step rename:nope=a --out a",
    "preprocess local:toy --fn nope.py:f --out a",
    "preprocess local:toy --fn nope_nope:f --out a",
    "preprocess local:toy --fn math:nope --out a",
    "filter local:toy nope>1 --out a",
    "convert nope a",
    "convert local a --from nope",
    "lock",
    "lock --upgrade nope",
    "sync",
    "worker --plan nope.json --finish",
    "cache rm nope",
    "config get nope",
    "config set nope 1",
)
"""Command lines with a well-formed name that does not exist."""

MALFORMED = (
    "list --sort nope",
    "search",
    "search a --max-size big",
    "head local:toy -n x",
    "tail local:toy -n 0",
    "sample local:toy --batch x",
    "plot local:toy --out a.nope",
    "view local:toy x",
    "check local:toy --fail-on nope",
    "check local:toy --output-format nope",
    "rule --nope",
    "step --nope",
    "browse --port x",
    "preprocess local:toy --step clip:action,nope=1 --out a",
    "preprocess local:toy --step clip:action,low=x --out a",
    "preprocess local:toy --fn nope --out a",
    "preprocess local:toy --engine nope --out a",
    "filter local:toy >>> --out a",
    "split local:toy a=x",
    "convert local a:b:c",
    "convert local a --layout nope",
    "convert local a --episodes x",
    "convert local a --audit x",
    "download d4rl:x --layout nope",
    "lock nope",
    "sync --nope",
    "demo nope",
    "sources nope",
    "env nope",
    "version nope",
    "worker --plan nope.json --rank x",
    "cache nope",
    "cache dir nope",
    "cache ls nope",
    "cache rm",
    "cache prune --older-than x",
    "config nope",
    "config get --nope",
    "config set workers x",
    "config edit nope",
    "config path nope",
    "completion nope",
    "nope",
    "--format nope list",
)
"""Command lines with an option, a verb or a value that cannot be meant."""


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("verb", DATASETS)
def test_a_dataset(cli: Cli, verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("nope", "local:nope", "d4rl:nope-v0", "nope:x", "local:toy@nope"):
        _ends(cli, f"{verb} {text}{DATASETS[verb]}", 3)
    for text in (":x", "local:", "local:../x", "Lo:x", "local:toy@"):
        _ends(cli, f"{verb} {text}{DATASETS[verb]}", 2)


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("line", UNKNOWN)
def test_an_unknown_name(
    cli: Cli, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "--upgrade" in line:
        (tmp_path / "datasets.toml").write_text('[datasets]\ntoy = "local:toy"\n')
    if line.startswith("convert local"):
        (tmp_path / "local").mkdir()
    _ends(cli, line, 3)


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("line", MALFORMED)
def test_a_wrong_form(cli: Cli, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if line.startswith("convert local"):
        (tmp_path / "local").mkdir()
    _ends(cli, line, 2)


def test_every_verb_is_here() -> None:
    verbs = {*HIDDEN, *(verb for panel in VERBS.values() for verb in panel)}
    verbs |= {f"{group} {verb}" for group, (_, _, inner) in GROUPS.items() for verb in inner}
    tried = {*DATASETS, *UNKNOWN, *MALFORMED}
    assert [v for v in verbs if not any(f"{line} ".startswith(f"{v} ") for line in tried)] == []


def _ends(cli: Cli, line: str, code: int) -> None:
    """Run a line and compare its exit code; it says why, and as JSON, too."""
    ran = cli("--offline", *line.split(" "))
    assert (line, ran.code, ran.err) == (line, code, ran.err)
    assert ran.out == ""
    assert "-q" in line.split() or ran.err
    if not line.startswith("search zzzz"):
        said = json.loads(cli("--offline", "--json", *line.split(" ")).out)
        assert set(said["error"]) == {"code", "message", "hint"}

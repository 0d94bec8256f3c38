"""The table of verbs and the values of options, which neither imports nor asks a library."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path

import pytest

from offline_data_cli.app import command_tree
from offline_data_cli.verbs import GROUPS, HIDDEN, VERBS
from tests.cli.conftest import Cli, program

TABLE = {name: row for verbs in VERBS.values() for name, row in verbs.items()}
TABLE |= HIDDEN
TABLE |= {
    f"{group} {name}": row for group, (*_, rows) in GROUPS.items() for name, row in rows.items()
}


@pytest.mark.parametrize("verb", TABLE)
def test_the_table_has_the_first_line_of_the_docstring(verb: str) -> None:
    place, text = TABLE[verb]
    module, _, function = place.partition(":")
    command = getattr(import_module(f"offline_data_cli.commands.{module}"), function)
    first = (inspect.getdoc(command) or "").splitlines()[0]
    assert first == text, f"write {first!r} as the text of {verb} in cli/offline_data_cli/verbs.py"


def test_help_imports_no_verb() -> None:
    modules = "import sys, atexit; atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
    ran = program("--help", code=modules)
    assert "offline-data --help" not in ran.err
    assert [one for one in ran.err.split() if one.startswith("offline_data_cli.commands.")] == []
    assert set(ran.err.split()) & {"pydantic", "rich.markdown"} == set()
    listed = [name for verbs in VERBS.values() for name in verbs] + [*GROUPS]
    for name in command_tree().commands:
        assert (f"\n  {name} " in ran.out) == (name in listed)


def test_head(toy: Path, cli: Cli) -> None:
    assert cli("head", "toy", "--tail", "--json").json == cli("tail", "toy", "--json").json
    (last,) = cli("tail", "toy", "-n", "1", "--episode", "0", "--json").json
    assert (last["index"], last["episode"]) == (2, 0)
    drawn = cli("head", "toy", "--random", "4", "--seed", "1", "--json").json
    assert drawn == cli("head", "toy", "--random", "4", "--seed", "1", "--json").json
    assert len(drawn) == 4
    first = {one["index"]: one for one in cli("head", "toy", "-n", "9", "--json").json}
    assert all(first[one["index"]] == one for one in drawn)


def test_check_files(toy: Path, cli: Cli) -> None:
    same = cli("check", "toy", "--files", "--json")
    assert (same.code, same.json) == (0, cli("verify", "toy", "--json").json)
    file = next(toy.glob("steps/*.memmap"))
    file.write_bytes(bytes(file.stat().st_size))
    assert cli("check", "toy", "--files").code == 5
    assert cli("check", "--all", "--files").code == 5


def test_report_takes_in_compare_and_card(toy: Path, cli: Cli, tmp_path: Path) -> None:
    cli("cp", "toy", "other")
    both = cli("report", "toy", "other", "--out", str(tmp_path / "both.html"), "--json").json
    assert both["id"] == ["local:toy@1", "local:other@1"]
    cli("compare", "toy", "other", "--out", str(tmp_path / "same.html"))
    assert (tmp_path / "same.html").stat().st_size == both["bytes"]
    assert cli("report", "toy", "--card").out == cli("card", "toy").out


def test_explain(cli: Cli) -> None:
    assert cli("explain", "RL020", "--json").json == cli("rule", "RL020", "--json").json
    assert cli("explain", "clip").out == cli("step", "clip").out
    everything = cli("explain", "-q").out.split()
    assert {"RL001", "clip"} <= {*everything}


def test_env_has_the_sources(cli: Cli) -> None:
    assert cli("env", "--json").json["sources"] == cli("sources", "--json").json

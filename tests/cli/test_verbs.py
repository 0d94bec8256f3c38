"""The table of verbs and the values of options, which neither imports nor asks a library."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from offline_data_cli.app import command_tree
from offline_data_cli.verbs import GROUPS, VERBS
from tests.cli.conftest import program

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

TABLE = {name: row for verbs in VERBS.values() for name, row in verbs.items()}
TABLE |= {
    f"{group} {name}": row for group, (*_, rows) in GROUPS.items() for name, row in rows.items()
}


@pytest.mark.parametrize("verb", TABLE)
def test_the_table_has_the_first_line_of_the_docstring(verb: str) -> None:
    place, text = TABLE[verb]
    module, _, function = place.partition(":")
    command = getattr(import_module(f"offline_data_cli.commands.{module}"), function)
    assert (inspect.getdoc(command) or "").splitlines()[0] == text


def test_help_imports_no_verb() -> None:
    modules = "import sys, atexit; atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
    ran = program("--help", code=modules)
    assert "offline-data --help" not in ran.err
    assert [one for one in ran.err.split() if one.startswith("offline_data_cli.commands.")] == []
    assert set(ran.err.split()) & {"pydantic", "rich.markdown"} == set()
    for name in command_tree().commands:
        assert f"  {name} " in ran.out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("search x --limit ten", "'--limit': 'ten' is not a whole number"),
        ("search x --limit 0", "'--limit': 0 is out of range; expected at least 1"),
        ("list --format xml", "'--format': 'xml' is not one of table, tsv, json"),
        ("download a:b --timeout soon", "'--timeout': 'soon' is not a number"),
        ("download a:b --engine slurm", "'--engine': 'slurm' is not one of local, ray"),
        ("config set root", "Missing argument 'VALUE'"),
    ],
)
def test_wrong_values(line: str, said: str, cli: Cli) -> None:
    ran = cli(*line.split())
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err

"""Global options: at any place, merged, on every verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import typer

from offline_data.errors import UsageError
from offline_data_cli.app import app
from offline_data_cli.context import Globals
from offline_data_cli.options import parse_episodes

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Cli

GLOBAL = {"--root", "--offline", "--json", "--quiet", "--yes", "--no-progress", "-v", "--version"}


def _commands() -> list[tuple[str, set[str]]]:
    top = typer.main.get_command(app)
    verbs = dict(top.commands)  # type: ignore[attr-defined]
    verbs.update({f"cache {name}": verb for name, verb in verbs["cache"].commands.items()})
    return [
        (name, {option for parameter in verb.params for option in parameter.opts})
        for name, verb in verbs.items()
    ]


@pytest.mark.parametrize(("name", "options"), _commands())
def test_every_verb_takes_every_global_option(name: str, options: set[str]) -> None:
    assert options >= GLOBAL | {"-q", "-y"}, name


def test_the_verbs_are_those_of_the_interface() -> None:
    assert {name for name, _ in _commands()} == {
        "cache", "cache dir", "cache ls", "cache prune", "cache rm", "convert", "demo",
        "download", "env", "head", "info", "list", "ls", "preprocess", "rm", "sample", "search",
        "show", "sources", "stats", "verify", "worker",
    }  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [
        ("--root", "{}", "--json", "cache", "dir"),
        ("cache", "--root", "{}", "--json", "dir"),
        ("cache", "dir", "--root", "{}", "--json"),
        ("--json", "cache", "dir", "--root={}"),
    ],
)
def test_before_between_and_after(cli: Cli, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    there = str(tmp_path / "there")
    assert cli(*(part.format(there) for part in arguments)).json == {"root": there}


def test_the_root_furthest_right_counts(cli: Cli, tmp_path: Path) -> None:
    ran = cli("--root", str(tmp_path / "a"), "cache", "dir", "--root", str(tmp_path / "b"))
    assert ran.out == f"{tmp_path / 'b'}\n"


def test_without_an_option_the_environment_counts(cli: Cli, tmp_path: Path) -> None:
    assert cli("cache", "dir").out == f"{tmp_path / 'root'}\n"


def test_offline_is_passed_on_and_not_taken_back(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("env", "--json").json["settings"]["offline"] is False
    assert cli("--offline", "env", "--json").json["settings"]["offline"] is True
    monkeypatch.setenv("OFFLINE_DATA_OFFLINE", "1")
    assert cli("env", "--json").json["settings"]["offline"] is True


def test_flags_stay_set() -> None:
    merged = Globals(json=True, yes=True).then(Globals(quiet=True))
    assert (merged.json, merged.yes, merged.quiet, merged.offline) == (True, True, True, False)


@pytest.mark.parametrize("arguments", [("--version",), ("list", "--version")])
def test_version(cli: Cli, arguments: tuple[str, ...]) -> None:
    ran = cli(*arguments)
    assert ran.code == 0
    assert ran.out.startswith("offline-data 0.")


def test_a_variable_that_does_not_parse_is_a_usage_error(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFLINE_DATA_WORKERS", "lots")
    ran = cli("list")
    assert ran.code == 2
    assert "OFFLINE_DATA_WORKERS" in ran.err


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0:10", (0, 10)), ("5:", (5, None)), (":5", (None, 5)), (None, None)],
)
def test_ranges_of_episodes(
    text: str | None, expected: tuple[int | None, int | None] | None
) -> None:
    assert parse_episodes(text) == expected


@pytest.mark.parametrize("text", ["7", "a:b", "-3:4", "1:2:3", "1.5:2", ""])
def test_no_range_of_episodes(text: str) -> None:
    with pytest.raises(UsageError, match="--episodes"):
        parse_episodes(text)

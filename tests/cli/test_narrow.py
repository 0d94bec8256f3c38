"""Tables in terminals of any width: what names a row is whole, and nothing goes without a word."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import pytest

from offline_data_cli.main import main
from offline_data_cli.render import Mode, column_widths, show
from offline_data_cli.result import Column, Result, Table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Cli, Terminal

    SitDown: TypeAlias = Callable[..., Terminal]

WIDTHS = (40, 80, 200)
COMMANDS = {
    "search": ("search", "human"),
    "search, long names": ("search", "minari"),
    "list --remote": ("list", "d4rl", "--remote"),
    "list": ("list",),
    "sources": ("sources",),
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("command", COMMANDS)
def test_ids_are_whole(
    command: str,
    width: int,
    cli: Cli,
    toy: Path,
    terminal: SitDown,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = cli(*COMMANDS[command], "-q").out.split()
    assert ids
    screen = terminal()
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(COMMANDS[command]) == 0
    lines = screen.out.text.splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].startswith(("ID", "SOURCE"))
    longest = max(map(len, ids))
    if longest <= width:
        firsts = {line.partition(" ")[0] for line in lines[1:]}
        assert firsts.issuperset(ids)
    else:  # folded, not cut
        half = {line[: width // 2].strip() for line in lines[1:]}
        assert all(one[: width // 2] in half for one in ids)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "arguments",
    [("cache", "ls"), ("info", "local:toy"), ("head", "local:toy"), ("sample", "local:toy")],
)
def test_what_a_command_is_about_is_there(
    arguments: tuple[str, ...],
    width: int,
    toy: Path,
    terminal: SitDown,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = terminal()
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(arguments) == 0
    out = screen.out.text
    assert max(map(len, out.splitlines())) <= width
    assert ("local/toy/1" if arguments[0] == "cache" else "next/observation/state"[5:]) in out


def test_a_column_that_goes_is_named(terminal: SitDown, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal()
    monkeypatch.setenv("COLUMNS", "40")
    table = Table((Column("ID"), Column("ROWS", "count"), Column("WHAT")), (("x" * 36, 5, "y"),))
    show(Result({}, (table,)), Mode.HUMAN)
    assert "x" * 36 in screen.out.text
    assert "ROWS, WHAT not shown" in screen.out.text


def test_widths() -> None:
    text, count = Column("TEXT"), Column("COUNT", "count")
    kept = Column("KEPT", keep=True)
    assert column_widths([(text, 10), (count, 5), (text, 100)], 80) == [10, 5, 61]
    assert column_widths([(text, 70), (count, 5), (text, 100)], 80) == [70, 5, 0]
    assert column_widths([(text, 80), (count, 5)], 80) == [80, 0]
    assert column_widths([(text, 90), (count, 5), (text, 6)], 80) == [65, 5, 6]
    assert column_widths([(text, 8), (count, 9), (text, 50), (kept, 50)], 40) == [8, 9, 0, 19]
    assert column_widths([(text, 4), (text, 50), (text, 50)], 60) == [4, 26, 26]

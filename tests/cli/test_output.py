"""What is printed for people, pipes and scripts, and what is asked."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pytest

from offline_data.errors import UsageError
from offline_data_cli.render import Mode, confirm, say, show, show_error, to_json
from offline_data_cli.result import Column, Field, Fields, Result, Table

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Terminal

    SitDown: TypeAlias = Callable[..., Terminal]

LONG = "local:" + "x" * 90
TABLE = Table(
    (
        Column("ID"),
        Column("ROWS", "count"),
        Column("SIZE", "bytes"),
        Column("EMPTY"),
        Column("WHAT"),
    ),
    (
        ("local:toy@1", 1234567, 3 << 20, None, "a tab\tand\na line " * 8),
        (LONG, None, 5, "", "b"),
    ),
)
RESULT = Result(
    {"rows": 2},
    (TABLE, Fields((Field("notes", ("one", "two")), Field("none", None))), "the end"),
    ("local:toy@1", LONG),
    ("a note",),
)


def test_a_pipe_gets_everything_between_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    show(RESULT, Mode.HUMAN)
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == "ID\tROWS\tSIZE\tEMPTY\tWHAT"
    assert lines[1].split("\t")[:4] == ["local:toy@1", "1234567", "3145728", ""]
    assert lines[1].split("\t")[4] == "a tab and a line " * 8
    assert lines[2] == f"{LONG}\t\t5\t\tb"
    assert lines[3:] == ["", "notes\tone", "notes\ttwo", "", "the end"]
    assert err == "a note\n"


def test_a_terminal_gets_80_columns_and_nothing_is_cut(terminal: SitDown) -> None:
    screen = terminal()
    show(RESULT, Mode.HUMAN)
    out = screen.out.text
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    assert "1,234,567" in out
    assert "3.0 MiB" in out
    assert "EMPTY" not in out
    assert out.count("x") == 90


def test_colour_only_where_it_is_wanted(terminal: SitDown, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal()
    show_error("error", "bad", None, as_json=False)
    assert "\x1b[1;31m" in screen.err.getvalue()
    screen = terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    show_error("error", "bad", None, as_json=False)
    assert "31m" not in screen.err.getvalue()


def test_no_escape_codes_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show(RESULT, Mode.HUMAN)
    show_error("error", "bad", "hint", as_json=False)
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err


@pytest.mark.parametrize("mode", [Mode.HUMAN, Mode.QUIET])
def test_texts_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str], mode: Mode) -> None:
    evil = "\x1b]0;owned\x07\x9b2J\u202e"
    table = Table((Column("ID"),), ((evil,),))
    show(Result(None, (table, evil), (evil,), (evil,)), mode)
    show_error("error", evil, evil, as_json=False)
    out, err = capsys.readouterr()
    assert not set("\x1b\x07\x9b\u202e") & set(out + err)


def test_texts_are_no_markup(terminal: SitDown) -> None:
    screen = terminal()
    show(Result(None, (Table((Column("A"),), (("[red]x[/red] :smile:",),)),)), Mode.HUMAN)
    assert "[red]x[/red] :smile:" in screen.out.text


def test_quiet_is_ids_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    show(RESULT, Mode.QUIET)
    assert capsys.readouterr() == (f"local:toy@1\n{LONG}\n", "")


def test_json_is_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    show(RESULT, Mode.JSON)
    out, err = capsys.readouterr()
    assert json.loads(out) == {"rows": 2}
    assert err == "a note\n"


def test_json_of_everything_a_result_may_hold() -> None:
    @dataclass(frozen=True)
    class Leaf:
        shape: tuple[int, ...]

    value = {
        "path": Path("/data"),
        "leaf": Leaf((3, 2)),
        "array": np.array([[1.5, np.nan]], "f4"),
        "scalar": np.int64(2**40),
        "complex": 1 + 2j,
        "inf": [float("inf"), float("-inf")],
        "flag": np.bool_(True),
    }
    assert json.loads(to_json(value), parse_constant=pytest.fail) == {
        "path": "/data",
        "leaf": {"shape": [3, 2]},
        "array": [[1.5, "NaN"]],
        "scalar": 2**40,
        "complex": [1.0, 2.0],
        "inf": ["Infinity", "-Infinity"],
        "flag": True,
    }
    with pytest.raises(TypeError, match="object has no JSON form"):
        to_json(object())


def test_without_a_terminal_a_question_fails_and_names_yes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(UsageError) as caught:
        confirm((TABLE,), "Delete it?", yes=False, mode=Mode.HUMAN)
    assert "--yes" in str(caught.value.hint)
    out, err = capsys.readouterr()
    assert out == ""
    assert "local:toy@1" in err


@pytest.mark.parametrize(
    ("typed", "agreed"),
    [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("", False)],
)
def test_a_question_in_a_terminal(terminal: SitDown, typed: str, agreed: bool) -> None:
    screen = terminal(typed)
    assert confirm((), "Delete it?", yes=False, mode=Mode.HUMAN) is agreed
    assert (screen.out.text, screen.err.text) == ("", "Delete it? [y/N] ")


def test_yes_answers_without_asking(capsys: pytest.CaptureFixture[str]) -> None:
    assert confirm(("what goes",), "Delete it?", yes=True, mode=Mode.QUIET)
    assert capsys.readouterr() == ("", "")
    assert confirm(("what goes",), "Delete it?", yes=True, mode=Mode.HUMAN)
    assert capsys.readouterr() == ("", "what goes\n")


def test_notes_keep_still_when_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    say("hush", Mode.QUIET)
    assert capsys.readouterr() == ("", "")

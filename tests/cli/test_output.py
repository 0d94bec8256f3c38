"""What is printed for people, pipes and scripts, what is asked, and bars of progress."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pytest

from offline_data.analysis.checks.finding import SEVERITIES, Finding
from offline_data.analysis.checks.formats import finding_blocks
from offline_data.base.progress import SILENT
from offline_data.document.blocks import Field, Fields, Table, TableColumn, fields_of, table
from offline_data.document.values import format_nested, human, number
from offline_data_cli.main import main
from offline_data_cli.progress import Bars, Notes, progress_for
from offline_data_cli.render import (
    Mode,
    confirm,
    show,
    show_error,
    show_traceback,
    show_warning,
    to_json,
)
from offline_data_cli.result import Result

if TYPE_CHECKING:
    from tests.cli.conftest import Cli, Terminal

    MakeTerminal: TypeAlias = Callable[..., Terminal]


@dataclass(frozen=True)
class Spread:
    low: float
    high: float


LONG = "local:" + "x" * 90
ROWS = (
    ("local:toy@1", 1234567, 3 << 20, None, "a tab\tand\na line " * 8),
    (LONG, None, 5, "", "b"),
)
TABLE = table("id rows:count size:bytes empty what", ROWS)
RESULT = Result(
    {"rows": 2},
    (TABLE, Fields(Field("notes", ("one", "two")), Field("none", None), title="more"), "the end"),
    ("local:toy@1", LONG),
    ("a note",),
)


def test_a_spec_names_values_of_objects_and_mappings() -> None:
    items = [Spread(1, 2), {"low": 3, "of": {"high": 4.5}}]
    spec = "lowest_value=low:count high:number:clip:keep"
    found = table(spec, items, high=lambda item: 9 if isinstance(item, Spread) else item["of"])
    assert found.columns == [
        TableColumn("lowest value", "count"),
        TableColumn("high", "number", clip=True, keep=True),
    ]
    assert found.rows == [[1, 9], [3, {"high": 4.5}]]
    fields = fields_of(items[1], "low peak=of.high:number missing also", also=None).fields
    assert fields == (
        Field("low", 3),
        Field("peak", 4.5, "number"),
        Field("missing", None),
        Field("also", None),
    )
    with pytest.raises(AttributeError):
        fields_of(items[0], "lows")


def test_a_pipe_gets_everything_between_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    show(RESULT, Mode.HUMAN)
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == "ID\tROWS\tSIZE\tEMPTY\tWHAT"
    assert lines[1].split("\t")[:4] == ["local:toy@1", "1234567", "3145728", ""]
    assert lines[1].split("\t")[4] == "a tab and a line " * 8
    assert lines[2] == f"{LONG}\t\t5\t\tb"
    assert lines[3:] == ["", "more", "notes\tone", "notes\ttwo", "", "the end"]
    assert err == "a note\n"
    assert "\x1b" not in out
    show(RESULT, Mode.QUIET)
    assert capsys.readouterr() == (f"local:toy@1\n{LONG}\n", "")
    show(RESULT, Mode.JSON)
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == ({"rows": 2}, "a note\n")


def test_a_terminal_gets_80_columns_and_nothing_is_cut(terminal: MakeTerminal) -> None:
    screen = terminal()
    show(RESULT, Mode.HUMAN)
    show(Result(None, (Table((TableColumn("A"),), (("[red]x[/red] :smile:",),)),)), Mode.HUMAN)
    out = screen.out.text
    assert "[red]x[/red] :smile:" in out
    out = out.replace("[red]x[/red]", "")
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    assert "1,234,567" in out
    assert "3.0 MiB" in out
    assert "EMPTY" not in out
    assert out.count("x") == 90


def test_nested_values_and_numbers() -> None:
    value = {"type": "Box", "low": [0.0] * 39, "shape": [39], "dict": {"a": 1}}
    assert format_nested(value) == "type: Box, low: 39 × 0.0, shape: [39], dict: (a: 1)"
    assert format_nested({"a": None, "b": "", "c": {}, "d": True, "e": [False, 0]}) == (
        "d: yes, e: [no, 0]"
    )
    assert [number(one) for one in (3, 0.123456, 12345678.9)] == ["3", "0.1235", "1.235e+07"]
    assert [human(0.5, "share"), human(None, "count")] == ["50 %", "–"]


def test_colour_only_where_it_is_wanted(
    terminal: MakeTerminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = terminal()
    show_error("error", "bad", None, as_json=False)
    assert "\x1b[1;31m" in screen.err.getvalue()
    show_warning("odd\nindeed")
    assert "\x1b[33mwarning:\x1b[0m odd indeed\n" in screen.err.getvalue()
    found = [
        Finding(f"RL{severity}", "rule", severity, "local:a@1", "bad", hint=f"mend {severity}")
        for severity in SEVERITIES
    ]
    report = Result(None, finding_blocks(found, "3 findings"))
    show(report, Mode.HUMAN)
    shown = screen.out.getvalue()
    for style, severity in (("1;31", "error  "), ("33", "warning"), ("34", "info   ")):
        assert f"\x1b[{style}m{severity}\x1b[0m" in shown
    assert re.findall(r"mend (\w+)", shown) == ["error", "warning"]
    screen = terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    show_error("error", "bad", None, as_json=False)
    show_warning("odd")
    show(report, Mode.HUMAN)
    assert not re.search(r"\x1b\[[\d;]*3\dm", screen.err.getvalue() + screen.out.getvalue())


@pytest.mark.parametrize("mode", [Mode.HUMAN, Mode.QUIET])
def test_texts_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str], mode: Mode) -> None:
    evil = "\x1b]0;owned\x07\x9b2J\u202e"
    table = Table((TableColumn("ID"),), ((evil,),))
    show(Result(None, (table, evil), (evil,), (evil,)), mode)
    show_error("error", evil, evil, as_json=False)
    show_traceback(ValueError(evil))
    confirm((evil,), evil, yes=True, mode=Mode.HUMAN)
    out, err = capsys.readouterr()
    assert not set("\x1b\x07\x9b\u202e") & set(out + err)
    show(Result({evil: evil}, ()), Mode.JSON)
    out, err = capsys.readouterr()
    assert not set("\x1b\x07\x9b\u202e") & set(out + err)
    assert json.loads(out) == {evil: evil}


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


WIDTHS = (40, 200)
COMMANDS = {
    "search, long names": ("search", "minari"),
    "list --remote": ("list", "d4rl", "--remote"),
    "sources": ("sources",),
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("command", COMMANDS)
def test_ids_are_whole(
    command: str, width: int, cli: Cli, toy: Path, terminal: MakeTerminal
) -> None:
    ids = cli(*COMMANDS[command], "-q").out.split()
    assert ids
    screen = terminal(width=width)
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


@pytest.mark.parametrize("query", ["hopper medium", "door", "minigrid"])
def test_long_ids_are_folded_so_that_the_summary_is_there(
    query: str, terminal: MakeTerminal
) -> None:
    screen = terminal(width=80)
    assert main(["search", *query.split()]) == 0
    lines = screen.out.text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split()[-1] == "SUMMARY"
    assert "not shown" not in screen.out.text


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "arguments",
    [("cache", "ls"), ("info", "local:toy"), ("head", "local:toy"), ("sample", "local:toy")],
)
def test_what_a_command_is_about_is_there(
    arguments: tuple[str, ...], width: int, toy: Path, terminal: MakeTerminal
) -> None:
    screen = terminal(width=width)
    assert main(arguments) == 0
    out = screen.out.text
    assert max(map(len, out.splitlines())) <= width
    assert ("local/toy/1" if arguments[0] == "cache" else "next/observation/state"[5:]) in out


def test_a_column_that_goes_is_named(terminal: MakeTerminal) -> None:
    screen = terminal(width=40)
    table = Table(
        (TableColumn("ID"), TableColumn("ROWS", "count"), TableColumn("WHAT")),
        (("x" * 36, 5, "y"),),
    )
    show(Result({}, (table,)), Mode.HUMAN)
    assert "x" * 36 in screen.out.text
    assert "ROWS, WHAT not shown" in screen.out.text


def _until(true: Callable[[], bool]) -> None:
    begin = time.monotonic()
    while not true():
        assert time.monotonic() - begin < 120
        time.sleep(0.01)


def test_who_gets_bars(terminal: MakeTerminal, capsys: pytest.CaptureFixture[str]) -> None:
    progress = progress_for(Mode.HUMAN, bars=True)
    assert type(progress) is Notes
    progress.note("seen once")
    with progress.task("convert", 3, "episodes") as task:
        task.advance(3)
    assert capsys.readouterr() == ("", "seen once\n")
    terminal()
    assert type(progress_for(Mode.HUMAN, bars=True)) is Bars
    assert type(progress_for(Mode.HUMAN, bars=False)) is Notes
    assert type(progress_for(Mode.JSON, bars=True)) is Notes
    assert progress_for(Mode.QUIET, bars=True) is SILENT


def test_long_work_is_drawn_with_what_was_done_before(terminal: MakeTerminal) -> None:
    screen, bars = terminal(), Bars(delay=0.05)
    with Bars(delay=30).task("convert", 3, "episodes") as quick:
        quick.advance(3)
    assert screen.err.getvalue() == ""
    with (  # noqa: PT012
        pytest.raises(ValueError, match="broken"),
        bars.task("d4rl:a-very-long-name-of-a-dataset-v2", None, "B") as task,
    ):
        task.advance(3 << 20)
        task.resize(6 << 20)
        _until(lambda: bars._drawn == 1)
        task.advance(1 << 20)
        bars.note("seen once")
        bars._live.refresh()
        raise ValueError("broken")
    said = screen.err.text
    assert said.count("seen once") == 1
    for part in ("d4rl:a-very-…a-dataset-v2", "4.0 MiB/6.0 MiB", "MiB/s"):
        assert part in said
    assert max(map(len, re.split(r"[\r\n]", said))) <= 80
    assert bars._drawn == 0
    assert not bars._live.live.is_started
    assert screen.out.getvalue() == ""


def test_threads_share_one_drawing(terminal: MakeTerminal) -> None:
    terminal()
    bars = Bars(delay=0)
    ready = threading.Barrier(5)

    def work() -> None:
        with bars.task("part", 100, "files") as task:
            ready.wait(120)
            for _ in range(100):
                task.advance()
            ready.wait(120)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    ready.wait(120)
    _until(lambda: bars._drawn == 4)
    live = bars._live
    assert live is not None
    _until(lambda: [task.completed for task in live.tasks] == [100] * 4)
    ready.wait(120)
    for thread in threads:
        thread.join(120)
    assert bars._drawn == 0
    assert live.tasks == []

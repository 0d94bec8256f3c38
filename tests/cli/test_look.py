"""`info`, `head`, `stats`, `sample` and `verify` of a dataset here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from offline_data.reports.info import entry_info
from offline_data.store.library import entry_at
from offline_data_cli.commands.info import info_result
from offline_data_cli.render import Mode, show

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Cli, Terminal

KEYS = {
    "id", "path", "layout", "transitions", "episodes", "bytes", "schema", "source", "spaces",
    "environment", "about", "licence", "citation", "notes", "dropped", "audit", "non_finite",
    "files", "revision", "created", "converter", "parents",
}  # fmt: skip


def test_info_as_json_has_what_scripts_need(cli: Cli, toy: Path) -> None:
    data = cli("info", "local:toy", "--json").json
    assert set(data) >= KEYS
    assert (data["id"], data["path"], data["remote"]) == ("local:toy@1", str(toy), False)
    assert (data["transitions"], data["episodes"], data["layout"]) == (5, 2, "compact")
    assert data["schema"]["observation/state"] == {
        "dtype": "float32",
        "shape": [3],
        "rows": "observations",
        "text": False,
    }


def test_info_in_a_pipe(cli: Cli, toy: Path) -> None:
    rows = cli("info", "local:toy").rows
    assert ["id", "local:toy@1"] in rows
    assert ["transitions", "5"] in rows
    assert ["observation/mission", "text", "[]", "steps + 1"] in rows


def test_info_of_a_path(cli: Cli, toy: Path) -> None:
    assert cli("info", str(toy), "-q").out == "local:toy@1\n"


def test_info_in_a_terminal_fits(terminal: Callable[..., Terminal], toy: Path) -> None:
    screen = terminal()
    show(info_result(entry_info(entry_at(toy))), Mode.HUMAN)
    lines = screen.out.text.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("next/terminated" in line and "bool" in line for line in lines)


def test_head_shows_values_in_order(cli: Cli, toy: Path) -> None:
    ran = cli("head", "local:toy", "-n", "2", "--episode", "1")
    assert ran.rows[0] == ["episode 1, step 0, index 3"]
    assert ["observation/state", "2001 2001 2001"] in ran.rows
    assert ["next/observation/state", "2002 2002 2002"] in ran.rows
    assert ["observation/mission", f"go to {2001 % 7}"] in ran.rows
    assert ["next/reward", "200.2"] in ran.rows


def test_head_as_json_has_every_item(cli: Cli, toy: Path) -> None:
    (first,) = cli("head", "local:toy", "-n", "1", "--json").json
    assert (first["index"], first["episode"], first["step"]) == (0, 0, 0)
    assert first["values"]["action"] == [-1001.0]
    assert first["values"]["observation/state"] == [1001.0] * 3
    assert first["values"]["observation/mission"] == f"go to {1001 % 7}"


def test_head_has_five_unless_asked(cli: Cli, toy: Path) -> None:
    assert len(cli("head", "local:toy", "--json").json) == 5


def test_head_of_an_episode_that_is_not_there(cli: Cli, toy: Path) -> None:
    ran = cli("head", "local:toy", "--episode", "2")
    assert ran.code == 3
    assert "2 episodes" in ran.err


def test_stats(cli: Cli, toy: Path) -> None:
    data = cli("stats", "local:toy", "--json").json
    (reward,) = [leaf for leaf in data["leaves"] if leaf["key"] == "next/reward"]
    rewards = [100.2, 100.3, 100.4, 200.2, 200.3]
    assert reward["mean"] == pytest.approx(sum(rewards) / 5)
    assert (reward["min"], reward["max"], reward["rows"], reward["nan"]) == (100.2, 200.3, 5, 0)
    assert data["per_episode"]["length"] == {"min": 2, "median": 2.5, "mean": 2.5, "max": 3}
    rows = cli("stats", "local:toy").rows
    assert ["terminated", "0.5"] in rows
    assert ["length", "2.0", "2.5", "2.5", "3.0"] in rows
    assert any(row[0] == "observation/mission" for row in rows)


@pytest.mark.parametrize("verb", ["info", "head", "stats", "sample", "verify", "rm"])
def test_what_is_not_here_says_how_to_get_it(cli: Cli, toy: Path, verb: str) -> None:
    ran = cli(verb, "local:tyo", "--offline")
    assert (ran.code, ran.out) == (3, "")
    assert "local:toy" in ran.err
    assert "offline-data convert PATH tyo" in ran.err


@pytest.mark.parametrize("verb", ["info", "head", "stats", "sample", "verify", "rm"])
def test_an_id_that_would_leave_the_root(cli: Cli, toy: Path, verb: str) -> None:
    ran = cli(verb, "local:../toy")
    assert (ran.code, ran.out) == (2, "")


def test_verify_what_is_whole(cli: Cli, toy: Path) -> None:
    ran = cli("verify", "local:toy")
    assert ran.code == 0
    assert "local:toy@1: OK, " in ran.out
    assert cli("verify", "local:toy", "--json").json["problems"] == []


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[0] ^= 1
    file.write_bytes(content)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [_flip, _cut, lambda file: file.unlink()])
def test_verify_names_every_file_that_differs(cli: Cli, toy: Path, damage: Any) -> None:
    names = ["observations/rows.memmap", "steps/rows.memmap"]
    for name in names:
        damage(toy / name)
    ran = cli("verify", "local:toy")
    assert ran.code == 5
    assert [row[0] for row in ran.rows[1:]] == names
    assert re.search(rf"2 of \d+ files in {re.escape(str(toy))} are damaged", ran.err)
    assert "offline-data convert PATH toy --force" in ran.err
    as_json = cli("verify", "local:toy", "--json")
    assert (as_json.code, as_json.json["ok"]) == (5, False)
    assert [problem["file"] for problem in as_json.json["problems"]] == names


def test_opening_a_damaged_dataset_says_what_to_run(cli: Cli, toy: Path) -> None:
    _cut(toy / "steps" / "rows.memmap")
    ran = cli("stats", "local:toy")
    assert ran.code == 5
    assert "offline-data verify" in ran.err


def test_sample(cli: Cli, toy: Path) -> None:
    data = cli("sample", "local:toy", "--batch", "7", "--json").json
    leaves = data["leaves"]
    assert leaves["observation/state"]["shape"] == [7, 3]
    assert leaves["next/reward"]["dtype"] == "float64"
    assert 1001 <= leaves["observation/state"]["min"] <= leaves["observation/state"]["max"] <= 2002
    rows = cli("sample", "local:toy", "--batch", "7").rows
    assert rows[0] == ["LEAF", "TYPE", "SHAPE", "MIN", "MAX"]
    assert ["action", "float32", "[7, 1]"] in [row[:3] for row in rows]


def test_sample_slices(cli: Cli, toy: Path) -> None:
    data = cli("sample", "local:toy", "--batch", "6", "--slices", "2", "--json").json
    assert data["slices"] == 2
    assert data["leaves"]["next/truncated"]["shape"] == [6, 1]
    assert data["leaves"]["next/truncated"]["max"] is True
    refused = cli("sample", "local:toy", "--batch", "7", "--slices", "2")
    assert refused.code == 2
    assert "must be a multiple of --slices 2" in refused.err

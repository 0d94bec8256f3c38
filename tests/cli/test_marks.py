"""Marks of episodes on the command line: `info`, `episodes`, `filter`, `rename`, and `browse --marks`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import offline_data
from offline_data.store.marks import Marks, marks_file
from tests.analysis.test_episodes import walks
from tests.toys.stored import write_stored

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


@pytest.fixture
def walked(tmp_path: Path) -> Path:
    """Six episodes, three of them marked, and one with a note alone."""
    write_stored(tmp_path / "root", "local:walks@1", walks([5, 6, 7, 5, 6, 40]))
    path = tmp_path / "root" / "local" / "walks" / "1"
    ds = offline_data.open_dataset(path)
    ds.mark(1, "bad", note="slips")
    ds.mark(-1, "bad")
    ds.mark(3, "unsure")
    ds.mark(0, None, note="look again")
    return path


def test_info(cli: Cli, walked: Path) -> None:
    assert cli("info", "walks", "--json").json["marks"] == {"bad": 2, "unsure": 1, "notes": 2}
    assert ["marks", "2 bad, 1 unsure, 2 notes"] in cli("info", "walks").rows
    marks_file(walked).write_bytes(b"{")
    with pytest.warns(UserWarning, match=r"marks.json is ignored: marks.json is not JSON"):
        assert cli("info", "walks", "--json").json["marks"] == {}
    marks_file(walked).unlink()
    assert "arks" not in cli("info", "walks").out


def test_episodes(cli: Cli, walked: Path) -> None:
    rows = cli("episodes", "walks", "--json").json["episodes"]
    assert [row["mark"] for row in rows] == ["", "bad", "", "unsure", "", "bad"]
    assert [row["note"] for row in rows] == ["look again", "slips", "", "", "", ""]

    def numbers(*options: str) -> list[int]:
        found = cli("episodes", "walks", "--json", *options)
        assert found.code == 0, found.err
        return [row["episode"] for row in found.json["episodes"]]

    assert numbers("--sort", "mark") == [3, 1, 5, 0, 2, 4]
    assert numbers("--sort", "mark", "--reverse", "--limit", "3") == [1, 5, 3]
    assert numbers("--where", 'mark != "bad"') == [0, 2, 3, 4]
    assert numbers("--where", 'mark == "bad" and length > 6') == [5]
    assert numbers("--where", "number in [4, 0] or note == 'slips'", "--sort", "length") == [
        1,
        4,
        0,
    ]
    titles, *table = cli("episodes", "walks", "--sort", "length", "--limit", "1").rows
    assert titles[:4] == ["EPISODE", "LENGTH", "OUTLIERS", "MARK"]
    assert (table[0][0], table[0][3]) == ("5", "bad")
    assert cli("episodes", "walks", "--where", "mark == 'good'").code != 0
    assert "marrk" in cli("episodes", "walks", "--where", "marrk == 'good'").err
    marks_file(walked).unlink()
    assert "mark" not in cli("episodes", "walks", "--json").json["episodes"][0]
    assert numbers("--where", 'mark != "bad"', "--limit", "2") == [0, 1]


def test_filter_and_rename(cli: Cli, walked: Path) -> None:
    made = cli("filter", "walks", 'mark != "bad"', "--out", "good", "--json").json[0]
    assert made["episodes"] == 4
    shown = cli("info", "good").out
    assert "number not in [1, 5]" in shown
    assert 'Episodes were selected by their marks: mark != "bad"' in shown
    assert cli("filter", "walks", 'note == "slips"', "--view", "--out", "one").code == 0
    assert cli("rename", "walks", "runs", "--yes").code == 0
    assert cli("info", "runs", "--json").json["marks"] == {"bad": 2, "unsure": 1, "notes": 2}


@pytest.fixture
def not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `browse` end at once."""
    place = "offline_data.reports.pages.browse.DatasetServer.serve_forever"
    monkeypatch.setattr(place, lambda _: None)


@pytest.mark.usefixtures("not_served")
def test_browse_takes_a_download(cli: Cli, walked: Path, tmp_path: Path) -> None:
    download = tmp_path / "walks.marks.json"
    content: dict[str, Any] = json.loads(marks_file(walked).read_text())
    content["episodes"] = {"1": {"mark": "good", "note": ""}, "4": {"mark": None, "note": "new"}}
    download.write_text(json.dumps(content))
    ran = cli("browse", "--no-open", "--marks", str(download))
    assert ran.code == 0, ran.err
    assert f"2 marks of local:walks@1 added to {marks_file(walked)}" in ran.err
    assert json.loads(marks_file(walked).read_text())["episodes"] == {
        "0": {"mark": None, "note": "look again"},
        "1": {"mark": "good", "note": ""},
        "3": {"mark": "unsure", "note": ""},
        "4": {"mark": None, "note": "new"},
        "5": {"mark": "bad", "note": ""},
    }


@pytest.mark.usefixtures("not_served")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dataset": "local:other@1"}, "which is not in"),
        ({"dataset": "PATH"}, "is neither `source:name`"),
        ({"identity": "0" * 64}, "with other rows or episodes"),
        ({"episodes": {"6": {"mark": "bad", "note": ""}}}, "There is no episode 6"),
        ({"episodes": {"1": {"mark": "best", "note": ""}}}, "is 'best'"),
        ({"format_version": 2}, "of format 2"),
        (None, "is not JSON"),
    ],
)
def test_what_browse_does_not_take(
    change: dict[str, Any] | None, said: str, cli: Cli, walked: Path, tmp_path: Path
) -> None:
    before = marks_file(walked).read_bytes()
    download = tmp_path / "walks.marks.json"
    if change is None:
        download.write_bytes(b"{")
    else:
        if change.get("dataset") == "PATH":
            change = {"dataset": str(walked)}
        download.write_text(json.dumps({**json.loads(before), **change}))
    ran = cli("browse", "--no-open", "--marks", str(download))
    assert ran.code not in {0, 1}
    assert said in ran.err
    assert "Traceback" not in ran.err
    assert marks_file(walked).read_bytes() == before
    assert Marks.of_download(before).episodes.keys() == {0, 1, 3, 5}

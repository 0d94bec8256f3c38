"""`align` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

from offline_data.store.reader import open_reader
from tests.alignment.worlds import shifted, world, write
from tests.cli.conftest import Cli


def test_align_shows_lags_and_exits_1_where_a_leaf_is_shifted(cli: Cli, tmp_path: Path) -> None:
    good = write(tmp_path / "good", world(0))
    ran = cli("align", str(good))
    assert ran.code == 0
    assert "no leaf is shifted; 2 of 2 comparisons decided" in ran.out
    late = write(tmp_path / "late", shifted(world(0), ("action",), 2))
    ran = cli("align", str(late))
    assert ran.code == 1
    assert "action is 2 rows late" in ran.out
    assert "--step shift:action,by=2 --out NAME" in ran.out
    found = json.loads(cli("align", str(late), "--json").out)
    assert found["shifts"] == {"action": 2}
    assert found["steps"] == ["shift:action,by=2"]
    assert [(one["leaf"], one["lag"]) for one in found["leaves"]] == [
        ("action", 2),
        ("next/reward", 0),
    ]
    assert cli("align", str(late), "-q").out == "action\n"


def test_fix_writes_a_dataset_whose_leaves_are_shifted_back(cli: Cli, tmp_path: Path) -> None:
    late = write(tmp_path / "late", shifted(world(0), ("action",), 2))
    ran = cli("align", str(late), "--fix", "aligned")
    assert ran.code == 0
    assert "local:aligned" in ran.out
    path = Path(cli("path", "local:aligned").out.strip())
    assert open_reader(path).transitions == 30 * 38
    assert cli("align", "local:aligned").code == 0
    assert "shift" in cli("info", "local:aligned", "--history").out


def test_pairs_have_two_leaves(cli: Cli, tmp_path: Path) -> None:
    good = write(tmp_path / "good", world(0))
    ran = cli("align", str(good), "--pair", "observation/state")
    assert ran.code == 2
    assert "--pair observation/state: expected two leaves" in ran.err


def test_a_figure_of_the_errors(cli: Cli, tmp_path: Path) -> None:
    late, file = write(tmp_path / "late", shifted(world(0), ("action",), 2)), tmp_path / "lags.svg"
    ran = cli("align", str(late), "--out", str(file))
    assert ran.code == 1
    assert f"{file} written" in ran.err
    assert file.read_text().count('id="axes_') == 2
    assert cli("align", str(late), "--out", str(file)).code == 2
    assert cli("align", str(late), "--out", str(file), "--force").code == 1
    short = write(tmp_path / "short", world(0, episodes=2))
    ran = cli("align", str(short), "--out", str(tmp_path / "no.png"))
    assert (ran.code, (tmp_path / "no.png").exists()) == (2, False)
    assert "no errors to draw: too few episodes" in ran.err

"""`info`, `head`, `stats` and `sample`, and roots and directories that are not what they should be."""

from __future__ import annotations

import errno
import json
import os
import re
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest

from offline_data.testing.toy import toy_batch
from tests.analysis.test_episodes import walks
from tests.toys.lerobot import write_lerobot
from tests.toys.stored import write_stored

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

KEYS = {
    "id", "path", "layout", "transitions", "episodes", "bytes", "schema", "source", "spaces",
    "environment", "about", "licence", "citation", "notes", "dropped", "audit", "non_finite",
    "files", "revision", "created", "converter", "parents", "values",
}  # fmt: skip


def test_info(cli: Cli, toy: Path) -> None:
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
    rows = cli("info", "local:toy").rows
    assert ["id", "local:toy@1"] in rows
    assert ["steps", "5"] in rows
    assert ["observation/mission", "text", "[]", "steps + 1", "", ""] in rows
    assert cli("info", str(toy), "-q").out == "local:toy@1\n"


def test_info_hides_passwords_and_counts_many_files(cli: Cli, toy: Path) -> None:
    url = "http://me:hush@host.example/x"
    file = {"path": "x", "url": url, "size": 9, "failed": [f"{url}: no answer"]}
    manifest = json.loads((toy / "manifest.json").read_text())
    (toy / "manifest.json").write_text(json.dumps({**manifest, "files": [file] * 9}))
    shown, as_json = cli("info", "local:toy"), cli("info", "local:toy", "--json")
    assert "hush" not in shown.out + as_json.out
    assert ["failed hosts", "http://***@host.example/x: no answer"] in shown.rows
    assert ["files", "… and 1 more (all in --json)"] in shown.rows
    assert len(as_json.json["files"]) == 9


def test_info_has_options_as_on_the_command_line_and_units(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lerobot(tmp_path / "raw")
    assert cli("convert", "raw", "plain").code == 0
    given = ("--episodes", "0:2", "--keep-episodes", "--only", "observation.state")
    made = cli("convert", "raw", "--out", "some", *given, "--json").json[0]["id"]
    rows = cli("info", made).rows
    assert [row[1] for row in rows if row[0] == "options"] == [
        "--episodes 0:2", "--keep-episodes", "--only observation.state",
    ]  # fmt: skip
    assert ["rate", "10 Hz"] in rows
    plain = cli("info", "plain")
    assert [row for row in plain.rows if row[0] in {"options", "values"}] == []
    steps = ("--step", "reward_scale:scale=2", "--step", "normalize:action,eps=0.5")
    assert cli("preprocess", "plain", *steps, "--out", "new").code == 0
    shown = cli("info", "new")
    assert [row[1] for row in shown.rows if row[0] == "made by"] == [
        "reward_scale: scale=2", "normalize: keys=[action], eps=0.5, std=yes, by=std",
    ]  # fmt: skip
    history = cli("info", made, "--history").rows
    assert ["options", "--keep-episodes"] in history
    for out in (plain.out, shown.out, cli("info", "new", "--history").out):
        assert not re.search(r"\b(None|True|False)\b|[{}]|array\(", out)


def test_info_of_what_a_catalogue_knows(cli: Cli) -> None:
    name = "d4rl:halfcheetah-medium-v2"
    ran = cli("info", name, "--offline")
    assert (ran.code, ran.err) == (0, "")
    assert ["command", f"offline-data download {name}"] in ran.rows
    data = cli("show", name, "--offline", "--json").json
    assert (data["id"], data["source"], data["remote"]) == (name, "d4rl", True)
    assert (data["here"], data["command"]) == (False, f"offline-data download {name}")
    assert "licence" in ran.out
    assert (data["licence"], data["citation"][:9]) == ("CC-BY-4.0", "Justin Fu")


def test_head(cli: Cli, toy: Path) -> None:
    ran = cli("head", "local:toy", "-n", "2", "--episode", "1")
    assert ran.rows[0] == ["episode 1, step 0, index 3"]
    assert ["observation/state", "2001 2001 2001"] in ran.rows
    assert ["next/observation/state", "2002 2002 2002"] in ran.rows
    assert ["observation/mission", f"go to {2001 % 7}"] in ran.rows
    assert ["next/reward", "200.2"] in ran.rows
    first, *others = cli("head", "local:toy", "--json").json
    assert len(others) == 4
    assert (first["index"], first["episode"], first["step"]) == (0, 0, 0)
    assert first["values"]["action"] == [-1001.0]
    assert first["values"]["observation/state"] == [1001.0] * 3


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


def test_stats_of_each_number(cli: Cli, toy: Path) -> None:
    states = [1001, 1002, 1003, 2001, 2002]  # not 1004 and 2003, the final ones
    data = cli("stats", "local:toy", "--json").json
    (state,) = [leaf for leaf in data["leaves"] if leaf["key"] == "observation/state"]
    assert state["features"]["count"] == [5] * 3
    assert (state["features"]["min"], state["features"]["max"]) == ([1001] * 3, [2003] * 3)
    assert state["features"]["mean"] == pytest.approx([sum(states) / 5] * 3)
    assert state["features"]["std"] == pytest.approx([statistics.pstdev(states)] * 3)
    assert not any(
        row[0].startswith("observation/state[") for row in cli("stats", "local:toy").rows
    )
    rows = cli("stats", "local:toy", "--features").rows
    assert ["DIMENSION", "FINITE", "MIN", "MAX", "MEAN", "STD"] in rows
    (last,) = [row for row in rows if row[0] == "observation/state[2]"]
    assert last[:4] == ["observation/state[2]", "5", "1001.0", "2003.0"]
    assert float(last[5]) == pytest.approx(statistics.pstdev(states))


def test_pictures_of_episodes(cli: Cli, tmp_path: Path) -> None:
    write_stored(tmp_path / "root", "local:walks@1", walks([5, 6, 7, 9]))
    out = tmp_path / "quality.png"
    ran = cli("episodes", "local:walks", "--out", str(out))
    assert (ran.code, f"{out} written" in ran.err) == (0, True)
    assert out.read_bytes().startswith(b"\x89PNG")
    assert cli("episodes", "local:walks", "--out", str(out)).code == 2
    assert cli("replay", "local:walks", "--out", str(out)).code == 2
    before = out.read_bytes()
    assert cli("episodes", "local:walks", "--out", str(out), "--force", "--sort", "jerc").code == 3
    assert out.read_bytes() == before


def test_episodes(cli: Cli, tmp_path: Path) -> None:
    lengths = [5, 6, 7, 5, 6, 7, 40]
    write_stored(tmp_path / "root", "local:walks@1", walks(lengths))
    found = cli("episodes", "local:walks", "--json").json
    assert (found["leaf"], found["rate"], len(found["episodes"])) == ("observation/state", None, 7)
    assert [row["length"] for row in found["episodes"]] == lengths
    assert "length" in found["episodes"][6]["outliers"]
    assert "length" not in found["episodes"][0]["outliers"]
    ran = cli("episodes", "local:walks", "--sort", "length", "--limit", "3")
    titles, *rows = ran.rows
    assert titles == [
        *("EPISODE", "LENGTH", "OUTLIERS", "RETURN", "SUCCESS", "IDLE", "JERK", "JERK P95"),
        *("VELOCITY", "SATURATED", "LAG", "TIMESTAMP ERROR"),
    ]
    assert [row[:2] for row in rows] == [["6", "40"], ["2", "7"], ["5", "7"]]
    assert "length" in rows[0][2].split()
    assert ran.err == "idle, jerk and velocity are of observation/state, per step\n"
    least = cli("episodes", "local:walks", "--sort", "jerk", "--reverse", "--json").json
    values = [row["jerk"] for row in least["episodes"]]
    known = [value for value in values if value is not None]
    assert known == sorted(known)
    assert values[len(known) :] == [None] * (7 - len(known))
    action = cli("episodes", "local:walks", "--leaf", "action", "--json").json
    assert action["leaf"] == "action"
    near = cli("episodes", "local:walks", "--similar", "--sort", "distance", "--json").json
    assert [*near["episodes"][0]][-3:] == ["nearest", "distance", "duplicate_of"]
    titles = cli("episodes", "local:walks", "--similar", "--sort", "jerk").rows[0]
    assert titles[1:6] == ["JERK", "OUTLIERS", "NEAREST", "DISTANCE", "DUPLICATE OF"]
    assert cli("episodes", "local:walks", "-q").out == "local:walks@1\n"


def test_stats_quantiles(cli: Cli, toy: Path) -> None:
    data = cli("stats", "local:toy", "--json").json
    levels = data["quantile_levels"]
    (state,) = [leaf for leaf in data["leaves"] if leaf["key"] == "observation/state"]
    values = [1001, 1002, 1003, 2001, 2002]
    for found in state["features"]["quantiles"]:
        assert [found[levels.index(at)] for at in (0, 0.5, 1)] == [1001, 1003, 2003]
    histogram = state["features"]["histogram"]
    for counts, edges in zip(histogram["counts"], histogram["edges"], strict=True):
        for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True):
            assert count == sum(low <= value < high for value in values)
    rows = cli("stats", "local:toy", "--quantiles").rows
    assert ["QUANTILES OF", "Q01", "Q10", "Q50", "Q90", "Q99"] in rows
    assert ["observation/state[1]", "1003.0"] in [[row[0], row[3]] for row in rows if len(row) > 3]
    (reward,) = [row for row in rows if row[0] == "next/reward" and len(row) == 6]
    assert float(reward[3]) == pytest.approx(100.4)


def test_sample(cli: Cli, toy: Path) -> None:
    leaves = cli("sample", "local:toy", "--batch", "7", "--json").json["leaves"]
    assert leaves["observation/state"]["shape"] == [7, 3]
    assert leaves["next/reward"]["dtype"] == "float64"
    assert 1001 <= leaves["observation/state"]["min"] <= leaves["observation/state"]["max"] <= 2002
    rows = cli("sample", "local:toy", "--batch", "7").rows
    assert rows[0] == ["FEATURE", "TYPE", "SHAPE", "MIN", "MAX"]
    assert ["action", "float32", "[7, 1]"] in [row[:3] for row in rows]
    data = cli("sample", "local:toy", "--batch", "6", "--slices", "2", "--json").json
    assert data["slices"] == 2
    assert data["leaves"]["next/truncated"]["shape"] == [6, 1]
    first, again = (cli("sample", "local:toy", "--seed", "0", "--json").json for _ in range(2))
    assert first["leaves"] == again["leaves"]
    for flag in ("next/truncated", "next/done"):  # at the end of each slice
        assert data["leaves"][flag]["max"] is True


def put(path: Path, kind: str) -> None:
    """Put something that is not a plain file at `path`."""
    if path.exists():
        path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path.name if kind == "circle" else "/dev/zero")


@pytest.mark.parametrize("kind", ["fifo", "folder", "device", "circle"])
def test_files_that_are_none(cli: Cli, toy: Path, tmp_path: Path, kind: str) -> None:
    other = write_stored(tmp_path / "root", "local:other@1", toy_batch([1]))
    put(other / "manifest.json", kind)
    ran = cli("list")
    assert ran.code == 0
    assert "local:toy@1" in ran.out
    assert str(other) in ran.err
    for verb in ("info", "verify", "head"):
        ran = cli(verb, str(other))
        assert ran.code == 5, ran.err
        assert "unexpected" not in ran.err
    name = "steps/meta.json" if kind == "fifo" else "steps/rows.memmap"
    put(toy / name, kind)
    assert cli("verify", "local:toy").code == 5
    assert cli("head", "local:toy").code == 5


def test_a_root_that_is_a_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for verb in (["list"], ["cache", "ls"], ["info", "local:toy"]):
        ran = cli(*verb, "--root", str(tmp_path / "file"))
        assert ran.code == 2, ran.err
        assert str(tmp_path / "file") in ran.err


def test_a_manifest_that_may_not_be_read(
    cli: Cli, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(path: object, *more: int) -> int:
        if str(path) == str(toy / "manifest.json"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(str(path), *more)

    monkeypatch.setattr(os, "open", refuse)
    ran = cli("list")
    assert ran.code == 0
    assert f"{toy}/manifest.json cannot be read: Permission denied" in ran.err
    assert "damaged" not in ran.err
    ran = cli("info", str(toy), "--json")
    assert (ran.code, ran.json["error"]["code"]) == (2, "access")


@pytest.mark.parametrize("name", ["x" * 250, "x" * 255, "y" * 140 + "/" + "z" * 150, "my set"])
def test_names_that_are_taken_can_be_used(cli: Cli, toy: Path, name: str) -> None:
    made = cli("convert", str(toy), name, "-q")
    assert made.code == 0
    for verb in ("info", "verify"):
        assert cli(verb, f"local:{name}").code == 0
        assert cli(verb, made.out.strip()).code == 0
    assert f"local:{name}@" in cli("list").out
    assert cli("rm", f"local:{name}", "--yes").code == 0


@pytest.mark.parametrize("number", [-(2**63), 7, 2**40])
def test_steps_that_name_another_episode(cli: Cli, toy: Path, number: int) -> None:
    leaf = next(
        leaf
        for leaf in json.loads((toy / "manifest.json").read_text())["schema"]["steps"]["leaves"]
        if leaf["key"] == ["episode"]
    )
    rows = bytearray((toy / leaf["file"]).read_bytes())
    rows[leaf["offset"] : leaf["offset"] + 8] = number.to_bytes(8, "little", signed=True)
    (toy / leaf["file"]).write_bytes(rows)
    for verb in ("head", "sample", "verify"):
        ran = cli(verb, "local:toy", *(["--batch", "500"] if verb == "sample" else []))
        assert ran.code == 5, ran.err
        assert "unexpected" not in ran.err


def test_leaves_that_were_dropped_for_one_reason_are_one_line(cli: Cli, tmp_path: Path) -> None:
    rows = {name: np.zeros((4, 2), np.float32) for name in ("observations", "actions")}
    flags = {name: np.array([0, 1, 0, 1]) for name in ("rewards", "terminals")}
    weights = {
        f"metadata/policy/fc{number}/{kind}": np.ones(3) for number in range(4) for kind in "wb"
    }
    with h5py.File(tmp_path / "with.hdf5", "w") as file:
        for name, values in (rows | flags | weights).items():
            file[name] = values
    ran = cli("convert", str(tmp_path / "with.hdf5"), "mine")
    some = "8 features (metadata/policy/fc0/b, metadata/policy/fc0/w, …)"
    line = f"{some}: Each belongs to the recording policy and has no value per row."
    assert [one for one in ran.err.splitlines() if "dropped" in one] == [f"dropped {line}"]
    assert [row[1] for row in cli("info", "local:mine").rows if row[0] == "dropped"] == [line]
    assert len(cli("info", "local:mine", "--json").json["dropped"]) == 8
    made = cli("filter", "local:mine", "length > 0", "--out", "made")
    assert (made.code, "dropped" in made.err) == (0, False)
    said = cli("check", "local:mine", "--select", "RL005")
    assert "download ID" not in said.out + said.err

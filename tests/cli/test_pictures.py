"""`plot`, `view` and `card` on the command line: files, refusals, terminals and pipes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from offline_data.store.reader import open_reader
from offline_data.testing.toy import toy_batch, write_toy
from offline_data_cli.main import main
from tests.cli.conftest import Cli, Terminal


@pytest.fixture
def films(toys: Callable[..., Path]) -> str:
    return str(toys([3, 2], images=True, dataset="local:films/of-toys@1"))


@pytest.mark.slow
def test_plot_writes_a_figure_once(cli: Cli, toy: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.png"
    ran = cli("plot", "local:toy", "--out", str(out), "--json")
    assert ran.json == {"id": "local:toy@1", "path": str(out), "bytes": out.stat().st_size}
    with Image.open(out) as image:
        assert image.format == "PNG"
    refused = cli("plot", "local:toy", "--out", str(out))
    assert (refused.code, "--force" in refused.err) == (2, True)
    assert cli("plot", "local:toy", "--out", str(tmp_path / "a.html")).code == 0
    assert (tmp_path / "a.html").read_bytes().startswith(b"<!")
    assert cli("plot", "local:toy", "--out", str(tmp_path / "new" / "a.png")).code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "a.png", "new", "root"]


def test_plot_draws_in_a_pipe_and_in_a_terminal(
    cli: Cli, toy: Path, terminal: Callable[..., Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    piped = cli("draw", "local:toy")
    assert piped.out.startswith("local:toy@1\n5 steps in 2 episodes\n")
    assert "█" in piped.out
    assert "\x1b" not in piped.out
    assert max(map(len, piped.out.splitlines())) <= 80
    narrow = terminal(width=40)
    assert main(["plot", "local:toy"]) == 0
    assert max(map(len, narrow.out.text.splitlines())) <= 40
    assert "\x1b[36m" in narrow.out.getvalue()
    plain = terminal(width=40)
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["plot", "local:toy"]) == 0
    assert "\x1b[36m" not in plain.out.getvalue()
    assert plain.out.text == narrow.out.text


def test_plot_without_matplotlib_says_what_to_install(
    cli: Cli, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran = cli("plot", "local:toy", "--out", str(tmp_path / "a.png"))
    assert (ran.code, "offline-data[plots]" in ran.err) == (1, True)


def test_plot_json_has_the_numbers(cli: Cli, toy: Path) -> None:
    data = cli("plot", "local:toy", "--json").json
    assert sum(data["lengths"]["counts"]) == 2
    assert sum(map(sum, data["coverage"]["counts"])) == data["coverage"]["rows"] == 5
    assert [one["episode"] for one in data["timelines"]] == [0, 1]


def test_plot_of_one_leaf_or_kind(cli: Cli, toy: Path) -> None:
    listed = cli("plot", "local:toy", "--list", "--json").json
    assert {"leaf": "observation/state", "kind": "range"} in listed
    assert {"leaf": "length", "kind": "histogram"} in listed
    lines = cli("plot", "local:toy", "--leaf", "observation/state").out
    for one in listed:
        shown = cli("plot", "local:toy", "--leaf", one["leaf"], "--kind", one["kind"])
        assert shown.code == 0, shown.err
        assert len(shown.out.splitlines()) > 3
    data = cli("plot", "local:toy", "--leaf", "observation/state", "--json").json
    assert [one["label"] for one in data["rewards"]] == [
        f"observation/state[{n}]" for n in range(3)
    ]
    assert [one["label"] for one in data["ranges"]] == ["observation/state"]
    assert (data["returns"], data["lengths"], data["timelines"]) == (None, None, [])
    assert "episode 0" not in lines
    assert "episode 0" in cli("plot", "local:toy", "--kind", "curve").out
    ran = cli("plot", "local:toy", "--leaf", "observation/state", "--kind", "curve", "--json")
    (curve,) = json.loads(ran.out)["curves"]
    reader = open_reader(toy)
    begin, length = int(reader.starts[curve["episode"]]), int(reader.lengths[curve["episode"]])
    wanted = reader.observations_at(
        ("observation", "state"), np.arange(begin, begin + length), after=False
    )
    assert curve["steps"] == list(range(length))
    np.testing.assert_array_equal(np.array(curve["values"]).T, wanted.reshape(length, -1))
    ran = cli("plot", "local:toy", "--leaf", "observation/state", "--kind", "curve")
    assert f"observation/state in episode {curve['episode']}" in ran.out


def test_titles_in_a_terminal_are_not_cut(cli: Cli, toys: Callable[..., Path]) -> None:
    name = str(toys([40, 30], dataset="local:long@1"))
    out = cli("plot", name).out
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.slow
def test_plot_writes_a_leaf(cli: Cli, toy: Path, tmp_path: Path) -> None:
    for leaf, kind in (
        ("action", "histogram"),
        ("next/reward", "curve"),
        ("observation/state", "curve"),
    ):
        out = tmp_path / f"{kind}-{leaf[:3]}.svg"
        ran = cli("plot", "local:toy", "--leaf", leaf, "--kind", kind, "--out", str(out))
        assert (ran.code, out.exists()) == (0, True), ran.err


def test_plot_replaces_a_page_by_a_page(cli: Cli, toy: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.html"
    out.touch()
    assert cli("plot", "local:toy", "--out", str(out)).code == 2
    assert cli("plot", "local:toy", "--out", str(out), "--force").code == 0
    assert out.read_bytes().startswith(b"<!doctype html>")


def test_view_writes_a_film(
    cli: Cli, films: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = cli("view", films, "1")
    assert (ran.code, ran.out) == (0, f"{tmp_path / 'of-toys-1.mp4'}\n")
    with av.open(tmp_path / "of-toys-1.mp4") as opened:
        assert len(list(opened.decode(video=0))) == 3
    assert cli("view", films, "1").code == 2
    assert cli("view", films, "1", "--force").code == 0
    assert cli("view", films, "1", "--out", "c.gif", "--json").json["fps"] == 30
    data = cli("view", films, "0", "--out", "b.gif", "--fps", "5", "--json").json
    assert (data["frames"], data["width"], data["height"], data["leaf"]) == (
        4, 48, 48, "observation/image"
    )  # fmt: skip
    with Image.open("b.gif") as image:
        assert (image.n_frames, image.info["duration"]) == (4, 200)


def test_view_refuses(cli: Cli, films: str, tmp_path: Path) -> None:
    assert cli("view", films, "9").code == 3
    assert cli("view", films, "0", "--fps", "0", "--out", str(tmp_path / "a.gif")).code == 2
    assert not list(tmp_path.glob("a.*"))


def test_view_in_rerun(cli: Cli, films: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rerun", None)
    ran = cli("view", films, "0", "--rerun")
    assert (ran.code, "pip install rerun-sdk" in ran.err) == (1, True)


def test_card(cli: Cli, toy: Path, tmp_path: Path) -> None:
    printed = cli("card", "local:toy").out
    assert printed.startswith('---\npretty_name: "toy"\n')
    out = tmp_path / "README.md"
    ran = cli("card", "local:toy", "--out", str(out))
    assert (ran.code, ran.out) == (0, f"{out}\n")
    assert out.read_text().replace("![Preview](README.webp)\n\n", "") == printed
    assert out.with_suffix(".webp").read_bytes()[:4] == b"RIFF"
    assert cli("card", "local:toy", "--out", str(out)).code == 2
    assert json.loads(cli("card", "local:toy", "--json").out)["card"] == printed


def test_standard_output(
    cli: Cli, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert cli("card", "local:toy", "--out", "-").out == cli("card", "local:toy").out
    ran = cli("report", "local:toy", "--out", "-")
    assert (ran.code, "--out is '-', standard output; expected a file" in ran.err) == (2, True)
    assert sorted(tmp_path.iterdir()) == before


def test_a_damaged_dataset_has_no_picture(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "toy"
    write_toy(folder, [toy_batch([3])])
    next(folder.glob("steps/*.memmap")).write_bytes(b"")
    for verb in (["plot"], ["card"], ["view"]):
        ran = cli(*verb, str(folder), *(["0"] if verb == ["view"] else []))
        assert ran.code == 5, ran.err

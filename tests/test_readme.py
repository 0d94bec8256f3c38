"""The README: its code runs as written, its links lead somewhere, and its pictures are those of their scripts."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import offline_data
from docs.generate import sampling, terminal, viewer
from offline_data.formats.registry import get_catalog, source_names
from offline_data_cli.main import main
from tests.documented import ROOT, follow, read
from tests.remedy import assert_none
from tests.stories.conftest import Shell
from tests.toys.hosts import published

README = read("README.md")
HAND_WRITTEN = [
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
    if path.name not in {"CODE_OF_CONDUCT.md"}
]


def test_it_is_short() -> None:
    lines = len(README.splitlines())
    assert lines <= 150, f"README.md has {lines} lines, more than 150: move text to a page of docs/"


def test_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    with published(tmp_path / "hosts") as hosts:
        assert follow(README, hosts).startswith("torch.Size([256, 11])")
        # what its comment says of load_arrays, in a process of its own
        code = "import offline_data, sys; offline_data.load_arrays('d4rl:hopper-medium-v2')"
        subprocess.run(
            [sys.executable, "-c", f"{code}; assert 'torch' not in sys.modules"],
            env=Shell(tmp_path, hosts).environ,
            check=True,
        )


def test_its_table_of_sources() -> None:
    sources = README.split("\n## Sources\n")[1].split("\n## ")[0]
    assert_none(
        sorted(set(source_names()) - set(re.findall(r"`(\w+)`", sources))),
        "name these sources, between backticks, in the table below `## Sources` of README.md",
    )
    counts = dict(re.findall(r"`(\w+)` \((\d+)(?: datasets)?\)", sources))
    assert len(counts) == 4
    found = {name: len(get_catalog(name).catalog()) for name in counts}
    assert_none(
        (
            f"{name}: {found[name]}, found {count}"
            for name, count in counts.items()
            if int(count) != found[name]
        ),
        "write these numbers of datasets to the table below `## Sources` of README.md",
    )


def test_make_has_its_commands() -> None:
    makefile = read("Makefile")
    targets = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert targets == ["demo", "test"]
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


@pytest.mark.parametrize("page", HAND_WRITTEN, ids=lambda page: page.name)
def test_links_between_pages(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)|(?:src|srcset)=\"([^\"]+)\"", text)
    for link in filter(None, (part for parts in links for part in parts)):
        if not re.match(r"https?:|mailto:", link):
            name, _, anchor = link.partition("#")
            path = page.parent / name if name else page
            assert path.exists(), f"{page.name} names {link}"
            assert not anchor or anchor in anchors(path), f"{page.name} names {link}"


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in found)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def test_the_terminal_shows_the_commands() -> None:
    again = "record it again: PYTHONPATH=.:cli python docs/generate/terminal.py"
    for theme in terminal.THEMES:
        drawn = read(f"docs/pictures/terminal-{theme}.svg")
        words = re.sub(r"&#160;|\s+", " ", re.sub(r"<[^>]+>", " ", drawn))
        for command in terminal.COMMANDS:
            assert f"offline-data {command}" in words, again
        assert re.search(r"no findings in 1 dataset, by \d+ of \d+ rules", words), again
        assert "1 error, 1 warning" in words, again
        assert not re.search(r"@font-face|url\(\"?http", drawn)


@pytest.mark.slow
def test_the_terminal_shows_what_check_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OFFLINE_DATA_HOME", str(tmp_path / "root"))
    monkeypatch.setenv("COLUMNS", str(terminal.WIDTH))
    terminal.record_faults(tmp_path / "recorded.hdf5")
    for command in terminal.COMMANDS[-2:]:
        capsys.readouterr()
        main([*command.split(), "--format=table", "--no-progress"])
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) > 4
    drawn = html.unescape(read("docs/pictures/terminal-light.svg")).replace("\xa0", " ")
    shown = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", drawn))
    again = "record it again: PYTHONPATH=.:cli python docs/generate/terminal.py"
    for line in printed:
        assert " ".join(line.split()) in shown, again


def test_pictures_are_small_and_shown() -> None:
    pages = "".join(page.read_text("utf-8") for page in HAND_WRITTEN)
    for picture in ROOT.glob("docs/pictures/*[!.json]"):
        assert picture.name in pages, f"no page shows {picture.name}: delete it, or show it"
        assert picture.stat().st_size <= viewer.LARGEST, picture.name
    for theme in viewer.THEMES:
        with Image.open(ROOT / f"docs/pictures/viewer-{theme}.webp") as image:
            assert (image.format, image.size) == ("WEBP", viewer.SIZE)


def test_the_arm_of_the_viewer_reaches_its_ball(tmp_path: Path) -> None:
    """The reward is the distance that the picture from above shows between gripper and ball."""
    made = list(viewer.episodes(3))
    stored = offline_data.convert(made, "arm", root=tmp_path, progress=False)
    assert (stored.episodes, stored.transitions) == (3, 3 * viewer.STEPS)
    for episode in made:
        assert episode["rewards"][-1] > 0.2 * episode["rewards"][0]
        colour = episode["infos"]["instruction"][0].split()[2]
        first = episode["observations"]["top"][1]
        ball, gripper = (
            np.argwhere((first == shade).all(-1)).mean(0)
            for shade in (viewer.COLOURS[colour], viewer.GRIPPER)
        )
        down, right = (ball - gripper) / (76, 52)
        assert np.hypot(down, right) == pytest.approx(-episode["rewards"][0], abs=0.06)


def test_the_bars_are_drawn_from_the_figures() -> None:
    figures = json.loads(read("docs/pictures/sampling.json"))
    for theme in sampling.COLOURS:
        drawn = read(f"docs/pictures/sampling-{theme}.svg")
        again = "draw them again: PYTHONPATH=. python docs/generate/sampling.py"
        assert drawn == sampling.draw(figures, theme), again

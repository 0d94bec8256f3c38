"""The gallery: each planted defect is found by its rule, and the site has the reports that were made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import offline_data
from docs.generate import gallery, hook
from docs.generate.gallery import Exhibit

PLACES = {
    "cartpole": "action",
    "pendulum": "observation, episode 4, row 920",
    "arm": "observation/images/top, episode 5, row 3",
    "pairs": "chosen_data/input_ids, episode 160, row 160",
}
"""Where each defect begins: episodes of the Pendulum have 200 steps, those of the arm 60."""
LINKS = {
    "cartpole": "cartpole.html",
    "pendulum": "pendulum.html#episode=4&t=120",
    "arm": "arm.html#episode=5&t=2",
    "pairs": "pairs.html#episode=160&t=0",
}
TOLD = {"cartpole": "local:cartpole", "arm": "reach the green ball", "pairs": "What is "}
"""Words of a report: of the arm an instruction, of the pairs a text, which a tokenizer decoded."""


@pytest.mark.slow
@pytest.mark.parametrize("exhibit", gallery.EXHIBITS, ids=lambda one: one.name)
def test_a_rule_finds_what_is_planted_and_nothing_without(
    exhibit: Exhibit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in gallery.EPISODES:
        monkeypatch.setitem(gallery.EPISODES, name, 6)
    entry = gallery.write(exhibit, tmp_path)
    assert entry["code"] == exhibit.code
    assert entry["where"].startswith(PLACES[exhibit.name])
    assert entry["link"].startswith(LINKS[exhibit.name])
    report = (tmp_path / entry["file"]).read_text("utf-8")
    assert len(report.encode()) == entry["bytes"] <= gallery.LARGEST
    for words in (exhibit.code, entry["message"].partition(":")[0], TOLD.get(exhibit.name, "")):
        assert words in report
    assert "/datasets" not in report
    clean = exhibit.make(tmp_path / "datasets", planted=False)
    found = offline_data.check(clean, progress=False)
    assert [one for one in found if one.severity != "info"] == []
    assert len(found) > 0


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one report and its index."""
    monkeypatch.setattr(gallery, "FOLDER", tmp_path)
    entry = {
        "file": "arm.html", "link": "arm.html#episode=5&t=3", "bytes": 1_234_567, "title": "An arm", "about": "Two cameras.",
        "defect": "One is black.", "code": "RL050", "rule": "black-images",
        "severity": "warning", "message": "3 of 9 frames are black", "where": "a_b, row 3",
    }  # fmt: skip
    (tmp_path / "arm.html").write_bytes(b"<p>report")
    (tmp_path / gallery.INDEX).write_text(json.dumps([entry]), "utf-8")
    return tmp_path


def test_the_page_lists_the_reports(made: Path) -> None:
    text = gallery.pages()["gallery.md"]
    for part in (
        "## An arm", "[Open the report](gallery/arm.html#episode=5&t=3) (1.2 MB)", "One is black.",
        "[RL050 black-images](rules/RL050.md), warning, in <code>a_b, row 3</code>: 3 of 9 frames",
    ):  # fmt: skip
        assert part in text
    assert "'gallery.md'" in str(hook.navigation())


@pytest.mark.slow
def test_the_site_has_the_reports(made: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    site = tmp_path_factory.mktemp("site")
    files = site_files(site)
    files.copy_static_files()
    assert (site / "gallery" / "arm.html").read_bytes() == b"<p>report"
    assert files.get_file_from_path("gallery.md").dest_uri == "gallery/index.html"


@pytest.mark.slow
def test_without_reports_the_site_has_no_page_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "FOLDER", tmp_path)
    listed = [one.src_uri for one in site_files(tmp_path)]
    assert "notebook.md" in listed
    assert [path for path in listed if "gallery" in path] == []
    assert "gallery" not in str(hook.navigation())


def site_files(site: Path) -> Any:
    """Return the files that the hook adds to the site."""
    config = pytest.importorskip("mkdocs.config", reason="mkdocs is not installed")
    from mkdocs.structure.files import Files

    loaded = config.load_config(str(hook.ROOT / "mkdocs.yml"), site_dir=str(site))
    return loaded.plugins.run_event("files", Files([]), config=loaded)

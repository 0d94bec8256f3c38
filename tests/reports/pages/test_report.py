"""Reports and comparisons: histograms against numpy, escaping, bounds, and odd datasets."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from offline_data.base.errors import ManifestError, NotFoundError
from offline_data.base.files import human_bytes
from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import REWARD
from offline_data.reports.pages.compare import common_bins, compare_page, distance
from offline_data.reports.pages.report import MOST_LISTED, episode_page, report_page
from offline_data.reports.pictures import histogram_of
from offline_data.store.library import Entry, entry_at, list_datasets
from offline_data.store.reader import open_reader
from tests.analysis.test_episodes import STATE, walks
from tests.reports.pages.conftest import HOSTILE, rich_batch, write
from tests.reports.pages.parsed import charts, parse


def flat_batch(state: np.ndarray) -> EpisodeBatch:
    """Return one episode of these states, `[n + 1, features]`, and of no reward."""
    rows = len(state) - 1
    terminated = np.zeros((rows, 1), bool)
    terminated[-1] = True
    return EpisodeBatch(
        lengths=np.array([rows]),
        steps={
            ("action",): np.zeros((rows, 2), np.float32),
            ("next", "reward"): np.zeros((rows, 1)),
            ("next", "terminated"): terminated,
            ("next", "truncated"): ~terminated & False,
        },
        observations={("observation",): state},
        final_observation=np.array([True]),
    )


def test_histograms_count_every_value(rich: Entry) -> None:
    page = parse(report_page(rich))
    shown = charts(page.all("section", id="leaves")[0])
    shown |= charts(page.all("section", id="returns")[0])
    actions = np.asarray(open_reader(rich.path).step(("action",))).astype(int)
    assert shown["action"]["labels"] == ["0", "1", "2", "3"]
    assert shown["action"]["series"][0]["values"] == np.bincount(actions).tolist()
    reward = shown["next/reward"]
    expected = np.histogram(np.arange(38.0), reward["edges"])[0]
    assert reward["series"][0]["values"] == expected.tolist()
    expected = np.histogram([7, 1, 30], shown["length"]["edges"])[0]
    assert shown["length"]["series"][0]["values"] == expected.tolist()
    state = [sum(shown[f"observation/state[{i}]"]["series"][0]["values"]) for i in range(3)]
    assert state == [38, 37, 38]  # one is NaN, and final observations do not count
    boxes = {one["name"]: one["values"] for one in shown["observation/state: ranges"]["levels"]}
    reader, key = open_reader(rich.path), ("observation", "state")
    known = np.asarray(reader.leaf("observations", key))[:40]
    rows = reader.observations_at(key, np.arange(38), after=False)
    assert boxes["least"] == pytest.approx(np.nanmin(known, 0), rel=1e-5)
    assert boxes["greatest"] == pytest.approx(np.nanmax(known, 0), rel=1e-5)
    assert boxes["median"] == pytest.approx(np.nanmedian(rows, 0), abs=0.02)


def test_shares_in_common_bins_are_those_of_numpy_to_within_a_bin() -> None:
    rng = np.random.default_rng(0)
    parts = rng.normal(0, 1, 5000), rng.normal(4, 0.2, 3000)
    found = [histogram_of("x", part) for part in parts]
    edges, shares = common_bins(found)
    assert len(edges) == 33
    assert edges[0] <= min(part.min() for part in parts)
    assert edges[-1] >= max(part.max() for part in parts)
    for part, one, histogram in zip(parts, shares, found, strict=True):
        assert one.sum() == pytest.approx(1)
        exact = np.array([(part < edge).mean() for edge in edges])
        width = histogram.edges[1] - histogram.edges[0]
        below = np.array([(part < edge - width).mean() for edge in edges])
        above = np.array([(part < edge + width).mean() for edge in edges])
        given = np.concatenate([[0], np.cumsum(one)])
        assert ((below - 1e-9 <= given) & (given <= above + 1e-9)).all()
        assert abs(given - exact).max() < 0.02


def test_a_report_escapes_everything_and_names_no_folder(rich: Entry) -> None:
    content = report_page(rich)
    page = parse(content)
    assert page.all("section", id="metadata")[0].text.count(HOSTILE) >= 10
    for name in ("state", "episodes"):
        assert HOSTILE in page.all("section", id=name)[0].text
    assert [one.attributes.get("type") for one in page.all("script")].count(None) == 1
    assert not any(name.startswith("on") for one in page.all("*") for name in one.attributes)
    sources = [str(one.attributes["src"]) for one in page.all("*") if "src" in one.attributes]
    links = [str(one.attributes["href"]) for one in page.all("a")]
    assert all(source.startswith("data:image/") for source in sources)
    assert all(link.startswith("#") for link in links)
    links = [link for link in links if not link.startswith("#episode=")]
    assert b"hush" not in content
    assert str(rich.path.parent).encode() not in content
    sections = [one.attributes["id"] for one in page.all("section")]
    names = ("state", "findings", "cameras", "returns", "episodes", "leaves", "metadata")
    assert sections == list(names)
    assert [link[1:] for link in links] == sections


def test_the_table_of_many_episodes(tmp_path: Path) -> None:
    batch = walks([9] * 150)
    state = np.asarray(batch.observations[STATE])
    state[-10:] = 1000 * state[-10:]  # of the last episode
    page = parse(report_page(write(tmp_path, "many", batch)))
    (table,) = (one for one in page.all("table") if "Outlier in" in one.text)
    rows = table.all("tr")[1:]
    numbers = [int(row.all("td")[0].text.removeprefix("Episode ")) for row in rows]
    assert (len(rows), numbers) == (MOST_LISTED, sorted(numbers))
    assert numbers[-1] == 149
    assert "velocity" in rows[-1].all("td")[2].text
    assert sum(len(row.all("a")) for row in rows) == 3
    assert len(table.all("path")) == MOST_LISTED
    assert "100 of 150 episodes: those that can be played here" in page.text


@pytest.mark.parametrize("moves", [True, False])
def test_small_curves_without_rewards(moves: bool, tmp_path: Path) -> None:
    batch = walks([1, 2, 90])
    steps = {key: column for key, column in batch.steps.items() if key != REWARD}
    batch.observations[STATE][:] = np.nan_to_num(batch.observations[STATE])
    if not moves:
        steps["action",] = np.zeros((93, 1), np.int64)
        batch = replace(batch, observations={("observation",): np.zeros((96, 1), np.int64)})
    page = parse(report_page(write(tmp_path, "plain", replace(batch, steps=steps))))
    (table,) = (one for one in page.all("table") if "Outlier in" in one.text)
    titles = [cell.text for cell in table.all("th")]
    assert titles[3:5] == (["Speed", "Steps"] if moves else ["Steps", "Return"])
    curves = [str(one.attributes["d"]).count("L") + 1 for one in table.all("path")]
    assert curves == ([1, 30] if moves else [])  # a single step has no speed


def test_pictures_of_a_report_are_bounded(rich: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = report_page(rich)
    monkeypatch.setattr("offline_data.reports.pages.report.PICTURE_BYTES", 8_000)
    small = report_page(rich)
    pictures = re.findall(r"UklGR[\w+/]+", small.decode())
    assert sum(map(len, pictures)) < 2 * 4 / 3 * 8_000  # the strips repeat some
    assert "frames of each camera" in small.decode()
    assert len(small) < len(whole) < 1 << 20


@pytest.mark.parametrize(
    "batch",
    [
        flat_batch(np.zeros((2, 1))),
        flat_batch(np.full((3, 2), np.nan)),
        flat_batch(np.array([[1e300, -np.inf], [-1e300, 5e-324], [np.inf, 0.0]])),
        flat_batch(np.arange(6, dtype=np.int64).reshape(3, 2) * 2**61),
        flat_batch(np.zeros((4, 0), np.float32)),
        flat_batch(np.zeros((3, 60))),
        replace(rich_batch(), final_observation=np.zeros(3, bool)),
    ],
    ids=["one step", "nan", "extremes", "large integers", "no feature", "wide", "no final"],
)
def test_odd_datasets_have_a_report(tmp_path: Path, batch: EpisodeBatch) -> None:
    unknown = np.full((int(batch.lengths.sum()), 1), np.nan)
    batch = replace(batch, steps={**batch.steps, ("next", "reward"): unknown})
    entry = write(tmp_path, "odd", batch)
    page = parse(report_page(entry))
    assert f"{batch.lengths[0]}, in" in page.text or "length" in charts(page)
    assert "return" not in charts(page)
    both = parse(compare_page([entry, entry])).all("section", id="distributions")[0]
    assert "all identical." in both.text
    assert not charts(both)


def test_a_comparison_has_common_bins_and_the_differences(pages_root: Path, tmp_path: Path) -> None:
    entries = list_datasets(pages_root)
    page = parse(compare_page(entries))
    shown = charts(page)
    reward = shown["next/reward"]
    assert [one["name"] for one in reward["series"]] == ["local:other@1", "local:rich@1"]
    assert reward["share"]
    other, rich = (np.array(one["values"]) for one in reward["series"])
    edges = np.array(reward["edges"])
    assert edges[0] == 0
    assert edges[-1] == 74
    assert (other.sum(), rich.sum()) == pytest.approx((1, 1))
    expected = np.histogram(np.arange(38.0), edges)[0] / 38
    assert abs(np.cumsum(rich - expected)).max() <= 1 / 38 + 1e-9
    said = page.all("section", id="distributions")[0].text
    assert "length" not in shown  # the same in both
    assert "7 features in common, 1 identical." in said
    titles = list(shown)
    small = [one.text for one in page.all("small")]
    notes = [float(one.removeprefix("distance ")) for one in small if one.startswith("distance")]
    assert (notes, len(titles)) == (sorted(notes, reverse=True), len(notes))
    third = write(tmp_path, "third", flat_batch(np.ones((9, 3))))
    length = charts(parse(compare_page([entries[0], third])))["length"]
    assert length["edges"] == pytest.approx(np.linspace(1, 30, 33), abs=1e-4)
    third_of = pytest.approx([1 / 3, 1 / 3, 1 / 3], abs=1e-6)
    assert [share for share in length["series"][0]["values"] if share] == third_of
    rows = [
        [cell.text for cell in row.all("td")]
        for row in parse(compare_page([entries[0], third])).all("section", id="schema")[0].all("tr")
    ]
    assert ["action", "int64 []", "float32 [2]"] in rows
    assert ["observation", "absent", "float64 [3]"] in rows
    assert ["next/reward", "float64 [1]", "float64 [1]"] in rows


@pytest.mark.parametrize("seed", range(4))
def test_the_distance_is_that_of_the_sorted_values(seed: int) -> None:
    rng = np.random.default_rng(seed)
    one, other = rng.normal(0, 1, 4000), rng.gamma(2, 1 + seed, 4000)
    span = max(one.max(), other.max()) - min(one.min(), other.min())
    expected = np.abs(np.sort(one) - np.sort(other)).mean() / span
    histograms = histogram_of("x", one), histogram_of("x", other)
    assert distance(*histograms) == pytest.approx(expected, abs=1 / 64)
    assert distance(*histograms) == distance(*reversed(histograms))
    constants = [histogram_of("x", np.full(9, value)) for value in (2.0, 5.0)]
    assert distance(*constants) == 1
    assert distance(constants[0], constants[0]) == 0
    low, high = histogram_of("x", np.zeros(5)), histogram_of("x", np.array([0.0, 1, 1, 1]))
    assert distance(low, high) == pytest.approx(0.75, abs=1 / 16)


def test_the_largest_differences_are_drawn_and_the_others_listed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    state = np.repeat(rng.normal(0, 1, (301, 1)), 20, axis=1)
    entries = [
        write(tmp_path, name, flat_batch(state + shift * np.arange(20)))
        for name, shift in (("a", 0.0), ("b", 0.1))
    ]
    part = parse(compare_page(entries)).all("section", id="distributions")[0]
    assert list(charts(part))[::-1] == [f"observation[{n}]" for n in range(19, 7, -1)]
    listed = [row.all("td")[0].text for row in part.all("tr")[1:]]
    assert listed == [f"observation[{n}]" for n in range(7, 0, -1)]


def test_a_report_begins_with_its_state_and_findings(tmp_path: Path) -> None:
    batch = flat_batch(np.c_[np.arange(41.0), np.full(41, 2.5), np.zeros((41, 1))])
    features = {"observation": {"names": ["pan", "lift", "grip"]}}
    about = {"description": "A [page](https://a.b) of **it**.", "fps": 5, "features": features}
    entry = write(tmp_path, "one", batch, about=about)
    page = parse(report_page(entry))
    overview, findings, *_, leaves, metadata = page.all("section")
    line = [one.text for one in overview.all("p", class_="state")[0].all("*")]
    assert line[:2] == ["40 rows", "1 episode"]
    counts = [one.text.split()[0] for one in findings.all("div")[0].all("b")]
    assert counts[0] == "error"
    found = [one.text for one in findings.all("b")]
    for severity in ("error", "warning", "info"):
        number = found.count(severity)
        words = f"{number} {severity}{'s' * (number > 1 and severity != 'info')}"
        assert (words in line) == (number > 0)
    (link,) = overview.all("a")
    assert (link.text, link.attributes["href"]) == ("page", "https://a.b")
    assert "[1] lift is always 2.5; [2] grip is always 0." in leaves.text
    assert "Always 0." in leaves.text  # the action, both features
    assert set(charts(leaves)) == {"observation[0] pan"}
    assert "Rate5 Hz" in metadata.text
    assert "features" not in metadata.text
    assert metadata.all("details")


def test_axes_end_at_the_data_and_wide_leaves_are_heat_maps(tmp_path: Path) -> None:
    state = np.random.default_rng(0).normal(0, 1, (201, 80))
    state[:, 7] = np.nan
    entry = write(tmp_path, "wide", flat_batch(state))
    page = parse(report_page(entry))
    leaves = charts(page.all("section", id="leaves")[0])
    assert set(leaves) == {"observation", "observation: norm"}
    heat = leaves["observation"]
    codes = np.frombuffer(base64.b64decode(heat["codes"]), np.uint8).reshape(80, 200)
    low, high = (np.array(heat[name], float)[:, None] for name in ("low", "high"))
    values = low + (high - low) * codes / 254
    shown = np.arange(80) != 7
    np.testing.assert_allclose(values[shown], state[:200].T[shown], atol=0.02)
    assert (codes[7] == 255).all()
    narrow = write(tmp_path / "x", "narrow", flat_batch(state[:, :1]))
    edges = charts(parse(report_page(narrow)).all("section", id="leaves")[0])["observation"][
        "edges"
    ]
    assert (edges[0], edges[-1]) == pytest.approx((state[:, 0].min(), state[:, 0].max()), rel=1e-5)


def test_more_curves_than_can_be_told_apart_are_drawn_apart(tmp_path: Path) -> None:
    state = np.random.default_rng(0).normal(0, 1, (31, 30))
    for features, kinds in ((4, {"lines"}), (9, {"lines"}), (30, {"heat"})):
        entry = write(tmp_path / str(features), "x", flat_batch(state[:, :features]))
        (article,) = parse(report_page(entry)).all("article")
        shown = [one for title, one in charts(article).items() if title.startswith("observation")]
        assert {one["kind"] for one in shown} == kinds
        assert len(shown) == (9 if features == 9 else 1)
        if features == 4:
            assert [one["name"] for one in shown[0]["series"]] == ["[0]", "[1]", "[2]", "[3]"]


def test_one_episode_is_a_page_that_states_its_size(
    rich: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = episode_page(rich, 2)
    page = parse(content)
    (article,) = page.all("article")
    assert article.attributes["data-episode"] == "2"
    files = [
        base64.b64decode(file)
        for block in article.all("script")
        for file in json.loads(block.text).get("files", ())
    ]
    size = human_bytes(sum(map(len, files)))
    assert f"Images in this file: {size}." in page.text
    assert "frames of each camera" not in page.text
    monkeypatch.setattr("offline_data.reports.pages.report.EPISODE_BYTES", 4_000)
    small = episode_page(rich, 2)
    assert len(small) < len(content)
    assert "of 30 frames of each camera" in small.decode()
    with pytest.raises(NotFoundError):
        episode_page(rich, 3)


def test_a_damaged_dataset_has_no_report(tmp_path: Path) -> None:
    entry = write(tmp_path, "one", rich_batch())
    file = next(name for name in entry.manifest.digests if name.startswith("steps/"))
    (entry.path / file).unlink()
    with pytest.raises(ManifestError, match="is missing"):
        report_page(entry_at(entry.path))


def test_a_wide_leaf_that_never_changes_is_a_sentence(tmp_path: Path) -> None:
    entry = write(tmp_path, "wide", flat_batch(np.tile(np.arange(80.0), (5, 1))))
    page = parse(report_page(entry))
    assert not {"observation", "observation: norm"} & set(charts(page))
    assert "80 of 80 features never change." in page.all("section", id="leaves")[0].text


def test_commands_in_findings_are_code(tmp_path: Path) -> None:
    black = replace(
        flat_batch(np.zeros((5, 2))), observations={("pixels",): np.zeros((5, 16, 16, 3), np.uint8)}
    )
    findings = parse(report_page(write(tmp_path, "black", black))).all("section", id="findings")[0]
    assert "--audit all" in [one.text for one in findings.all("code")]
    assert "`" not in findings.text

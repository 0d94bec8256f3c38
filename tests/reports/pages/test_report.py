"""Reports: what they hold against the rows by numpy and Pillow; escaping, bounds, and odd datasets."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.analysis.episodes import episode_quality
from offline_data.base.errors import ManifestError, NotFoundError
from offline_data.base.files import human_bytes
from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import REWARD
from offline_data.reports.pages.compare import compare_page
from offline_data.reports.pages.report import PARTS, episode_page, report_page
from offline_data.store.library import Entry, entry_at
from offline_data.store.marks import write_marks
from offline_data.store.reader import open_reader
from tests.analysis.test_episodes import STATE, walks
from tests.reports.pages.conftest import HOSTILE, LENGTHS, flat_batch, rich_batch, write
from tests.reports.pages.parsed import Element, charts, data_of, levels, parse

STARTS = np.cumsum([0, *LENGTHS[:-1]])
REWARDS = np.arange(sum(LENGTHS))


@pytest.fixture(scope="module")
def report(rich: Entry) -> Element:
    return parse(report_page(rich))


@pytest.fixture(scope="module")
def data(report: Element) -> dict[str, Any]:
    return data_of(report)


def columns(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of each column of the list, texts as words."""
    values: dict[str, Callable[[Any], Any]] = {
        "text": lambda one: [one["words"][code] for code in one["values"]],
        "curve": lambda one: [*base64.b64decode(one["codes"])],
    }
    return {
        one["key"]: values[one["kind"]](one) if one["kind"] in values else one["values"]
        for one in data["columns"]
    }


def leaves(page: Element) -> Element:
    return page.all("details", id="leaves")[0]


def unpacked(track: Any) -> np.ndarray:
    """Return the values of a track `[features, steps]`; codes are 254 levels, and 255 for none."""
    if isinstance(track, list):
        return np.array(track, np.float64)
    low, high = (np.array(track[end], np.float64)[:, None] for end in ("low", "high"))
    codes = np.frombuffer(base64.b64decode(track["codes"]), np.uint8).reshape(len(low), -1)
    return np.where(codes == 255, np.nan, low + (high - low) * codes / 254)


def test_the_list_has_the_episodes_of_the_dataset(rich: Entry, data: dict[str, Any]) -> None:
    found = columns(data)
    assert data["listed"] == [0, 1, 2]
    assert found["length"] == [*LENGTHS]
    assert found["return"] == [21, 7, 675]
    assert found["terminated"] == found["final_observation"] == [1, 1, 0]
    assert found["truncated"] == [0, 0, 1]
    assert found["instruction"] == [f"go {row // 4} {HOSTILE}" for row in STARTS]
    curves = []
    for start, length in zip(STARTS, LENGTHS, strict=True):
        so_far = np.r_[0, np.cumsum(REWARDS[start : start + length])]
        curves += so_far[np.rint(np.linspace(0, 1, 32) * length).astype(int)].tolist()
    assert found["curve"] == np.rint(np.array(curves) * 99 / 675).tolist()
    quality = episode_quality(open_reader(rich.path))
    for name in ("idle", "jerk", "jerk_p95", "velocity"):
        given = np.array(found[name], np.float64)
        np.testing.assert_allclose(given, np.asarray(quality[name]), 1e-5)
    assert found["outliers"] == np.asarray(quality["outliers"]).tolist()


def test_episodes_are_their_values_pictures_and_texts(data: dict[str, Any]) -> None:
    state = np.asarray(rich_batch().observations["observation", "state"])
    actions = np.asarray(rich_batch().steps["action",])
    assert {*data["shown"]} == {"0", "1", "2"}
    for number, (start, length) in enumerate(zip(STARTS, LENGTHS, strict=True)):
        one, first = data["shown"][str(number)], start + number  # an observation more for each
        rows = slice(start, start + length)
        assert (one["number"], one["length"]) == (number, length)
        assert one["steps"] == [*range(length)]
        assert one["final"] == (number < 2)
        tracks = {key: unpacked(track) for key, track in one["tracks"].items()}
        assert tracks["next/reward"].tolist() == [REWARDS[rows].tolist()]
        assert tracks["return so far"].tolist() == [np.cumsum(REWARDS[rows]).tolist()]
        assert tracks["action"].tolist() == [actions[rows].tolist()]
        expected = state[first : first + length].T
        np.testing.assert_allclose(tracks["observation/state"], expected, 1e-5)
        assert {tuple(camera["steps"]) for camera in one["cameras"].values()} == {
            tuple(range(length))
        }
        assert levels(one["cameras"]["observation/pixels"]) == [*range(first, first + length)]
        given = np.array(levels(one["cameras"]["observation/camera"]))
        assert abs(given - 6 * np.arange(first, first + length)).max() <= 2
        changes = sorted({0, *range(-start % 4, length, 4)})
        texts = [[step, f"go {(start + step) // 4} {HOSTILE}"] for step in changes]
        assert one["texts"] == [["instruction", texts]]
    assert data["shown"]["2"]["notes"] == ["The last observation of this episode is unknown."]


def test_scales_and_facts_are_of_the_dataset(data: dict[str, Any]) -> None:
    state = np.asarray(rich_batch().observations["observation", "state"])
    seen = np.delete(state, [7, 9, 40], axis=0)  # without the final observations
    tracks = {one["key"]: one for one in data["tracks"]}
    assert (tracks["next/reward"]["low"], tracks["next/reward"]["high"]) == ([0], [37])
    assert (tracks["return so far"]["low"], tracks["return so far"]["high"]) == ([0], [675])
    np.testing.assert_allclose(tracks["observation/state"]["low"], np.nanmin(seen, 0), 1e-5)
    np.testing.assert_allclose(tracks["observation/state"]["high"], np.nanmax(seen, 0), 1e-5)
    assert tracks["observation/state"]["labels"] == ["[0]", "[1]", "[2]"]
    assert data["facts"][:3] == ["3 episodes", "38 steps", "4 cameras"]
    sizes = {one["label"]: (one["height"], one["width"]) for one in data["cameras"]}
    assert sizes == {"camera": (32, 40), "pixels": (24, 20), "stack": (16, 16), "depth": (20, 18)}
    assert (data["kind"], data["rate"], data["marks"]) == ("film", None, {})


def test_wide_leaves_are_packed_in_levels_of_their_range(tmp_path: Path) -> None:
    state = np.random.default_rng(0).normal(0, 1, (201, 80))
    state[:, 7] = np.nan
    page = parse(report_page(write(tmp_path, "wide", flat_batch(state))))
    values = unpacked(data_of(page)["shown"]["0"]["tracks"]["observation"])
    assert np.isnan(values[7]).all()
    np.testing.assert_allclose(values, state[:200].T, atol=8 / 254)
    shown = charts(leaves(page))
    assert set(shown) == {"observation", "observation: norm"}
    np.testing.assert_allclose(unpacked(shown["observation"]), state[:200].T, atol=8 / 254)
    narrow = parse(report_page(write(tmp_path / "x", "narrow", flat_batch(state[:, :1]))))
    edges = charts(leaves(narrow))["observation"]["edges"]
    assert (edges[0], edges[-1]) == pytest.approx((state[:, 0].min(), state[:, 0].max()), rel=1e-5)
    assert isinstance(data_of(narrow)["shown"]["0"]["tracks"]["observation"], list)


def test_histograms_count_every_value(rich: Entry, report: Element) -> None:
    shown, reader = charts(leaves(report)), open_reader(rich.path)
    actions = np.asarray(reader.step(("action",))).astype(int)
    assert shown["action"]["labels"] == ["0", "1", "2", "3"]
    assert shown["action"]["series"][0]["values"] == np.bincount(actions).tolist()
    state = [sum(shown[f"observation/state[{i}]"]["series"][0]["values"]) for i in range(3)]
    assert state == [38, 37, 38]  # one is NaN, and final observations do not count
    boxes = {one["name"]: one["values"] for one in shown["observation/state: ranges"]["levels"]}
    key = ("observation", "state")
    known = np.asarray(reader.leaf("observations", key))[:40]
    rows = reader.observations_at(key, np.arange(38), after=False)
    assert boxes["least"] == pytest.approx(np.nanmin(known, 0), rel=1e-5)
    assert boxes["greatest"] == pytest.approx(np.nanmax(known, 0), rel=1e-5)
    assert boxes["median"] == pytest.approx(np.nanmedian(rows, 0), abs=0.02)


def test_a_report_escapes_everything_and_names_no_folder(
    rich: Entry, report: Element, data: dict[str, Any]
) -> None:
    content = report_page(rich)
    assert report.all("details", id="about")[0].text.count(HOSTILE) >= 11
    assert sum(one.attributes.get("type") is None for one in report.all("script")) == 1
    (block,) = (one for one in report.all("div", id="data")[0].children if not isinstance(one, str))
    assert "\\u003c" in block.text
    assert not {*"<>&"} & {*block.text}
    for page in (report, parse(data["findings"]["panel"]), parse(data["findings"]["line"])):
        assert not page.all("script", src="x")
        assert not page.all("img")
        for one in page.all("*"):
            assert not any(name.startswith("on") for name in one.attributes)
            assert all(
                str(one.attributes.get(name, "data:")).startswith(("data:", "#"))
                for name in ("src", "href", "action", "srcset", "poster")
            )
    for hidden in (b"hush", str(rich.path.parent).encode()):
        assert hidden not in content


def test_findings_of_hostile_names_are_text(tmp_path: Path) -> None:
    name = "<b onclick=x>"
    batch = flat_batch(np.zeros((5, 2)))
    state = np.full((5, 1), np.nan)
    state[:4] = 0
    state[1] = np.nan
    batch = replace(batch, observations={("observation", name): state})
    found = data_of(parse(report_page(write(tmp_path, "odd", batch))))["findings"]
    panel = parse(found["panel"])
    assert f"Where: observation/{name}, episode 0, row 1" in panel.text
    assert not [one for one in panel.all("*") if "onclick" in one.attributes]


def test_findings_are_counted_by_severity_and_name_black_cameras(tmp_path: Path) -> None:
    black = replace(
        flat_batch(np.zeros((5, 2))), observations={("pixels",): np.zeros((5, 16, 16, 3), np.uint8)}
    )
    found = data_of(parse(report_page(write(tmp_path, "black", black))))["findings"]
    panel, line = parse(found["panel"]), parse(found["line"])
    severities = [one.text for one in panel.all("b")]
    words = {"error": "error", "warning": "warning", "info": "note"}
    counts = {words[one]: severities.count(one) for one in dict.fromkeys(severities)}
    said = [f"{count} {one}{'s' * (count > 1)}" for one, count in counts.items()]
    assert [one.text for one in line.all("b")] == said
    assert said[0] == "2 errors"
    assert found["black"].keys() == {"pixels"}
    assert found["black"]["pixels"].endswith("(RL050)")
    assert "--audit all" in [one.text for one in panel.all("code")]
    assert "`" not in panel.text


def test_the_header_and_metadata_say_what_the_source_says(tmp_path: Path) -> None:
    batch = flat_batch(np.c_[np.arange(41.0), np.full(41, 2.5), np.zeros((41, 1))])
    features = {"observation": {"names": ["pan", "lift", "grip"]}}
    about = {"description": "A [page](https://a.b) of **it**.", "fps": 5, "features": features}
    page = parse(report_page(write(tmp_path, "one", batch, about=about)))
    data, (metadata,) = data_of(page), page.all("details", id="about")
    assert [one.text for one in page.all("h1")] == ["local:one@1"]
    assert (data["rate"], data["kind"], data["cameras"]) == (5, "vectors", [])
    assert data["facts"][:2] == ["1 episode", "40 steps"]
    (link,) = metadata.all("a")
    assert (link.text, link.attributes["href"]) == ("page", "https://a.b")
    assert "Rate5 Hz" in metadata.text
    assert "features" not in metadata.text
    assert "[1] lift is always 2.5; [2] grip is always 0." in leaves(page).text
    assert "Always 0." in leaves(page).text  # the action, both features
    assert set(charts(leaves(page))) == {"observation[0] pan"}
    labels = {one["key"]: one["labels"] for one in data["tracks"]}
    assert labels["observation"] == ["[0] pan", "[1] lift", "[2] grip"]


def test_marks_and_notes_are_in_a_report(tmp_path: Path) -> None:
    entry = write(tmp_path, "one", rich_batch())
    write_marks(entry.path, entry.manifest, lambda marks: marks.with_mark(2, "bad", HOSTILE))
    assert data_of(parse(report_page(entry)))["marks"] == {"2": {"mark": "bad", "note": HOSTILE}}


def test_of_many_episodes_those_that_play_and_outliers_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offline_data.reports.pages.report.MOST_LISTED", 20)
    batch = walks([9] * 50)
    state = np.asarray(batch.observations[STATE])
    state[-10:] = 1000 * state[-10:]  # of the last episode
    page = parse(report_page(write(tmp_path, "many", batch), budget=20_000))
    data = data_of(page)
    listed, shown = data["listed"], {int(number) for number in data["shown"]}
    assert len(listed) == 20
    assert listed == sorted(listed)
    assert 49 in shown <= {*listed}
    (outliers,) = (one for one in data["columns"] if one["key"] == "outliers")
    bits = outliers["marked"][listed.index(49)]
    names = [name for place, name in enumerate(outliers["names"]) if bits >> place & 1]
    assert "velocity" in names
    assert len(names) == outliers["values"][-1]
    lengths = {len(one["values"]) for one in data["columns"] if "values" in one}
    assert lengths == {20}
    said = page.all("p", id="embedded")[0].text
    assert f"plays {len(shown)} of 50 episodes: outliers, the best and the worst" in said
    assert "20 are in the list" in said


def test_without_rewards_there_is_no_curve(tmp_path: Path) -> None:
    batch = walks([1, 2, 90])
    steps = {key: column for key, column in batch.steps.items() if key != REWARD}
    data = data_of(parse(report_page(write(tmp_path, "plain", replace(batch, steps=steps)))))
    assert "curve" not in columns(data)
    assert not {"next/reward", "return so far"} & {*data["shown"]["2"]["tracks"]}
    assert columns(data)["return"] == [None] * 3


@pytest.mark.slow
def test_episodes_fill_the_budget_and_begin_with_the_best_and_worst(rich: Entry) -> None:
    counts = []
    for budget in (1, 5_500, 9_000, 1 << 20):
        page = parse(report_page(rich, budget=budget))
        shown = data_of(page)["shown"]
        counts.append(len(shown))
        assert [*shown] == ["2", "0", "1"][: len(shown)]  # all but the first fit
        assert len(shown) == 1 or sum(len(json.dumps(one)) for one in shown.values()) <= budget
        assert ("of 30 frames of each camera" in str(shown["2"]["notes"])) == (budget < 1 << 20)
        said = "".join(one.text for one in page.all("p", id="embedded"))
        known = f"This file plays {len(shown)} of 3 episodes: outliers, the best and the worst"
        assert said.startswith(known) if len(shown) < 3 else not said
    assert counts == sorted(counts)
    assert {1, 2, 3} == {*counts}
    chosen = parse(report_page(rich, episodes=[1, 0]))
    assert [*data_of(chosen)["shown"]] == ["1", "0"]
    assert "plays 2 of 3 episodes. offline" in chosen.all("p", id="embedded")[0].text
    with pytest.raises(NotFoundError, match="no episode 3"):
        report_page(rich, episodes=[3])


@pytest.mark.parametrize(
    "batch",
    [
        flat_batch(np.zeros((2, 1))),
        flat_batch(np.full((3, 2), np.nan)),
        flat_batch(np.array([[1e300, -np.inf], [-1e300, 5e-324], [np.inf, 0.0]])),
        flat_batch(np.arange(6, dtype=np.int64).reshape(3, 2) * 2**61),
        flat_batch(np.zeros((4, 0), np.float32)),
        flat_batch(np.zeros((3, 60))),
        pytest.param(
            replace(rich_batch(), final_observation=np.zeros(3, bool)), marks=pytest.mark.slow
        ),
    ],
    ids=["one step", "nan", "extremes", "large integers", "no feature", "wide", "no final"],
)
def test_odd_datasets_have_a_report(tmp_path: Path, batch: EpisodeBatch) -> None:
    unknown = np.full((int(batch.lengths.sum()), 1), np.nan)
    batch = replace(batch, steps={**batch.steps, ("next", "reward"): unknown})
    entry = write(tmp_path, "odd", batch)
    data = data_of(parse(report_page(entry)))
    assert columns(data)["length"] == batch.lengths.tolist()
    assert columns(data)["return"] == [None] * len(batch.lengths)
    assert {*data["shown"]} == {str(number) for number in range(len(batch.lengths))}
    both = parse(compare_page([entry, entry])).all("section", id="distributions")[0]
    assert "all identical." in both.text
    assert not charts(both)


WORK = {
    "episodes": {"episode_quality", "read_episode", "episode_table"},
    "features": {"dataset_stats", "leaf_parts"},
    "findings": {"run_checks"},
    "metadata": set[str](),
}


@pytest.mark.parametrize("part", WORK)
def test_only_a_part_is_that_of_the_whole_report_and_the_rest_is_not_computed(
    part: str,
    rich: Entry,
    report: Element,
    data: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert {*WORK} == {*PARTS}
    for name in set.union(*WORK.values()) - WORK[part]:
        monkeypatch.setattr(
            f"offline_data.reports.pages.report.{name}", lambda *_, **__: pytest.fail("computed")
        )
    page = parse(report_page(rich, only=[part]))
    if part == "episodes":
        kept = {key: value for key, value in data.items() if key != "findings"}
        assert data_of(page) == kept
        assert leaves(page).all("h3")[0].text == "Schema"
        return
    (section,) = page.all("section", id=part)
    assert page.all("section") == [section]
    assert not page.all("div", id="data")
    if part == "features":
        whole, lengths = charts(leaves(report)), charts(section)["length"]
        assert charts(section) == whole | {
            key: charts(section)[key] for key in ("return", "length", "next/reward")
        }
        assert sum(lengths["series"][0]["values"]) == len(LENGTHS)
        assert section.text.endswith(leaves(report).text.rpartition("Schema")[2])
    elif part == "findings":
        assert section.text == "Findings" + parse(data["findings"]["panel"]).text
    else:
        (metadata,) = report.all("details", id="about")
        assert section.text == metadata.text


def test_one_episode_is_a_page_that_states_its_size(
    rich: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = episode_page(rich, 2)
    page = parse(content)
    data = data_of(page)
    assert (data["listed"], [*data["shown"]], columns(data)["return"]) == ([2], ["2"], [675])
    cameras = data["shown"]["2"]["cameras"].values()
    size = sum(len(base64.b64decode(file)) for one in cameras for file in one["files"])
    assert f"Images in this file: {human_bytes(size)}." in page.text
    assert "frames of each camera" not in content.decode()
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
    assert "80 of 80 dimensions never change." in leaves(page).text

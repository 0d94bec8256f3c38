"""Reports and comparisons: histograms against numpy, escaping, bounds, and odd datasets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from offline_data.episodes import EpisodeBatch
from offline_data.errors import AccessError, ManifestError, UsageError
from offline_data.pages.compare import compare_page
from offline_data.pages.histograms import BINS, Bins, distributions_of, quantile
from offline_data.pages.report import report_page, write_page
from offline_data.store.library import Entry, entry_at, list_datasets
from offline_data.store.reader import open_reader
from tests.pages.conftest import HOSTILE, rich_batch, write
from tests.pages.parsed import charts, parse


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


def test_histograms_are_those_of_numpy(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    state = rng.normal(0, 1, (5000, 2)).astype(np.float32)
    state[7, 0] = np.nan
    state[8, 0] = 1000.0
    state[:, 1] = rng.integers(0, 5, 5000)
    reader = open_reader(write(tmp_path, "one", flat_batch(state)).path)
    (found,) = distributions_of([reader])
    first, second = found.features[("observation",)]
    finite = state[np.isfinite(state[:, 0]), 0].astype(float)
    assert first.edges[0] == pytest.approx(finite.min())
    assert first.edges[-1] == pytest.approx(finite.mean() + 5 * finite.std())
    expected = np.histogram(finite.clip(first.edges[0], first.edges[-1]), first.edges)[0]
    assert (first.clipped, len(first.counts), first.counts.sum()) == (True, BINS, 4999)
    assert abs(first.counts - expected).max() <= 1  # a value at an edge
    assert second.counts.sum() == 5000
    width = first.edges[1] - first.edges[0]
    for share in (0.05, 0.5, 0.95):
        assert abs(quantile(first, share) - np.quantile(finite, share)) <= width


def test_integers_have_a_bin_each_also_in_small_blocks(
    rich: Entry, monkeypatch: pytest.MonkeyPatch
) -> None:
    actions = np.asarray(open_reader(rich.path).step(("action",)))
    for items in (1 << 19, 7):
        monkeypatch.setattr("offline_data.pages.histograms.BLOCK_ITEMS", items)
        (found,) = distributions_of([open_reader(rich.path)])
        (bins,) = found.features[("action",)]
        assert bins.integers
        assert bins.counts.tolist() == np.bincount(actions.astype(int), minlength=4).tolist()
        state = found.features[("observation", "state")]
        assert [int(one.counts.sum()) for one in state] == [40, 39, 40]  # one NaN, one repeated
    shown = charts(parse(report_page(rich)))
    assert shown["action"]["labels"] == ["0", "1", "2", "3"]
    assert shown["action"]["series"][0]["values"] == bins.counts.tolist()


def test_quantiles_of_few_values() -> None:
    bins = Bins(np.array([0.0, 1.0, 2.0]), np.array([3, 1]))
    assert [quantile(bins, share) for share in (0, 0.375, 0.75, 1)] == [0, 0.5, 1, 2]
    assert bins.shares.tolist() == [0.75, 0.25]


def test_a_report_escapes_everything_and_names_no_folder(rich: Entry) -> None:
    content = report_page(rich)
    page = parse(content)
    assert page.all("section", id="card")[0].text.count(HOSTILE) >= 4
    for name in ("schema", "provenance", "citation", "episodes", "distributions"):
        assert HOSTILE in page.all("section", id=name)[0].text
    assert [one.attributes.get("type") for one in page.all("script")].count(None) == 1
    assert not any(name.startswith("on") for one in page.all("*") for name in one.attributes)
    sources = [str(one.attributes["src"]) for one in page.all("*") if "src" in one.attributes]
    links = [str(one.attributes["href"]) for one in page.all("a")]
    assert all(source.startswith("data:image/") for source in sources)
    assert all(link.startswith("#") for link in links)
    assert b"hush" not in content
    assert str(rich.path.parent).encode() not in content
    sections = [one.attributes["id"] for one in page.all("section")]
    assert sections[0] == "card"
    assert [link[1:] for link in links] == sections


def test_pictures_of_a_report_are_bounded(rich: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = report_page(rich)
    monkeypatch.setattr("offline_data.pages.report.PICTURE_BYTES", 20_000)
    small = report_page(rich)
    images = sum(len(str(one.attributes["src"])) for one in parse(small).all("img"))
    assert images < 1.4 * 20_000
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
    for content in (report_page(entry), compare_page([entry, entry])):
        shown = charts(parse(content))
        assert "Length of episodes" in shown
        assert "Return of episodes" not in shown


def test_a_comparison_has_common_bins_and_the_differences(pages_root: Path, tmp_path: Path) -> None:
    entries = list_datasets(pages_root)
    page = parse(compare_page(entries))
    shown = charts(page)
    reward = shown["Reward"]
    assert [one["name"] for one in reward["series"]] == ["local:other@1", "local:rich@1"]
    assert reward["share"]
    other, rich = (np.array(one["values"]) for one in reward["series"])
    edges = np.array(reward["edges"])
    assert (edges[0], edges[-1]) == (0, 74)
    assert other.sum() == pytest.approx(1)
    expected = np.histogram(np.arange(38.0), edges)[0] / 38
    assert rich == pytest.approx(expected, abs=1e-6)
    third = write(tmp_path, "third", flat_batch(np.ones((9, 3))))
    rows = [
        [cell.text for cell in row.all("td")]
        for row in parse(compare_page([entries[0], third])).all("section", id="schema")[0].all("tr")
    ]
    assert ["action", "int64 []", "float32 [2]"] in rows
    assert ["observation", "absent", "float64 [3]"] in rows
    assert ["next/reward", "float64 [1]", "float64 [1]"] in rows


def test_a_page_is_written_beside_and_replaces_only_with_force(tmp_path: Path) -> None:
    path = tmp_path / "new" / "page.html"
    write_page(b"first", path)
    with pytest.raises(UsageError, match="exists already"):
        write_page(b"second", path)
    write_page(b"third", path, force=True)
    assert (path.read_bytes(), list(path.parent.iterdir())) == (b"third", [path])
    path.with_name("link").symlink_to("nowhere")
    with pytest.raises(UsageError):
        write_page(b"fourth", path.with_name("link"))
    with pytest.raises(AccessError):
        write_page(b"fifth", path / "below.html")


def test_a_damaged_dataset_has_no_report(tmp_path: Path) -> None:
    entry = write(tmp_path, "one", rich_batch())
    file = next(name for name in entry.manifest.digests if name.startswith("steps/"))
    (entry.path / file).unlink()
    with pytest.raises(ManifestError, match="is missing"):
        report_page(entry_at(entry.path))

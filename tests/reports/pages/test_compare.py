"""Comparisons: common bins against numpy, and which differences are drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from offline_data.reports.pages.compare import common_bins, compare_page, distance
from offline_data.reports.pictures import histogram_of
from offline_data.store.library import list_datasets
from tests.reports.pages.conftest import flat_batch, write
from tests.reports.pages.parsed import charts, parse


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
    assert "7 quantities in common, 1 identical." in said
    titles = list(shown)
    small = [one.text for one in page.all("small")]
    notes = [float(one.removeprefix("distance ")) for one in small if one.startswith("distance")]
    assert (notes, len(titles)) == (sorted(notes, reverse=True), len(notes))
    third = write(tmp_path, "third", flat_batch(np.ones((9, 3))))
    page = parse(compare_page([entries[0], third]))
    length = charts(page)["length"]
    assert length["edges"] == pytest.approx(np.linspace(1, 30, 33), abs=1e-4)
    third_of = pytest.approx([1 / 3, 1 / 3, 1 / 3], abs=1e-6)
    assert [share for share in length["series"][0]["values"] if share] == third_of
    rows = [
        [cell.text for cell in row.all("td")]
        for row in page.all("section", id="schema")[0].all("tr")
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

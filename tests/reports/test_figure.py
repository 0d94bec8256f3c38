"""The figure holds the numbers of `DatasetPictures`, for odd datasets too; and the drawing in characters."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import offline_data
from offline_data import api
from offline_data.analysis.episodes import episode_quality
from offline_data.analysis.replay import EpisodeReplay, Replay
from offline_data.reports import figure
from offline_data.reports.pictures import DatasetPictures, summarise
from offline_data.store.quantiles import QUANTILES
from offline_data.store.reader import open_reader
from offline_data_cli.charts import chart_lines
from tests.reports.drawn import LENGTHS, drawn_episodes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return api.convert(drawn_episodes(), "drawn", root=tmp_path_factory.mktemp("root")).path


@pytest.fixture(scope="module")
def found(folder: Path) -> DatasetPictures:
    return summarise(open_reader(folder))


def _odd(root: Path) -> DatasetPictures:
    """Summarise one episode of one step, without a finite reward, of a name that is a formula."""
    episode = {
        "observations": np.ones((2, 300)),
        "actions": np.array([5]),
        "rewards": np.array([np.nan]),
        "terminations": False,
        "truncations": False,
    }
    found = summarise(open_reader(api.convert([episode], "odd", root=root).path))
    return replace(found, id="$\\frac$ \x1b[31m $x^$ 中", left_out=(("$x^{$", "$" * 999),))


def _titled(drawn: Any) -> dict[str, Any]:
    return {axes.get_title(): axes for axes in drawn.axes if axes.get_title()}


def test_panels_hold_the_numbers(found: DatasetPictures) -> None:
    panels = _titled(figure.draw(found))
    assert found.returns is not None
    (steps,) = panels["return (undiscounted), 1 not finite"].patches
    np.testing.assert_array_equal(steps.get_data().values, found.returns.counts)
    np.testing.assert_array_equal(steps.get_data().edges, found.returns.edges)
    grips = np.concatenate([one["actions"]["grip"] for one in drawn_episodes()])
    bars = {
        round(bar.get_x() + bar.get_width() / 2): bar.get_height()
        for bar in panels["action/grip"].patches
    }
    assert bars == dict(enumerate(np.bincount(grips)))
    state = panels["observation/state"]
    (medians,) = state.lines
    np.testing.assert_array_equal(
        medians.get_ydata(), found.ranges[1].quantiles[:, QUANTILES.index(0.5)]
    )
    total = panels["cumulative reward"]
    curves = [line for line in total.lines if line.get_label().startswith("episode")]
    assert [line.get_label().split(",")[0] for line in curves] == [
        f"episode {one.episode}" for one in found.timelines
    ]
    np.testing.assert_array_equal(curves[0].get_ydata(), found.timelines[0].cumulated)
    assert found.coverage is not None
    (mesh,) = panels["coverage of observations"].collections
    counted = np.ma.filled(mesh.get_array(), np.nan)
    assert np.nansum(10**counted) == pytest.approx(sum(LENGTHS))


@pytest.mark.slow
def test_files_of_each_format(found: DatasetPictures) -> None:
    small = replace(found, actions=(), ranges=(), coverage=None)
    first, second = (figure.encode(figure.draw(small), "svg") for _ in range(2))
    assert first.startswith(b"<?xml")
    assert first == second
    drawn: Any = figure.draw(small)
    assert figure.encode(drawn, "pdf").startswith(b"%PDF")
    image = Image.open(io.BytesIO(drawn._repr_png_()))
    assert (image.format, image.width) == ("PNG", 11 * 120)


@pytest.mark.slow
def test_an_odd_dataset_is_drawn(tmp_path: Path) -> None:
    found = _odd(tmp_path)
    drawn = figure.draw(found)
    figure.encode(drawn, "png")  # a formula that is none would raise
    panels = _titled(drawn)
    assert [text.get_text() for text in panels["next/reward, 1 not finite"].texts] == [
        "no finite value"
    ]
    assert panels["action"].get_xticklabels()[0].get_text() == "always 5"
    assert "\x1b" not in drawn._suptitle.get_text()
    lines = chart_lines(found, 80)
    assert any("no finite value" in line for line in lines)
    assert "action: always 5 in 1 step" in lines


def test_many_dimensions_are_cut_and_counted(found: DatasetPictures) -> None:
    wide = replace(found, actions=found.actions * 9, ranges=found.ranges * 3)
    drawn = figure.draw(wide)
    titles = [part._suptitle.get_text() for part in drawn.subfigs if part._suptitle]
    assert "Actions (first 12; 15 more)" in titles
    assert any("(first 4 features; 2 more)" in title for title in titles)
    assert "… and 15 more numbers of the action" in chart_lines(wide, 80)


def test_formats() -> None:
    assert figure.check_format(Path("a.b.PNG")) == "png"


def test_quality_of_episodes(folder: Path, tmp_path: Path) -> None:
    quality = episode_quality(open_reader(folder))
    second = np.arange(len(LENGTHS)) == 1
    quality = replace(quality, marked={**quality.marked, "length": second})
    drawn = figure.draw_quality("local:$x@1", quality)
    panels = _titled(drawn)
    assert list(panels) == [name for name in quality if name not in {"success", "outliers"}]
    for name, axes in panels.items():
        usual, outliers = axes.lines
        np.testing.assert_array_equal(outliers.get_xdata(), np.flatnonzero(quality.marked[name]))
        np.testing.assert_array_equal(outliers.get_ydata(), quality[name][quality.marked[name]])
        assert len(usual.get_xdata()) + len(outliers.get_xdata()) == len(quality[name])
        assert usual.get_color() != outliers.get_color()
    figure.write(drawn, tmp_path / "a.svg")
    assert (tmp_path / "a.svg").read_bytes().startswith(b"<?xml")


def test_steps_of_a_replay() -> None:
    made = [
        EpisodeReplay(0, 5, "exact"),
        EpisodeReplay(3, 7, "diverging", 1, 2.0, "observation", 4),
        EpisodeReplay(4, 9, "different", -1, 2.0, "observation", -1),
        EpisodeReplay(5, 6, "failed"),
        EpisodeReplay(6, 8, "rounding", 2, 1e-9, "observation"),
    ]
    found = Replay("local:x@1", None, "$X-v0", 1e-5, tuple(made))
    (axes,) = figure.draw_replay(found).axes
    whole, equal = (one.get_data() for one in axes.patches)
    assert whole.values.tolist() == [5, 0, 0, 7, 9, 6, 8]
    assert equal.values.tolist() == [5, 0, 0, 4, 0, 0, 8]
    assert (whole.edges[0], axes.get_title()) == (-0.5, found.summary.replace("$", r"\$"))


def test_plot_returns_a_figure_of_a_path_or_a_loaded_dataset(folder: Path) -> None:
    import matplotlib.figure

    drawn = offline_data.plot(folder, progress=False)
    assert isinstance(drawn, matplotlib.figure.Figure)
    loaded = offline_data.open_dataset(folder)
    again = offline_data.plot(loaded, progress=False)
    assert sorted(_titled(again)) == sorted(_titled(drawn))


@pytest.mark.parametrize("width", [24, 60, 80, 200])
def test_a_drawing_fits_the_width(found: DatasetPictures, width: int) -> None:
    lines = chart_lines(found, width)
    longest = {line for line in lines if len(line) > width}
    assert all(line.startswith(("episode", "local:", "160 ")) for line in longest)
    if width >= 60:
        assert {line for line in longest if not line.startswith("local:")} == set()


def test_columns_of_a_drawing_are_as_high_as_the_counts(found: DatasetPictures) -> None:
    lines = chart_lines(found, 80)
    grip = next(place for place, line in enumerate(lines) if "action/grip" in line)
    grips = np.bincount(np.concatenate([one["actions"]["grip"] for one in drawn_episodes()]))
    at = lines[grip].index("action/grip")
    grip += next(n for n in range(3) if lines[grip + 1 + n][at : at + 2] == "0 ")
    for value, count in enumerate(grips):
        name, number, bar = lines[grip + 1 + value][at : at + 38].split()
        assert (name, number) == (str(value), str(count))
        longest = max(len(lines[grip + 1 + n][at : at + 38].split()[2]) for n in range(3))
        assert len(bar) == pytest.approx(longest * count / grips.max(), abs=0.5)
    alone = chart_lines(replace(found, returns=None, rewards=(), actions=()), 38)
    place = next(n for n, line in enumerate(alone) if line.endswith("column)"))
    assert alone[place].startswith("length (episodes, up to")
    assert found.lengths is not None
    counts = found.lengths.counts
    wide = 36 // len(counts)
    rows = [line.ljust(36) for line in alone[place + 1 : place + 5]]
    heights = [sum(" ▁▂▃▄▅▆▇█".index(row[n * wide]) for row in rows) for n in range(len(counts))]
    np.testing.assert_array_equal(heights, np.ceil(32 * counts / counts.max()))

"""`view.preprocess` makes a dataset of the view's rows, and of no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offline_data
from offline_data.base.errors import UsageError
from offline_data.pipeline.preprocess import plan as planning
from offline_data.store.layout import LayoutName
from offline_data.store.reader import open_reader
from tests.pipeline.preprocess.oracle import (
    DONE,
    TERMINATED,
    TRUNCATED,
    Episode,
    check,
    episodes_of,
)
from tests.pipeline.preprocess.runs import InOrder, write_rich

Make = Callable[[Any], Any]

VIEWS: dict[str, tuple[Make, list[tuple[int, int, int]]]] = {
    # name: how it is made, and its (episode, first step, length) in order
    "filter": (lambda ds: ds.filter(lambda e: e["length"] > 2), [(0, 0, 3), (2, 0, 4), (4, 0, 7), (6, 0, 5)]),
    "order": (lambda ds: ds.episodes_at([5, 2, 3]), [(5, 0, 1), (2, 0, 4), (3, 0, 2)]),
    "twice": (lambda ds: ds.episodes_at([2, 2]), [(2, 0, 4), (2, 0, 4)]),
    "rows": (
        lambda ds: ds.subset(slice(2, 13)),
        [(0, 2, 1), (1, 0, 1), (2, 0, 4), (3, 0, 2), (4, 0, 3)],
    ),
    "inside": (lambda ds: ds.subset(slice(11, 14)), [(4, 1, 3)]),
    "single rows": (
        lambda ds: ds.subset([4, 5, 9, 8, 8, 22]),
        [(2, 0, 2), (3, 1, 1), (3, 0, 1), (3, 0, 1), (6, 4, 1)],
    ),
    "view of a view": (
        lambda ds: ds.episodes_at([4, 0]).subset(slice(4, 9)),
        [(4, 4, 3), (0, 0, 2)],
    ),
}  # fmt: skip


def twice(td: Any) -> Any:
    return td.set("action", td["action"] * 2)


def twice_by_rows(td: Any) -> Any:
    return td.set("action", td["action"] * 2 if float(td["action"][0]) < 1e9 else td["action"])


def expected(parent: Path, pieces: list[tuple[int, int, int]]) -> list[Episode]:
    """Cut the pieces out of the parent row by row; a piece that ends early is truncated there."""
    out = []
    episodes = episodes_of(parent)
    for number, first, length in pieces:
        one = episodes[number]
        rows = [dict(row) for row in one.rows[first : first + length]]
        early = first + length < len(one.rows)
        if early and not rows[-1][TERMINATED].any():
            rows[-1][TRUNCATED] = rows[-1][DONE] = np.array([True])
        for row in rows:
            row["action",] = row["action",] * 2
        out.append(Episode(number, rows, one.final or early, one.extras))
    return out


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    return write_rich(tmp_path / "rich")


@pytest.mark.parametrize(
    ("name", "layout", "fn", "options"),
    [
        *((name, "compact", twice, {}) for name in VIEWS),
        ("single rows", "ted", twice, {}),
        ("view of a view", "ted", twice, {}),
        ("single rows", "compact", twice_by_rows, {}),
        ("single rows", "ted", twice, {"batched": 2}),
        ("single rows", "compact", twice, {"by": "episode"}),
    ],
)
def test_exactly_the_rows_of_the_view(
    tmp_path: Path, name: str, layout: LayoutName, fn: Make, options: dict[str, Any]
) -> None:
    how, pieces = VIEWS[name]
    parent = write_rich(tmp_path / "rich", layout=layout)
    view = how(offline_data.open_dataset(parent))
    view.preprocess(fn, dest=tmp_path / "out", **options)
    check(tmp_path / "out", expected(parent, pieces))


def test_many_groups_and_first_frames(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "GROUP_BYTES", 1)
    how, _ = VIEWS["rows"]
    view = how(offline_data.open_dataset(parent))
    view.preprocess(twice, dest=tmp_path / "out", num_frames=4, chunksize=1)
    check(tmp_path / "out", expected(parent, [(0, 2, 1), (1, 0, 1), (2, 0, 2)]))


def test_steps_see_the_view_only(parent: Path, tmp_path: Path) -> None:
    ds = offline_data.open_dataset(parent)
    view = ds.subset(slice(11, 22))  # pieces of 6 and 1 and 4 rows
    view.preprocess([twice, "filter:length < 6"], dest=tmp_path / "out")
    check(tmp_path / "out", expected(parent, [(5, 0, 1), (6, 0, 4)]))
    view.preprocess(["normalize:observation.state"], dest=tmp_path / "normal")
    states = np.concatenate(
        [
            [row["observation", "state"] for row in one.rows]
            for one in episodes_of(tmp_path / "normal")
        ]
    )
    assert abs(states.mean()) < 0.3, "the mean is that of the view, not of the dataset"


def test_a_function_drops_pieces_before_a_selection(parent: Path, tmp_path: Path) -> None:
    def without_short(td: Any) -> Any:
        return None if len(td) == 1 else td.set("action", td["action"] * 2)

    view = offline_data.open_dataset(parent).subset([0, 2, 4, 5, 7, 10, 11, 12])
    view.preprocess([without_short, "filter:length < 3"], dest=tmp_path / "out", by="episode")
    check(tmp_path / "out", expected(parent, [(2, 0, 2)]))


def test_the_manifest_says_so_and_other_views_are_other_datasets(
    parent: Path, tmp_path: Path
) -> None:
    ds = offline_data.open_dataset(parent)
    view = VIEWS["single rows"][0](ds)
    view.preprocess(twice, dest=tmp_path / "out")
    manifest = open_reader(tmp_path / "out").manifest
    said = manifest.converter["options"]["view"]
    assert manifest.parents == (ds.manifest.id,)
    assert (said["transitions"], said["episodes"], said["cut"]) == (6, 5, 5)
    assert any("6 of 23 steps" in note for note in manifest.notes)
    VIEWS["single rows"][0](ds).preprocess(twice, dest=tmp_path / "out")  # the same is there
    with pytest.raises(UsageError, match="another dataset"):
        VIEWS["rows"][0](ds).preprocess(twice, dest=tmp_path / "out")
    with pytest.raises(UsageError, match="another dataset"):
        ds.preprocess(twice, dest=tmp_path / "out")
    ds.preprocess(twice, dest=tmp_path / "all")
    assert "view" not in open_reader(tmp_path / "all").manifest.converter["options"]


def test_a_stopped_run_of_a_view_resumes(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "GROUP_BYTES", 1)
    once = InOrder(2)
    how, pieces = VIEWS["single rows"]
    ds = offline_data.open_dataset(parent)
    with pytest.raises(KeyboardInterrupt):
        how(ds).preprocess(twice, dest=tmp_path / "out", chunksize=1, engine=once)
    how(ds).preprocess(twice, dest=tmp_path / "out", chunksize=1, engine=once, resume=True)
    check(tmp_path / "out", expected(parent, pieces))
    assert once.ran == len(pieces), "the finished tasks were not run again"

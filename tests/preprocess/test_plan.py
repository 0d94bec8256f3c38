"""How work is cut: whole episodes, every one once, whatever the sizes; what tells recipes apart."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from offline_data.preprocess import plan as module
from offline_data.preprocess.options import Options
from offline_data.preprocess.plan import (
    Plan,
    fingerprint,
    grouped,
    identity_of,
    row_bytes,
    schema_of_piece,
    tasks_of,
)
from offline_data.preprocess.preparing import prepare
from offline_data.preprocess.reading import Chosen, every
from offline_data.preprocess.spec import recipe_of
from offline_data.store.layout import LayoutName
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.pieces import toy_piece
from offline_data.testing.toy import toy_batch, write_toy
from tests.preprocess.runs import write_plain, write_rich

LENGTHS = [3, 1, 4, 2, 7, 1, 5, 30, 1, 1, 2]


@pytest.fixture
def reader(tmp_path: Path) -> DatasetReader:
    return open_reader(write_plain(tmp_path / "toy", LENGTHS))


def plan_of(reader: DatasetReader, layout: LayoutName = "compact", chunk: int = 6) -> Plan:
    options = Options(layout=layout, chunksize=chunk)
    recipe = recipe_of(["clip:action,low=-5000"])
    return prepare(reader, recipe, options, lambda *_: [], in_place=True).plan


@pytest.mark.parametrize("rows", [1, 2, 5, 8, 29, 30, 31, 1000])
def test_groups_are_whole_episodes_and_no_larger_than_they_must_be(
    reader: DatasetReader, rows: int
) -> None:
    seams = grouped(reader, every(reader), rows)
    assert (seams[0], seams[-1]) == (0, len(LENGTHS))
    sizes = [sum(LENGTHS[a:b]) for a, b in itertools.pairwise(seams)]
    counts = np.diff(seams)
    assert counts.min() > 0
    assert all(size <= rows or n == 1 for size, n in zip(sizes, counts, strict=True))
    ends = list(seams[1:-1])
    assert all(size + LENGTHS[end] > rows for size, end in zip(sizes, ends, strict=False))


def test_groups_depend_on_bytes_alike_in_both_layouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = open_reader(write_rich(tmp_path / "compact"))
    other = open_reader(write_rich(tmp_path / "ted", layout="ted"))
    assert row_bytes(one) == row_bytes(other)
    monkeypatch.setattr(module, "GROUP_BYTES", 6 * row_bytes(one))
    seams = [grouped(reader, every(reader)).tolist() for reader in (one, other)]
    assert seams[0] == seams[1] == grouped(one, every(one), 6).tolist()


@pytest.mark.parametrize("rows", [1, 4, 9, 1000])
def test_tasks_are_whole_groups(reader: DatasetReader, rows: int) -> None:
    chosen = every(reader)
    groups = grouped(reader, chosen, 4)
    tasks = tasks_of(chosen, groups, rows)
    assert (tasks[0], tasks[-1]) == (0, len(groups) - 1)
    assert np.diff(tasks).min() > 0
    assert (len(tasks) - 1 == 1) == (rows == 1000)


def test_where_tasks_begin(reader: DatasetReader) -> None:
    plan = plan_of(reader)
    plan = replace(plan, groups=np.array([0, 2, 5, 8, 11]), tasks=np.array([0, 1, 3, 4]))
    assert plan.count == 3
    assert [plan.first_of(task) for task in range(3)] == [(0, 0), (4, 2), (53, 8)]
    assert [plan.rows_of(task) for task in range(3)] == [4, 49, 4]
    assert plan.part(1).episodes.tolist() == [2, 3, 4]
    some = replace(
        plan, chosen=Chosen(np.array([4, 6, 7]), np.array([7, 5, 9]), np.zeros(3, np.int64))
    )
    some = replace(some, groups=np.array([0, 1, 3]), tasks=np.array([0, 1, 2]))
    assert [some.first_of(task) for task in range(2)] == [(0, 0), (7, 1)]
    assert [some.rows_of(task) for task in range(2)] == [7, 14]


def test_sizes_of_files(reader: DatasetReader, tmp_path: Path) -> None:
    write_toy(tmp_path / "ted", [toy_batch(LENGTHS)], layout="ted")
    for layout, folder in (("compact", reader.path), ("ted", tmp_path / "ted")):
        sizes = plan_of(reader, layout).sizes  # type: ignore[arg-type]
        there = {
            path.relative_to(folder).as_posix(): path.stat().st_size
            for path in folder.rglob("*.memmap")
            if "episodes" not in path.parts
        }
        assert sizes == there
        assert plan_of(reader, layout).bytes == sum(there.values())  # type: ignore[arg-type]


def test_text_is_what_has_words() -> None:
    schema = schema_of_piece(toy_piece([2]))
    text = {key for key, column in {**schema.steps, **schema.observations}.items() if column.text}
    assert (text, schema.coded) == ({("mission",)}, True)


def test_fingerprints(reader: DatasetReader, tmp_path: Path) -> None:
    other = open_reader(write_plain(tmp_path / "other", [*LENGTHS[:-1], 3]))
    write_toy(tmp_path / "named", [toy_batch(LENGTHS)], dataset="local:toy@2")
    named = open_reader(tmp_path / "named")
    clip, clip2 = recipe_of(["clip:action,low=1"]), recipe_of(["clip:action,low=2"])
    prints = [
        fingerprint(reader, clip, None),
        fingerprint(reader, clip2, None),
        fingerprint(reader, clip, 5),
        fingerprint(other, clip, None),
        fingerprint(named, clip, None),
        fingerprint(reader, recipe_of(["clip:action,low=1", "clip:action,low=1"]), None),
    ]
    assert len(set(prints)) == len(prints)
    assert (
        fingerprint(open_reader(reader.path), recipe_of(["clip:action,low=1"]), None) == prints[0]
    )
    assert len({identity_of(one) for one in (reader, other, named)}) == 3

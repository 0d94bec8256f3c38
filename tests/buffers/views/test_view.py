from __future__ import annotations

import itertools
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offline_data.base.errors import NotFoundError, UsageError
from offline_data.buffers.dataset import Dataset, DatasetView
from offline_data.rows.samplers import (
    SamplerWithoutReplacement,
)
from offline_data.testing.toy import toy_batch, write_toy

from .conftest import LENGTHS, UNKNOWN, action, rows_of, step_of

INVALID = {rows_of(e)[-1] for e in UNKNOWN if e % 2 == 1}  # even episodes end terminated


def everything(view: Dataset) -> list[int]:
    """Rows of the dataset, in the order of the view, checked against what the rows hold."""
    batch = view[:]
    rows: list[int] = batch["dataset_index"].tolist()
    expected = [action(*step_of(row)) for row in rows]
    assert batch["action"][:, 0].tolist() == expected
    assert batch["dataset_episode"].tolist() == [step_of(row)[0] for row in rows]
    assert batch["index"].tolist() == list(range(len(view)))
    assert view.episodes["id"][batch["episode"]].tolist() == batch["dataset_episode"].tolist()
    return rows


def test_filter_by_numbers_keeps_their_order(many: Dataset) -> None:
    view = many.filter(lambda _: np.array([30, 2, 17]))
    assert everything(view) == rows_of(30, 2, 17)
    assert view.episodes["id"].tolist() == [30, 2, 17]
    assert everything(many.episodes_at([30, 2, 17])) == rows_of(30, 2, 17)
    assert everything(many.episodes_at(slice(-2, None))) == rows_of(38, 39)
    assert everything(many.episodes_at(5)) == rows_of(5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("length > 7", lambda e: LENGTHS[e] > 7),
        ("truncated and number in [3, 5, 6]", lambda e: e in (3, 5)),
        (
            "return >= max(return)",
            lambda e: e == max(range(40), key=lambda e: (e + 1) * LENGTHS[e]),
        ),
        ("label == 'go' or id == 1", lambda e: e in (0, 1, 3)),
        ("label != 'go'", lambda e: e not in (0, 3)),
        ("label == 'wait' and number < 6", lambda e: e in (4, 5)),
    ],
)
def test_filter_by_an_expression(
    text: str, expected: Callable[[int], bool], tmp_path: Path
) -> None:
    labels = np.array(["go", "stop", None, "go"] + ["wait"] * 36, object)
    batch = toy_batch(LENGTHS, unknown_final=UNKNOWN)
    write_toy(tmp_path / "d", [replace(batch, episodes={**batch.episodes, ("label",): labels})])
    ds = Dataset(tmp_path / "d")
    chosen = [e for e in range(40) if expected(e)]
    assert everything(ds.filter(text)) == rows_of(*chosen)


def test_an_expression_over_a_view(many: Dataset) -> None:
    view = many.episodes_at([30, 2, 17])
    assert everything(view.filter("number > 0 and id < 30")) == rows_of(2, 17)
    cut = many.subset(slice(1, None))  # `length` is the view's
    assert cut.filter(f"length == {LENGTHS[0]}").episodes.numbers.tolist() == [
        e for e in range(1, 40) if LENGTHS[e] == LENGTHS[0]
    ]


def test_an_empty_view(many: Dataset) -> None:
    view = many.filter(lambda episodes: episodes.length > 1000)
    assert len(view) == len(view.episodes) == 0
    assert view[:].batch_size == (0,)


slices = st.builds(slice, st.integers(-9, 30), st.integers(-9, 200), st.sampled_from([1, 1, 3]))


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30
)
@given(st.data())
def test_views_of_views_are_lists_of_rows(many: Dataset, data: Any) -> None:
    view, rows = many, rows_of(*range(40))
    for _ in range(data.draw(st.integers(1, 3))):
        seen = list(dict.fromkeys(step_of(row)[0] for row in rows))
        kind = data.draw(st.sampled_from(["slice", "rows", "mask", "episodes"]))
        if kind == "slice":
            some = data.draw(slices)
            view, rows = view.subset(some), rows[some]
        elif kind == "mask":
            view, rows = view.subset(torch.arange(len(rows)) % 3 == 0), rows[::3]
        elif not rows:
            continue
        elif kind == "rows":
            picked = data.draw(st.lists(st.integers(-len(rows), len(rows) - 1), max_size=30))
            view, rows = view.subset(picked), [rows[number] for number in picked]
        else:
            numbers = data.draw(st.lists(st.integers(0, len(seen) - 1), max_size=6))
            view = view.episodes_at(numbers)
            rows = [row for e in numbers for row in rows if step_of(row)[0] == seen[e]]
    assert everything(view) == rows
    assert view.episodes.numbers.tolist() == list(dict.fromkeys(step_of(row)[0] for row in rows))
    valid = [number for number, row in enumerate(rows) if row not in INVALID]
    assert view.valid_rows.tolist() == valid


def test_a_view_of_a_view_is_a_view_of_the_dataset(many: Dataset) -> None:
    first = many.filter(lambda _: [9, 4, 25, 6])
    second = first.filter(lambda episodes: episodes["id"] != 4)
    assert everything(second) == rows_of(9, 25, 6)
    third = second.subset(slice(1, -1))
    assert everything(third) == rows_of(9, 25, 6)[1:-1]
    assert everything(third.episodes_at([-1, 0])) == rows_of(6)[:-1] + rows_of(9)[1:]


def test_split_is_by_whole_episodes_and_follows_from_the_seed(
    many: Dataset,
) -> None:
    parts = many.split(train=0.7, val=0.2, test=0.1, seed=3)
    assert list(parts) == ["train", "val", "test"]
    assert [len(part.episodes) for part in parts.values()] == [28, 8, 4]
    numbers = [part.episodes.numbers.tolist() for part in parts.values()]
    assert sorted(itertools.chain(*numbers)) == list(range(40))
    for part, mine in zip(parts.values(), numbers, strict=True):
        assert mine == sorted(mine)
        assert everything(part) == rows_of(*mine)
    again = Dataset(many.data_path).split(train=0.7, val=0.2, test=0.1, seed=3)
    assert [part.episodes.numbers.tolist() for part in again.values()] == numbers
    other = many.split(train=0.7, val=0.2, test=0.1, seed=4)
    assert other["train"].episodes.numbers.tolist() != numbers[0]
    assert parts["val"].episodes.numbers.tolist() == [2, 8, 14, 18, 27, 29, 37, 38]
    some = many.split(train=0.5)
    assert len(some["train"].episodes) == 20


def test_a_view_keeps_what_the_buffer_does(toy: Path) -> None:
    ds = Dataset(
        toy,
        6,
        keys=["action", "next.reward"],
        prefetch=2,
        transform=lambda batch: batch.set("twice", batch["action"] * 2),
        collate_fn=lambda batch: batch.set("once", batch["action"]),
    )
    ds.append_transform(lambda batch: batch.set("thrice", batch["action"] * 3))
    view = ds.episodes_at([3, 4], batch_size=5)
    batch = view.sample()
    assert batch.batch_size == (5,)
    assert set(batch.keys()) == {
        *("index", "dataset_index", "action", "next", "once", "twice", "thrice")
    }
    assert torch.equal(batch["thrice"], batch["once"] * 3)
    assert ds.episodes_at([3]).batch_size == 6
    view.append_transform(lambda batch: batch.set("own", batch["action"]))
    assert "own" not in ds.sample().keys()  # noqa: SIM118
    assert view.manifest.id == "local:toy@1"
    assert view.data_path == toy


def test_a_view_is_not_deleted(toy: Path, tmp_path: Path) -> None:
    toy = shutil.copytree(toy, tmp_path / "toy")
    many = Dataset(toy, 16)
    view = many.episodes_at([0])
    with pytest.raises(UsageError, match="all of them") as caught:
        view.delete()
    assert str(toy) in str(caught.value.hint)
    assert view[:].batch_size == (LENGTHS[0],)
    view.sample()
    many.delete()
    uses: list[Callable[[], Any]] = [view.sample, lambda: view[0]]
    for use in uses:
        with pytest.raises(NotFoundError, match="deleted"):
            use()


def test_pickled_views_carry_a_path_and_indices(tmp_path: Path, many: Dataset) -> None:
    view = many.filter(lambda e: e.length > 2, sampler=SamplerWithoutReplacement(seed=3))
    view.sample()
    packed = pickle.dumps(view)
    assert len(packed) < 16_000
    copy = pickle.loads(packed)  # noqa: S301
    assert isinstance(copy, DatasetView)
    assert everything(copy) == everything(view)
    assert copy.episodes.numbers.tolist() == view.episodes.numbers.tolist()
    assert [b["index"].tolist() for b in copy] == [b["index"].tolist() for b in view]


def test_text_is_decoded_in_views(compact: Path, truth: dict[Any, Any]) -> None:
    mission = ("observation", "mission")
    view = Dataset(compact, decode_text=True).episodes_at([2, 0])
    assert list(view[:][mission]) == truth[mission][[4, 5, 6, 7, 0, 1, 2]].tolist()
    assert view.episodes.name == ["episode 2", "episode 0"]
    codes = Dataset(compact).episodes_at([2])
    assert codes.decode(mission, codes[:][mission]) == truth[mission][4:8].tolist()

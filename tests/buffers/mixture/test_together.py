from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from offline_data.buffers import native
from offline_data.buffers.dataset import BaseDatasetExperienceReplay as Dataset
from offline_data.buffers.mixture import agreement
from offline_data.buffers.mixture.mixture import DatasetMixture
from offline_data.buffers.mixture.together import gather_together
from offline_data.testing.toy import toy_batch, write_toy

from .conftest import assert_rows_are_theirs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(native.compiled is None, reason="the gather was not built")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each batch was gathered by one call."""
    found: list[bool] = []

    def watched(*arguments: Any) -> Any:
        together = gather_together(*arguments)
        found.append(together is not None)
        return together

    monkeypatch.setattr(agreement, "gather_together", watched)
    return found


def test_stored_rows_of_datasets_and_views_are_gathered_at_once(
    three: list[Dataset], made: list[bool]
) -> None:
    members = [three[0], three[1].subset([9, 3, 29]), three[2].episodes_at([5, 4])]
    for shuffle in (True, False):
        batch = DatasetMixture(*members, weights="equal", shuffle=shuffle).sample(300)
        assert "dataset_index" not in batch.keys()  # noqa: SIM118 - members[0] has none
        assert set(batch["index"][batch["source"] == 1].tolist()) == {0, 1, 2}
        assert set(batch["index"][batch["source"] == 2].tolist()) <= set(range(50))
        for number, view in ((1, members[1]), (2, members[2])):
            own = batch["source"] == number
            index = batch["index"][own]
            assert torch.equal(view[index]["action"], batch["action"][own])
            assert torch.equal(view[index]["episode"], batch["episode"][own])
            batch["index"][own] = view.rows[index]  # type: ignore[attr-defined]
        assert_rows_are_theirs(batch)
    assert_rows_are_theirs(DatasetMixture(*three, weights=[0, 1, 0]).sample(20))
    assert made == [True] * 3


def test_views_alone_have_the_datasets_numbers_too(three: list[Dataset], made: list[bool]) -> None:
    views = [three[1].subset([9, 3, 29]), three[2].episodes_at([5, 4]).subset(slice(3, 40))]
    for together in (True, False):
        for shuffle in (True, False):
            options: Any = {} if together else {"cast": True, "weights": [0.5, 0.5]}
            members = views if together else [views[0].append_transform(lambda b: b), views[1]]
            batch = DatasetMixture(*members, shuffle=shuffle, **options).sample(200)
            for number, view in enumerate(views):
                own = batch["source"] == number
                index = batch["index"][own]
                assert len(index)
                for leaf in ("action", "episode", "dataset_episode", "dataset_index"):
                    assert torch.equal(view[index][leaf], batch[leaf][own])
                assert torch.equal(view.rows[index], batch["dataset_index"][own])
    assert made == [True, True, False, False]


def test_the_largest_batches_are_the_same(three: list[Dataset], made: list[bool]) -> None:
    torch.set_num_threads(4)
    assert_rows_are_theirs(DatasetMixture(*three).sample(50_000))
    assert made == [True]


def test_leaves_that_lie_elsewhere_are_put_together_one_by_one(
    three: list[Dataset], folders: list[Path], tmp_path: Path, made: list[bool]
) -> None:
    write_toy(tmp_path / "images", [toy_batch([4, 6], images=True)])
    write_toy(tmp_path / "ted", [toy_batch([4, 6])], layout="ted")
    keys = ["action", "observation.state", "next.observation.state", "next.reward"]
    for other in (Dataset(tmp_path / "images"), Dataset(tmp_path / "ted")):
        mixture = DatasetMixture(other, *three[1:], keys=keys, weights="equal", seed=0)
        batch = mixture.sample(200)
        assert_rows_are_theirs(batch)
        after = batch["next", "observation", "state"]
        assert torch.equal(after, batch["observation", "state"] + 1)
    assert made == [False] * 2


def test_members_that_change_rows_are_made_one_by_one(
    three: list[Dataset], made: list[bool]
) -> None:
    three[1].append_transform(lambda batch: batch)
    assert_rows_are_theirs(DatasetMixture(*three, weights="equal").sample(50))
    assert made == [False]


def test_rows_that_are_not_there(three: list[Dataset]) -> None:
    for dataset in three:
        dataset.sample(1)
    gathers: list[Any] = [dataset.storage._leaves_of for dataset in three]  # type: ignore[attr-defined]
    for source, rows in (([0, 3], [0, 0]), ([0, -1], [0, 0]), ([0, 0], [9, 10]), ([1, 0], [-1, 0])):
        with pytest.raises(IndexError):
            native.gather_mixed(gathers, torch.tensor(source), torch.tensor(rows))
    found = native.gather_mixed(gathers, torch.tensor([2, 0]), torch.tensor([59, 9]))
    assert found is not None
    assert found[three[0].storage.slots[("index",)]].tolist() == [59, 9]  # type: ignore[attr-defined]


def test_leaves_of_other_names_at_the_same_places(tmp_path: Path, made: list[bool]) -> None:
    for number, names in enumerate(("ab", "bc")):
        toy = toy_batch([4, 6], first_episode=100 * number)
        own: dict[Any, Any] = {("x", name): (ord(name) + toy.steps["action",]) for name in names}
        write_toy(tmp_path / names, [replace(toy, steps={**toy.steps, **own})])
    members = [Dataset(tmp_path / names) for names in ("ab", "bc")]
    assert members[0].storage.slots != members[1].storage.slots  # type: ignore[attr-defined]
    batch = DatasetMixture(*members, keys=["action", "x.b"], seed=0).sample(50)
    assert torch.equal(batch["x", "b"], batch["action"] + ord("b"))
    assert made == [False]

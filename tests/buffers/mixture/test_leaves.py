from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tensordict import TensorDict

from offline_data.buffers.buffer import TensorDictReplayBuffer
from offline_data.buffers.dataset import BaseDatasetExperienceReplay as Dataset
from offline_data.buffers.mixture.mixture import DatasetMixture
from offline_data.buffers.samplers import PrioritizedSampler
from offline_data.buffers.storages import LazyTensorStorage
from offline_data.errors import UsageError
from offline_data.testing.toy import toy_batch, write_toy

from .conftest import assert_rows_are_theirs

if TYPE_CHECKING:
    from pathlib import Path

REWARD = ("next", "reward")


def growing(**leaves: torch.Tensor) -> TensorDictReplayBuffer:
    """A buffer of five rows with these leaves."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(5))
    buffer.extend(TensorDict(dict(leaves), [5]))
    return buffer


def keys_of(batch: Any) -> set[Any]:
    return set(batch.keys(include_nested=True, leaves_only=True))


def test_leaves_that_some_members_lack_are_listed(
    three: list[Dataset], folders: list[Path]
) -> None:
    fewer = Dataset(folders[1], keys=["action", "observation", "next.reward"])
    extra = Dataset(folders[2]).append_transform(lambda b: b.set("goal", b["action"]))
    mixture = DatasetMixture(three[0], fewer, extra)
    with pytest.raises(UsageError) as caught:
        mixture.sample()
    assert "member 0 has" in caught.value.message
    assert "info/code" in caught.value.message
    assert "goal" in caught.value.message
    assert "action" not in caught.value.message
    assert "keys=" in str(caught.value.hint)
    some = DatasetMixture(three[0], fewer, extra, keys=["observation", "action", REWARD, "index"])
    batch = some.sample()
    expected = {"index", "source", "action", ("observation", "state"), REWARD}
    assert keys_of(batch) == expected
    assert_rows_are_theirs(batch)
    with pytest.raises(UsageError, match=r"Member 1: There is no leaf 'info'") as missing:
        DatasetMixture(three[0], fewer, keys=["info"]).sample()
    assert "action" in missing.value.message


def test_a_priority_weight_of_one_member_is_not_common(three: list[Dataset]) -> None:
    three[1].set_sampler(PrioritizedSampler(100, alpha=0.5, beta=0.5))
    with pytest.raises(UsageError, match="member 1 has priority_weight"):
        DatasetMixture(*three).sample()
    three[0].set_sampler(PrioritizedSampler(100, alpha=0.5, beta=0.5))
    batch = DatasetMixture(*three[:2], weights="equal").sample()
    assert torch.equal(batch["priority_weight"], torch.ones(256))


def test_leaves_are_renamed(three: list[Dataset]) -> None:
    def other_names(batch: Any) -> Any:
        batch.set(("obs", "x"), batch.get(("observation", "state")))
        batch.set(("next", "obs", "x"), batch.get(("next", "observation", "state")))
        batch.set("act", batch.get("action"))
        return batch.exclude("observation", ("next", "observation"), "action")

    three[1].append_transform(other_names)
    names: dict[Any, Any] = {"observation.state": ("obs", "x"), "action": "act"}
    mixture = DatasetMixture(*three, rename=[None, names, None], seed=0)
    batch = mixture.sample(200)
    assert keys_of(batch) == keys_of(three[0][:1]) | {"source"}
    assert_rows_are_theirs(batch)
    assert torch.equal(batch["next", "observation", "state"], batch["observation", "state"] + 1)
    parent = DatasetMixture(*three, rename=[None, {"observation": "obs", "action": "act"}, None])
    with pytest.raises(UsageError, match=r"member 1 has .*observation/x"):
        parent.sample()
    with pytest.raises(UsageError, match="Member 0: There is no leaf 'obs/x'"):
        DatasetMixture(*three, rename=[names, names, None]).sample()
    with pytest.raises(UsageError, match="Two leaves of member 0 are called 'action'"):
        DatasetMixture(three[0], rename=[{"action": "episode"}]).sample()


def test_next_can_be_renamed_on_its_own(three: list[Dataset]) -> None:
    names: dict[Any, Any] = {"now": "observation", ("next", "then"): ("next", "observation")}
    batch = DatasetMixture(three[0], rename=[names]).sample(4)
    assert ("now", "state") in keys_of(batch)
    assert ("next", "then", "state") in keys_of(batch)


def test_shapes_must_be_the_same() -> None:
    members = [growing(action=torch.ones(5, 3)), growing(action=torch.ones(5, 2))]
    with pytest.raises(UsageError, match=r"'action' has rows of different shapes: member 0 \(3,\)"):
        DatasetMixture(*members).sample()


def test_item_types_agree_or_are_promoted() -> None:
    values = [torch.arange(5.0) + 0.5, torch.arange(5, dtype=torch.float64) + 100.25]
    members = [growing(action=v) for v in values]
    members.append(growing(action=torch.arange(5, dtype=torch.int32) + 1000))
    with pytest.raises(UsageError) as caught:
        DatasetMixture(*members).sample()
    assert "member 0 float32, member 1 float64, member 2 int32" in caught.value.message
    assert caught.value.hint == "cast=True makes it float64"
    mixture = DatasetMixture(*members, cast=True, seed=0)
    for _ in range(30):  # also where one row is of a member that was not cast
        batch = mixture.sample(2)
        assert batch["action"].dtype == torch.float64
        first = torch.tensor([0.5, 100.25, 1000.0], dtype=torch.float64)[batch["source"]]
        assert torch.equal(batch["action"], first + batch["index"])


def test_stored_leaves_are_promoted_too(three: list[Dataset], folders: list[Path]) -> None:
    double = Dataset(folders[1]).append_transform(
        lambda batch: batch.set("action", batch["action"].double())
    )
    batch = DatasetMixture(three[0], double, cast=True, weights="equal", seed=0).sample(100)
    assert batch["action"].dtype == torch.float64
    assert_rows_are_theirs(batch)


def test_what_batches_cannot_be(three: list[Dataset], folders: list[Path]) -> None:
    wrong: dict[str, Dataset] = {
        "are Tensors; a mixture takes": Dataset(folders[0], transform=lambda b: b["action"]),
        "Member 0 has a leaf 'source'": Dataset(
            folders[0], transform=lambda b: b.set("source", b["action"])
        ),
        "have no leaf 'index'": Dataset(
            folders[0], transform=lambda b: b[[0, *range(len(b))]].exclude("index")
        ),
        r"'index' as torch.int64 \[5\]; expected torch.int64 \[8\]": Dataset(
            folders[0], transform=lambda b: b[:5]
        ),
    }
    for words, member in wrong.items():
        with pytest.raises(UsageError, match=words):
            DatasetMixture(member).sample(8)
    changing = iter([1, 1, 2])
    fickle = Dataset(folders[0], transform=lambda b: b.set(f"leaf{next(changing)}", b["action"]))
    mixture = DatasetMixture(fickle)
    mixture.sample(4)
    with pytest.raises(UsageError, match="member 0 come and go: leaf1, leaf2"):
        mixture.sample(4)


def texts(folder: Path, first: int) -> Dataset:
    """A dataset whose missions begin with those of episode `first`."""
    write_toy(folder, [toy_batch([3, 2], first_episode=first, text=True)])
    return Dataset(folder)


def test_codes_of_different_vocabularies_are_not_mixed(tmp_path: Path) -> None:
    one, same, other = (texts(tmp_path / n, e) for n, e in (("a", 0), ("b", 0), ("c", 1)))
    mission = ("observation", "mission")
    batch = DatasetMixture(one, same).sample(50)
    assert one.decode(mission, batch[mission][0]) == same.decode(mission, batch[mission][0])
    members: list[Any] = [one, DatasetMixture(other)]
    for second in (other, members[1], other.episodes_at([0])):
        with pytest.raises(UsageError, match="'observation/mission' has codes of different"):
            DatasetMixture(one, second).sample()
        DatasetMixture(one, second, keys=["action"]).sample()
    renamed = DatasetMixture(
        one,
        other,
        rename=[{"a": mission}, {"b": mission}],
        keys=["action"],
    )
    renamed.sample()


def test_strings_are_not_mixed(tmp_path: Path) -> None:
    texts(tmp_path / "a", 0)
    with pytest.raises(UsageError, match="is not a tensor") as caught:
        DatasetMixture(Dataset(tmp_path / "a", decode_text=True)).sample()
    assert "decode_text" in str(caught.value.hint)


def test_whole_episodes_of_one_length_can_be_mixed(tmp_path: Path) -> None:
    for name in "ab":
        write_toy(tmp_path / name, [toy_batch([3, 1])])
    members = [Dataset(tmp_path / name, split_trajs=True) for name in "ab"]
    batch = DatasetMixture(*members, seed=0).sample(6)
    assert batch.batch_size == (6, 3)
    assert batch["source"].shape == (6,)

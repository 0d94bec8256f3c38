from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offline_data.buffers.storage import DatasetStorage
from offline_data.episodes import EpisodeBatch
from offline_data.episodes.fields import next_of
from offline_data.errors import ManifestError, NotFoundError, UsageError
from offline_data.store.layout import LAYOUTS, LayoutName
from offline_data.store.reader import decode
from offline_data.testing.toy import toy_batch, write_toy

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from offline_data.buffers.keys import KeyLike
    from offline_data.episodes import Key


pytestmark = pytest.mark.usefixtures("gathering")


def leaves_of(batch: Any) -> dict[Key, torch.Tensor]:
    items = batch.items(include_nested=True, leaves_only=True)
    return {key if isinstance(key, tuple) else (key,): leaf for key, leaf in items}


def assert_equal(storage: DatasetStorage, found: Any, truth: dict[Key, NDArray[Any]]) -> None:
    """Compare leaf for leaf, bit for bit; the index says which rows."""
    rows = found["index"].numpy()
    leaves = leaves_of(found)
    assert set(leaves) == {*storage.keys, ("index",)}
    for key, leaf in leaves.items():
        want, got = truth[key][rows], leaf.numpy()
        words = storage.reader.words(key)
        got = got if words is None else decode(got, words)
        assert got.dtype == want.dtype, key
        np.testing.assert_array_equal(got, want, err_msg=str(key))


def test_a_set_in_memory_needs_no_file_any_more(
    folder: Path, truth: dict[Key, NDArray[Any]]
) -> None:
    storage = DatasetStorage(folder, in_memory=True)
    assert_equal(storage, storage.gather(torch.tensor([3, 0, 10])), truth)
    for file in folder.rglob("*.memmap"):
        file.write_bytes(bytes(file.stat().st_size))
    assert_equal(storage, storage.gather(torch.arange(11)), truth)
    assert not storage.cold
    with pytest.raises(UsageError, match="in_memory=True"):
        DatasetStorage(folder, in_memory=True, pin_memory=True)


def test_a_set_on_a_device_gives_batches_there(folder: Path) -> None:
    storage = DatasetStorage(folder, in_memory=True, device="meta")
    batch = storage.gather(torch.tensor([3, 0, 10]))
    assert {leaf.device.type for leaf in leaves_of(batch).values()} == {"meta"}
    assert {leaf.shape[0] for leaf in leaves_of(batch).values()} == {3}


def test_all_leaves_of_all_rows_are_the_sources(
    folder: Path, truth: dict[Key, NDArray[Any]]
) -> None:
    storage = DatasetStorage(folder)
    assert set(storage.keys) == set(truth) - {("index",)}
    found = storage.gather(torch.arange(11))
    assert found.batch_size == (11,)
    assert found.device == found["next"].device == torch.device("cpu")
    assert_equal(storage, found, truth)


def test_rows_come_in_the_order_asked_and_may_repeat(
    folder: Path, truth: dict[Key, NDArray[Any]]
) -> None:
    storage = DatasetStorage(folder)
    rows = torch.tensor([10, 0, 3, 3, 9, 2])
    found = storage.gather(rows)
    assert found["index"].tolist() == rows.tolist()
    assert_equal(storage, found, truth)


def test_no_rows_is_an_empty_batch(folder: Path) -> None:
    found = DatasetStorage(folder).gather(torch.zeros(0, dtype=torch.int64))
    assert found.batch_size == (0,)
    assert found["next", "bonus"].shape == (0, 2, 3)


def test_each_leaf_alone(folder: Path, truth: dict[Key, NDArray[Any]]) -> None:
    for key in DatasetStorage(folder).keys:
        storage = DatasetStorage(folder, keys=[key])
        assert_equal(storage, storage.gather(torch.tensor([4, 9, 0])), truth)


def test_pairs_of_leaves(folder: Path, truth: dict[Key, NDArray[Any]]) -> None:
    pairs: list[list[KeyLike]] = [
        [("info", "code"), ("next", "observation", "state")],
        [("next", "info"), ("observation", "state")],
        ["observation.image", "next/observation/image"],
        [("next", "done"), "episode"],
        [("info", "pair"), ("next", "info", "pair"), "action"],
    ]
    for pair in pairs:
        storage = DatasetStorage(folder, keys=pair)
        assert_equal(storage, storage.gather(torch.tensor([1, 10, 5])), truth)


def test_what_is_not_wanted_is_not_gathered(folder: Path) -> None:
    batch = DatasetStorage(folder, keys=["next.done"]).gather(torch.arange(3))
    assert set(leaves_of(batch)) == {("index",), ("next", "done")}


def test_an_unknown_key_offers_the_nearest(folder: Path) -> None:
    with pytest.raises(UsageError, match="no leaf 'next/rewards'") as caught:
        DatasetStorage(folder, keys=["next.rewards"])
    assert "next/reward" in str(caught.value.hint)


def test_writing_to_one_leaf_changes_no_other(folder: Path) -> None:
    storage = DatasetStorage(folder)
    names = list(leaves_of(storage.gather(torch.arange(11))))
    for name in names:
        batch, before = (leaves_of(storage.gather(torch.arange(11))) for _ in range(2))
        versions = {key: leaf._version for key, leaf in batch.items()}
        batch[name].copy_(torch.ones_like(batch[name]) * 77)
        for key in set(names) - {name}:
            assert (
                batch[key].untyped_storage().data_ptr() != batch[name].untyped_storage().data_ptr()
                or not batch[key].numel()
            ), key
            np.testing.assert_array_equal(batch[key].numpy(), before[key].numpy(), str((name, key)))
            assert batch[key]._version == versions[key], (name, key)


def test_a_leaf_written_in_place_does_not_break_the_gradient_of_another(folder: Path) -> None:
    batch = DatasetStorage(folder).gather(torch.arange(8))
    weight = torch.ones(1, requires_grad=True)
    loss = (batch["action"] * weight * batch["observation", "state"]).sum()
    batch["next", "reward"].mul_(0.1)
    batch["next", "observation", "state"].mul_(weight.detach() * 2)
    loss.backward()
    assert weight.grad is not None


def test_a_gradient_through_one_leaf_does_not_reach_another(folder: Path) -> None:
    batch = DatasetStorage(folder).gather(torch.arange(8))
    batch["action"].mul_(torch.ones(1, requires_grad=True))
    tied = [key for key, leaf in leaves_of(batch).items() if leaf.requires_grad]
    assert tied == [("action",)]


def test_batches_feed_networks_and_reshape(folder: Path) -> None:
    batch = DatasetStorage(folder).gather(torch.arange(8))
    state = batch["observation", "state"]
    layer = torch.nn.Linear(3, 2)
    np.testing.assert_array_equal(layer(state).detach(), layer(state.clone()).detach())
    assert batch.reshape(2, 4)["next", "bonus"].shape == (2, 4, 2, 3)
    assert state.view(2, 4, 3).flatten(0, 1).equal(state)
    assert batch["next", "reward"].view(-1).equal(batch["next", "reward"][:, 0])
    assert all(leaf.is_contiguous() for leaf in leaves_of(batch).values())
    assert state.view(-1).shape == (24,)


def test_batches_do_not_share_memory_with_each_other_or_the_files(folder: Path) -> None:
    def digests() -> list[bytes]:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return [hashlib.sha256(path.read_bytes()).digest() for path in files]

    storage, before = DatasetStorage(folder), digests()
    first, clean = (storage.gather(torch.arange(11)) for _ in range(2))
    for leaf in leaves_of(first).values():
        leaf.fill_(1)
    again = storage.gather(torch.arange(11))
    for key, leaf in leaves_of(again).items():
        np.testing.assert_array_equal(leaf.numpy(), leaves_of(clean)[key].numpy())
    assert digests() == before


def test_pickles_by_path(folder: Path, truth: dict[Key, NDArray[Any]]) -> None:
    storage = DatasetStorage(folder)
    storage.gather(torch.arange(3))
    packed = pickle.dumps(storage)
    assert len(packed) < 20_000
    copy = pickle.loads(packed)  # noqa: S301
    assert_equal(copy, copy.gather(torch.arange(11)), truth)


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_read_the_same(
    folder: Path, truth: dict[Key, NDArray[Any]], method: str
) -> None:
    storage = DatasetStorage(folder)
    storage.gather(torch.arange(3))
    with multiprocessing.get_context(method).Pool(1) as pool:
        found = pool.apply_async(storage.gather, (torch.arange(11),)).get(60)
    assert_equal(storage, found, truth)


def test_a_row_that_is_not_there_is_no_other_row(folder: Path) -> None:
    storage = DatasetStorage(folder)
    for row in (11, 12, -12):
        with pytest.raises((IndexError, RuntimeError)):
            storage.gather(torch.tensor([row]))


def test_a_damaged_directory_is_met_at_opening(folder: Path) -> None:
    victim = max(folder.rglob("*.memmap"), key=lambda path: path.stat().st_size)
    os.truncate(victim, victim.stat().st_size // 2)
    with pytest.raises(ManifestError, match=victim.name):
        DatasetStorage(folder)


def test_files_that_go_between_opening_and_use_are_named(folder: Path) -> None:
    storage = DatasetStorage(folder)
    for path in folder.rglob("*.memmap"):
        path.unlink()
    with pytest.raises(NotFoundError, match="gone"):
        storage.gather(torch.arange(2))


def test_pinning_without_an_accelerator_says_so(folder: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is an accelerator")
    with pytest.raises(UsageError, match="accelerator"):
        DatasetStorage(folder, pin_memory=True)


def test_a_device_gets_every_leaf(folder: Path) -> None:
    batch = DatasetStorage(folder, device="meta").gather(torch.arange(5))
    assert {leaf.device.type for leaf in leaves_of(batch).values()} == {"meta"}
    assert batch.device == torch.device("meta")
    assert batch["next", "bonus"].shape == (5, 2, 3)


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    layout=st.sampled_from(LAYOUTS),
    shapes=st.lists(
        st.tuples(
            st.sampled_from(("bool", "uint8", "int16", "float32", "int64", "complex64", "uint32")),
            st.lists(st.integers(0, 3), max_size=2).map(tuple),
            st.booleans(),
        ),
        max_size=5,
    ),
    seed=st.integers(0, 2**16),
)
def test_any_lengths_shapes_and_types(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    layout: LayoutName,
    shapes: list[tuple[str, tuple[int, ...], bool]],
    seed: int,
) -> None:
    toy, rng = toy_batch(lengths), np.random.default_rng(seed)
    steps, observations = dict(toy.steps), dict(toy.observations)
    for number, (dtype, shape, observed) in enumerate(shapes):
        count = toy.transitions + len(lengths) * observed
        values = rng.integers(0, 200, (count, *shape)).astype(dtype)
        (observations if observed else steps)["info", f"x{number}"] = values
    batch = EpisodeBatch(toy.lengths, steps, observations, toy.final_observation, toy.episodes)
    path = tmp_path_factory.mktemp("any") / "set"
    write_toy(path, [batch], layout=layout)
    storage = DatasetStorage(path)
    rows = rng.permutation(batch.transitions)
    found = leaves_of(storage.gather(torch.from_numpy(rows)))
    for key, values in steps.items():
        np.testing.assert_array_equal(found[key].numpy(), values[rows])
    for key, values in observations.items():
        np.testing.assert_array_equal(found[key].numpy(), values[batch.root_rows[rows]])
        after = found[next_of(key)].numpy()
        np.testing.assert_array_equal(after, values[batch.next_rows[rows]])

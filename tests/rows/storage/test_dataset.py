from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from offline_data.base.errors import ManifestError, NotFoundError
from offline_data.episode import EpisodeBatch, Key
from offline_data.episode.fields import next_of
from offline_data.rows.keys import KeyLike
from offline_data.rows.storage import DatasetStorage
from offline_data.store.layout import LAYOUTS, LayoutName
from offline_data.store.reader import decode
from offline_data.testing.toy import toy_batch, write_toy

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


def test_batches_are_the_rows_of_the_source(folder: Path, truth: dict[Key, NDArray[Any]]) -> None:
    storage = DatasetStorage(folder)
    assert set(storage.keys) == set(truth) - {("index",)}
    for rows in (torch.arange(11), torch.tensor([10, 0, 3, 3, 9, 2])):
        found = storage.gather(rows)
        assert found.batch_size == rows.shape
        assert found.device == found["next"].device == torch.device("cpu")
        assert found["index"].tolist() == rows.tolist()
        assert all(leaf.is_contiguous() for leaf in leaves_of(found).values())
        assert_equal(storage, found, truth)
    empty = storage.gather(torch.zeros(0, dtype=torch.int64))
    assert (empty.batch_size, empty["next", "bonus"].shape) == ((0,), (0, 2, 3))
    for row in (11, 12, -12):
        with pytest.raises((IndexError, RuntimeError)):
            storage.gather(torch.tensor([row]))


def test_some_leaves(folder: Path, truth: dict[Key, NDArray[Any]]) -> None:
    some: list[list[KeyLike]] = [[key] for key in DatasetStorage(folder).keys]
    some += [
        [("info", "code"), ("next", "observation", "state")],
        [("next", "info"), ("observation", "state")],
        ["observation.image", "next/observation/image"],
        [("next", "done"), "episode"],
        [("info", "pair"), ("next", "info", "pair"), "action"],
    ]
    whole = DatasetStorage(folder)
    for keys in some:
        opened = DatasetStorage(folder, keys=keys) if len(keys) > 1 else whole
        for storage in (opened, whole.only(keys)):
            assert_equal(storage, storage.gather(torch.tensor([1, 10, 5])), truth)


def test_a_set_in_memory_or_on_a_device(own_folder: Path, truth: dict[Key, NDArray[Any]]) -> None:
    folder = own_folder
    for options in ({"in_memory": True}, {}):
        batch = DatasetStorage(folder, device="meta", **options).gather(torch.tensor([3, 0, 10]))  # type: ignore[arg-type]
        assert {leaf.device.type for leaf in leaves_of(batch).values()} == {"meta"}
        assert batch.device == torch.device("meta")
        assert batch["next", "bonus"].shape == (3, 2, 3)
    storage = DatasetStorage(folder, in_memory=True)
    storage.gather(torch.arange(2))
    for file in folder.rglob("*.memmap"):
        file.write_bytes(bytes(file.stat().st_size))
    assert_equal(storage, storage.gather(torch.arange(11)), truth)
    assert not storage.needs_io
    if not torch.cuda.is_available():
        with pytest.warns(UserWarning, match="this machine has none: memory is not pinned"):
            assert len(DatasetStorage(folder, pin_memory=True)) == 11


def test_threads_that_begin_together_share_one_copy(
    folder: Path, truth: dict[Key, NDArray[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    started, opened, inner = threading.Barrier(4), [], DatasetStorage._open

    def slowly(self: DatasetStorage) -> Any:
        opened.append(self)
        time.sleep(0.05)
        return inner(self)

    def gather(_: int) -> Any:
        started.wait()
        return storage.gather(torch.arange(11))

    monkeypatch.setattr(DatasetStorage, "_open", slowly)
    storage = DatasetStorage(folder, in_memory=True)
    with ThreadPoolExecutor(4) as threads:
        batches = list(threads.map(gather, range(4)))
    assert opened == [storage]
    for batch in batches:
        assert_equal(storage, batch, truth)


def test_leaves_are_independent_of_each_other_of_other_batches_and_of_the_files(
    folder: Path,
) -> None:
    def digests() -> list[bytes]:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return [hashlib.sha256(path.read_bytes()).digest() for path in files]

    storage, stored = DatasetStorage(folder), digests()
    names = list(leaves_of(storage.gather(torch.arange(11))))
    for name in names:
        batch, before = (leaves_of(storage.gather(torch.arange(11))) for _ in range(2))
        versions = {key: leaf._version for key, leaf in batch.items()}
        batch[name].copy_(torch.ones_like(batch[name]) * 77)
        for key in set(names) - {name}:
            memory = (one.untyped_storage().data_ptr() for one in (batch[key], batch[name]))
            assert len(set(memory)) == 2 or not batch[key].numel(), key
            np.testing.assert_array_equal(batch[key].numpy(), before[key].numpy(), str((name, key)))
            assert batch[key]._version == versions[key], (name, key)
        again = leaves_of(storage.gather(torch.arange(11)))
        np.testing.assert_array_equal(again[name].numpy(), before[name].numpy())
    assert digests() == stored


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_other_processes_read_the_same(folder: Path, truth: dict[Key, NDArray[Any]]) -> None:
    storage = DatasetStorage(folder)
    storage.gather(torch.arange(3))
    assert len(pickle.dumps(storage)) < 20_000  # by path
    assert_equal(storage, pickle.loads(pickle.dumps(storage)).gather(torch.arange(11)), truth)  # noqa: S301
    with multiprocessing.get_context("fork").Pool(1) as pool:
        found = pool.apply_async(storage.gather, (torch.arange(11),)).get(60)
    assert_equal(storage, found, truth)


def test_damaged_and_missing_files(own_folder: Path) -> None:
    folder = own_folder
    storage = DatasetStorage(folder)
    victim = max(folder.rglob("*.memmap"), key=lambda path: path.stat().st_size)
    os.truncate(victim, victim.stat().st_size // 2)
    with pytest.raises(ManifestError, match=victim.name):
        DatasetStorage(folder)
    for path in folder.rglob("*.memmap"):
        path.unlink()
    with pytest.raises(NotFoundError, match="deleted or truncated"):
        storage.gather(torch.arange(2))


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
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
    write_toy(path, [batch], layout=layout, audit="none")
    storage = DatasetStorage(path)
    rows = rng.permutation(batch.transitions)
    found = leaves_of(storage.gather(torch.from_numpy(rows)))
    for key, values in steps.items():
        np.testing.assert_array_equal(found[key].numpy(), values[rows])
    for key, values in observations.items():
        np.testing.assert_array_equal(found[key].numpy(), values[batch.root_rows[rows]])
        after = found[next_of(key)].numpy()
        np.testing.assert_array_equal(after, values[batch.next_rows[rows]])

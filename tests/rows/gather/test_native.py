"""What only the compiled gather can get wrong: memory it reuses, threads, plans, bounds."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from offline_data.base.errors import ManifestError
from offline_data.rows.gather import native
from offline_data.rows.gather.native import NativeGather
from offline_data.rows.gather.torch import TorchGather
from offline_data.rows.storage import DatasetStorage

pytestmark = pytest.mark.skipif(native.compiled is None, reason="the extension was not built")

ROWS = 500


@pytest.fixture(autouse=True, params=["tensors", "capsules"])
def _handing_over(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test with tensors made in C, and with the capsules that older torch takes."""
    if request.param == "capsules":
        monkeypatch.setattr(native, "_exchange", None)
    elif native._exchange is None:
        pytest.skip("this torch has no functions of DLPack for C")


@pytest.fixture
def toy(toys: Callable[..., Path]) -> Path:
    """500 transitions of 14 KB each."""
    return toys([100] * 5, images=True)


@pytest.fixture
def storage(toy: Path) -> DatasetStorage:
    storage = DatasetStorage(toy)
    storage.gather(torch.arange(1))
    assert isinstance(storage._leaves_of, NativeGather)
    return storage


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Let large batches be gathered by two threads."""
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def draw(storage: DatasetStorage, seed: int) -> Any:
    rows = torch.randint(ROWS, (300,), generator=torch.Generator().manual_seed(seed))
    return storage.gather(rows)


def assert_right(batch: Any) -> None:
    """The action is the negative of the observation before; pixels are that modulo 251."""
    code = -batch["action"][:, 0]
    assert (batch["observation", "state"] == code[:, None]).all()
    after = batch["next", "observation", "state"][:, 0]
    assert (after == code + 1).all()
    for number, image in (
        (code, batch["observation", "image"]),
        (after, batch["next", "observation", "image"]),
    ):
        assert (image == (number % 251).to(torch.uint8)[:, None, None, None]).all()


@pytest.mark.usefixtures("two_threads")
def test_large_batches_by_threads_and_by_callers_at_once(storage: DatasetStorage) -> None:
    assert_right(draw(storage, 0))
    with ThreadPoolExecutor(4) as threads:
        for batch in threads.map(lambda seed: draw(storage, seed), range(12)):
            assert_right(batch)
    batch = draw(storage, 0)
    storage.close()
    assert_right(batch)


@pytest.mark.usefixtures("two_threads")
def test_a_row_that_is_not_there_in_any_thread(storage: DatasetStorage) -> None:
    for place in (0, 299):
        rows = torch.arange(300)
        rows[place] = ROWS
        with pytest.raises(IndexError, match="out of range"):
            storage.gather(rows)
    assert_right(draw(storage, 0))


def test_memory_is_reused_only_when_nobody_sees_it(storage: DatasetStorage) -> None:
    first = draw(storage, 0)
    kept, view = first["observation", "image"], first["next", "observation", "image"][7, 3:5]
    want, want_view = kept.clone(), view.clone()
    places = {leaf.data_ptr() for leaf in (kept, view)}
    del first
    seen = set()
    for seed in range(1, 15):
        batch = draw(storage, seed)
        seen.add(batch["observation", "image"].data_ptr())
        assert_right(batch)
    assert torch.equal(kept, want)
    assert torch.equal(view, want_view)
    assert not places & seen
    assert len(seen) < 14  # it is reused


def test_a_damaged_episode_number_is_an_error_not_a_crash(toy: Path, tmp_path: Path) -> None:
    storage = DatasetStorage(shutil.copytree(toy, tmp_path / "toy"))
    storage.gather(torch.arange(1))
    steps = storage.reader.path / "steps" / "rows.memmap"
    leaf = storage.reader.step_leaves["episode",]
    with steps.open("r+b") as file:
        file.seek(leaf.offset + 3 * leaf.stride)
        file.write(struct.pack("<q", 1 << 60))
    with pytest.raises(ManifestError, match="damaged"):
        storage.gather(torch.tensor([3]))


@pytest.mark.parametrize(
    "broken", [[0, 1, 0], [1, 0, 0], [-3, 0, 5]], ids=["reach", "source", "other"]
)
def test_a_plan_that_does_not_fit_itself_is_refused(broken: list[int]) -> None:
    source, kind = struct.pack("=5q", 0, 1, 8, 8, 0), [8, 0, 64, 0, *[0] * 8]

    def plan(leaf: list[int], exchange: Any = None) -> Any:
        return native.compiled.plan(source, struct.pack("=15q", *leaf, *kind), -1, 0, [], exchange)

    fine = plan([0, 0, 0])
    with pytest.raises(ValueError, match="does not fit"):
        plan(broken)
    with pytest.raises(ValueError, match="PyCapsule"):
        plan([0, 0, 0], fine)


def test_shapes_it_has_no_room_for_are_gathered_by_torch(
    storage: DatasetStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_MAX_DIMS", 2)
    other = DatasetStorage(storage.reader.path)
    assert_right(draw(other, 0))
    assert isinstance(other._leaves_of, TorchGather)


def test_memory_of_every_size_is_given_back_as_it_was(storage: DatasetStorage) -> None:
    """Leaves of 1 byte to 7 MB, twice each: blocks that died are found again, and are no smaller."""
    for count in [*range(1, 80, 6), 255, 256, 257, 500] * 2:
        rows = torch.arange(count) * 7 % ROWS
        batch = storage.gather(rows)
        assert batch["index"].tolist() == rows.tolist()
        assert_right(batch)

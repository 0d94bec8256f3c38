from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from offline_data.rows.gather import native, readahead
from offline_data.rows.gather.mmap import map_file
from offline_data.rows.gather.readahead import PATIENCE, PROBE_EVERY, Readahead
from offline_data.rows.storage import DatasetStorage
from offline_data.store.layout import LAYOUTS

LENGTHS = (100, 1, 60, 39, 100, 200)
ROWS = sum(LENGTHS)
PAGE = mmap.PAGESIZE


@pytest.fixture(params=LAYOUTS)
def toy(request: pytest.FixtureRequest, toys: Callable[..., Path]) -> Path:
    """500 transitions of which images and the rest have files of their own, in either layout."""
    return toys(LENGTHS, layout=request.param, images=True)


@pytest.fixture
def storage(toy: Path) -> DatasetStorage:
    """A storage over it that was opened."""
    storage = DatasetStorage(toy)
    storage.gather(torch.arange(1))
    return storage


def readahead_of(storage: DatasetStorage) -> Readahead:
    assert storage._readahead is not None
    return storage._readahead


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Rows whose pages were asked for, in order, in place of asking."""
    calls: list[list[int]] = []
    monkeypatch.setattr(Readahead, "ask", lambda _, rows: calls.append(rows.tolist()))
    return calls


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Pretend that the next batch causes so many reads."""
    now = [0, 0]

    def reads() -> int:
        now[0] += now[1]
        return now[0]

    monkeypatch.setattr(readahead, "_reads", reads)

    def causes(count: int) -> None:
        now[1] = count

    return causes


def files_of(storage: DatasetStorage, rows: list[int]) -> dict[str, set[int]]:
    """Pages that hold what batches have of rows, file by file, one after the other."""
    ends = np.cumsum(LENGTHS)
    pages: dict[str, set[int]] = {}
    for gather in storage._plan.gathers:
        for row in rows:
            episode = int((row >= ends).sum())
            number = {"step": row, "root": row + episode, "next": row + episode + 1}[gather.at]
            for place in gather.places:
                begin = number * gather.stride + place.offset
                end = number * gather.stride + place.end
                pages.setdefault(gather.file, set()).update(range(begin // PAGE, -(-end // PAGE)))
    return pages


def pages_asked_for(storage: DatasetStorage, rows: list[int]) -> dict[str, set[int]]:
    """The same of what is asked for, which must be whole pages, ascending, none of them twice."""
    pages: dict[str, set[int]] = {}
    names = {id(map): gather.file for gather, map in readahead_of(storage)._sources}
    for map, starts, lengths in readahead_of(storage).ranges(torch.tensor(rows)):
        assert (starts % PAGE == 0).all()
        assert (lengths > 0).all()
        assert (starts[1:] > (starts + lengths)[:-1]).all()
        assert (starts + lengths <= map.nbytes).all()
        pages[names[id(map)]] = {
            page
            for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
            for page in range(start // PAGE, -(-(start + length) // PAGE))
        }
    return pages


def test_all_pages_of_every_row_are_asked_for(storage: DatasetStorage) -> None:
    for row in {*range(0, ROWS, 7), 99, 100, 101, ROWS - 1}:
        want, found = files_of(storage, [row]), pages_asked_for(storage, [row])
        assert set(found) == set(want)
        for file, pages in found.items():
            assert pages >= want[file], (row, file)
            # What lies between a row's leaves may be asked for too.
            assert pages <= set(range(min(want[file]) - 1, max(want[file]) + 1)), (row, file)


@pytest.mark.parametrize("rows", [[3, 3, 4], list(range(90, 170, 7)), [499, 0, 250]])
def test_pages_of_a_batch_are_those_of_its_rows(storage: DatasetStorage, rows: list[int]) -> None:
    want: dict[str, set[int]] = {}
    for row in rows:
        for file, pages in pages_asked_for(storage, [row]).items():
            want.setdefault(file, set()).update(pages)
    assert pages_asked_for(storage, rows) == want
    for row in (-1, ROWS, 1 << 62):  # not there
        for each in readahead_of(storage).ranges(torch.tensor([row])):
            assert each.starts.min() >= 0
            assert (each.starts + each.lengths).max() <= each.map.nbytes
        readahead_of(storage).asking = True
        with pytest.raises(IndexError):
            storage.gather(torch.tensor([row]))


def test_asks_while_batches_cause_reads(
    storage: DatasetStorage, asked: list[list[int]], disk: Callable[[int], None]
) -> None:
    """On: every batch. Off after 16 quiet ones. Then one of 8 is looked at, and on again."""
    readahead = readahead_of(storage)
    readahead.saw(1)
    disk(3)
    for row in range(5):
        storage.gather(torch.tensor([row]))
    assert asked == [[row] for row in range(5)]
    disk(0)
    for row in range(40):
        storage.gather(torch.tensor([row]))
    assert asked[5:] == [[row] for row in range(PATIENCE)]
    assert not storage.needs_io
    del asked[:]
    disk(1)
    for row in range(2 * PROBE_EVERY):
        storage.gather(torch.tensor([row]))
    assert readahead_of(storage).asking
    assert PROBE_EVERY <= len(asked) <= 2 * PROBE_EVERY
    assert asked[-1] == [2 * PROBE_EVERY - 1]


def test_a_batch_that_was_expected_is_not_asked_for_again(
    storage: DatasetStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    monkeypatch.setattr(readahead, "_will_need", lambda each: lengths.append(len(each.starts)))
    readahead_of(storage).saw(1)
    storage.prefetch_rows(torch.tensor([7, 400]))
    assert lengths
    del lengths[:]
    storage.gather(torch.tensor([7, 400]))
    assert not lengths
    storage.gather(torch.tensor([7, 400]))
    assert lengths
    storage.prefetch_rows(torch.tensor([7, 400]))
    del lengths[:]
    storage.gather(torch.tensor([7, 401]))
    assert lengths
    del lengths[:]
    monkeypatch.setattr(readahead, "MAX_BATCH_BYTES", PAGE)  # left to the kernel
    storage.gather(torch.arange(0, ROWS, 10))
    assert not lengths


def drop(file: Path) -> bool:
    """Have a file forgotten by the page cache; tells whether it was."""
    with file.open("rb") as opened:
        os.fdatasync(opened.fileno())  # os.fsync does nothing in tests
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return not any(in_memory(file))


def in_memory(file: Path) -> list[bool]:
    """Tell of each page of a file whether it is in the page cache, without touching it."""
    words = map_file(file, file.stat().st_size, 1).words
    pages = -(-len(words) // PAGE)
    states = (ctypes.c_ubyte * pages)()
    address, size = ctypes.c_void_p(words.data_ptr()), ctypes.c_size_t(len(words))
    if ctypes.CDLL(None, use_errno=True).mincore(address, size, states):
        pytest.skip("this system does not tell what is in memory")
    return [bool(state & 1) for state in states]


@pytest.fixture
def cold_file(tmp_path: Path) -> Path:
    """A file of 64 pages that is on the disk only."""
    file = tmp_path / "rows"
    file.write_bytes(bytes(range(1, 65)) * PAGE)
    if not drop(file):
        pytest.skip("this file system keeps files in memory")
    return file


@pytest.mark.usefixtures("gathering")
def test_what_is_asked_for_is_read_and_nothing_else(cold_file: Path) -> None:
    map = map_file(cold_file, 64, PAGE)
    assert map.memory is not None
    map.memory.madvise(mmap.MADV_RANDOM)
    starts = np.array([3, 40]) * PAGE
    readahead._will_need(readahead.ByteRanges(map, starts, np.array([2, 1]) * PAGE))
    until = time.monotonic() + 120
    while (found := {page for page, here in enumerate(in_memory(cold_file)) if here}) != {3, 4, 40}:
        assert found < {3, 4, 40}
        assert time.monotonic() < until
        time.sleep(0.001)


@pytest.mark.skipif(native.compiled is None, reason="the extension was not built")
def test_files_that_are_in_memory_are_not_asked_for(
    toy: Path, cold_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cold_file` shows that files can be dropped here."""
    cold_file.read_bytes()
    for file in toy.rglob("*.memmap"):
        file.read_bytes()
    storage = DatasetStorage(toy)
    assert not storage.needs_io
    storage.gather(torch.arange(1))
    assert not storage.needs_io
    monkeypatch.setattr(readahead, "PROBE_MICROSECONDS", -1)  # no time to find out
    other = DatasetStorage(toy)
    other.gather(torch.arange(1))
    assert other.needs_io
    del storage, other
    for file in toy.rglob("*.memmap"):
        drop(file)
    monkeypatch.undo()
    last = DatasetStorage(toy)
    batch = last.gather(torch.tensor([0, 100, 499]))
    assert last.needs_io
    assert batch["action"][:, 0].tolist() == [-1001, -2001, -6200]

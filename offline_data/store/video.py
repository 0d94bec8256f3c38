"""Features of videos: the mp4 files of the source, and the file and frame of each row.

```
row of the table               0      1      2      3      4
<leaf>.frames                  0 7    0 8    0 9    1 0    1 1         number of the file, of the frame
<leaf>.video/000000.mp4        the first file; 000000.times has the time of each of its frames
<leaf>.video/000001.mp4        …
```

Rows are decoded file by file, each run from a key frame to the next once. Decoders that no thread
is using stay open, at most `_OPEN` in a process, and fewer of large frames.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from offline_data.base.errors import FormatError, MissingDependencyError
from offline_data.base.pickles import pickled_by_name
from offline_data.raw.pixels import at_once
from offline_data.raw.video import VideoFile
from offline_data.store.encoded import VERIFY, EncodedColumn, in_threads
from offline_data.store.layout import LeafSpec, video_name

_OPEN, _COPIES = 64, 5
"""Most decoders that stay open though no thread reads them, and frames' worth of memory of each: 4.4 MiB
at 480 x 640."""
_FEW = 8  # frames held at once below which they are decoded one after another, not in threads

_idle: dict[int, list[tuple[str, VideoFile]]] = {}
"""Open containers by process id, the last used at the end: those of a parent are never touched."""
_lock = Lock()


@pickled_by_name
@dataclass(frozen=True)
class StoredVideo:
    """An mp4 file, of a dataset or a source."""

    path: Path
    size: int
    sha256: str
    times: Path | None = None  # file of the index; None: `index` is set
    known: NDArray[np.int64] | None = field(default=None, compare=False)
    data: bytes | None = field(default=None, compare=False, repr=False)
    """Its bytes, if it is not on a disk yet; `path` then is its name in messages."""

    @classmethod
    def of(cls, data: bytes, name: str, instead: str) -> StoredVideo:
        """Return an mp4 file in memory; `instead` is advice for users without PyAV."""
        path = Path(name)
        opened = VideoFile(path, threads=False, instead=instead, data=data)
        opened.close()
        return cls(path, len(data), hashlib.sha256(data).hexdigest(), None, opened.index, data)

    @cached_property
    def index(self) -> NDArray[np.int64]:
        """`index` of its `VideoFile`, checked; raises `FormatError`."""
        if self.known is not None or self.times is None:
            return np.asarray(self.known)
        data = np.fromfile(self.times, "<i8")
        index = data[: len(data) // 2 * 2].reshape(-1, 2)
        if not len(index) or (np.diff(index[:, 0]) <= 0).any() or (index[:, 1] & ~1).any():
            raise FormatError(f"{self.times} is not a list of times and key frames", hint=VERIFY)
        return index

    @contextmanager
    def decoder(self) -> Iterator[VideoFile]:
        """Yield a decoder that no other thread uses, which stays open for the next one."""
        if self.data is not None:  # not kept open, as that would keep the bytes
            alone = VideoFile(self.path, self.index, threads=False, data=self.data)
            try:
                yield alone
            finally:
                alone.close()
            return
        idle = _idle.setdefault(os.getpid(), [])
        name = f"{self.sha256} {self.path}"
        with _lock:
            place = next((n for n in reversed(range(len(idle))) if idle[n][0] == name), None)
            file = None if place is None else idle.pop(place)[1]
        if file is None:
            advice = "or leave the feature out: keys=[…]"
            file = VideoFile(self.path, self.index, threads=False, instead=advice)
        yield file  # after an error it is not used again
        with _lock:
            idle.append((name, file))
            most = min(_OPEN, at_once(max(each.nbytes for _, each in idle), copies=_COPIES))
            closing = [idle.pop(0)[1] for _ in range(len(idle) - most)]
        for old in closing:
            old.close()


def hash_file(path: Path) -> tuple[int, str]:
    """Return the size and SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(1 << 20):
            digest.update(block)
        return file.tell(), digest.hexdigest()


class VideoColumn(EncodedColumn):
    """A column of frames of videos `[n, *shape]`; see `EncodedColumn`.

    In place of the bytes of an image, a row has 40 that identify its frame: the SHA-256 of the file
    and the number of the frame. `frames` are int32 `[R, 2]`: number of the file and of the frame.
    """

    def __init__(
        self,
        files: Sequence[StoredVideo],
        frames: NDArray[np.int32],
        kind: tuple[str, str, tuple[int, ...]],
        where: str = "a column",
        rows: NDArray[np.int64] | range | None = None,
    ) -> None:
        self._files, self._frames = files, frames
        self._describe(kind, where, range(len(frames)) if rows is None else rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return VideoColumn, (*self.used(), self._kind, self._where)

    @override
    def having_rows(self, rows: NDArray[np.int64] | range) -> VideoColumn:
        return VideoColumn(self._files, self._frames, self._kind, self._where, rows)

    @override
    def joined_with(self, others: Sequence[EncodedColumn]) -> VideoColumn:
        numbers: dict[str, int] = {}
        files: list[StoredVideo] = []
        parts = []
        for column in (self, *others):
            some, frames = cast("VideoColumn", column).used()
            for file in some:
                if numbers.setdefault(file.sha256, len(files)) == len(files):
                    files.append(file)
            of = np.array([numbers[file.sha256] for file in some], np.int32)
            parts.append(np.stack([of[frames[:, 0]], frames[:, 1]], axis=1))
        return VideoColumn(files, np.concatenate(parts), self._kind, self._where)

    @override
    def in_memory(self) -> VideoColumn:
        return self

    @property
    def nbytes(self) -> int:
        """Share of the bytes of the files that these frames are."""
        counts = np.unique(self.pairs()[:, 0], return_counts=True)
        of = zip(*(part.tolist() for part in counts), strict=True)
        return sum(self._files[n].size * rows // len(self._files[n].index) for n, rows in of)

    def used(self) -> tuple[list[StoredVideo], NDArray[np.int32]]:
        """Return the files of these rows, the first used first, and `frames` with their numbers."""
        pairs = self.pairs()
        numbers, first, of = np.unique(pairs[:, 0], return_index=True, return_inverse=True)
        order = np.argsort(first)
        renumbered = np.argsort(order).astype(np.int32)[of.reshape(-1)]
        files = [self._files[n] for n in numbers[order].tolist()]
        return files, np.stack([renumbered, pairs[:, 1]], axis=1)

    def pairs(self) -> NDArray[np.int32]:
        """Return the checked file and frame of each row `[n, 2]`; raises `FormatError`."""
        pairs = np.asarray(self._frames[self._numbers])
        files = pairs[:, 0]
        wrong = (files < 0) | (files >= len(self._files)) | (pairs[:, 1] < 0)
        if not wrong.any():
            counts = np.zeros(len(self._files), np.int64)
            for number in np.unique(files).tolist():
                counts[number] = len(self._files[number].index)
            wrong = pairs[:, 1] >= counts[files]
        if wrong.any():
            row = int(wrong.argmax())
            file, frame = pairs[row].tolist()
            has = (
                f"which has {len(self._files[file].index)}" if 0 <= file < len(self._files) else ""
            )
            raise FormatError(
                f"{self._name_row(row)} is said to be frame {frame} of video {file}, "
                f"{has or f'and there are {len(self._files)} videos'}",
                hint=VERIFY,
            )
        return pairs

    @override
    def bounds(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        ends = 40 * np.arange(1, len(self) + 1, dtype=np.int64)
        return ends - 40, ends

    @override
    def _stored(self) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
        pairs = self.pairs()
        out = np.empty((len(pairs), 40), np.uint8)
        of_files = b"".join(bytes.fromhex(file.sha256) for file in self._files)
        out[:, :32] = np.frombuffer(of_files, np.uint8).reshape(-1, 32)[pairs[:, 0]]
        out[:, 32:] = pairs[:, 1].astype("<i8").reshape(-1, 1).view(np.uint8)
        return out.reshape(-1), *self.bounds()

    def _codes(self) -> NDArray[np.int64]:
        """Return `file << 32 | frame` of each row."""
        pairs = self.pairs().astype(np.int64)
        return np.asarray(pairs[:, 0] << 32 | pairs[:, 1])

    @override
    def decode(self, places: Sequence[NDArray[Any]], threads: int | None = None) -> None:
        codes, of = np.unique(self._codes(), return_inverse=True)
        order, stops = np.argsort(of.reshape(-1), kind="stable"), np.cumsum(np.bincount(of.ravel()))
        runs = self._runs_of(codes)

        def decode_run(number: int) -> None:
            first, stop = runs[number]
            with self._decoder(self._files[codes[first] >> 32]) as decoder:
                frames = decoder.read(codes[first:stop] & 0xFFFFFFFF)
                for code, pixels in enumerate(frames, first):
                    for place in order[stops[code - 1] if code else 0 : stops[code]].tolist():
                        np.copyto(places[place], pixels)

        in_threads(decode_run, len(runs), self._threads(threads))

    @contextmanager
    def _decoder(self, file: StoredVideo) -> Iterator[VideoFile]:
        with file.decoder() as decoder:
            if (decoder.dtype, decoder.shape) != self._kind[1:]:
                raise FormatError(
                    f"{file.path} has frames of {decoder.dtype} {list(decoder.shape)}, and "
                    f"{self._where} of {self._kind[1]} {list(self._kind[2])}"
                )
            yield decoder

    def _runs_of(self, codes: NDArray[np.int64]) -> list[tuple[int, int]]:
        """Cut ascending codes into runs that are decoded from the same key frame."""
        begins = np.zeros(len(codes), bool)
        files = codes >> 32
        for first, stop in pairwise(
            [0, *(np.flatnonzero(np.diff(files)) + 1).tolist(), len(codes)]
        ):
            begins[first : first + 1] = True
            if first < stop and self._files[files[first]].data is None:  # else it is opened once
                keys = np.flatnonzero(self._files[files[first]].index[:, 1])
                gops = np.searchsorted(keys, codes[first:stop] & 0xFFFFFFFF, side="right")
                begins[first + 1 : stop] = np.diff(gops) > 0
        cuts = [*np.flatnonzero(begins).tolist(), len(codes)]
        return list(pairwise(cuts))

    @override
    def check_headers(self) -> None:
        self.pairs()

    def check_decoding(self, step: int) -> None:
        codes, first = np.unique(self._codes(), return_index=True)
        for begin, stop in self._runs_of(codes)[::step]:
            for _ in self[first[begin:stop]].blocks():
                pass

    @override
    def blocks(self) -> Iterator[NDArray[Any]]:
        if at_once(self._row_bytes) >= _FEW:
            yield from super().blocks()
            return
        pairs = self.pairs().astype(np.int64)
        back = np.flatnonzero((np.diff(pairs[:, 0]) != 0) | (np.diff(pairs[:, 1]) < 0)) + 1
        for frames in np.split(pairs, back) if len(pairs) else ():
            with self._decoder(self._files[frames[0, 0]]) as decoder:
                for pixels in decoder.read(frames[:, 1]):
                    yield pixels[None]

    def problem(self) -> str | None:
        try:
            self.pairs()
            for file in self._files:
                opened = VideoFile(file.path, threads=False)
                opened.close()
                keys = file.index[:, 1].astype(bool)
                known = np.array_equal(opened.index[:, 0], file.index[:, 0])
                if not known or (keys & ~opened.marks).any() or keys.any() < opened.marks.any():
                    return f"has other times in {file.times} than in {file.path}"
                if (opened.dtype, opened.shape) != self._kind[1:]:
                    return f"has frames of {opened.dtype} {list(opened.shape)} in {file.path}"
        except MissingDependencyError:  # without PyAV, times are not compared with those of packets
            return None
        except FormatError as error:
            return f"has a row that cannot be decoded: {error.message}"
        return None


class VideoWriter:
    """Writes rows of a feature of videos; `linked` has the digests of their files so far."""

    def __init__(
        self,
        leaf: LeafSpec,
        append: Callable[[str, Any], None],
        link: Callable[[str, Path, Mapping[str, Any]], None],
    ) -> None:
        self.leaf, self._append, self._link = leaf, append, link
        self.linked: dict[str, dict[str, Any]] = {}
        self._numbers: dict[str, int] = {}
        append(leaf.file, b"")

    def append(self, rows: Any) -> None:
        files, frames = rows.used()
        for file in files:
            number = self._numbers.setdefault(file.sha256, len(self._numbers))
            name = video_name(self.leaf, number)
            if name not in self.linked:
                self.linked[name] = {"size": file.size, "sha256": file.sha256}
                if file.data is None:
                    self._link(name, file.path, self.linked[name])
                else:
                    self._append(name, file.data)
                times = np.ascontiguousarray(file.index, "<i8")
                digest = hashlib.sha256(times.tobytes()).hexdigest()
                place = video_name(self.leaf, number, times=True)
                self.linked[place] = {"size": times.nbytes, "sha256": digest}
                self._append(place, times)
        numbers = np.array([self._numbers[file.sha256] for file in files], "<i4")
        self._append(
            self.leaf.file, np.stack([numbers[frames[:, 0]], frames[:, 1]], 1).astype("<i4")
        )


def number_videos(
    leaf: LeafSpec, parts: Sequence[Mapping[str, Mapping[str, Any]]]
) -> tuple[list[NDArray[np.int32]], dict[str, tuple[int, str]]]:
    """Number the videos of a feature that several parts have, by their digests; equal ones once.

    Returns the new numbers of those of each part, and part and name of each new file.
    """
    numbers: dict[str, int] = {}
    codes, sources = [], dict[str, tuple[int, str]]()
    for part, digests in enumerate(parts):
        of: list[int] = []
        while (name := video_name(leaf, len(of))) in digests:
            new = numbers.setdefault(digests[name]["sha256"], len(numbers))
            if video_name(leaf, new) not in sources:
                for times in (False, True):
                    old = video_name(leaf, len(of), times=times)
                    sources[video_name(leaf, new, times=times)] = part, old
            of.append(new)
        codes.append(np.array(of, np.int32))
    return codes, sources


def read_videos(
    folder: Path, leaf: LeafSpec, digests: Mapping[str, Mapping[str, Any]]
) -> list[StoredVideo]:
    """Return the files of a feature of a dataset directory, which its digests list."""
    found: list[StoredVideo] = []
    while (name := video_name(leaf, len(found))) in digests:
        times = folder / video_name(leaf, len(found), times=True)
        entry = digests[name]
        found.append(StoredVideo(folder / name, int(entry["size"]), str(entry["sha256"]), times))
    return found

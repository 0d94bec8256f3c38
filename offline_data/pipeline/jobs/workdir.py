"""`WorkDir`: the folder in which a dataset is being made, with its plan and finished tasks.

The plan and the record of each finished task are small files of a JSON value and arrays with a
checksum, so that a damaged one is never read:

```
sha256 of all that follows, hexadecimal
{"about": …, "keys": [[…], …]}
an npz file of the arrays, in the order of their keys
```

Tasks write rows to files of their own, or each to its own ranges of shared files.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from offline_data.base.files import disk_errors, sync_folder, write_durably
from offline_data.base.progress import SILENT
from offline_data.raw.fast_zlib import crc32
from offline_data.store.copies import place_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray
    from typing_extensions import Self

    from offline_data.episode import Key

Range: TypeAlias = "tuple[int, int, int]"  # of a file: offset, bytes, CRC-32

_CHUNK = 1 << 20  # bytes that are read at once

_OPEN = 64  # most files of a `RangeWriter` that are open


Record: TypeAlias = "tuple[dict[Key, NDArray[Any]], dict[str, Any], dict[str, Range]]"
"""Record of a finished task: `[E, …]` columns of its episodes (text as codes, `("start",)` relative
to the task), its counts and audit, and the range that it wrote of each file."""


@dataclass(frozen=True)
class WorkDir:
    """Paths in a work folder, and its records. All of it belongs to one plan."""

    path: Path
    apart: Path | None = None  # to assemble the dataset on the file system of its destination

    @property
    def dataset(self) -> Path:
        """The unfinished dataset directory."""
        return self.path / "dataset" if self.apart is None else self.apart

    @property
    def plan(self) -> Path:
        return self.path / "plan"

    def shard(self, task: int) -> Path:
        """Return the folder of a task that writes files of its own."""
        return self.path / "shards" / f"{task:05d}"

    def record(self, task: int) -> Path:
        """Return the file of a task's record; the task is finished once it exists."""
        return self.path / "finished" / f"{task:05d}.record"

    def write_record(
        self,
        task: int,
        columns: Mapping[Key, NDArray[Any]],
        counts: dict[str, Any],
        written: Mapping[str, Range],
        *,
        durable: bool,
    ) -> None:
        """Record a finished task, see `Record`; a crash may lose unsynced rows, see `sound`."""
        about = {"counts": counts, "written": written}
        with disk_errors(self.path):
            write_checked(self.record(task), about, columns, durable=durable)

    def read_record(self, task: int) -> Record | None:
        """Read the record of a task; None if it is not finished."""
        found = read_checked(self.record(task))
        if found is None:
            return None
        about, columns = found
        return columns, about["counts"], {k: tuple(v) for k, v in about["written"].items()}

    def finished(self, tasks: int) -> list[int]:
        return [task for task in range(tasks) if self.read_record(task) is not None]

    def sound(self, tasks: int, *, in_place: bool) -> list[int]:
        """Return the finished tasks whose rows, in place or in shards, match their checksums."""
        return [
            task
            for task in range(tasks)
            if (record := self.read_record(task)) is not None
            and holds(self.dataset if in_place else self.shard(task), record[2])
        ]

    def numbers(self) -> list[int]:
        """List the tasks that have a record, even if it is damaged."""
        return sorted(int(path.stem) for path in (self.path / "finished").glob("[0-9]*.record"))

    def read_plan(self) -> dict[str, Any] | None:
        """Read the JSON value of the plan; None if there is none or it is damaged."""
        found = read_checked(self.plan)
        return None if found is None else found[0]

    def clear(self) -> None:
        """Delete the folder, the plan first; raises `AccessError` if records remain."""
        with disk_errors(self.path):
            self.plan.unlink(missing_ok=True)
            shutil.rmtree(self.path, ignore_errors=True)
            if (self.path / "finished").exists():
                shutil.rmtree(self.path / "finished")  # else the next plan would count them


def write_checked(
    path: Path, about: Mapping[str, Any], arrays: Mapping[Key, NDArray[Any]], *, durable: bool
) -> None:
    """Write a JSON value and arrays atomically, durably on request; creates the folders."""
    body = io.BytesIO()
    if arrays:
        import numpy as np

        np.savez(body, *arrays.values())
    head = json.dumps({"about": about, "keys": [list(key) for key in arrays]})
    rest = head.encode() + b"\n" + body.getvalue()
    content = hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest
    if durable:
        write_durably(path, content)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    staged.write_bytes(content)
    staged.replace(path)


def read_checked(path: Path) -> tuple[dict[str, Any], dict[Key, NDArray[Any]]] | None:
    """Read what `write_checked` wrote; None if it is missing or damaged."""
    try:
        digest, _, rest = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    if hashlib.sha256(rest).hexdigest().encode() != digest:
        return None
    text, _, body = rest.partition(b"\n")
    head = json.loads(text)
    if not head["keys"]:
        return head["about"], {}
    import numpy as np

    with np.load(io.BytesIO(body), allow_pickle=False) as file:
        arrays = {tuple(key): file[f"arr_{i}"] for i, key in enumerate(head["keys"])}
    return head["about"], arrays


class RangeWriter:
    """Appends to ranges of the files of a folder, as a `Sink` appends to whole files.

    Uses `pwrite`, not memory maps, with which a full disk would kill the process. Each range begins
    at its offset in `begin`, or 0. With `alone` these files have no other ranges, and `sync`
    truncates them; not before, since another process may be writing the same rows to them. Raises
    `NoSpaceError`, `AccessError`.
    """

    def __init__(self, folder: Path, begin: Mapping[str, int], *, alone: bool = False) -> None:
        self._folder, self._begin, self._alone = folder, dict(begin), alone
        self.written: dict[str, Range] = {}
        self._handles: dict[str, int] = {}
        self._linked: set[Path] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()

    def append(self, name: str, data: Any) -> None:
        """Append a contiguous array or bytes to this object's range of file `name`."""
        whole = memoryview(data).cast("B") if len(data) else memoryview(b"")
        begin, size, crc = self.written.get(name, (self._begin.get(name, 0), 0, 0))
        with disk_errors(self._folder):
            handle, rest, at = self._handle(name), whole, begin + size
            while len(rest):
                count = os.pwrite(handle, rest, at)
                rest, at = rest[count:], at + count
        self.written[name] = begin, size + len(whole), crc32(whole, crc)

    def _handle(self, name: str) -> int:
        if name not in self._handles:
            if len(self._handles) == _OPEN:
                os.close(self._handles.pop(next(iter(self._handles))))
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handles[name] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        return self._handles[name]

    def link(self, name: str, source: Path, digest: Mapping[str, Any]) -> None:
        """Make file `name` a hard link to one of known size and sha256, or a copy."""
        target = self._folder / name
        with disk_errors(self._folder):
            target.unlink(missing_ok=True)  # of an interrupted attempt
            place_file(source.resolve(), target, digest, SILENT, move=True)
        self._linked.add(target.parent)

    def sync(self) -> None:
        with disk_errors(self._folder):
            for folder in self._linked:
                sync_folder(folder)
            for name, (begin, size, _) in self.written.items():
                handle = self._handle(name)
                if self._alone:
                    os.ftruncate(handle, begin + size)
                os.fsync(handle)


def holds(folder: Path, written: Mapping[str, Range]) -> bool:
    """Return True if files still have the bytes that were written; reads all of them."""
    try:
        for name, (begin, left, expected) in written.items():
            crc = 0
            with (folder / name).open("rb", buffering=0) as file:
                file.seek(begin)
                while left and (chunk := file.read(min(left, _CHUNK))):
                    crc, left = crc32(chunk, crc), left - len(chunk)
            if left or crc != expected:
                return False
    except OSError:
        return False
    return True


def allocate(folder: Path, sizes: Mapping[str, int]) -> None:
    """Allocate files of these sizes on the disk, keeping existing content."""
    with disk_errors(folder):
        for name, size in sizes.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                if file.tell() == size > 0:
                    continue
                file.truncate(size)
                if size and hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)

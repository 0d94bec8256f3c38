"""TorchRL: folders that `ReplayBuffer.dumps` wrote, and memory-mapped TED, read without torch.

```
buffer_metadata.json             batch size
storage/storage_metadata.json    number of rows
storage/meta.json, …             a TED tensordict of the storage's size
writer/metadata.json             cursor: of a full ring, the oldest row
```

A tensordict alone says neither which rows were written nor which is the oldest; it is read where all
episodes end at a flag. Samplers, generators and batches drawn ahead are not read.

Source: `torchrl/data/replay_buffers` of https://github.com/pytorch/rl.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from offline_data.base.errors import FormatError
from offline_data.base.json import count_of, shown
from offline_data.base.plurals import plural
from offline_data.episode import Dropped, EpisodeBatch
from offline_data.episode.fields import Key, join_key
from offline_data.formats.base import (
    RawDataset,
    Release,
    Shard,
    SourceInfo,
    UnpublishedSource,
)
from offline_data.formats.buffer_rows import NEITHER, NOTE_OLDEST, BufferDataset, rows_of_ted
from offline_data.formats.fingerprint import fingerprint
from offline_data.formats.folders import files_below
from offline_data.raw.tensordict_memmap import (
    BUFFER_METADATA,
    MappedDict,
    MappedTensor,
    PlainValues,
    is_tensordict,
    is_torchrl_dump,
    read_fields,
    read_tensordict,
)

_STORAGE = "storage_metadata.json"


class TorchRL(UnpublishedSource):
    """The user's folders; nothing is published in this format."""

    name, maker = "torchrl", "TorchRL"
    example = "a folder of yours: `offline-data convert FOLDER NAME`"
    title = "TorchRL: folders of ReplayBuffer.dumps, and memory-mapped TED"

    def has_format(self, path: Path) -> bool:
        if is_torchrl_dump(path):
            return True
        return not os.path.lexists(path / _STORAGE) and is_tensordict(path, "action", "next")

    def release_of(self, path: Path, name: str) -> Release:
        return Release(name, fingerprint(path, files_below(path)), local=path)

    def open(self, release: Release, raw: Path) -> TorchRLEpisodes:
        del release
        path = raw.resolve()
        count, cursor, overwritten = None, None, False
        folder = path
        if is_torchrl_dump(path):
            folder = path / "storage"
            count, cursor, overwritten = _read_state(path)
        found = read_tensordict(folder)
        if not isinstance(found, MappedDict) or len(found.shape) != 1:
            size = f"of shape {shown([*found.shape])}" if isinstance(found, MappedDict) else "text"
            raise FormatError(f"{folder} is {size}; expected a tensordict of one dimension")
        count = found.shape[0] if count is None else count
        if not 0 < count <= found.shape[0] or not (cursor is None or cursor <= count):
            raise FormatError(
                f"{path} has {shown(count)} rows of {shown(found.shape[0])}, and the cursor "
                f"{shown(cursor)}; expected rows, and a cursor within them"
            )
        columns, dropped = _columns(found, count)
        info = SourceInfo(
            transitions=count, notes=(NOTE_OLDEST,) if overwritten else (), dropped=tuple(dropped)
        )
        return TorchRLEpisodes(columns, count, cursor, info)


def _read_state(path: Path) -> tuple[int, int | None, bool]:
    """Return the rows of a buffer, its cursor, None if unknown, and whether rows were overwritten."""
    if read_fields(path / BUFFER_METADATA).get("consume_after_n_samples") is not None:
        raise FormatError(f"{path} is a buffer whose rows are consumed: their order is lost")
    place = path / "storage" / _STORAGE
    storage = read_fields(place)
    if storage.get("is_pytree") is not False:
        raise FormatError(f"{place}: the storage holds tensors or a pytree; expected a TensorDict")
    count = count_of(storage.get("len"), f"{place}: 'len'")
    place = path / "writer" / "metadata.json"
    if not os.path.lexists(place):  # an ImmutableDatasetWriter
        return count, None, False
    writer = read_fields(place)
    if "rank_key" in writer:
        raise FormatError(
            f"The order of episodes is lost: {place} is of a TensorDictMaxValueWriter, which writes in no "
            "order of time"
        )
    cursor = count_of(writer.get("cursor"), f"{place}: 'cursor'")
    written = writer.get("write_count")
    if written is None:
        return count, cursor, cursor < count
    return count, cursor, count_of(written, f"{place}: 'write_count'") > count


def _columns(
    found: MappedDict, count: int
) -> tuple[dict[Key, MappedTensor | PlainValues], list[Dropped]]:
    """Return the leaves that can be kept, and the others; raises `FormatError`."""
    columns, dropped = {}, []
    for key, leaf in found.leaves():
        if isinstance(leaf, MappedTensor):
            fits = leaf.shape[:1] == found.shape
            reason = "It is bfloat16, which numpy lacks." if leaf.dtype == "bfloat16" else ""
        else:
            text = isinstance(leaf.data, list) and all(isinstance(x, str) for x in leaf.data)
            fits = not text or len(leaf.data) >= count
            reason = "" if leaf.stacked and text else NEITHER
        if not fits:
            raise FormatError(
                f"{join_key(key)!r} does not have the {plural(found.shape[0], 'row')} expected"
            )
        if reason:
            dropped.append(Dropped(join_key(key), reason))
        else:
            columns[key] = leaf
    return columns, dropped


@dataclass(frozen=True)
class TorchRLEpisodes(RawDataset):
    """The rows of a folder, which are mapped while they are read."""

    columns: Mapping[Key, MappedTensor | PlainValues]
    count: int
    cursor: int | None  # next row to be written, which in a full ring is the oldest one
    info: SourceInfo

    def shards(self) -> Sequence[Shard]:
        return (Shard("the folder"),)

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:
        mapped: dict[Key, Any] = {
            key: leaf.map()[: self.count]
            if isinstance(leaf, MappedTensor)
            else np.array(leaf.data[: self.count], object)
            for key, leaf in self.columns.items()
        }
        oldest = (self.cursor or 0) % self.count
        rows = rows_of_ted(mapped, self.count, oldest, self.info, whole=self.cursor is None)
        yield from BufferDataset(rows).read(shard)

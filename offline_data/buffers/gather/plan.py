"""Plan of a gather: which bytes of which files a batch needs, decided once from the schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch

from offline_data.buffers.encoded import EncodedLeaf, encoded_leaves
from offline_data.buffers.gather.mmap import word_of
from offline_data.episodes.fields import DONE, TERMINATED, TRUNCATED, Key, next_of
from offline_data.store.layout import BIG_LEAF, EPISODE, STEPS, TED, LeafSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from offline_data.store.reader import DatasetReader

INDEX: Key = ("index",)
"""Leaf of every batch: the transition's row in the dataset, int64."""

FLAGS: tuple[Key, ...] = (("done",), ("terminated",), ("truncated",))
"""Root flags: False in every transition of an episode, so made and not stored."""

At: TypeAlias = Literal["step", "root", "next"]
"""Which row of a file belongs to transition `i` of episode `e`: `i`, `i + e` or `i + e + 1`."""


@dataclass(frozen=True)
class Place:
    """One leaf in a gathered row."""

    slot: int
    """Number of the leaf in the batch."""
    dtype: torch.dtype
    """Its item type."""
    shape: tuple[int, ...]
    """Shape of one row of it."""
    offset: int
    """Bytes from the beginning of the row; a multiple of the item size."""
    count: int
    """Items in one row of it."""

    @property
    def end(self) -> int:
        """Bytes from the beginning of the row to the end of the leaf."""
        return self.offset + self.count * self.dtype.itemsize


@dataclass(frozen=True)
class Gather:
    """One gather of rows of one file, and the leaves cut out of what it gives."""

    file: str
    """Relative path inside the dataset directory."""
    rows: int
    """Rows of the file."""
    stride: int
    """Bytes of a row of the file."""
    at: At
    """Which row belongs to a transition."""
    width: int
    """Words that are gathered, from the beginning of the row on; more than a row has where the
    row after it is wanted too."""
    places: tuple[Place, ...]
    """Offsets of the leaves in the gathered rows."""
    episode: int | None = None
    """Word that holds the number of the episode, in the gather that the others need it from."""


@dataclass(frozen=True)
class GatherPlan:
    """How to make a batch."""

    gathers: tuple[Gather, ...]
    """In order; the one that has `episode` first."""
    slots: Mapping[Key, int]
    """Slot of each leaf of the batch; slot 0 is the index."""
    count: int
    """Number of slots of raw leaves, those that are only needed on the way included."""
    flags: tuple[int, ...]
    """Slots of root flags."""
    done: tuple[int, int, int] | None
    """Slots of `done`, `terminated` and `truncated` under `next`, where `done` is wanted."""
    encoded: Mapping[int, EncodedLeaf]
    """Encoded leaves by slot, behind the slots of raw ones."""


_Leaves: TypeAlias = list[tuple[LeafSpec, int]]
"""Leaves of one file with their slots."""


def plan_batch(reader: DatasetReader, keys: Sequence[Key]) -> GatherPlan:
    """Plan the batch that has the leaves `keys` and the index."""
    encoded = encoded_leaves(reader)
    wanted = dict.fromkeys(key for key in [INDEX, *keys] if key != DONE and key not in encoded)
    if DONE in keys:  # last: it is made of the two others
        wanted |= dict.fromkeys([TERMINATED, TRUNCATED, DONE])
    slots = {key: slot for slot, key in enumerate(wanted)}
    behind = dict(enumerate((key for key in keys if key in encoded), len(slots)))
    every = slots | {key: slot for slot, key in behind.items()}
    if TED in reader.manifest.tables:  # every leaf has a file of its own, `next` included
        table, made = reader.manifest.tables[TED], {INDEX, DONE, *FLAGS}
        leaves = ((table[key], slot) for key, slot in slots.items() if key not in made)
        gathers = tuple(_gather(table.rows, "step", [leaf]) for leaf in leaves)
    else:
        gathers = _compact(reader, slots)
    return GatherPlan(
        gathers,
        {key: every[key] for key in [INDEX, *keys]},
        len(slots),
        tuple(slots[flag] for flag in FLAGS if flag in slots),
        (slots[DONE], slots[TERMINATED], slots[TRUNCATED]) if DONE in slots else None,
        {slot: encoded[key] for slot, key in behind.items()},
    )


def all_keys(reader: DatasetReader) -> list[Key]:
    """List the leaves of a whole batch, but the index, in the order in which batches show them."""
    observed = list(reader.observation_leaves)
    return [*observed, *reader.step_leaves, *FLAGS, *map(next_of, observed), DONE]


def _compact(reader: DatasetReader, slots: Mapping[Key, int]) -> tuple[Gather, ...]:
    steps = _by_file((leaf, slots.get(key)) for key, leaf in reader.step_leaves.items())
    observed = reader.observation_leaves.items()
    root = _by_file((leaf, slots.get(key)) for key, leaf in observed)
    after = _by_file((leaf, slots.get(next_of(key))) for key, leaf in observed)
    rows = reader.transitions + reader.episode_count
    gathers: list[Gather] = []
    if root or after:
        episode = reader.manifest.tables[STEPS][EPISODE]
        leaves = steps.pop(episode.file, [])
        gathers.append(_gather(reader.transitions, "step", leaves, episode=episode))
    gathers += [_gather(reader.transitions, "step", leaves) for leaves in steps.values()]
    for file in root | after:
        before, behind = root.get(file, []), after.get(file, [])
        if before and behind and _adjoin(before):
            gathers.append(_gather(rows, "root", before, behind))
            continue
        if before:
            gathers.append(_gather(rows, "root", before))
        if behind:
            gathers.append(_gather(rows, "next", behind))
    return tuple(gathers)


def _by_file(leaves: Iterable[tuple[LeafSpec, int | None]]) -> dict[str, _Leaves]:
    files: dict[str, _Leaves] = {}
    for leaf, slot in leaves:
        if slot is not None:
            files.setdefault(leaf.file, []).append((leaf, slot))
    return files


def _adjoin(before: _Leaves) -> bool:
    """Return True if gathering on to the next row costs less than a second gather.

    ```
    row i + e      | s_t   words …  |              both in one gather of a row and a piece of the
    row i + e + 1                   | s_t+1 … |    one after it, or one gather each
    ```

    It does while what lies between is short, and rows are: two big leaves in one block would not
    be contiguous, and nothing is gained.
    """
    stride = before[0][0].stride
    return stride < BIG_LEAF and 2 * max(leaf.offset + leaf.nbytes for leaf, _ in before) >= stride


def _gather(
    rows: int,
    at: At,
    leaves: _Leaves,
    behind: _Leaves | None = None,
    *,
    episode: LeafSpec | None = None,
) -> Gather:
    first = episode or leaves[0][0]
    places = [_place(leaf, slot, 0) for leaf, slot in leaves]
    places += [_place(leaf, slot, first.stride) for leaf, slot in behind or ()]
    word, _ = word_of(first.stride)
    ends = [place.end for place in places] + ([] if episode is None else [episode.offset + word])
    width = -(-max(ends) // word)
    column = None if episode is None else episode.offset // word
    return Gather(first.file, rows, first.stride, at, width, tuple(places), column)


def _place(leaf: LeafSpec, slot: int, shift: int) -> Place:
    dtype = getattr(torch, leaf.dtype)
    return Place(slot, dtype, leaf.shape, shift + leaf.offset, leaf.nbytes // dtype.itemsize)

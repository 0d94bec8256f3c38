"""Plan of a gather: the byte ranges of files that a batch needs, computed once from the schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch

from offline_data.episode.fields import DONE, TERMINATED, TRUNCATED, Key, next_of
from offline_data.rows.gather.encoded import EncodedLeaf, encoded_leaves
from offline_data.rows.gather.mmap import word_of
from offline_data.store.layout import BIG_LEAF, EPISODE, STEPS, TED, LeafSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from offline_data.store.reader import DatasetReader

INDEX: Key = ("index",)  # feature of every batch: the step's row in the dataset, int64

FLAGS: tuple[Key, ...] = (("done",), ("terminated",), ("truncated",))
"""Root flags: False in every step of an episode, so computed instead of stored."""

At: TypeAlias = Literal["step", "root", "next"]
"""Row of a file for step `i` of episode `e`: `i`, `i + e` or `i + e + 1`."""


@dataclass(frozen=True)
class Place:
    """Position of feature number `slot`: bytes `[offset, end)` of a gathered row."""

    slot: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    end: int


@dataclass(frozen=True)
class Gather:
    """One gather of rows of a file, and the features cut from the result."""

    file: str
    rows: int
    stride: int  # in bytes
    at: At
    width: int  # words gathered from the start of a row; more than it has if the next is needed too
    places: tuple[Place, ...]
    episode: int | None = None  # word with the episode's number, in the gather that provides it


@dataclass(frozen=True)
class GatherPlan:
    """Instructions to build a batch."""

    gathers: tuple[Gather, ...]  # in order; the one with `episode` first
    slots: Mapping[Key, int]  # of each feature of the batch; 0 is the index
    count: int  # of slots of raw features, including intermediate ones
    flags: tuple[int, ...]  # slots of root flags
    done: tuple[int, int, int] | None  # slots of next done, terminated, truncated, if needed
    encoded: Mapping[int, EncodedLeaf]  # by slot, after the slots of raw features


_Leaves: TypeAlias = list[tuple[LeafSpec, int]]  # leaves of one file with their slots


def plan_batch(reader: DatasetReader, keys: Sequence[Key]) -> GatherPlan:
    """Return the plan of batches with the features `keys` and the index."""
    encoded = encoded_leaves(reader)
    wanted = dict.fromkeys(key for key in [INDEX, *keys] if key != DONE and key not in encoded)
    if DONE in keys:  # last: it is computed from the two others
        wanted |= dict.fromkeys([TERMINATED, TRUNCATED, DONE])
    slots = {key: slot for slot, key in enumerate(wanted)}
    behind = dict(enumerate((key for key in keys if key in encoded), len(slots)))
    every = slots | {key: slot for slot, key in behind.items()}
    if TED in reader.manifest.tables:  # one file per leaf, including `next`
        table, computed = reader.manifest.tables[TED], {INDEX, DONE, *FLAGS}
        leaves = ((table[key], slot) for key, slot in slots.items() if key not in computed)
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
    """Return all features of a batch except the index, in their order in batches."""
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
        else:
            parts: list[tuple[At, _Leaves]] = [("root", before), ("next", behind)]
            gathers += [_gather(rows, at, leaves) for at, leaves in parts if leaves]
    return tuple(gathers)


def _by_file(leaves: Iterable[tuple[LeafSpec, int | None]]) -> dict[str, _Leaves]:
    files: dict[str, _Leaves] = {}
    for leaf, slot in leaves:
        if slot is not None:
            files.setdefault(leaf.file, []).append((leaf, slot))
    return files


def _adjoin(before: _Leaves) -> bool:
    """Return True if one gather that extends into the next row costs less than a second gather."""
    stride = before[0][0].stride
    return stride < BIG_LEAF and 2 * max(leaf.offset + leaf.nbytes for leaf, _ in before) >= stride


def _gather(
    rows: int,
    at: At,
    leaves: _Leaves,
    behind: Iterable[tuple[LeafSpec, int]] = (),
    *,
    episode: LeafSpec | None = None,
) -> Gather:
    first = episode or leaves[0][0]
    shifted = [(0, *leaf) for leaf in leaves] + [(first.stride, *leaf) for leaf in behind]
    places = tuple(_place(leaf, slot, shift) for shift, leaf, slot in shifted)
    word, _ = word_of(first.stride)
    ends = [place.end for place in places] + ([] if episode is None else [episode.offset + word])
    column = None if episode is None else episode.offset // word
    return Gather(first.file, rows, first.stride, at, -(-max(ends) // word), places, column)


def _place(leaf: LeafSpec, slot: int, shift: int) -> Place:
    dtype = getattr(torch, leaf.dtype)
    begin = shift + leaf.offset
    return Place(slot, dtype, leaf.shape, begin, begin + leaf.nbytes)

"""The HDF5 storage: one file, a group per episode, a dataset per leaf."""

from __future__ import annotations

import json
import math
import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.errors import FormatError
from offline_data.readers import hdf5_tree
from offline_data.readers.hdf5 import open_hdf5
from offline_data.readers.hdf5_storage import FEW, check_size
from offline_data.readers.images import decode_jpeg, decode_jpegs
from offline_data.sources.minari.leaves import (
    NOTE_NO_SEED,
    EpisodeFacts,
    FoundLeaf,
    episode_number,
    fill,
    groups_of,
    seed_of,
)
from offline_data.sources.minari.metadata import plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from offline_data.sources.minari.leaves import EpisodeView, Form, PlannedLeaf

_EPISODE = re.compile(r"episode_(\d+)\Z")
_MOST_GROUPS = 10_000  # of one episode
_TUPLE_PART = re.compile(r"_index_(\d+)\Z")
_COUNTED = frozenset(
    {b"id", b"seed", b"total_steps", b"total_timesteps"}
    | {b"rewards_sum", b"rewards_mean", b"rewards_std", b"rewards_max", b"rewards_min"}
)


class Hdf5Storage:
    """One HDF5 file.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.where = str(path)

    def numbers(self) -> Sequence[int]:
        """List the episodes by their numbers, in increasing order."""
        with open_hdf5(self.path) as file:
            links = hdf5_tree.members(file.id)
        for name, target in links:
            if target is not None and Path(target).name != target:
                # A downloaded file does not choose which other files of this machine are read.
                raise FormatError(f"{self.where} {name} is a link to {target!r}, in another folder")
        named = (_EPISODE.match(name) for name, _ in links)
        return sorted(episode_number(m[1], m[0], self.where) for m in named if m)

    @contextmanager
    def views(self, numbers: Sequence[int]) -> Iterator[Iterator[EpisodeView]]:
        """Open the file and, one after the other, the groups of episodes."""
        with open_hdf5(self.path) as file:
            yield (_open_episode(file.id, number, self.where) for number in numbers)


def _open_episode(file: Any, number: int, path: str) -> Hdf5Episode:
    where = f"{path} episode_{number}"
    group = hdf5_tree.open_group(file, (f"episode_{number}",), beside=True)
    if group is None:
        raise FormatError(f"{where} cannot be opened: it is missing, or no group")
    return Hdf5Episode(group, number, where)


class Hdf5Episode:
    """The group of one episode.

    Args:
        group: Its low-level identifier.
        number: Of the episode.
        where: File and episode, for messages.
    """

    def __init__(self, group: Any, number: int, where: str) -> None:
        self._number = number
        self._group = group
        self._opened: dict[tuple[str, ...], Any] = {(): group}
        self.where = where

    def _below(self, path: tuple[str, ...]) -> Any:
        """Open a group once: its leaves are found faster from there; None where there is none."""
        if path not in self._opened:
            self._opened[path] = hdf5_tree.open_group(self._group, path)
        return self._opened[path]

    def describe(self) -> list[FoundLeaf]:
        """List the leaves of the group, decoding the first image of each leaf of images."""
        import h5py

        leaves = hdf5_tree.walk(h5py.Group(self._group))
        return [_found(leaf, self._dataset(leaf), self.where) for leaf in leaves]

    def _dataset(self, leaf: hdf5_tree.TreeLeaf) -> Any:
        return None if leaf.rows is None else hdf5_tree.open_dataset(self._group, leaf.path)

    def members(self, group: tuple[str, ...]) -> int:
        """Count the links of a group below the episode's; 0 where there is none."""
        found = self._below(group)
        return 0 if found is None else int(found.get_num_objs())

    def groups(self, places: set[tuple[str, ...]]) -> dict[tuple[str, ...], frozenset[str]]:
        """Name the links of every group, also of those without a leaf below them."""
        import h5py

        groups = groups_of(places)
        unvisited = list(groups)
        while unvisited:
            group = unvisited.pop()
            opened = self._below(group)
            names = frozenset(h5py.Group(opened)) if opened is not None else frozenset()
            groups[group] = names
            below = {(*group, name) for name in names} - places - groups.keys()
            unvisited.extend(below)
            groups.update(dict.fromkeys(below, frozenset()))
            if len(groups) > _MOST_GROUPS:
                raise FormatError(f"{self.where} has more than {_MOST_GROUPS} groups")
        return groups

    def stated(self) -> tuple[Any, Any]:
        """Return the attributes `id` and `total_steps` (`total_timesteps` in old files)."""
        import h5py

        attributes = h5py.Group(self._group).attrs
        steps = attributes.get("total_steps", attributes.get("total_timesteps"))
        return plain(attributes.get("id")), plain(steps)

    def open(self, leaf: PlannedLeaf) -> Hdf5Leaf | None:
        """Open the dataset of a leaf; None where this episode does not have it."""
        group = self._below(leaf.place[:-1])
        dataset = None if group is None else hdf5_tree.open_dataset(group, leaf.place[-1:])
        if dataset is None:
            return None
        shape = dataset.shape or ()
        if math.prod(shape) > FEW:  # what is smaller is of the plan's type, or checked when read
            check_size(dataset)
        return Hdf5Leaf(dataset, leaf, self.where, shape)

    def facts(self) -> EpisodeFacts:
        """Read the attributes of the group."""
        names = hdf5_tree.attribute_names(self._group)
        others = sorted(name.decode() for name in names if name not in _COUNTED)
        options = [name for name in others if name.startswith("options/")]
        noted = [name for name in others if not name.startswith("options/")]
        seed = self._seed() if b"seed" in names else -1
        return EpisodeFacts(
            id=self._number,
            seed=-1 if seed is None else seed,
            options=self._json(options, "options/") if options else None,
            metadata=self._json(noted, "") if noted else None,
            notes=(NOTE_NO_SEED,) if seed is None else (),
        )

    def _seed(self) -> int | None:
        """Return the seed; None where it is a number, but no integer."""
        try:
            return seed_of(hdf5_tree.integer_attribute(self._group, "seed"))
        except ValueError:
            return None
        except (TypeError, OSError) as error:
            raise FormatError(f"{self.where} has a seed that is not a number: {error}") from error

    def _json(self, names: list[str], prefix: str) -> str:
        import h5py

        attributes = h5py.Group(self._group).attrs
        tree: dict[str, Any] = {}
        for name in names:
            *parents, last = name[len(prefix) :].split("/")
            branch = tree
            for parent in parents:
                branch = branch.setdefault(parent, {})
            branch[last] = plain(attributes[name])
        return json.dumps(tree, sort_keys=True)


def _found(leaf: hdf5_tree.TreeLeaf, dataset: Any, where: str) -> FoundLeaf:
    names = tuple(_plain_name(name) for name in leaf.path[1:])
    place = f"{where}/{'/'.join(leaf.path)}"
    if leaf.rows is None:
        reason = "It is one value an episode, or lies in another file, instead of one a step."
        return FoundLeaf(leaf.path, names, 0, "array", leaf.dtype, leaf.shape, reason)
    pieces = leaf.form == "bytes" or (leaf.dtype == np.uint8 and len(leaf.shape) == 1)
    frame = hdf5_tree.first_frame(dataset) if pieces else None
    if frame is not None:
        image = decode_jpeg(frame, place)
        return FoundLeaf(leaf.path, names, leaf.rows, "jpeg", image.dtype, image.shape)
    if leaf.form in {"bytes", "other"}:
        reason = f"Its HDF5 type {dataset.dtype} is neither a number, text nor JPEG images."
        return FoundLeaf(leaf.path, names, leaf.rows, "array", leaf.dtype, leaf.shape, reason)
    form: Form = "text" if leaf.form == "text" else "array"
    return FoundLeaf(leaf.path, names, leaf.rows, form, leaf.dtype, leaf.shape)


def _plain_name(name: str) -> str:
    part = _TUPLE_PART.match(name)
    return part[1] if part else name


@dataclass(slots=True)
class Hdf5Leaf:
    """One dataset of one episode, opened."""

    dataset: Any
    leaf: PlannedLeaf
    episode: str
    shape: tuple[int, ...]
    """Of the dataset."""
    has_nulls: bool = False

    @property
    def where(self) -> str:
        """File, episode and leaf, for messages."""
        return f"{self.episode}/{'/'.join(self.leaf.place)}"

    def read_if_fits(self, out: NDArray[Any]) -> bool:
        """Fill `out` if this has its dtype and shape; return whether it was filled."""
        return (
            self.leaf.form == "array"
            and self.shape == out.shape
            and hdf5_tree.read_if_fits(self.dataset, out)
        )

    def read(self, out: NDArray[Any]) -> None:
        """Fill `out`, `[rows, *shape]` of the plan."""
        found = hdf5_tree.look(self.dataset, ())
        if self.leaf.form == "jpeg" and found.shape != self.leaf.shape:
            decode_jpegs(hdf5_tree.read_frames(self.dataset), out, self.where)
            return
        if found.form != ("text" if self.leaf.form == "text" else "array"):
            raise FormatError(f"{self.where} is {self.dataset.dtype}; expected {self.leaf.form}")
        if found.form == "text":
            values = hdf5_tree.read_text(self.dataset, self.where)
        else:
            values = hdf5_tree.read_numbers(self.dataset)
        fill(out, values, self.where)

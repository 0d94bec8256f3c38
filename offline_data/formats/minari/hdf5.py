"""The HDF5 storage: one file, a group per episode, a dataset per leaf."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.formats.minari.leaves import (
    EpisodeFacts,
    Form,
    FoundLeaf,
    Groups,
    Place,
    PlannedLeaf,
    episode_number,
    groups_of,
    seed_of,
)
from offline_data.formats.minari.metadata import plain
from offline_data.raw import hdf5_tree
from offline_data.raw.hdf5 import h5, open_hdf5
from offline_data.raw.hdf5_headers import KnownHeaders
from offline_data.raw.images import decode_jpeg, decode_jpegs

_EPISODE = re.compile(r"episode_(\d+)\Z")
_TUPLE_PART = re.compile(r"_index_(\d+)\Z")
_COUNTED = frozenset(
    {b"id", b"seed", b"total_steps", b"total_timesteps"}
    | {b"rewards_sum", b"rewards_mean", b"rewards_std", b"rewards_max", b"rewards_min"}
)
_OPTIONS = "options/"


class Hdf5Storage:
    """One HDF5 file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.where = str(path)

    def numbers(self) -> Sequence[int]:
        with open_hdf5(self.path) as file:
            links = hdf5_tree.members(file.id)
        for name, target in links:
            if target is not None and Path(target).name != target:
                # A downloaded file must not choose which other files of this machine are read.
                raise FormatError(f"{self.where} {name} is a link to {target!r}, in another folder")
        named = (_EPISODE.match(name) for name, _ in links)
        return sorted(episode_number(m[1], m[0], self.where) for m in named if m)

    @contextmanager
    def episodes(self, numbers: Sequence[int]) -> Iterator[Iterator[_Hdf5Episode]]:
        with open_hdf5(self.path) as file, KnownHeaders(self.path, file.id) as headers:
            yield (_Hdf5Episode(file.id, number, self.where, headers) for number in numbers)


class _Hdf5Episode:
    """The group of one episode; an `EpisodeReader`."""

    def __init__(self, file: Any, number: int, path: str, headers: KnownHeaders) -> None:
        self.where = f"{path} episode_{number}"
        self._number = number
        self._group = hdf5_tree.open_group(file, (f"episode_{number}",), sibling=True)
        if self._group is None:
            raise FormatError(f"{self.where} cannot be opened: it is missing, or no group")
        inside = file.links.get_info(f"episode_{number}".encode()).type == h5().h5l.TYPE_HARD
        self._headers = headers if inside else None
        self._opened: dict[Place, Any] = {(): self._group}

    def _below(self, path: Place) -> Any:
        if path not in self._opened:
            self._opened[path] = hdf5_tree.open_group(self._group, path)
        return self._opened[path]

    def describe(self) -> list[FoundLeaf]:
        return [self._describe_leaf(path, dataset) for path, dataset in hdf5_tree.walk(self._group)]

    def _describe_leaf(self, path: Place, dataset: Any) -> FoundLeaf:
        leaf = hdf5_tree.describe(dataset)
        parts = ((name, _TUPLE_PART.match(name)) for name in path[1:])
        names = tuple(part[1] if part else name for name, part in parts)
        if leaf.rows is None:
            reason = "It is one value an episode, or is in another file, instead of one a step."
            return FoundLeaf(path, names, 0, "array", leaf.dtype, leaf.shape, reason)
        pieces = leaf.form == "bytes" or (leaf.dtype == np.uint8 and len(leaf.shape) == 1)
        frame = hdf5_tree.first_frame(dataset) if pieces else None
        if frame is not None:
            image = decode_jpeg(frame, f"{self.where}/{'/'.join(path)}")
            return FoundLeaf(path, names, leaf.rows, "jpeg", image.dtype, image.shape)
        if leaf.form in {"bytes", "other"}:
            reason = f"Its HDF5 type {dataset.dtype} is neither a number, text nor JPEG images."
            return FoundLeaf(path, names, leaf.rows, "array", leaf.dtype, leaf.shape, reason)
        form: Form = "text" if leaf.form == "text" else "array"
        return FoundLeaf(path, names, leaf.rows, form, leaf.dtype, leaf.shape)

    def members(self, group: Place) -> int:
        found = self._below(group)
        return 0 if found is None else int(found.get_num_objs())

    def groups(self, places: set[Place]) -> Groups:
        groups = groups_of(places)
        unvisited = list(groups)
        while unvisited:
            group = unvisited.pop()
            opened = self._below(group)
            names = frozenset(h5().Group(opened)) if opened is not None else frozenset()
            groups[group] = names
            below = {(*group, name) for name in names} - places - groups.keys()
            unvisited.extend(below)
            groups.update(dict.fromkeys(below, frozenset()))
            hdf5_tree.check_open(len(groups), self._group)
        return groups

    def stated_counts(self) -> tuple[Any, Any]:
        attributes = h5().Group(self._group).attrs
        steps = attributes.get("total_steps", attributes.get("total_timesteps"))
        return plain(attributes.get("id")), plain(steps)

    def read(self, leaf: PlannedLeaf) -> NDArray[Any] | None:
        group = self._below(leaf.place[:-1])
        if group is None:
            return None
        if leaf.form == "array":
            name, dtype, shape = leaf.place[-1], leaf.dtype, leaf.shape
            values = hdf5_tree.read_plain(group, name, dtype, shape, self._headers)
            if values is not None:
                return values
        dataset = hdf5_tree.open_dataset(group, leaf.place[-1:])
        if dataset is None:
            return None
        where, found = self.locate(leaf), hdf5_tree.describe(dataset)
        if not found.rows:
            return np.empty(0)
        if leaf.form == "jpeg" and found.shape != leaf.shape:
            return decode_jpegs(hdf5_tree.read_frames(dataset), leaf.shape, where)
        if found.form != ("text" if leaf.form == "text" else "array"):
            raise FormatError(f"{where} is {dataset.dtype}; expected {leaf.form}")
        if found.form == "text":
            return hdf5_tree.read_text(dataset, where)
        return hdf5_tree.read_numbers(dataset)

    def locate(self, leaf: PlannedLeaf) -> str:
        return f"{self.where}/{leaf.name}"

    def nulls(self, leaf: PlannedLeaf) -> None:  # noqa: ARG002 -- HDF5 has none
        return None

    def facts(self) -> EpisodeFacts:
        names = hdf5_tree.attribute_names(self._group)
        others = sorted(name.decode() for name in names if name not in _COUNTED)
        options = [name for name in others if name.startswith(_OPTIONS)]
        noted = [name for name in others if not name.startswith(_OPTIONS)]
        seed, notes = self._read_seed() if b"seed" in names else (-1, ())
        return EpisodeFacts(
            self._number,
            seed,
            self._json(options, _OPTIONS) if options else None,
            self._json(noted, "") if noted else None,
            notes,
        )

    def _read_seed(self) -> tuple[int, tuple[str, ...]]:
        try:
            return seed_of(hdf5_tree.number_attribute(self._group, "seed"))
        except (TypeError, OSError) as error:
            raise FormatError(f"{self.where} has a seed that is not a number: {error}") from error

    def _json(self, names: list[str], prefix: str) -> str:
        attributes = h5().Group(self._group).attrs
        tree: dict[str, Any] = {}
        for name in names:
            *parents, last = name[len(prefix) :].split("/")
            branch = tree
            for parent in parents:
                branch = branch.setdefault(parent, {})
            branch[last] = plain(attributes[name])
        return json.dumps(tree, sort_keys=True)

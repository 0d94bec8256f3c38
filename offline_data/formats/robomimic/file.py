"""A file of demonstrations: their numbers, masks and language, alignment and ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offline_data.base.errors import FormatError, UsageError
from offline_data.base.json import parse_json
from offline_data.formats.groups import numbered
from offline_data.formats.options import Alignment
from offline_data.formats.robomimic.alignment import find_alignment
from offline_data.raw import hdf5_tree
from offline_data.raw.hdf5 import open_hdf5

if TYPE_CHECKING:
    from numpy.typing import NDArray


POSITIONS = "ee_states"
"""Observation by which LIBERO's files are known: position of the arm first, then orientation."""
ATTRIBUTES = frozenset({"num_samples", "seed", "success", "ep_meta", "model_file"})
"""Attributes of demonstrations that are read."""
_DEMO = re.compile(r"demo_([0-9]{1,9})")
_PROBED = 20
"""Demonstrations whose movements are examined."""

ENDS = {
    "libero": "dones are 1 where the goal is reached, in the last row, which is terminated.",
    "attribute": "A demonstration with the attribute success is terminated, any other truncated.",
    "every": "dones are 1 in states of success: a demonstration that ends in one is terminated, any other "
    "truncated.",
    "some": "dones are 1 in states of success, and perhaps in all last rows: a demonstration is terminated "
    "if its last two rows are marked, otherwise truncated.",
    "last": "dones are 1 in last rows only, which may mark the end of the recording: demonstrations are "
    "truncated.",
    "unknown": "The file does not say how demonstrations end: they are truncated.",
}
"""Sentences on how the demonstrations of a file end."""
_ALIGNED = {
    "raw": "Observations were recorded after the action of their row{why}: the action between two of them "
    "is that of the later row, with its reward; the first action of each demonstration is left out. Images are upside "
    "down, as the simulator renders them.",
    "regenerated": "Observations were recorded before the action of their row{why}.",
}


def kind_of(path: Path) -> str | None:
    """Return the source whose demonstrations an HDF5 file has; None, or a `FormatError`: it has none."""
    with open_hdf5(path) as opened:
        file = DemoFile(opened.id, path.name)
        if "actions" not in file.names:
            return None
        if file.is_libero:
            return "libero"
        return "mimicgen" if "datagen_info" in file.names else "robomimic"


def parse_attribute(value: Any, name: str) -> dict[str, Any]:
    """Return an attribute that is a JSON object; raises `FormatError`."""
    found = parse_json(value, name, finite=True) if isinstance(value, str) else None
    if not isinstance(found, dict):
        raise FormatError(f"{name} is not a JSON object")
    return found


@dataclass(frozen=True)
class DemoFile:
    """An open file."""

    file: Any
    """Its low-level id."""
    name: str
    """Its name, for messages."""
    wanted: Alignment | None = None
    """Alignment of its rows, if it is LIBERO's; None: decided by the movements."""

    @cached_property
    def data(self) -> Any:
        """The group of all demonstrations; None if there is none."""
        return hdf5_tree.open_group(self.file, ("data",))

    @cached_property
    def demos(self) -> list[tuple[int, str, str | None]]:
        """Number, name, and target of a link, of each demonstration, ordered by number."""
        demos = [] if self.data is None else numbered(self.data, _DEMO)
        if not demos:
            raise FormatError(f"{self.name} has no demonstrations data/demo_0, data/demo_1, …")
        return demos

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """`env_args` and `problem_info` of the file, as far as they are there."""
        found = hdf5_tree.read_attributes(self.data, frozenset({"env_args", "problem_info"}))
        return {k: parse_attribute(v, f"{self.name}, attribute {k!r}") for k, v in found.items()}

    @cached_property
    def masks(self) -> dict[tuple[str, ...], frozenset[str]]:
        """Names of the demonstrations of each filter key."""
        group = hdf5_tree.open_group(self.file, ("mask",))
        return {
            path: frozenset(hdf5_tree.read_text(found, f"{self.name}, mask {path[-1]!r}").ravel())
            for path, found in (() if group is None else hdf5_tree.walk(group))
            if hdf5_tree.describe(found).form == "text"
        }

    @cached_property
    def first(self) -> Any:
        """The group of the first demonstration that is one; None if there is none."""
        for _, name, target in self.demos:
            with suppress(OSError):
                if target is None:
                    return hdf5_tree.open_group(self.data, (name,))
        return None

    @cached_property
    def names(self) -> frozenset[str]:
        """Names in the first demonstration."""
        return _names(self.first)

    @cached_property
    def is_libero(self) -> bool:
        """Whether the first demonstration is as those of LIBERO."""
        with suppress(OSError):
            if "obs" in self.names and "next_obs" not in self.names:
                return POSITIONS in _names(hdf5_tree.open_group(self.first, ("obs",)))
        return False

    @cached_property
    def alignment(self) -> Alignment | None:
        """Alignment of the rows; None: not LIBERO's. Raises `UsageError` if it cannot be determined."""
        if not self.is_libero:
            if self.wanted is not None:
                raise UsageError(
                    f"--alignment is for LIBERO files, which have obs/{POSITIONS}; {self.name} does not",
                    hint="leave --alignment out",
                )
            return None
        found = self.wanted or find_alignment(islice(self._movements(), _PROBED))
        if found is None:
            raise UsageError(
                f"The movements in {self.name} do not tell whether its observations were recorded after "
                "the action of their row (as LIBERO's script does) or before it",
                hint="say which: --alignment raw, or --alignment regenerated",
            )
        return found

    def _movements(self) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        for positions, actions in self._columns("obs/" + POSITIONS, "actions"):
            shapes = positions.shape, actions.shape
            if all(len(shape) == 2 and shape[1] > 2 for shape in shapes):
                yield positions[: len(actions), :3], actions[: len(positions)]

    @cached_property
    def ends(self) -> str:
        """Rule by which demonstrations end, one of `ENDS`."""
        if self.is_libero:
            return "libero"
        if self.first is not None and "success" in _attribute_names(self.first):
            return "attribute"
        if "dones" not in self.names:
            return "unknown"
        early = False
        for (dones,) in self._columns("dones"):
            if len(dones) and not dones[-1:].any():
                return "every"
            early |= bool(dones[:-1].any())
        return "some" if early else "last"

    def _columns(self, *names: str) -> Iterator[tuple[NDArray[Any], ...]]:
        """Yield datasets of each demonstration that has them as numbers; others are refused later."""
        for _, name, target in self.demos:
            if target is not None:
                continue
            with suppress(AttributeError, FormatError, OSError):  # AttributeError: of one absent
                group = hdf5_tree.open_group(self.data, (name,))
                found = [hdf5_tree.open_dataset(group, tuple(one.split("/"))) for one in names]
                if all(one.shape and hdf5_tree.describe(one).form == "array" for one in found):
                    yield tuple(map(hdf5_tree.read_numbers, found))

    def notes(self, why: str) -> tuple[str, ...]:
        """Return the rules that are applied, as sentences; `why`: reason for the alignment."""
        aligned = self.alignment and _ALIGNED[self.alignment].format(why=why)
        others = sorted(_attribute_names(self.first) - ATTRIBUTES)
        left = f"Attributes of demonstrations that are not kept: {', '.join(others)}."
        return tuple(filter(None, (aligned, ENDS[self.ends], left if others else None)))


def _names(group: Any) -> frozenset[str]:
    return frozenset() if group is None else frozenset(n for n, _ in hdf5_tree.members(group))


def _attribute_names(group: Any) -> frozenset[str]:
    names = () if group is None else hdf5_tree.attribute_names(group)
    return frozenset(name.decode(errors="replace") for name in names)

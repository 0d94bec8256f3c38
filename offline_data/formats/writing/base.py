"""The contract of a format that datasets are exported to, and the table of what each can hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from offline_data.base.errors import UsageError
from offline_data.base.ids import did_you_mean
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural, shorten
from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import Key
from offline_data.formats.base import RawDataset
from offline_data.formats.writing.episodes import ExportedEpisodes, Leaf, Table

Flags: TypeAlias = Literal["rows", "ended", "last", "one", "none"]
"""Flags of ends that a format has: both in every row; the same, of which one at least is set in the last
row of an episode; both in last rows only; one of the two there; or none, so that readers take episodes
as truncated."""


@dataclass(frozen=True)
class Holds:
    """Leaves and rows that the files of a format can hold."""

    final_observation: bool  # the observation after the last action
    flags: Flags
    nested: bool = True  # several leaves of observations and actions by name; else one of each
    tuples: bool = False  # several observations `0`, `1`, … as a tuple, where not `nested`
    rewards: Literal["optional", "required"] = "optional"  # whether loaders can read files without
    text: bool = True
    info: bool | frozenset[str] = True  # leaves below `info`: all, none, or those below these names
    extra: bool = True  # other leaves with a row for each action
    episodes: bool | frozenset[str] = True  # columns: all, none, or those of these names, also text
    encoded: bool = False  # images as JPEG and PNG files, not decoded
    missing_text: bool = False  # texts that are missing, other than empty ones
    any_leaves: bool = False  # datasets without actions, such as those of text
    unknown_final: bool = False  # that an episode's last observation is not known
    both: bool = False
    """Next observations that are not the observations of the rows after; see `Manifest.two_copies`."""
    dtypes: Mapping[str, str | None] = field(default_factory=dict)
    """Dtypes that are stored as another one; None: not at all. Others are stored as they are."""


@dataclass(frozen=True)
class LeafPlace:
    """Place of a leaf in the files of a target, and its key where a reader returns it."""

    leaf: Leaf
    path: str  # name in the files
    dtype: str  # in the files, or `text`
    key: Key  # in the batches of the reader of the format
    table: Table  # attribute of these batches
    lossy: str = ""  # why images differ by some of their brightness; empty: they do not
    after: str = ""
    """Name in the files of the rows after the actions, which the reader returns below `next`; empty:
    there are none, or they are the last rows of `path`."""
    missing: bool = False
    """Whether texts that are missing stay so, although those of steps become empty; see `Holds`."""

    def step_rows(self, batch: EpisodeBatch, *, after: bool = False) -> Any:
        """Return the leaf with a row for each action; of observations the row before, or after, it.

        Images that are stored encoded stay so.
        """
        column: Any = getattr(batch, self.leaf.table)[self.leaf.key]
        if self.leaf.table != "observations":
            return column[batch.episode_of] if self.leaf.table != self.table else column
        ends = np.cumsum(batch.lengths + 1)
        kept = np.ones(len(column), bool)
        kept[ends - batch.lengths - 1 if after else ends - 1] = False
        return column[kept]


FINAL = "observation after the last action"
"""Name of these rows of all observations in a `Loss`."""


@pickled_by_name
@dataclass(frozen=True)
class Loss:
    """A difference between the dataset and the files that it is exported to."""

    leaf: str  # `info/qpos`, or of a column of episodes `episodes/seed`
    rows: int | None  # rows, or episodes of such a column, that differ; None: all
    reason: str

    def __str__(self) -> str:
        rows = "" if self.rows is None else f" ({plural(self.rows, 'row')})"
        return f"{shorten(self.leaf)}{rows}: {self.reason}"


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export that targets read; each says which."""

    observation: Key | None = None  # of targets that hold one; None: there is only one
    fps: float | None = None  # LeRobot: frames in a second; None: the environment's `render_fps`
    video: Literal["h264", "av1", "none"] = "h264"
    """LeRobot: encoding of images."""
    format_version: str = "3.0"  # LeRobot: 3.0 or 2.1


@dataclass(frozen=True, eq=False)
class ExportJob:
    """An export: episodes, options, and the places of their leaves."""

    episodes: ExportedEpisodes
    options: ExportOptions
    places: tuple[LeafPlace, ...]
    name: str  # of the destination, without folders
    folder: Path  # its folder
    known_final: int  # number of episodes whose observation after the last action is known

    def places_in(self, table: Table) -> dict[Key, LeafPlace]:
        """Return the places of leaves of a table of the dataset, by key."""
        return {one.leaf.key: one for one in self.places if one.leaf.table == table}


class ExportTarget(ABC):
    """A format. Instances have no state."""

    name: str  # the word of `--to`
    title: str  # of at most half a line
    suffix: str = ""  # of the file; empty: the destination is a folder
    holds: Holds
    reads: tuple[str, ...] = ()  # fields of `ExportOptions` that change the files
    contained: bool = False
    """Whether `write` runs in a child process, since its library crashes on a full disk."""
    own: ClassVar[Mapping[str, tuple[Key, ...]]] = MappingProxyType({})
    """Names in the files that have a meaning, and the leaves, or roots of leaves, that may have them."""
    columns_apart: bool = False
    """Whether columns of episodes are in a table of their own, whose names may be those of leaves."""
    added: frozenset[tuple[Table, Key]] = frozenset()
    """Leaves that the reader of the format makes by itself, such as the number of a file's group;
    a root stands for all leaves below it."""

    def choose(
        self,
        episodes: ExportedEpisodes,  # noqa: ARG002 - of formats that choose
        options: ExportOptions,
    ) -> tuple[ExportOptions, Sequence[Loss]]:
        """Return the options with choices that depend on all leaves, and what is lost by these.

        Raises `UsageError` for options that the format does not have.
        """
        return options, ()

    @abstractmethod
    def place(self, leaf: Leaf, options: ExportOptions) -> LeafPlace | str:
        """Return the place of a leaf that the format can hold, or why it has none."""

    def differs(self, leaf: Leaf, episodes: ExportedEpisodes) -> str:  # noqa: ARG002
        """Return why a reader would return other values of a column of episodes; empty: the same."""
        return ""

    @abstractmethod
    def write(self, batches: Iterable[EpisodeBatch], path: Path, job: ExportJob) -> None:
        """Write a file, or into a new folder.

        `batches` have the leaves of `job.places` by the keys of the dataset, with dtypes of the places;
        they can be iterated over several times.
        """

    @abstractmethod
    def read(self, path: Path, job: ExportJob) -> RawDataset:
        """Open what was written, with the reader that `convert` uses for this format."""

    def omits_final(self, job: ExportJob) -> bool:  # noqa: ARG002
        """Return True if these files have no observations after last actions, which others have."""
        return False

    def card(self, job: ExportJob) -> Mapping[str, Any]:  # noqa: ARG002
        """Return what the header of `README.md` has for the format's loaders; `tags` are added."""
        return {}


_TARGETS = {  # modules and classes by name
    "minari": "offline_data.formats.minari.writer:MinariTarget",
    "d4rl": "offline_data.formats.d4rl.writer:D4RLTarget",
    "parquet": "offline_data.formats.tables.writer:ParquetTarget",
    "hf": "offline_data.formats.tables.writer:HuggingFaceTarget",
    "npz": "offline_data.formats.files.writer:NpzTarget",
    "zarr": "offline_data.formats.zarr.writer:ZarrTarget",
    "rlds": "offline_data.formats.rlds.writer:RldsTarget",
    "lerobot": "offline_data.formats.lerobot.writer:LeRobotTarget",
    "robomimic": "offline_data.formats.robomimic.writer:RobomimicTarget",
    "d3rlpy": "offline_data.formats.d3rlpy.writer:D3rlpyTarget",
    "ogbench": "offline_data.formats.ogbench.writer:OGBenchTarget",
    "ted": "offline_data.formats.torchrl.writer:TedTarget",
}

TARGETS = tuple(_TARGETS)


def get_target(name: str) -> ExportTarget:
    """Return a format by name; raises `UsageError` with the nearest one."""
    if name not in _TARGETS:
        raise UsageError(
            f"{name!r} is not a format of `export`; expected one of {', '.join(TARGETS)}",
            hint=did_you_mean(name, TARGETS),
        )
    module, _, kind = _TARGETS[name].partition(":")
    target: ExportTarget = getattr(import_module(module), kind)()
    return target

"""D4RL: flat HDF5 files of the 2020 benchmark, all 179 ids, read without the d4rl package; and npz files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from offline_data.base.config import Settings
from offline_data.base.plurals import plural
from offline_data.episode.autoreset import undo_autoreset
from offline_data.episode.cut import lengths_of
from offline_data.episode.fields import Autoreset, check_key
from offline_data.formats.base import (
    UNVERSIONED,
    CatalogSource,
    Part,
    RandomAccess,
    Release,
    RemoteFile,
    SourceInfo,
)
from offline_data.formats.catalogues.d4rl import D4RLCatalog, EndRule, read_table
from offline_data.formats.d4rl.episode_ends import end_notes, episode_ends
from offline_data.formats.fingerprint import fingerprint
from offline_data.formats.flat.arrays import inspect_npz
from offline_data.formats.flat.episodes import FlatEpisodes
from offline_data.formats.flat.hdf5 import (
    FlatFile,
    FlatFormat,
    inspect,
)
from offline_data.formats.flat.next_column import compare_next
from offline_data.formats.recognition import ArrayNames, array_names
from offline_data.raw.hdf5 import MAGIC, open_hdf5
from offline_data.store.arrays import COLUMNS, TIMEOUT

if TYPE_CHECKING:
    from offline_data.episode import EpisodeBatch, Key
    from offline_data.formats.options import Options


def leaf_of(name: str) -> Key:
    """Return the step feature of a column that is kept unchanged: `infos/…`, and others with N rows.

    It belongs to the observation of its row, before the action. Raises `FormatError` if a part of the
    name is not a valid file name.

    Example:
        >>> leaf_of("infos/qpos"), leaf_of("infos"), leaf_of("costs")
        (('info', 'qpos'), ('info', 'demo'), ('extra', 'costs'))
    """
    if name == "infos":  # kitchen: the number of the demonstration
        return "info", "demo"
    root, *rest = name.split("/")
    return check_key(("info", *rest) if root == "infos" else ("extra", root, *rest))


FORMAT = FlatFormat(
    "D4RL",
    leaf_of,
    pieces="virtual/",
    metadata="metadata/",
    dropped_metadata="belongs to the recording policy and has no value per row",
    foreign={"episode_terminals": "d3rlpy"},
    foreign_hint="without --from, or with --from d3rlpy, it is read as what it is",
)
"""Columns by `FlatFormat`'s names; in the chunked variant they are in `virtual/0/…`, …"""

_PIECE = re.compile(f"\\A{FORMAT.pieces}[0-9]+/")
NAMES = ArrayNames(FORMAT.required_columns, never=frozenset(FORMAT.foreign))
"""Other arrays stay: some files have `timeouts`, `next_observations`, `infos/…` and those of a user."""


class FlatSource(CatalogSource):
    """A source of HDF5 or npz files that have a row for each action in all arrays.

    Its `form` names the arrays, and `names` those by which a file is recognised.
    """

    form: ClassVar[FlatFormat]
    names: ClassVar[ArrayNames]
    takes = ("autoreset",)

    def has_format(self, path: Path) -> int:
        return self.names.count_in(column_names(path))

    def release_of(self, path: Path, name: str) -> Release:
        self.inspect(path)
        return Release(name, fingerprint(path, [path]), local=path)

    def open(self, release: Release, raw: Path) -> D4RLEpisodes:
        """Open the file: reads its flags, and compares next observations with the following rows."""
        path = release.file_in(raw)
        rule, info = self.known_of(release, path)
        return cut_to_episodes(self.inspect(path), rule, info, release.options)

    def inspect(self, path: Path) -> FlatFile:
        """Describe a file without reading its columns; raises `FormatError`."""
        return inspect_flat(path, self.form)

    def known_of(self, release: Release, path: Path) -> tuple[EndRule, SourceInfo]:  # noqa: ARG002
        """Return where episodes end, and what is known of a file without opening it."""
        return EndRule(), self.describe(release)


class D4RL(D4RLCatalog, FlatSource):
    """The datasets in D4RL's tables, and the user's files in their format."""

    form, names = FORMAT, NAMES
    arrays: ClassVar = {"npz": NAMES, "HDF5": NAMES}

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:  # noqa: ARG002
        """Return a published dataset from the catalogue; does not use the network."""
        found = read_table()[self.find(name, revision).name]
        urls = (found.url, found.url.replace("http://", "https://", 1))
        return Release(name, UNVERSIONED, (RemoteFile(found.file, urls, found.bytes, magic=MAGIC),))

    def known_of(self, release: Release, path: Path) -> tuple[EndRule, SourceInfo]:
        # A user's file with the name of a published one is cut by its rule, with a note.
        published = None if release.local else read_table().get(release.name)
        known = published or next((x for x in read_table().values() if x.file == path.name), None)
        notes: tuple[str, ...] = ()
        if known and not published:
            note = f"The file has the name of d4rl:{known.name}, and was cut as that is."
            notes = (note, *known.notes)
        facts = {"environment": known.environment, "about": known.about} if known else {}
        info = self.describe(release, *notes, **facts)
        return known.rule if known else EndRule(), info


def column_names(path: Path) -> set[str]:
    """Return the names of the arrays of a file, also those in pieces without their prefix."""
    names = array_names(path)
    return {*names, *(_PIECE.sub("", name) for name in names)}


def inspect_flat(path: Path, form: FlatFormat) -> FlatFile:
    """Describe an HDF5 or npz file of a flat format, without reading columns; raises `FormatError`."""
    if path.suffix == ".npz":
        return inspect_npz(path, form)
    with open_hdf5(path) as file:
        return inspect(file, path, form)


def cut_to_episodes(
    flat: FlatFile, rule: EndRule, facts: SourceInfo, options: Options
) -> D4RLEpisodes:
    """Cut the rows of a file, or of arrays, into episodes.

    Args:
        flat: The rows.
        rule: Where episodes end.
        facts: Info known before reading; counts and notes are added.
        options: `keep_episodes`, whether episodes continue where a next observation is not the following
            row's, and `autoreset`.

    Raises:
        FormatError: Nothing marks the ends of the episodes.
    """
    with flat.open() as file:
        terminals, timeouts, odd = flat.read_flags(file)
        ends, applied = episode_ends(rule, terminals, timeouts, str(flat.path))
        demonstrations = _demonstrations(flat, file, ends)
        after = None
        warnings: tuple[str, ...] = ()
        final = "The observation after the last action of an episode is not in the file."
        if flat.has_next:
            after = compare_next(flat, file, ends, keep_episodes=options.keep_episodes)
            final, warnings = after.describe(FORMAT.next_observation)
            warnings = () if rule.marks == "jumps" else warnings
            ends = ends if after.explicit else ends | after.jumps
    lengths, whole = lengths_of(ends), options.autoreset is None
    info = replace(
        facts,
        transitions=flat.rows if whole else None,
        episodes=len(lengths) if whole else None,
        about={
            COLUMNS: {name: str(column.dtype) for name, column in flat.columns.items()},
            **({"metadata": dict(flat.scalars)} if flat.scalars else {}),
            **facts.about,
        },
        notes=(*facts.notes, *end_notes(ends, applied), *odd, *demonstrations, final),
        warnings=warnings,
        dropped=flat.dropped,
    )
    return D4RLEpisodes(flat, lengths, terminals, timeouts, after, info, options.autoreset)


@dataclass(frozen=True, eq=False)
class D4RLEpisodes(FlatEpisodes, RandomAccess):
    """The episodes of a D4RL file; see `FlatEpisodes` for its features."""

    info: SourceInfo
    """Description for the manifest."""
    autoreset: Autoreset | None = None
    """Mode of the vector environment that recorded the rows."""
    threaded = True  # chunks are inflated in threads

    def parts(self, budget: int) -> Sequence[Part]:
        return [Part(*run) for run in self.runs(budget)]

    def read_part(self, part: Part) -> EpisodeBatch:
        batch = self.read_run(part.first, part.stop)
        if self.timeouts_of_ends is not None:
            marked = self.timeouts_of_ends[part.first : part.stop]
            batch = replace(batch, episodes={**batch.episodes, TIMEOUT: marked})
        if self.autoreset is not None:
            (batch,) = undo_autoreset([batch], self.autoreset, first=part.first == 0)
        return batch

    @cached_property
    def timeouts_of_ends(self) -> NDArray[np.bool_] | None:
        """`[E]` the file's `timeouts` in last rows; None without `timeouts`, or if the stored flags equal them."""
        if self.truncated is None:
            return None
        last = np.cumsum(self.lengths) - 1
        marked = self.truncated[last]
        return None if (marked | self.terminated[last]).all() else marked


def _demonstrations(flat: FlatFile, file: Any, ends: NDArray[np.bool_]) -> list[str]:
    """Return a note if kitchen's demonstration number does not change with the episodes."""
    if "infos" not in flat.columns or flat.columns["infos"].shape not in {(), (1,)}:
        return []
    numbers = flat.read(file, "infos", 0, flat.rows).reshape(flat.rows, -1)
    changes = (numbers[1:] != numbers[:-1]).any(axis=1)
    against = np.count_nonzero(changes != ends[:-1])
    note = (
        "The demonstration's number (info/demo) and the episodes disagree in "
        f"{plural(against, 'row')}."
    )
    return [note] if against else []

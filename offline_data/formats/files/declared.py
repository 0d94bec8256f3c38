"""Formats that are a mapping: what their arrays are called, and which of them a file has."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import ClassVar

from offline_data.base.errors import FormatError, UsageError
from offline_data.base.files import is_file, is_folder
from offline_data.formats.base import RawDataset, Release, UnpublishedSource
from offline_data.formats.files.episodes import (
    MappedEpisodes,
    find_parts,
    from_readable,
    open_files,
)
from offline_data.formats.files.mapping import FileMapping
from offline_data.formats.fingerprint import fingerprint
from offline_data.formats.folders import entries
from offline_data.formats.recognition import ArrayNames, array_names
from offline_data.raw.arrays import NamedArray

_TRIED = 3
"""Files of a folder by which it is recognised."""


class MappedSource(UnpublishedSource):
    """A source of the user's files, each of which has a mapping by the arrays that it has.

    A subclass defines `name`, `title`, `maker` and `example`, and `mapping_of`.
    """

    names: ClassVar[ArrayNames]
    """Arrays by which a file is recognised."""
    each: ClassVar[str | None] = None
    """Files of a folder that are the episodes, `episode_*.hdf5`. None: a dataset is a file."""
    notes: ClassVar[tuple[str, ...]] = ()
    unused: ClassVar[Mapping[str, str]] = {}
    """Arrays that no leaf needs, and why, as a sentence."""

    @abstractmethod
    def mapping_of(self, columns: Mapping[str, NamedArray]) -> FileMapping:
        """Return the mapping of a file, or of the first one of a folder, which has the required arrays."""

    def has_format(self, path: Path) -> int:
        for file in self._files_in(path)[:_TRIED]:
            with suppress(FormatError):  # of several, one may be damaged
                if count := self.names.count_in(array_names(file)):
                    return count
        return 0

    def release_of(self, path: Path, name: str) -> Release:
        return Release(name, fingerprint(path, self._files_in(path)), local=path)

    def open(self, release: Release, raw: Path) -> RawDataset:
        """Open it: reads where episodes end; raises `FormatError` where it is not of the format."""
        each, skip_bad = self.each if is_folder(raw) else None, release.options.skip_bad_episodes
        with open_files(raw) as arrays:
            parts = from_readable(arrays, find_parts(arrays, each), skip_bad)
            with arrays.below(parts[0]) if parts else nullcontext(arrays) as first:
                columns, file = dict(first.columns), first.path
        if not self.names.count_in(columns):
            lacking = [name for name in self.names.required if name not in columns]
            problem = f"it has no {' and no '.join(lacking)}"
            raise FormatError(f"{file} is not of {self.maker}: {problem}")
        info = self.describe(release, *self.notes)
        try:
            mapping = replace(self.mapping_of(columns), each=each)
            found = MappedEpisodes(
                *(raw, mapping, info),
                skip_bad=skip_bad,
                whose=f"{self.maker}'s",
                known=frozenset(columns),
            ).describe()
        except UsageError as error:  # the mapping is not the user's
            where = "" if str(raw) in error.message else f"{raw}: "
            raise FormatError(f"{where}{error.message}") from error
        dropped = (
            replace(one, reason=self.unused.get(one.key, one.reason)) for one in found.info.dropped
        )
        return replace(found, info=replace(found.info, dropped=tuple(dropped)))

    def _files_in(self, path: Path) -> list[Path]:
        """Return a file, or the episodes of a folder in the order of their names."""
        if not is_folder(path):
            return [path] if is_file(path) else []
        names = (entry.name for entry in entries(path))
        found = (path / name for name in names if fnmatchcase(name, self.each or ""))
        return [file for file in found if is_file(file)]

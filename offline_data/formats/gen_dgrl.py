"""Gen-DGRL: Procgen episodes, one `.npz` or pickled `.npy` file each, in archives of one or all games."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError
from offline_data.base.files import is_file, is_folder, read_head
from offline_data.episode import Dropped, EpisodeBatch
from offline_data.episode.assembly import assemble
from offline_data.episode.fields import REWARD
from offline_data.episode.joining import join_episodes
from offline_data.formats.base import (
    UNVERSIONED,
    CatalogSource,
    RawDataset,
    Release,
    RemoteFile,
    Shard,
    SourceInfo,
)
from offline_data.formats.catalogues import read_rows
from offline_data.formats.catalogues.games import KINDS, GenDGRLCatalog
from offline_data.formats.fingerprint import fingerprint
from offline_data.formats.folders import files_below
from offline_data.raw.archive import open_members
from offline_data.raw.npy import open_npz, read_npy

HOST = "https://dl.fbaipublicfiles.com/DGRL/"

_XZ = b"\xfd7zXZ\0"
_NAME = re.compile(
    r"\d{8}T\d{6}_(?P<id>\d{1,18})_(?P<length>\d{1,9})_(?P<seed>-?\d{1,18})_(?P<total>-?\d{1,18}\.\d\d)\.np[yz]"
)
_ARCHIVE = 1 << 43
"""Maximum size of all episodes of an archive: 25 million frames of float32 have 2^40 bytes."""
_EPISODE = 1 << 29
"""Maximum size of an episode, which is held in memory: ten times the 1,000 steps that Procgen allows."""
_KEYS = frozenset({"observations", "actions", "rewards", "dones"})
_DOCUMENTS = frozenset({"", ".md", ".txt", ".json", ".csv"})
"""Suffixes of files that are skipped; any other that is not an episode is an error."""
_LOOK = 8
"""Number of files inspected to identify an archive or folder."""

NOTES = (
    "The last frame stored of an episode is the first one of the next: it is left out.",
    "Episodes that ended at the limit of 1,000 steps are marked terminated, as in the source.",
    "Frames are stored as float32 or uint8, and are uint8 here: every value is the same.",
    "Episodes are in the order of the archive, or by name in a folder.",
)


@lru_cache(maxsize=1)
def read_table() -> dict[str, tuple[str, str]]:
    """Return the two locations of each published dataset, the likelier first."""
    rows = read_rows("gen_dgrl")
    return {name: (HOST + row["first"], HOST + row["second"]) for name, row in rows.items()}


@lru_cache(maxsize=1)
def games() -> frozenset[str]:
    """Return the names of the games."""
    return frozenset(name.partition("-")[0] for name in read_table())


class GenDGRL(GenDGRLCatalog, CatalogSource):
    """The published datasets, and the user's archives or folders in their format."""

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:  # noqa: ARG002
        """Return a published dataset from the catalogue; does not use the network."""
        urls = read_table()[self.find(name, revision).name]
        packed = all(url.endswith(".tar.xz") for url in urls)
        file = RemoteFile(f"{name}.tar", urls, magic=_XZ if packed else b"")
        return Release(name, UNVERSIONED, (file,))

    def has_format(self, path: Path) -> bool:
        """Return True if `path` is an archive or folder with such episodes among its first files."""
        return any(_NAME.fullmatch(_last(name)) for name, _ in islice(_files(path), _LOOK))

    def release_of(self, path: Path, name: str) -> Release:
        if not self.has_format(path):
            raise FormatError(
                f"{path} has no Gen-DGRL episodes: expected files like "
                "20220101T120000_0_9_40_10.00.npz, of 9 steps in level 40 and a return of 10"
            )
        files = [path] if is_file(path) else list(files_below(path))
        return Release(name, fingerprint(path, files), local=path)

    def open(self, release: Release, raw: Path) -> GenDGRLEpisodes:
        """Open an archive or folder; reads nothing yet."""
        skip_bad = release.options.skip_bad_episodes
        if release.local is not None:
            return GenDGRLEpisodes(self.describe(release, *NOTES), raw, None, skip_bad)
        game, _, kind = release.name.partition("-")
        info = self.describe(
            release,
            *NOTES,
            spaces={
                "observation": {"type": "Box", "dtype": "uint8", "shape": [3, 64, 64]},
                "action": {"type": "Discrete", "n": 15},
            },
            environment={"id": f"procgen-{game}-v0", "distribution_mode": "easy"},
            about={"game": game, "kind": KINDS[kind][1]},
        )
        return GenDGRLEpisodes(info, release.file_in(raw), game, skip_bad)


@dataclass(frozen=True)
class GenDGRLEpisodes(RawDataset):
    """The episodes of an archive, of one game or of all, read as a stream."""

    info: SourceInfo
    path: Path
    game: str | None
    """The only game to extract from an archive of all games."""
    skip_bad: bool = False

    def shards(self) -> Sequence[Shard]:
        return (Shard("all episodes"),)

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:  # noqa: ARG002 -- there is only one
        return join_episodes(self._readings(), skip_bad=self.skip_bad)

    def _readings(self) -> Iterator[tuple[str, Callable[[], EpisodeBatch]]]:
        for name, stream in _files(self.path):
            game = next((part for part in name.split("/")[:-1] if part in games()), None)
            if self.game is not None and game not in {None, self.game}:
                continue
            where = f"{self.path}, {name}"
            yield where, partial(_episode, where, name, stream, self.game or game or "")


def _files(path: Path) -> Iterator[tuple[str, io.BufferedReader]]:
    """Yield names and contents of the files of an archive or folder, except documents.

    A content can be read until the next one is requested.
    """
    if is_folder(path):
        for file in files_below(path):
            if not _is_document(file.name):
                read_head(file, 1)  # raises our error if the file cannot be read
                with file.open("rb") as stream:
                    yield file.relative_to(path).as_posix(), stream
        return
    for member in open_members(path, budget=_ARCHIVE):
        if not _is_document(_last(member.name)):
            yield member.name, cast("io.BufferedReader", member.stream)


def _is_document(name: str) -> bool:
    # macOS adds a file ._x for each x
    return name.startswith(".") or Path(name).suffix.lower() in _DOCUMENTS


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _episode(where: str, name: str, stream: io.BufferedReader, game: str) -> EpisodeBatch:
    match = _NAME.fullmatch(_last(name))
    if match is None:
        raise FormatError("its name is not <time>_<number>_<length>_<level seed>_<return>.npz")
    arrays = _arrays(stream, where)
    if lacking := _KEYS - set(arrays):
        raise FormatError(f"it has no {' and no '.join(sorted(lacking))}")
    seen = arrays["observations"]
    action, reward, done = (arrays[key] for key in ("actions", "rewards", "dones"))
    length = int(match["length"])
    rows = [len(column) if column.ndim else None for column in (seen, action, reward, done)]
    if rows != (wanted := [length + 1, length, length, length]) or not length:
        least = "" if length else ", and at least one step"
        raise FormatError(
            f"observations, actions, rewards and dones have {rows} rows; expected {wanted} by the "
            f"number of steps in its name{least}"
        )
    for key, column, kinds in (
        ("actions", action, "iu"),
        ("rewards", reward, "fiu"),
        ("dones", done, "fiub"),
    ):
        if column.size != length or column.dtype.kind not in kinds:
            raise FormatError(
                f"its {key} are {column.dtype} {list(column.shape)}; expected a number for each step"
            )
    total = float(reward.sum(dtype=np.float64))
    if not abs(total - float(match["total"])) <= 0.006:
        raise FormatError(f"its rewards add up to {total:.3f}; its name says {match['total']}")
    ends = done.reshape(-1) != 0
    if ends[:-1].any():
        raise FormatError(f"it is done after step {int(ends.argmax())} of {length}, and continues")
    frames = _as_bytes(seen)
    return assemble(
        np.array([length]),
        {("action",): action, REWARD: reward.reshape(-1, 1)},
        {("observation",): frames[:-1] if ends[-1] else frames},  # the next episode's first
        terminated=ends,
        episodes={
            ("id",): np.array([int(match["id"])]),
            ("seed",): np.array([int(match["seed"])]),
            ("game",): np.array([game], object),
        },
        dropped=tuple(
            Dropped(key, "Gen-DGRL has no feature of this name.")
            for key in sorted(set(arrays) - _KEYS)
        ),
    )


def _arrays(stream: io.BufferedReader, where: str) -> Mapping[str, Any]:
    """Read the arrays of a file, whose name may not tell which of the two formats it has."""
    if stream.peek(2)[:2] == b"PK":
        content = io.BytesIO(stream.read(_EPISODE))
        with open_npz(Path(where), budget=_EPISODE, content=content) as packed:
            return dict(packed)
    value = read_npy(stream, size=_EPISODE, where=where, objects=True)
    arrays = value.item() if value.dtype == object and not value.ndim else None
    if not isinstance(arrays, dict) or not all(
        isinstance(one, np.ndarray) for one in arrays.values()
    ):
        raise FormatError("it holds no dict of arrays")
    return arrays


def _as_bytes(seen: Any) -> Any:
    """Return frames as a uint8 copy; raises `FormatError` if a value would change."""
    if seen.dtype.kind not in "fiu":
        raise FormatError(f"its observations are {seen.dtype}, expected numbers from 0 to 255")
    with np.errstate(invalid="ignore"):
        frames = seen.astype(np.uint8)
    if not np.array_equal(frames, seen):
        raise FormatError("its observations are not whole numbers from 0 to 255")
    return frames

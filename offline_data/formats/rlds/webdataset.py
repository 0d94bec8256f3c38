"""The hub's copy of Open X-Embodiment: tar files of pickled episodes, read without executing them.

A member `<key>.data.pickle` has `{"steps": [step, …], "episode_metadata": …}`, where a step is the nested
dict decoded by TFDS; an image in it is the bytes of a file, `{"bytes": …, "path": …}`, or its pixels.
Leaves have the same names as in the RLDS files of the dataset.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, NotFoundError, OfflineDataError
from offline_data.base.files import is_file, is_folder
from offline_data.base.plurals import plural
from offline_data.episode import Dropped
from offline_data.episode.joining import join_episodes
from offline_data.fetch.hub import list_hub
from offline_data.formats.base import RawDataset, Release, Shard, SourceInfo
from offline_data.formats.catalogues.openx import OpenXCatalog, read_table
from offline_data.formats.fingerprint import fingerprint
from offline_data.formats.folders import entries
from offline_data.formats.rlds.episodes import align_rows, key_of
from offline_data.raw.archive import Member, open_members
from offline_data.raw.images import header_shapes, is_jpeg
from offline_data.raw.restricted_pickle import load
from offline_data.store.encoded import EncodedColumn

if TYPE_CHECKING:
    from offline_data.episode import EpisodeBatch, Key

REPO = "jxu124/OpenX-Embodiment"
HUB = "hub"  # revision of ids of the hub's copy: `hub`, or `hub-COMMIT`

NOTE = (
    f"Read from the copy at huggingface.co/datasets/{REPO}, which is pickles in tar files: numbers "
    "have the types that they have there, and nothing in them was executed."
)
_EPISODE = ".data.pickle"
_NUMBERED = re.compile(r"(?P<name>.*_)(?P<number>\d{5,})\.tar")
_PNG = b"\x89PNG\r\n\x1a\n"


def is_hub(revision: str | None) -> bool:
    """Return True for a revision of the hub's copy."""
    return revision is not None and (revision == HUB or revision.startswith(f"{HUB}-"))


def webdataset_release(name: str, revision: str, settings: Settings) -> Release:
    """List the tar files of a dataset on the hub; raises `NotFoundError`, and as `list_hub`."""
    commit = revision.partition("-")[2] or None
    try:
        found = list_hub(REPO, name, commit, settings).files
    except NotFoundError as error:
        raise NotFoundError(
            f"There is no openx:{name}@{revision}: {error.message}",
            hint=f"openx:{name} without @hub is the dataset as its authors publish it",
        ) from error
    tars = [file for file in found if file.path.endswith(".tar")]
    _check_numbers([file.path for file in tars], f"{REPO}, {name}")
    return Release(name, revision, tuple(tars), opening=(), shards=len(tars))


def is_webdataset(path: Path) -> bool:
    """Return True for a tar file of such episodes, or a folder whose first tar file is one."""
    tars = tars_of(path)
    if not tars:
        return False
    try:
        first = next(open_members(tars[0], budget=tars[0].stat().st_size), None)
    except (OfflineDataError, OSError):
        return False
    return first is not None and first.name.endswith(_EPISODE)


def release_of_webdataset(path: Path, name: str) -> Release:
    """Describe a tar file, or a folder of them; raises `FormatError` if one of them is missing."""
    tars = tars_of(path)
    _check_numbers([tar.name for tar in tars], str(path))
    home = path if is_folder(path) else path.parent
    return Release(name, fingerprint(home, tars), local=path, shards=len(tars))


def open_webdataset(release: Release, raw: Path) -> WebDataset:
    """Open a release of either kind; reads nothing yet."""
    if release.local is None:
        return WebDataset([raw / file.path for file in release.files], raw, release)
    return WebDataset(tars_of(raw), raw if is_folder(raw) else raw.parent, release)


class WebDataset(RawDataset):
    """Tar files of pickled episodes, each a shard read as a stream."""

    def __init__(self, tars: Sequence[Path], folder: Path, release: Release) -> None:
        self._folder, self._skip_bad = folder, release.options.skip_bad_episodes
        self._names = [path.relative_to(folder).as_posix() for path in tars]
        known = read_table().get(release.name) if release.local is None else None
        self.info = SourceInfo(
            licence=OpenXCatalog.licence if known else None,
            citation=OpenXCatalog.citation if known else None,
            notes=(NOTE, *(known.notes if known else ())),
        )

    def shards(self) -> Sequence[Shard]:
        return [Shard(name, (name,)) for name in self._names]

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:
        return join_episodes(self._readings(shard.name), skip_bad=self._skip_bad)

    def _readings(self, name: str) -> Iterator[tuple[str, Callable[[], EpisodeBatch]]]:
        path = self._folder / name
        others: set[str] = set()
        empty = True
        for member in open_members(path, budget=path.stat().st_size):
            if member.name.endswith(_EPISODE):
                empty = False
                yield f"{path}, {member.name}", partial(_read, member, tuple(sorted(others)))
            else:
                others.add("".join(member.name.rpartition("/")[2].partition(".")[1:]))
        if empty:
            raise FormatError(f"{path} has no member that ends with {_EPISODE}: no episode")


def _read(member: Member, others: Sequence[str]) -> EpisodeBatch:
    """Read an episode; `others` are suffixes of skipped members."""
    value = load(member.stream, size=member.size, where="it")
    steps = value.pop("steps", None) if isinstance(value, dict) else None
    if not isinstance(steps, (list, tuple)) or not all(isinstance(step, dict) for step in steps):
        raise FormatError("it is not an episode: expected a dict with a list of steps")
    if not steps:
        raise FormatError("it has no step")
    flat = [dict(_leaves(step, ("steps",))) for step in steps]
    for number, step in enumerate(flat):
        if step.keys() != flat[0].keys():
            odd = min(step.keys() ^ flat[0].keys())
            raise FormatError(f"step {number} and the first one have not both {'/'.join(odd)}")
    columns = {
        key_of(path, in_steps=True): _column([step[path] for step in flat], path)
        for path in flat[0]
    }
    key = member.name.rpartition("/")[2].removesuffix(_EPISODE)
    table: dict[Key, Any] = {("split",): _text(["train"]), ("key",): _text([key])}
    for path, leaf in _leaves(value, ()):
        table[key_of(path, in_steps=False)] = _column([leaf], path)
    batch = align_rows(columns, len(steps), table)
    dropped = tuple(Dropped(name, "it is not part of an episode") for name in others)
    return replace(batch, dropped=dropped)


def _leaves(
    value: Mapping[Any, Any], above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the leaves of nested dicts; an image dict is replaced by its bytes."""
    for name, below in value.items():
        if not isinstance(name, str):
            raise FormatError(f"{'/'.join(above)} has a key that is not text")
        path = (*above, name)
        if not isinstance(below, dict):
            yield path, below
        elif below.keys() <= {"bytes", "path"} and isinstance(below.get("bytes"), bytes):
            yield path, below["bytes"]
        else:
            yield from _leaves(below, path)


def _column(values: Sequence[Any], path: tuple[str, ...]) -> Any:
    """Return a column `[n, …]`: encoded images, text, or numbers of their own dtype."""
    where = "/".join(path)
    first = next((value for value in values if value is not None), None)
    if isinstance(first, bytes) and (first.startswith(_PNG) or is_jpeg(first)):
        return _images(values, where)
    if first is None or isinstance(first, (str, bytes)):
        return _text([_decode_text(value, where) for value in values])
    arrays = [np.asarray(value) for value in values]
    kinds = {(array.dtype, array.shape) for array in arrays}
    if len(kinds) > 1:
        kinds_text = ", ".join(sorted(f"{dtype} {list(shape)}" for dtype, shape in kinds))
        raise FormatError(f"{where} is not the same in all steps: {kinds_text:.200}")
    column = np.stack(arrays)
    if column.dtype.kind in "OSU":
        flat = [_decode_text(value, where) for value in column.reshape(-1).tolist()]
        return _text(flat).reshape(column.shape)
    return column


def _images(values: Sequence[Any], where: str) -> Any:
    if not all(isinstance(value, bytes) for value in values):
        raise FormatError(f"{where} is an image in some steps, and not in others")
    data = np.frombuffer(values[0], np.uint8)
    encoding = "jpeg" if is_jpeg(values[0]) else "png"
    begin, end = np.array([[0], [len(data)]])
    height, width, channels, bits = header_shapes(data, begin, end, encoding)[0].tolist()
    kind = (encoding, "uint16" if bits == 16 else "uint8", (height, width, channels))
    column: Any = EncodedColumn.of(list(values), kind, where)
    column.check_headers()
    return column


def _decode_text(value: Any, where: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    try:
        return bytes.decode(value)
    except (TypeError, UnicodeDecodeError):
        raise FormatError(f"{where} has {value!r:.40}, which is not UTF-8 text") from None


def _text(values: Sequence[str | None]) -> Any:
    column = np.empty(len(values), object)
    column[:] = values
    return column


def tars_of(path: Path) -> list[Path]:
    """Return the tar files of a folder, or `path` itself if it is one; may be empty."""
    if not is_folder(path):
        return [path] if path.suffix == ".tar" and is_file(path) else []
    found = (path / entry.name for entry in entries(path) if entry.name.endswith(".tar"))
    return [file for file in found if is_file(file)]


def _check_numbers(names: Sequence[str], where: str) -> None:
    """Raise `FormatError` if a file is missing in a numbered sequence."""
    if not names:
        raise FormatError(f"{where} has no .tar file")
    numbers: dict[str, set[int]] = {}
    for name in names:
        if match := _NUMBERED.fullmatch(name):
            numbers.setdefault(match["name"], set()).add(int(match["number"]))
    for name, found in numbers.items():
        if missing := sorted(set(range(max(found) + 1)) - found):
            raise FormatError(
                f"{where} lacks {plural(len(missing), 'file')}, {name}{missing[0]:05d}.tar for one",
                hint="copy the whole dataset, or convert single files",
            )

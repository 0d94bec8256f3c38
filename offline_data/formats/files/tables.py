"""Tables of steps and of episodes in Arrow's formats, as `export --to parquet` writes them.

```
steps       episode_index, step_index, action, observation.state, next.reward, …
episodes    episode_index, length, final_observation, seed, …, final.observation.state
```

Steps have the observation before the action; the one after the last action of an episode is in `final.…` of
its row of `episodes`, null where it is not known. A row group, or record batch, has whole episodes, and the
same ones in both tables. JPEG and PNG images are `{bytes, path}`, the `Image` of `datasets`.

The schema of both tables states under `offline_data` the key of the leaf of each column, and whether images
were pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from offline_data.base.decode import decode
from offline_data.base.errors import FormatError
from offline_data.base.files import is_folder
from offline_data.base.json import parse_json
from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED, Key, check_key
from offline_data.episode.joining import concatenate_columns
from offline_data.formats.base import RawDataset, Shard, SourceInfo
from offline_data.formats.folders import entries
from offline_data.formats.recognition import ArrayNames
from offline_data.raw.arrow import (
    is_saved,
    iter_arrow,
    iter_row_groups,
    read_schema,
    saved_files,
    table_leaves,
)
from offline_data.store.encoded import EncodedColumn, image_kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

FINAL = "final."
"""Beginning of the names of columns of final observations."""
METADATA = b"offline_data"
"""Key of the description in the metadata of a schema."""
SINGLE = (REWARD, TERMINATED, TRUNCATED)
"""Leaves of one number a row, which are a column of numbers."""


class _ColumnFacts(TypedDict, total=False):
    key: list[str]
    pixels: bool


_STEPS = ArrayNames(("episode_index", "step_index"))
_EPISODES = ArrayNames(("episode_index", "length", "final_observation"))
_FOLDERS = ("data", "episodes")
SPLITS = ("steps", "episodes")
"""Splits of a `DatasetDict` on disk."""


def count_columns(folder: Path) -> int:
    """Return how many columns of numbers show that a folder is such an export; 0: it is not.

    Raises `FormatError` for a damaged file, and `MissingDependencyError`.
    """
    counts = []
    for files, names in zip(files_in(folder), (_STEPS, _EPISODES), strict=True):
        counts.append(names.count_in(read_schema(files[0]).names) if files else 0)
    return sum(counts) if all(counts) else 0


def files_in(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the files of steps, and of episodes, of Parquet in the order of their names."""
    if all(is_saved(folder / name) for name in SPLITS):
        steps, episodes = (saved_files(folder / name) for name in SPLITS)
        return steps, episodes
    found = (entries(folder / name) if is_folder(folder / name) else () for name in _FOLDERS)
    steps, episodes = (
        [Path(one.path) for one in some if one.name.endswith(".parquet")] for some in found
    )
    return steps, episodes


@dataclass(frozen=True)
class TableEpisodes(RawDataset):
    """The episodes of both tables, in files of Parquet or streams of Arrow."""

    steps: Sequence[Path]
    episodes: Sequence[Path]
    info: SourceInfo = SourceInfo()  # noqa: RUF009 -- frozen

    def shards(self) -> Sequence[Shard]:
        """Return the only shard."""
        return (Shard("all episodes"),)

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:  # noqa: ARG002 - there is only one
        """Yield the episodes of each row group; raises `FormatError`."""
        steps, episodes = _groups(self.steps), _groups(self.episodes)
        for where, rows in steps:
            _, facts = next(episodes, (where, None))
            if facts is None:
                raise _mismatch(where, "has more row groups than the table of episodes")
            yield _batch_of(rows, facts, where)
        if next(episodes, None) is not None:
            raise _mismatch(str(self.steps[-1]), "has fewer row groups than the table of episodes")


def _mismatch(where: str, problem: str) -> FormatError:
    return FormatError(
        f"{where} {problem}",
        hint="export again, or read the table of steps by a mapping: `offline-data convert PATH --inspect`",
    )


def _groups(files: Sequence[Path]) -> Iterator[tuple[str, Any]]:
    for file in files:
        groups = iter_row_groups(file) if file.suffix == ".parquet" else iter_arrow(file)
        for number, group in enumerate(groups):
            yield f"{file}, row group {number},", group


def _batch_of(rows: Any, facts: Any, where: str) -> EpisodeBatch:
    before, others = _leaves_of(rows, where), _leaves_of(facts, where)
    lengths = _take_number(others, "length", where).astype(np.int64)
    known = _take_number(others, "final_observation", where).astype(bool)
    if int(lengths.sum()) != len(rows) or (lengths < 1).any():
        raise _mismatch(where, f"has {len(rows):,} rows, expected {int(lengths.sum()):,} by length")
    ends = np.cumsum(lengths)
    steps: dict[Key, Any] = {}
    observations: dict[Key, Any] = {}
    for name, (key, values) in before.items():
        if name in _STEPS.required:
            continue
        if (final := others.pop(FINAL + name, None)) is not None:
            observations[key] = _with_final(values, final[1], ends, known, f"{where} {name}")
        else:
            steps[key] = values.reshape(-1, 1) if key in SINGLE else values
    episodes = {key: values for name, (key, values) in others.items() if name != "episode_index"}
    return EpisodeBatch(lengths, steps, observations, known, episodes)


def _leaves_of(table: Any, where: str) -> dict[str, tuple[Key, Any]]:
    """Return the key and the values of each column; those that cannot be read are an error."""
    about, found = _read_metadata(table, where), {}
    for leaf in table_leaves(table):
        name, rest = leaf.path[0], leaf.path[1:]
        if rest == ("path",):
            continue
        if leaf.values is None or rest not in {(), ("bytes",)}:
            raise FormatError(
                f"{where} column {name!r} is {leaf.kind}, or its rows differ in length"
            )
        if leaf.nulls is not None and leaf.values.dtype != object and not name.startswith(FINAL):
            raise FormatError(f"{where} column {name!r} has rows without a value")
        facts = about.get(name.removeprefix(FINAL), {})
        values = leaf.values
        if rest:
            values = _images(values.tolist(), f"{where} {name}", pixels=bool(facts.get("pixels")))
        found[name] = check_key(tuple(facts.get("key") or name.split("."))), values
    return found


def _take_number(leaves: dict[str, tuple[Key, Any]], name: str, where: str) -> NDArray[Any]:
    _, values = leaves.pop(name, ((), np.empty(0)))
    if values.dtype.kind not in "biu" or values.ndim != 1:
        raise FormatError(f"{where} expected a column {name!r} of whole numbers or flags")
    return np.asarray(values)


def _read_metadata(table: Any, where: str) -> Mapping[str, Any]:
    """Return what the schema states of each column, by name; nothing in files of others."""
    data = (table.schema.metadata or {}).get(METADATA)
    return decode(dict[str, _ColumnFacts], parse_json(data, where), where) if data else {}


def _with_final(
    values: Any, final: Any, ends: NDArray[np.int64], known: NDArray[np.bool_], where: str
) -> Any:
    """Append the final observation to the rows of each episode, or if unknown its last row."""
    if (values.dtype, values.shape[1:]) != (final.dtype, final.shape[1:]) and known.any():
        raise FormatError(f"{where} and {FINAL}… differ in type or shape")
    count = len(values)
    order = np.insert(
        np.arange(count), ends, np.where(known, count + np.arange(len(ends)), ends - 1)
    )
    return concatenate_columns([values, final])[order] if known.any() else values[order]


def _images(files: list[Any], where: str, *, pixels: bool) -> Any:
    """Return files of images as a column; those that are missing are the first that is not."""
    first = next((file for file in files if file), b"")
    kind = image_kind(first)
    if kind is None and first:
        raise FormatError(f"{where} has rows of bytes that are neither JPEG nor PNG images")
    if kind is None:
        return np.zeros((len(files), 0), np.uint8)  # none is known
    column = EncodedColumn.of([file or first for file in files], kind, where)
    return np.asarray(column) if pixels else column

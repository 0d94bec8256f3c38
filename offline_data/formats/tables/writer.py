"""Tables of Arrow: Parquet files, and what `datasets.load_from_disk` opens.

```
steps       episode_index, step_index, action, observation.state, next.reward, …
episodes    episode_index, length, final_observation, seed, …, final.observation.state
```

See `offline_data.formats.files.tables` for rows and types.

```
parquet    data/train-00000-of-00002.parquet, episodes/train-00000-of-00001.parquet
hf         dataset_dict.json, steps/data-00000-of-00001.arrow, state.json, dataset_info.json, episodes/…
```
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import MissingDependencyError
from offline_data.episode import EpisodeBatch
from offline_data.formats.files.tables import FINAL, METADATA, SINGLE, SPLITS, TableEpisodes
from offline_data.formats.writing.base import (
    ExportJob,
    ExportOptions,
    ExportTarget,
    Holds,
    LeafPlace,
)
from offline_data.formats.writing.episodes import Leaf
from offline_data.formats.writing.plan import place_at
from offline_data.store.encoded import as_encoded, encode_rows
from offline_data.store.layout import fits_encoding

if TYPE_CHECKING:
    from typing_extensions import Self

_SHARD = 512 << 20  # bytes of rows of a file
_AT_ONCE = 32  # images that are in memory at once
_OWN = (  # first parts of names of columns (steps, episodes) that have a use of their own
    {"episode_index", "step_index"},
    {"episode_index", "length", "final", "final_observation"},
)


class _Tables(ExportTarget):
    """Both formats."""

    holds = Holds(
        final_observation=True,
        flags="rows",
        encoded=True,
        unknown_final=True,
        both=True,
        any_leaves=True,
        missing_text=True,
        dtypes={"complex64": None, "complex128": None},
    )
    columns_apart = True

    def place(self, leaf: Leaf, options: ExportOptions) -> LeafPlace | str:  # noqa: ARG002
        name = ".".join(leaf.key)
        if leaf.key[0] in _OWN[leaf.table == "episodes"]:
            name = f"leaf.{name}"
        return place_at(leaf, name, self.holds)

    def write(self, batches: Iterable[EpisodeBatch], path: Path, job: ExportJob) -> None:
        pa = arrow()
        done = 0
        about = json.dumps({place.path: _describe(place.leaf) for place in job.places})
        with self._writer(path, "steps") as steps, self._writer(path, "episodes") as episodes:
            for batch in batches:
                numbers = np.arange(done, done + len(batch.lengths))
                step = np.arange(batch.transitions) - batch.starts[batch.episode_of]
                rows: dict[str, Any] = {
                    "episode_index": pa.array(numbers[batch.episode_of]),
                    "step_index": pa.array(step),
                }
                facts: dict[str, Any] = {
                    "episode_index": pa.array(numbers),
                    "length": pa.array(batch.lengths),
                    "final_observation": pa.array(batch.final_observation),
                }
                for place in job.places:
                    into = facts if place.leaf.table == "episodes" else rows
                    into[place.path] = _column(place, place.step_rows(batch))
                    if place.leaf.table == "observations":
                        last = np.cumsum(batch.lengths + 1) - 1
                        column = batch.observations[place.leaf.key][last]
                        known = batch.final_observation
                        facts[FINAL + place.path] = _column(place, column, known)
                steps.append(rows, about)
                episodes.append(facts, about)
                done += len(numbers)
        self._finish(path, job, {"steps": steps, "episodes": episodes})

    @abstractmethod
    def _writer(self, path: Path, table: str) -> _Shards:
        """Return the files of a table."""

    def _finish(self, path: Path, job: ExportJob, shards: Mapping[str, _Shards]) -> None:
        """Write what is next to the files."""

    def read(self, path: Path, job: ExportJob) -> TableEpisodes:  # noqa: ARG002
        steps, episodes = (self._writer(path, name).files() for name in SPLITS)
        return TableEpisodes(steps, episodes)


class ParquetTarget(_Tables):
    """Parquet files, as `datasets.load_dataset`, Polars and DuckDB read them."""

    name = "parquet"
    title = "Parquet"

    def card(self, job: ExportJob) -> Mapping[str, Any]:  # noqa: ARG002
        configs = [
            {"config_name": "steps", "data_files": "data/*.parquet", "default": True},
            {"config_name": "episodes", "data_files": "episodes/*.parquet"},
        ]
        return {"configs": configs}

    def _writer(self, path: Path, table: str) -> _Shards:
        return _ParquetShards(path / ("data" if table == "steps" else table), "train", "parquet")


class HuggingFaceTarget(_Tables):
    """A `DatasetDict` on disk, with the splits `steps` and `episodes`."""

    name = "hf"
    title = "a DatasetDict of Hugging Face datasets"

    def _writer(self, path: Path, table: str) -> _Shards:
        return _ArrowShards(path / table, "data", "arrow")

    def _finish(self, path: Path, job: ExportJob, shards: Mapping[str, _Shards]) -> None:
        (path / "dataset_dict.json").write_text(json.dumps({"splits": list(SPLITS)}))
        for name, written in shards.items():
            state: dict[str, Any] = {
                "_data_files": [{"filename": file.name} for file in written.files()],
                "_fingerprint": f"{job.name}-{name}",
                "_format_columns": None,
                "_format_kwargs": {},
                "_format_type": None,
                "_output_all_columns": False,
                "_split": name,
            }
            (path / name / "state.json").write_text(json.dumps(state))
            features = {field.name: _feature_of(field.type) for field in written.schema}
            (path / name / "dataset_info.json").write_text(json.dumps({"features": features}))


def arrow() -> Any:
    """Return pyarrow; raises `MissingDependencyError`."""
    try:
        import pyarrow as pa
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError(
            f"Parquet and Arrow files need pyarrow, which cannot be imported: {error}",
            hint="pip install 'offline-data[arrow]'",
        ) from error
    return pa


class _Shards(ABC):
    """The files of a table; a new one is begun after `_SHARD` bytes."""

    schema: Any = None

    def __init__(self, folder: Path, stem: str, suffix: str) -> None:
        self.folder, self._stem, self._suffix = folder, stem, suffix
        self._writer: Any = None
        self._number = self._bytes = 0

    def files(self) -> list[Path]:
        return sorted(self.folder.glob(f"{self._stem}-*.{self._suffix}"))

    def append(self, columns: Mapping[str, Any], about: str) -> None:
        """Write a record batch; `about` describes the columns in the metadata."""
        pa = arrow()
        table = pa.table(dict(columns), metadata={METADATA: about})
        self.schema = table.schema
        if self._writer is not None and self._bytes + table.nbytes > _SHARD:
            self._close()
        if self._writer is None:
            self.folder.mkdir(exist_ok=True)
            place = self.folder / f"{self._stem}-{self._number:05d}.{self._suffix}"
            self._writer = self._open(str(place))
        self._write(table)
        self._bytes += table.nbytes

    @abstractmethod
    def _open(self, place: str) -> Any:
        """Return a writer of a new file."""

    @abstractmethod
    def _write(self, table: Any) -> None:
        """Write a table to the open file."""

    def _close(self) -> None:
        self._writer.close()
        self._writer, self._bytes, self._number = None, 0, self._number + 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        if self._writer is not None:
            self._close()
        for number, file in enumerate([] if failed else self.files()):
            name = f"{self._stem}-{number:05d}-of-{self._number:05d}.{self._suffix}"
            file.rename(file.with_name(name))


class _ParquetShards(_Shards):
    """Parquet, a row group for each table."""

    def _open(self, place: str) -> Any:
        return arrow().parquet.ParquetWriter(place, self.schema, compression="zstd")

    def _write(self, table: Any) -> None:
        self._writer.write_table(table, row_group_size=max(1, len(table)))


class _ArrowShards(_Shards):
    """Streams of Arrow, a record batch for each table."""

    def _open(self, place: str) -> Any:
        return arrow().ipc.new_stream(place, self.schema)

    def _write(self, table: Any) -> None:
        self._writer.write_table(table.combine_chunks())


def image_files(column: Any) -> list[bytes]:
    """Return images as files: JPEG and PNG as they are stored, others as PNG."""
    stored = as_encoded(column)
    if stored is not None and stored.encoding != "video":
        return stored.images()
    files: list[bytes] = []
    for at in range(0, len(column), _AT_ONCE):
        files += encode_rows(np.asarray(column[at : at + _AT_ONCE]), "png", compress_level=1)
    return files


def _column(place: LeafPlace, column: Any, known: NDArray[np.bool_] | None = None) -> Any:
    """Return rows as an Arrow array, null where they are not `known`."""
    pa = arrow()
    if _is_image(place.leaf):
        data = pa.array(map(bytes, image_files(column)), pa.binary())
        mask = None if known is None else pa.array(~known)
        paths = pa.nulls(len(data), pa.string())
        return pa.StructArray.from_arrays([data, paths], ["bytes", "path"], mask=mask)
    values = np.asarray(column)
    sizes = () if place.leaf.key in SINGLE else values.shape[1:]
    kind = pa.string() if place.dtype == "text" else None
    if known is None or not sizes:
        array = pa.array(values.reshape(-1), kind, mask=None if known is None else ~known)
        return _nested(array, sizes)
    # a list of any size: those of a fixed one cannot be null in Parquet files of older versions
    rows = _nested(pa.array(values[known].reshape(-1), kind), sizes[1:])
    ends = np.cumsum(known * sizes[0], dtype=np.int32)
    begins = pa.array(
        np.append(ends - known * sizes[0], ends[-1:]), pa.int32(), mask=np.append(~known, False)
    )
    return pa.ListArray.from_arrays(begins, rows)


def _nested(array: Any, sizes: Sequence[int]) -> Any:
    """Return values as lists of fixed sizes, the outermost first."""
    pa = arrow()
    for size in reversed(sizes):
        kind = pa.list_(array.type, size)
        array = pa.Array.from_buffers(kind, len(array) // size, [None], children=[array])
    return array


def _describe(leaf: Leaf) -> dict[str, Any]:
    """Return what the metadata state of a leaf; see `sources.files.tables`."""
    pixels = _is_image(leaf) and not _is_encoded(leaf)
    return {"key": list(leaf.key), **({"pixels": True} if pixels else {})}


def _is_encoded(leaf: Leaf) -> bool:
    return leaf.encoding in {"jpeg", "png"}


def _is_image(leaf: Leaf) -> bool:
    """Return True for a leaf that is written as files of images: pixels as PNG."""
    pixels = leaf.dtype == "uint8" and len(leaf.shape) == 3
    return _is_encoded(leaf) or (pixels and fits_encoding("png", leaf.dtype, leaf.shape))


def _feature_of(kind: Any) -> Any:
    """Return an Arrow type as a feature of `datasets`."""
    pa = arrow()
    if pa.types.is_struct(kind):
        return {"_type": "Image"}
    if pa.types.is_fixed_size_list(kind):
        inner = _feature_of(kind.value_type)
        return {"feature": inner, "length": kind.list_size, "_type": "Sequence"}
    if pa.types.is_list(kind):
        return {"feature": _feature_of(kind.value_type), "length": -1, "_type": "Sequence"}
    names = {"halffloat": "float16", "float": "float32", "double": "float64"}
    return {"dtype": names.get(str(kind), str(kind)), "_type": "Value"}

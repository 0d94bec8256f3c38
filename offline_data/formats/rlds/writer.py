"""RLDS: records of episodes in the folder of a TFDS builder, as `tfds.builder_from_directory` opens it.

```
dataset_info.json, features.json          of TFDS
offline_data.json                         the leaf of each feature, for the way back
NAME-train.tfrecord-00000-of-00002        a record, which is a tf.train.Example, for each episode
NAME-val.tfrecord-00000-of-00001          splits are those of the column `split`
steps-NAME.labels.txt                     names of classes

row of a record    o0 a0 r0   o1 a1 r1   o2 0  0      is_last; where the last observation is known
row of a record    o0 a0 r0   o1 a1 r1                where it is not
```

Columns of episodes are `episode_metadata`. Images are PNG or JPEG files, and float64 is stored as the bytes
of its values, both as TFDS has them. Sources: https://github.com/google-research/rlds#dataset-format and
`tensorflow_datasets/core/features` of https://github.com/tensorflow/datasets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED, Key
from offline_data.formats.base import Release
from offline_data.formats.registry import get_source
from offline_data.formats.rlds.dataset import FEATURES, INFO, LABELS
from offline_data.formats.rlds.leaves import LEAVES
from offline_data.formats.rlds.splits import TRAIN
from offline_data.formats.tables.writer import image_files
from offline_data.formats.writing.base import (
    ExportJob,
    ExportOptions,
    ExportTarget,
    Holds,
    LeafPlace,
)
from offline_data.formats.writing.episodes import Leaf, each_episode
from offline_data.formats.writing.plan import place_at
from offline_data.raw.tfrecord import write_records
from offline_data.store.layout import fits_encoding

if TYPE_CHECKING:
    from offline_data.formats.base import RawDataset

_STEPS, _EPISODE = "steps", "episode_metadata"
_FLAGS = ("is_first", "is_last", "is_terminal")
_SHARD = 256 << 20  # bytes of a file from which on another one is begun
_CLASS = "tensorflow_datasets.core.features."
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


class RldsTarget(ExportTarget):
    """A folder of a TFDS builder."""

    name = "rlds"
    title = "RLDS records of TFDS"
    holds = Holds(
        final_observation=True,
        flags="one",
        encoded=True,
        unknown_final=True,
        dtypes={"complex64": None, "complex128": None},
    )

    own: ClassVar = {
        f"{_STEPS}/reward": (REWARD,),
        **dict.fromkeys((f"{_STEPS}/{name}" for name in _FLAGS), ()),
    }

    def place(self, leaf: Leaf, options: ExportOptions) -> LeafPlace | str:  # noqa: ARG002
        if 0 in leaf.shape:
            return f"there are no arrays of {leaf.dtype} {list(leaf.shape)}"
        path: Key = (_STEPS, *leaf.key)
        if leaf.key in {TERMINATED, TRUNCATED}:
            path = (_STEPS, "is_terminal")
        elif leaf.key == REWARD:
            path = (_STEPS, "reward")
        elif leaf.table == "episodes":
            path = leaf.key if leaf.key[0] == _EPISODE else (_EPISODE, *leaf.key)
        return place_at(leaf, "/".join(path), self.holds)

    def write(self, batches: Iterable[EpisodeBatch], path: Path, job: ExportJob) -> None:
        name = re.sub(r"\W+", "_", job.name, flags=re.ASCII).strip("_").lower() or "dataset"
        places = {one.path: one for one in job.places if one.path != f"{_STEPS}/is_terminal"}
        records = (
            write_example(_features_of(episode, places)) for episode in each_episode(batches)
        )
        splits = [
            _write_split(path, name, split, islice(records, count))
            for split, count in _splits_of(job)
        ]
        manifest = job.episodes.reader.manifest
        about = manifest.about
        labels = about["labels"] if isinstance(about.get("labels"), Mapping) else {}
        info: dict[str, Any] = {
            "name": name,
            "version": str(about.get("version")) if labels else "1.0.0",
            "description": str(about.get("description") or ""),
            "citation": manifest.citation or "",
            "fileFormat": "tfrecord",
            "splits": splits,
        }
        if manifest.licence:
            info["redistributionInfo"] = {"license": manifest.licence}
        labels = {n: words for n, words in labels.items() if n in places and _is_label(places[n])}
        for feature, words in labels.items():
            file = path / f"{feature.replace('/', '-')}{LABELS}"
            file.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
        tree = _tree(places, labels)
        stored = {
            one.path: {"key": list(one.leaf.key), "table": one.leaf.table}
            for one in places.values()
        }
        for file_name, value in ((INFO, info), (FEATURES, tree), (LEAVES, {"leaves": stored})):
            (path / file_name).write_text(json.dumps(value, indent=4), encoding="utf-8")

    def read(self, path: Path, job: ExportJob) -> RawDataset:
        return get_source("openx").open(Release(job.name, "1", local=path), path)


def _splits_of(job: ExportJob) -> list[tuple[str, int]]:
    """Return names of splits and their numbers of episodes, of the column `split` if it is in order."""
    if not any(place.leaf.key == ("split",) and place.dtype == "text" for place in job.places):
        return [(TRAIN, len(job.episodes.lengths))]
    column = job.episodes.column(("split",)).tolist()
    runs = [(str(name), len([*group])) for name, group in groupby(column)]
    names = [name for name, _ in runs]
    named = all(re.fullmatch(r"[\w-]+", name, re.ASCII) for name in names) and None not in column
    if len({*names}) < len(names) or not named or TRAIN in names[1:]:  # which readers put first
        return [(TRAIN, len(column))]
    return runs


def _write_split(path: Path, name: str, split: str, records: Iterator[bytes]) -> dict[str, Any]:
    """Write the files of a split; return its entry in `dataset_info.json`."""
    files: list[Path] = []
    lengths: list[int] = []
    while (first := next(records, None)) is not None:
        files.append(path / f"{len(files)}.part")
        lengths.append(0)
        write_records(files[-1], _shard_of(first, records, lengths))
    total = sum(file.stat().st_size for file in files)
    for number, file in enumerate(files):
        of = f"{number:05d}-of-{len(files):05d}"
        file.rename(path / f"{name}-{split}.tfrecord-{of}")
    return {
        "name": split,
        "numBytes": str(total),
        "shardLengths": [str(length) for length in lengths],
        "filepathTemplate": _TEMPLATE,
    }


def _shard_of(first: bytes, records: Iterator[bytes], lengths: list[int]) -> Iterator[bytes]:
    """Yield the records of a file, and count them in the last of `lengths`."""
    record: bytes | None = first
    size = 0
    while record is not None:
        yield record
        lengths[-1] += 1
        size += len(record)
        record = next(records, None) if size < _SHARD else None


def _features_of(
    episode: EpisodeBatch, places: Mapping[str, LeafPlace]
) -> dict[str, list[bytes] | NDArray[Any]]:
    """Return the values of a record by feature."""
    final = bool(episode.final_observation[0])
    rows = episode.transitions + final
    found: dict[str, list[bytes] | NDArray[Any]] = {}
    for path, place in places.items():
        column: Any = getattr(episode, place.leaf.table)[place.leaf.key]
        if place.leaf.table == "observations":
            column = column[:rows]
        values = _values(place.leaf, column)
        if place.leaf.table == "steps" and final:
            nothing = _values(place.leaf, column[-1:])
            if isinstance(nothing, np.ndarray):
                values = np.concatenate([values, np.zeros_like(nothing)])
            elif place.leaf.dtype == "text":
                values = [*values, *(b"" for _ in nothing)]
            elif is_image(place.leaf):
                values = [*values, *nothing]
            else:
                values = [*values, bytes(len(nothing[0]))]
        found[path] = values
    numbers = np.arange(rows)
    ended = bool(episode.steps[TERMINATED][-1, 0])
    found[f"{_STEPS}/is_first"] = (numbers == 0).astype(np.int64)
    found[f"{_STEPS}/is_last"] = (numbers == rows - 1).astype(np.int64)
    found[f"{_STEPS}/is_terminal"] = ((numbers == rows - 1) & ended).astype(np.int64)
    if f"{_STEPS}/discount" not in places:
        found[f"{_STEPS}/discount"] = (numbers < episode.transitions).astype(np.float32)
    return found


def is_image(leaf: Leaf) -> bool:
    """Return True for leaves of steps that are written as files of images."""
    if leaf.table == "episodes":
        return False
    pixels = leaf.dtype == "uint8" and len(leaf.shape) == 3
    return leaf.encoding is not None or (pixels and fits_encoding("png", leaf.dtype, leaf.shape))


def _values(leaf: Leaf, column: Any) -> list[bytes] | NDArray[Any]:
    """Return rows of a leaf as the values of a feature."""
    if is_image(leaf):
        return image_files(column)
    column = np.ascontiguousarray(column)
    if leaf.dtype == "text":
        return [text.encode() for text in column.ravel().tolist()]
    if leaf.dtype == "float64":
        return [row.tobytes() for row in column.astype("<f8")]
    flat = column.reshape(-1)
    if flat.dtype == np.uint64:
        return np.asarray(flat.view(np.int64))
    return np.asarray(flat.astype(np.float32 if flat.dtype.kind == "f" else np.int64))


def _is_label(place: LeafPlace) -> bool:
    return place.leaf.dtype == "int64" and not place.leaf.shape


def _tree(places: Mapping[str, LeafPlace], labels: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the content of `features.json`; `labels` are the names of classes by feature."""
    leaves = {path: _feature(place.leaf) for path, place in places.items()}
    for path, words in labels.items():
        kind = f"{_CLASS}class_label_feature.ClassLabel"
        leaves[path] = {"pythonClassName": kind, "classLabel": {"numClasses": str(len(words))}}
    for name in _FLAGS:
        leaves[f"{_STEPS}/{name}"] = _tensor("bool", ())
    leaves.setdefault(f"{_STEPS}/discount", _tensor("float32", ()))
    root: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *above, last = path.split("/")
        node = root
        for part in above:
            node = node.setdefault(part, {})
        node[last] = leaf
    tree = {name: _group(node) for name, node in root.items()}
    tree[_STEPS] = {
        "pythonClassName": f"{_CLASS}dataset_feature.Dataset",
        "sequence": {"feature": tree[_STEPS], "length": "-1"},
    }
    return {
        "pythonClassName": f"{_CLASS}features_dict.FeaturesDict",
        "featuresDict": {"features": tree},
    }


def _group(node: dict[str, Any]) -> dict[str, Any]:
    if "pythonClassName" in node:
        return node
    return {
        "pythonClassName": f"{_CLASS}features_dict.FeaturesDict",
        "featuresDict": {"features": {name: _group(one) for name, one in node.items()}},
    }


def _feature(leaf: Leaf) -> dict[str, Any]:
    if is_image(leaf):
        size = {"dimensions": [str(side) for side in (*leaf.shape, 1)[:3]]}
        encoding = leaf.encoding if leaf.encoding == "jpeg" else "png"
        image = {"dtype": leaf.dtype, "shape": size, "encodingFormat": encoding}
        return {"pythonClassName": f"{_CLASS}image_feature.Image", "image": image}
    shape = () if leaf.key == REWARD else leaf.shape
    if leaf.dtype == "text":
        if not shape:
            return {"pythonClassName": f"{_CLASS}text_feature.Text", "text": {}}
        return _tensor("string", shape)
    return _tensor(leaf.dtype, shape)


def _tensor(dtype: str, shape: tuple[int, ...]) -> dict[str, Any]:
    size = {"dimensions": [str(length) for length in shape]} if shape else {}
    encoding = "bytes" if dtype == "float64" else "none"  # which a Scalar of TFDS does not have
    kind = "tensor_feature.Tensor" if shape or encoding == "bytes" else "scalar.Scalar"
    return {
        "pythonClassName": f"{_CLASS}{kind}",
        "tensor": {"dtype": dtype, "shape": size, "encoding": encoding},
    }


def write_example(features: Mapping[str, list[bytes] | NDArray[Any]]) -> bytes:
    """Return a serialized `tf.train.Example` of bytes, float32 and int64 values.

    Example:
        >>> write_example({"reward": np.array([5, 7])}).hex()
        '0a120a100a0672657761726412061a040a020507'
    """
    entries = []
    for name, values in features.items():
        if isinstance(values, list):
            kind, listed = 1, b"".join(_field(1, value) for value in values)
        elif values.dtype.kind == "f":
            kind, listed = 2, _field(1, values.astype("<f4").tobytes())
        else:
            kind, listed = 3, _field(1, _varints(values.astype(np.int64)))
        entries.append(_field(1, _field(1, name.encode()) + _field(2, _field(kind, listed))))
    return _field(1, b"".join(entries))


def _field(number: int, data: bytes) -> bytes:
    """Return a field of bytes."""
    return bytes([number << 3 | 2]) + _varints(np.array([len(data)])) + data


def _varints(values: NDArray[np.int64]) -> bytes:
    """Return integers as varints: 7 bits in a byte, the lowest first."""
    shifts = np.arange(0, 70, 7, dtype=np.uint64)
    groups = values.view(np.uint64)[:, None] >> shifts
    count = np.maximum(1, (groups != 0).sum(axis=1))[:, None]
    place = np.arange(10)
    out = (groups & np.uint64(0x7F)).astype(np.uint8) | (place < count - 1).astype(np.uint8) << 7
    return bytes(out[place < count])

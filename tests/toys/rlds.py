"""Toy RLDS datasets in TFDS's format, with values that identify their episode and step.

Step `t` of episode `e` has the code `1000·e + t + 1`. The state is its step's code, plus `j/64` in its
`j`-th element; an action is its negative; a reward a tenth of it. All rows differ, and none is zero.
Records are written and, by `decode_example`, read by protobuf: an oracle for the package's own parser.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.raw.images import encode_image
from offline_data.raw.tfrecord import write_records

IMAGE, DEPTH = (6, 8, 3), (5, 4, 1)
"""Shapes of the two images: JPEG, and PNG of 16 bits."""
LABELS = ("pick", "place")
_PYTHON_CLASS = "tensorflow_datasets.core.features"


def toy_record(episode: int, length: int, *, final_step: bool = False) -> dict[str, Any]:
    """Return the features of an episode by name: lists of bytes, or flat arrays.

    Args:
        episode: Its number, which is in all values; even ones end with `is_terminal`.
        length: Number of steps.
        final_step: Whether the last step only has an observation, as in RLDS.
    """
    code = np.arange(length, dtype=np.float64) + 1000 * episode + 1
    alone = np.ones(length)
    if final_step:
        alone[-1] = 0
    last = np.arange(length) == length - 1
    points = [t % 3 for t in range(length)]
    cloud = np.arange(4) + code[:, None]
    return {
        "steps/observation/image": [toy_image(int(c)) for c in code],
        "steps/observation/depth": [toy_depth(int(c)) for c in code],
        "steps/observation/state": _spread(code, 3),
        "steps/observation/cloud": [zlib.compress(row.astype("<i2").tobytes()) for row in cloud],
        "steps/observation/instruction": [f"step {c:.0f} é".encode() for c in code],
        "steps/observation/points/ragged_flat_values": np.repeat(code, points).astype(np.float32),
        "steps/observation/points/ragged_row_lengths_0": np.array(points),
        "steps/action/move": (-_spread(code, 2).reshape(-1, 2) * alone[:, None]).reshape(-1),
        "steps/action/close": ((code % 7 + 1) * alone).astype(np.int64),
        "steps/reward": (code / 10 * alone).astype(np.float32),
        "steps/discount": alone.astype(np.float32),
        "steps/is_first": (np.arange(length) == 0).astype(np.int64),
        "steps/is_last": last.astype(np.int64),
        "steps/is_terminal": (last & (episode % 2 == 0)).astype(np.int64),
        "steps/language_instruction": [f"do task {episode % 3}".encode()] * length,
        "steps/label": np.full(length, episode % 2),
        "steps/wide": (code / 8).astype(np.float32),
        "episode_metadata/id": np.array([episode]),
        "episode_metadata/file_path": [f"/data/{episode}.h5".encode()],
    }


def toy_features() -> dict[str, Any]:
    """Return the tree of `features.json` that describes `toy_record`."""
    observation = {
        "image": _image("uint8", IMAGE, "jpeg"),
        "depth": _image("uint16", DEPTH, "png"),
        "state": _tensor("float32", 3),
        "cloud": _tensor("int16", 2, 2, encoding="zlib"),
        "instruction": {"pythonClassName": f"{_PYTHON_CLASS}.text_feature.Text", "text": {}},
        "points": _sequence(_tensor("float32")),
    }
    steps = {
        "observation": _dict(observation),
        "action": _dict({"move": _tensor("float32", 2), "close": _tensor("int32", 1)}),
        "reward": _tensor("float32"),
        "discount": _tensor("float32"),
        **{name: _tensor("bool") for name in ("is_first", "is_last", "is_terminal")},
        "language_instruction": {"text": {}},
        "label": {"classLabel": {"numClasses": str(len(LABELS))}},
        "wide": _tensor("float64"),
    }
    metadata = {"id": _tensor("int64"), "file_path": _tensor("string")}
    return _dict({"steps": _sequence(_dict(steps)), "episode_metadata": _dict(metadata)})


def write_rlds(
    folder: Path,
    splits: Mapping[str, Sequence[Sequence[Mapping[str, Any] | bytes]]],
    /,
    *,
    features: Mapping[str, Any] | None = None,
    name: str = "toy",
    **info: Any,
) -> Path:
    """Write a dataset; returns its folder.

    Args:
        folder: Created if missing.
        splits: Records of each shard of each split, from `toy_record`, or encoded.
        features: The tree of `features.json`; None: that of `toy_record`.
        name: Name of the dataset in its file names.
        info: Fields of `dataset_info.json` to add or override.
    """
    folder.mkdir(parents=True, exist_ok=True)
    listed = []
    for split, shards in splits.items():
        for number, records in enumerate(shards):
            data = [r if isinstance(r, bytes) else encode_example(r) for r in records]
            write_records(
                folder / f"{name}-{split}.tfrecord-{number:05d}-of-{len(shards):05d}", data
            )
        lengths = [str(len(records)) for records in shards]
        template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
        listed.append({"name": split, "shardLengths": lengths, "filepathTemplate": template})
    about = {"name": name, "version": "0.1.0", "fileFormat": "tfrecord", "splits": listed, **info}
    (folder / "dataset_info.json").write_text(json.dumps(about))
    (folder / "features.json").write_text(json.dumps(features or toy_features()))
    (folder / "steps-label.labels.txt").write_text("\n".join(LABELS) + "\n")
    return folder


def write_toy_rlds(folder: Path, *, final_step: bool = False) -> Path:
    """Write seven episodes of 1 to 4 steps: `train` in two shards, then `val`; returns the folder."""
    records = [toy_record(e, 1 + (e + 2) % 4, final_step=final_step) for e in range(7)]
    shards = {"val": [records[5:]], "train": [records[:3], records[3:5]]}
    return write_rlds(folder, shards, description="A toy.", citation="Nobody, 2024.")


def toy_image(code: int) -> bytes:
    """Return the JPEG file of a step."""
    return encode_image(_pixels(code, IMAGE).astype(np.uint8), "jpeg")


def toy_depth(code: int) -> bytes:
    """Return the PNG file of a step."""
    return encode_image((_pixels(code, DEPTH) * 200).astype(np.uint16), "png")


def encode_example(features: Mapping[str, Any]) -> bytes:
    """Return a serialized `tf.train.Example` of lists of bytes, and of flat arrays."""
    example = example_class()()
    for name, values in features.items():
        feature = example.features.feature[name]
        if isinstance(values, list):
            feature.bytes_list.value.extend(values)
        elif values.dtype.kind == "f":
            feature.float_list.value.extend(values.tolist())
        else:
            feature.int64_list.value.extend(values.tolist())
    return bytes(example.SerializeToString(deterministic=True))


def decode_example(data: bytes) -> dict[str, Any]:
    """Return the features of a message as parsed by protobuf; the inverse of `encode_example`."""
    dtypes = {"float_list": np.float32, "int64_list": np.int64}
    found: dict[str, Any] = {}
    for name, feature in example_class().FromString(data).features.feature.items():
        kind = feature.WhichOneof("kind")
        if kind is not None:
            values = list(getattr(feature, kind).value)
            found[name] = values if kind == "bytes_list" else np.array(values, dtypes[kind])
    return found


@cache
def example_class() -> Any:
    """Return protobuf's class of `tf.train.Example`, from a descriptor built here."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="offline_data/example.proto", package="toy", syntax="proto3"
    )

    def message(name: str, *fields: tuple[str, int, int, str | None], oneof: str = "") -> Any:
        made = file.message_type.add(name=name)
        for number, (label, repeated, kind, of) in enumerate(fields, 1):
            one = made.field.add(name=label, number=number, label=repeated, type=kind)
            if of:
                one.type_name = f".toy.{of}"
            if oneof:
                one.oneof_index = 0
        if oneof:
            made.oneof_decl.add(name=oneof)
        return made

    one, many, nested = field.LABEL_OPTIONAL, field.LABEL_REPEATED, field.TYPE_MESSAGE
    message("BytesList", ("value", many, field.TYPE_BYTES, None))
    message("FloatList", ("value", many, field.TYPE_FLOAT, None))
    message("Int64List", ("value", many, field.TYPE_INT64, None))
    kinds = [("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List")]
    message("Feature", *((name, one, nested, of) for name, of in kinds), oneof="kind")
    features = message("Features", ("feature", many, nested, "Features.FeatureEntry"))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=one, type=field.TYPE_STRING)
    entry.field.add(name="value", number=2, label=one, type=nested, type_name=".toy.Feature")
    message("Example", ("features", one, nested, "Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("toy.Example"))


def _pixels(code: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
    return (np.arange(np.prod(shape)).reshape(shape) + code) % 256


def _spread(code: NDArray[np.float64], width: int) -> NDArray[np.float32]:
    return (code[:, None] + np.arange(width) / 64).astype(np.float32).reshape(-1)


def _dict(features: Mapping[str, Any]) -> dict[str, Any]:
    name = f"{_PYTHON_CLASS}.features_dict.FeaturesDict"
    return {"pythonClassName": name, "featuresDict": {"features": features}}


def _sequence(feature: Mapping[str, Any]) -> dict[str, Any]:
    return {"sequence": {"feature": feature, "length": "-1"}}


def _tensor(dtype: str, *shape: int, encoding: str = "none") -> dict[str, Any]:
    sizes = {"dimensions": [str(size) for size in shape]} if shape else {}
    return {"tensor": {"dtype": dtype, "shape": sizes, "encoding": encoding}}


def _image(dtype: str, shape: tuple[int, ...], encoding: str) -> dict[str, Any]:
    sizes = {"dimensions": [str(size) for size in shape]}
    return {"image": {"dtype": dtype, "shape": sizes, "encodingFormat": encoding}}

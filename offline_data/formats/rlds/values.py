"""Conversion of a feature's values in a record to a column `[rows, …]`, by features.json."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.exact import exact
from offline_data.base.plurals import plural
from offline_data.formats.rlds.features import Feature
from offline_data.raw.images import image_head, is_jpeg
from offline_data.raw.tf_example import BytesValues, Value
from offline_data.store.encoded import EncodedColumn

_MOST_BYTES = 1 << 30  # of the packed tensors of one feature in one record


def row_count(record: Mapping[str, Value], feature: Feature) -> int | None:
    """Return the number of rows of a feature in a record, or None if it is missing."""
    lengths = record.get(f"{feature.stored}/ragged_row_lengths_0")
    if lengths is not None:
        return len(lengths)
    values = record.get(feature.stored)
    if values is None or feature.varies:
        return None if values is None or feature.encoding == "none" else len(values)
    each = feature.kind == "image" or feature.encoding != "none"  # one value for all of a row
    size = 1 if each else prod(feature.row_shape)
    return len(values) // size if size else None


def column_of(record: Mapping[str, Value], feature: Feature, rows: int) -> Any:
    """Return the values of a feature for `rows` steps, or for one episode.

    Returns:
        Numbers `[rows, *shape]`; text: objects `[rows, *shape]` of `str`; images: an
        `EncodedColumn`; JSON text `[rows]` if the shape may vary.

    Raises:
        FormatError: Values of a kind, number or range other than declared.
    """
    if feature.inner:
        values, lengths = _read_ragged(record, feature, rows)
    else:
        values, lengths = record.get(feature.stored), []
    if values is None:
        return _nothing(feature, rows)
    if (feature.kind == "tensor" and feature.encoding == "none") == isinstance(values, BytesValues):
        raise FormatError(f"{feature.name} has values of another kind than features.json says")
    if isinstance(values, BytesValues):
        if feature.kind == "image":
            return _images(values, feature, rows)
        items: Any = (
            _texts(values, feature)
            if feature.kind == "text"
            else _unpack_tensors(values, feature, record)
        )
    else:
        items = _numbers(values, feature)
    if feature.varies:
        return _as_json(items, feature, rows, lengths)
    expected = rows * prod(feature.row_shape)
    if len(items) != expected and np.size(items) != expected:
        raise FormatError(
            f"{feature.name} has {plural(np.size(items), 'value')}; expected {rows} of "
            f"{list(feature.row_shape)}"
        )
    return np.asarray(items).reshape(rows, *feature.row_shape)


def _read_ragged(
    record: Mapping[str, Value], feature: Feature, rows: int
) -> tuple[Value | None, list[Any]]:
    """Return the concatenated values of sequences in a step, and their lengths by level."""
    # A sequence of an episode, if it is the only one around its values, is stored without lengths.
    if not feature.in_steps and len(feature.inner) == 1:
        values = record.get(feature.stored)
        size = prod(x or 1 for x in feature.shape)
        return values, [] if values is None else [np.array([len(values) // max(1, size)])]
    levels = len(feature.sequences) - 1
    lengths = [record.get(f"{feature.stored}/ragged_row_lengths_{n}") for n in range(levels)]
    values = record.get(f"{feature.stored}/ragged_flat_values")
    if values is None and all(level is None for level in lengths):
        return None, []
    count = rows
    found: list[Any] = []
    for level in lengths:
        if (
            isinstance(level, BytesValues)
            or level is None
            or len(level) != count
            or ((level < 0) | (level > _MOST_BYTES)).any()  # no larger ones: their sum would wrap
        ):
            raise FormatError(f"{feature.name} has sequences whose lengths do not add up")
        found.append(level)
        count = int(level.sum())
    return values if values is not None else np.zeros(0, np.float32), found


def _nothing(feature: Feature, rows: int) -> Any:
    if not feature.optional:
        raise FormatError(f"{feature.name} is missing")
    if feature.kind == "text" or feature.varies:
        return np.full((rows, *(() if feature.varies else feature.row_shape)), None, object)
    dtype = np.dtype(feature.stored_dtype)
    return np.full((rows, *feature.row_shape), np.nan if dtype.kind == "f" else 0, dtype)


def _numbers(values: NDArray[Any], feature: Feature) -> NDArray[Any]:
    dtype = np.dtype(feature.stored_dtype)
    if (dtype.kind == "f") != (values.dtype.kind == "f"):
        raise FormatError(
            f"{feature.name} has {values.dtype} values; features.json says {feature.dtype}"
        )
    if dtype == np.uint64:
        return values.view(np.uint64)  # TFDS stores the same 64 bits as int64
    cast = exact(values, dtype)
    if cast is None:
        raise FormatError(f"{feature.name} has a value that is not of type {feature.dtype}")
    return cast


def _texts(values: BytesValues, feature: Feature) -> NDArray[np.object_]:
    known: dict[bytes, str] = {}
    out = np.empty(len(values), object)
    for row in range(len(values)):
        raw = values[row]
        text = known.get(raw)
        if text is None:
            try:
                text = known[raw] = raw.decode()
            except UnicodeDecodeError:
                raise FormatError(
                    f"{feature.name} of row {row} is not UTF-8 text: {raw[:20]!r}"
                ) from None
        out[row] = text
    return out


def _unpack_tensors(values: BytesValues, feature: Feature, record: Mapping[str, Value]) -> Any:
    """Return tensors stored as raw bytes: an array, or a list if shapes vary."""
    dtype = np.dtype("<u2" if feature.dtype == "bfloat16" else feature.stored_dtype)
    size = prod(feature.row_shape) * dtype.itemsize if not feature.varies else None
    shapes = record.get(f"{feature.name}/shape")
    out, left = [], _MOST_BYTES
    if (size or 0) * len(values) > left:
        raise FormatError(
            f"{feature.name} would take {(size or 0) * len(values):,} bytes; expected at most {left:,}"
        )
    for row in range(len(values)):
        most = left if size is None else size
        raw = values[row] if feature.encoding == "bytes" else _inflate(values[row], most, feature)
        left -= len(raw)
        if (size is not None and len(raw) != size) or len(raw) % dtype.itemsize:
            raise FormatError(
                f"{feature.name} of row {row} has {plural(len(raw), 'byte')}; expected "
                f"{size or 'whole items'}"
            )
        array = np.frombuffer(raw, dtype)
        if feature.dtype == "bfloat16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        out.append(array)
    if not feature.varies:
        return np.concatenate(out) if out else np.zeros(0, dtype)
    count = len(feature.shape)
    for row, array in enumerate(out):
        shape = [-1 if n is None else n for n in feature.shape]
        if shapes is not None and not isinstance(shapes, BytesValues):
            shape = shapes[row * count : (row + 1) * count].tolist()
        try:
            out[row] = array.reshape(shape)
        except ValueError as error:
            raise FormatError(
                f"{feature.name} of row {row} does not fit its shape: {error}"
            ) from None
    return out


def _inflate(raw: bytes, most: int, feature: Feature) -> bytes:
    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(raw, most + 1)
    except zlib.error as error:
        raise FormatError(f"{feature.name} has a value that zlib cannot read: {error}") from None
    if len(found) > most or not inflater.eof:
        raise FormatError(
            f"{feature.name} has a value of more than {plural(most, 'byte')}, or that is cut off"
        )
    return found


def _images(values: BytesValues, feature: Feature, rows: int) -> Any:
    """Return the image files of a column, located in the record; only images of numbers are decoded.

    The encoding is that of the first file, whatever `features.json` says, as in TFDS.

    ```
    record          … image 0 … image 1 …
    offsets         b0 e0 b1 e1 …            of which every other one begins a row
    ```
    """
    if len(values) != rows:
        raise FormatError(f"{feature.name} has {plural(len(values), 'image')}; expected {rows}")
    first, data = values[0], values.data
    encoding = "jpeg" if is_jpeg(first) else "png"
    size, header = image_head(first)
    shape = tuple(
        found if said is None else said for said, found in zip(feature.shape, header, strict=False)
    )
    dtype = feature.dtype
    if dtype == "float32":  # TFDS stores the four bytes of each number as a pixel
        dtype, shape = "uint8", (*shape[:2], 4)
    expected = (*(*shape, 1)[:3], 8 * np.dtype(dtype).itemsize)
    head = first[:size]  # those that begin with it, as most do, are not examined further
    for row, (begin, end) in enumerate(zip(values.begins, values.ends, strict=True)):
        if row and head and size <= end - begin and data.startswith(head, begin):
            continue
        if image_head(values[row])[1] != expected:
            found = "{} x {} pixels, {} channels of {} bits".format(*image_head(values[row])[1])
            raise FormatError(
                f"{feature.name} of step {row} is not a {encoding} image of {dtype} {list(shape)}: "
                + ("it is empty" if begin == end else f"its header says {found}")
            )
    offsets = np.array([values.begins, values.ends], np.int64).T.reshape(-1)
    pixels, which = np.frombuffer(data, np.uint8), np.arange(0, 2 * rows, 2)
    column = EncodedColumn(pixels, offsets, (encoding, dtype, shape), feature.name, which)
    return np.asarray(column).view("<f4") if feature.dtype == "float32" else column


def _as_json(items: Any, feature: Feature, rows: int, lengths: list[Any]) -> NDArray[np.object_]:
    """Return rows of varying shape as JSON, one text each."""
    if isinstance(items, list):
        nested: list[Any] = [item.tolist() for item in items]
    else:
        shape = [-1 if n is None else n for n in feature.shape]
        if shape.count(-1) == 1 and not lengths:
            shape = [rows, *shape]  # one dimension, equal in all steps of an episode
        elif -1 in shape:
            raise FormatError(f"{feature.name} has values of a shape that nothing tells")
        else:
            shape = [-1, *shape]
        try:
            nested = items.reshape(shape).tolist()
        except ValueError as error:
            raise FormatError(f"{feature.name} does not fit its shape: {error}") from None
    for level in reversed(lengths):
        if int(level.sum()) != len(nested):
            raise FormatError(f"{feature.name} has sequences whose lengths do not add up")
        stops = np.cumsum(level).tolist()
        nested = [nested[stop - n : stop] for n, stop in zip(level.tolist(), stops, strict=True)]
    if len(nested) != rows:
        raise FormatError(f"{feature.name} has {plural(len(nested), 'value')}; expected {rows}")
    out = np.empty(rows, object)
    out[:] = [json.dumps(value, ensure_ascii=False) for value in nested]
    return out

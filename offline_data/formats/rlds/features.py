"""`features.json` of TFDS: every feature of an episode, and its storage format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from offline_data.base.errors import FormatError
from offline_data.base.json import shown
from offline_data.episode import Dropped
from offline_data.store.layout import CHANNELS

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

STEPS = "steps"
_TEXT_DTYPES = {"string", "object", "str"}
_NUMBERS = {
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "float16", "bfloat16", "float32", "float64",
}  # fmt: skip
_FLOAT_IMAGE = "float32"  # images whose numbers TFDS stores as the four channels of a PNG
_MOST_DIMENSIONS = 16
_NEVER_DROPPED = {f"{STEPS}/{name}" for name in ("reward", "is_first", "is_last", "is_terminal")}
"""Features that must not be dropped: rewards or ends of episodes would change."""


@dataclass(frozen=True)
class Feature:
    """One feature: a leaf of the tree in `features.json`.

    Attributes:
        path: Names from the root of the tree; joined by `/`, the name in a record.
        kind: `tensor`, `image` or `text`.
        dtype: As declared; may be `bfloat16`; `string` is text.
        shape: Shape of one value; None where it varies.
        encoding: Of a tensor: `none`, or `bytes` or `zlib` of its memory.
        sequences: Lengths of the enclosing sequences, outermost first, None where they vary; for a
            feature of a step the first is that of the steps.
        optional: Whether a record may lack it.
    """

    path: tuple[str, ...]
    kind: Literal["tensor", "image", "text"]
    dtype: str
    shape: tuple[int | None, ...] = ()
    encoding: str = "none"
    sequences: tuple[int | None, ...] = ()
    optional: bool = False
    label: bool = False

    @cached_property
    def name(self) -> str:
        return "/".join(self.path)

    @cached_property
    def stored(self) -> str:
        """Name of its values in a record, which differs if their shape is stored with them."""
        packed = self.encoding != "none" and self.shape.count(None) > 1
        return f"{self.name}/value" if packed else self.name

    @cached_property
    def in_steps(self) -> bool:
        """Whether every step has a value."""
        return self.path[0] == STEPS and bool(self.sequences)

    @cached_property
    def inner(self) -> tuple[int | None, ...]:
        """Lengths of the sequences inside a step, or inside an episode for episode features."""
        return self.sequences[1:] if self.in_steps else self.sequences

    @cached_property
    def varies(self) -> bool:
        """Whether the shape of its values may vary; not supported for images."""
        return self.kind != "image" and None in (*self.inner, *self.shape)

    @cached_property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of the value of a step or an episode, if it does not vary."""
        return tuple(size or 0 for size in (*self.inner, *self.shape))

    @cached_property
    def stored_dtype(self) -> DTypeLike:
        """Dtype in a record, which has no floats of more than 32 bits."""
        plain = {"bfloat16": "float32"}.get(self.dtype, self.dtype)
        return "float32" if plain == "float64" and self.encoding == "none" else plain


def read_features(tree: Any, where: str) -> tuple[list[Feature], list[Dropped]]:
    """Parse the tree of `features.json`: features that can be read, and others with the reason.

    Raises `FormatError` if it is not such a tree, or not that of RLDS, which is episodes of steps;
    or if rewards or flags cannot be read.
    """
    features: list[Feature] = []
    dropped: list[Dropped] = []
    for found in _walk(tree, (), (), where):
        if isinstance(found, Feature):
            features.append(found)
        elif found.key in _NEVER_DROPPED:
            raise FormatError(f"{where}: {found.key} cannot be read. {found.reason}")
        else:
            dropped.append(found)
    if not any(feature.in_steps for feature in features):
        raise FormatError(
            f"{where} has no sequence of features called {STEPS!r}: its records are not episodes",
            hint="only RLDS datasets of TFDS are read, which have one record for each episode",
        )
    return features, dropped


def _walk(
    node: Any, path: tuple[str, ...], sequences: tuple[int | None, ...], where: str
) -> Iterator[Feature | Dropped]:
    """Yield the features below a node, in the order of the file."""
    if not isinstance(node, dict):
        raise FormatError(
            f"{where}: feature {'/'.join(path)!r} is {shown(node)}; expected an object"
        )
    if "featuresDict" in node:
        for name, child in _part(
            _part(node, "featuresDict", path, where), "features", path, where
        ).items():
            yield from _walk(child, (*path, *name.split("/")), sequences, where)
    elif "sequence" in node:
        sequence = _part(node, "sequence", path, where)
        length = _size(sequence.get("length", -1), where)
        yield from _walk(sequence.get("feature"), path, (*sequences, length), where)
    else:
        yield _leaf(node, path, sequences, where)


def _leaf(
    node: Mapping[str, Any], path: tuple[str, ...], sequences: tuple[int | None, ...], where: str
) -> Feature | Dropped:
    name = "/".join(path)
    if "text" in node:
        return Feature(path, "text", "string", sequences=sequences)
    if "classLabel" in node:
        return Feature(path, "tensor", "int64", sequences=sequences, label=True)
    if "image" in node:
        image = _part(node, "image", path, where)
        found = Feature(
            path,
            "image",
            str(image.get("dtype", "uint8")),
            _shape(image, where),
            sequences=sequences,
        )
        return _image_or_reason(found)
    form = next((name for name in ("tensor", "boundingBox") if name in node), None)
    if form is None:
        known = {"pythonClassName", "description", "value"}
        kind = next(
            (key for key in node if key not in known), node.get("pythonClassName", "nothing")
        )
        return Dropped(name, f"Features of the kind {shown(kind)} are not read.")
    tensor = _part(node, form, path, where)
    dtype, encoding = str(tensor.get("dtype")), str(tensor.get("encoding") or "none").lower()
    optional = tensor.get("optional") is True
    if dtype in _TEXT_DTYPES:
        return Feature(path, "text", "string", _shape(tensor, where), "none", sequences, optional)
    if dtype not in _NUMBERS or encoding not in {"none", "bytes", "zlib"}:
        return Dropped(name, f"Its dtype is {shown(dtype)}, its encoding {shown(encoding)}.")
    return Feature(path, "tensor", dtype, _shape(tensor, where), encoding, sequences, optional)


def _image_or_reason(image: Feature) -> Feature | Dropped:
    if not image.in_steps or image.inner:
        place = "a sequence inside a step" if image.in_steps else "an episode, not of a step"
        return Dropped(image.name, f"It is an image of {place}.")
    channels = image.shape[2] if len(image.shape) == 3 else None
    if image.dtype == _FLOAT_IMAGE and channels == 1:
        return image
    kept = {dtype for (_, dtype), counts in CHANNELS.items() if channels in (*counts, None)}
    if image.dtype not in kept:
        return Dropped(image.name, f"Images of {image.dtype} {list(image.shape)} are not read.")
    return image


def _shape(node: Mapping[str, Any], where: str) -> tuple[int | None, ...]:
    shape = node.get("shape") or {}
    dimensions = shape.get("dimensions", ()) if isinstance(shape, dict) else None
    if not isinstance(dimensions, (list, tuple)) or len(dimensions) > _MOST_DIMENSIONS:
        raise FormatError(f"{where} has a shape that is {shown(shape)}")
    sizes = tuple(_size(size, where) for size in dimensions)
    if prod(size or 1 for size in sizes) > 1 << 31:
        raise FormatError(f"{where} has a shape of more than 2**31 items: {shown(dimensions)}")
    return sizes


def _size(value: Any, where: str) -> int | None:
    """Parse a length or dimension, a number in a string; -1: it varies."""
    try:
        size = int(value)
    except (TypeError, ValueError):
        size = -2
    if not -1 <= size <= 1 << 31:
        raise FormatError(f"{where} has a size that is {shown(value)}")
    return None if size == -1 else size


def _part(node: Mapping[str, Any], key: str, path: tuple[str, ...], where: str) -> dict[str, Any]:
    part = node.get(key)
    if not isinstance(part, dict):
        raise FormatError(
            f"{where}: {key!r} of feature {'/'.join(path)!r} is {shown(part)}; expected an object"
        )
    return part

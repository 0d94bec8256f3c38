"""Features of `meta/info.json`, and their columns as leaves.

| feature | leaf |
|---|---|
| `observation.images.top`, `action`, `next.reward`, `a.b` | the parts of its name |
| `actions`, where there is no `action` | `action` |
| an image, `state`, … without `observation` before it | below `observation` |
| `episode_index`, `frame_index`, `index`, `task_index` | none: see `offline_data.formats.lerobot.dataset` |
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from offline_data.base.errors import FormatError, NotFoundError
from offline_data.base.exact import exact
from offline_data.base.ids import did_you_mean
from offline_data.base.json import shown
from offline_data.episode import Dropped
from offline_data.episode.fields import RESERVED_ROOTS, REWARD
from offline_data.formats.lerobot.metadata import NUMBERING
from offline_data.formats.options import names_in
from offline_data.raw.images import decode_tiff, encode_image, image_head, is_jpeg
from offline_data.store.encoded import EncodedColumn
from offline_data.store.layout import DTYPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from offline_data.episode import Key
    from offline_data.raw.arrow import ArrowLeaf

FLAGS = ("next.done", "next.terminated", "next.truncated")
_TEXT = {"string", "large_string", "str"}
_PNG = b"\x89PNG\r\n\x1a\n"
_TIFF = (b"II*\0", b"MM\0*")


@dataclass(frozen=True)
class FeatureLeaf:
    """One feature that becomes a leaf."""

    name: str  # of its column
    key: Key
    kind: Literal["number", "text", "image", "video"]
    dtype: str
    shape: tuple[int, ...]  # of a row


def read_features(
    declared: Mapping[str, Mapping[str, Any]], where: str
) -> tuple[list[FeatureLeaf], list[Dropped]]:
    """Return features that become leaves, others with the reason; raises `FormatError`."""
    found: list[FeatureLeaf] = []
    dropped: list[Dropped] = []
    keys = _keys(name for name in declared if name not in NUMBERING)
    for name, key in keys.items():
        dtype, shape = declared[name].get("dtype"), declared[name].get("shape")
        if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
            raise FormatError(f"{where}: the shape of {shown(name)} is {shown(shape)}")
        size = tuple(shape)
        if key[:2] == ("next", "observation"):
            dropped.append(Dropped(name, "It repeats the observation of the next row."))
        elif dtype in {"image", "video"}:
            if key[0] != "observation":
                key = ("observation", *key)
            kind: Literal["image", "video"] = "image" if dtype == "image" else "video"
            found.append(FeatureLeaf(name, key, kind, "uint8", size))
        elif dtype in _TEXT:
            found.append(FeatureLeaf(name, key, "text", "object", () if prod(size) == 1 else size))
        elif dtype in DTYPES:
            found.append(FeatureLeaf(name, key, "number", dtype, (1,) if key == REWARD else size))
        else:
            dropped.append(Dropped(name, f"Its type {shown(dtype)} is not read."))
    twice = {one.key for one in found}
    if len(twice) < len(found):
        raise FormatError(f"{where}: two features become one, among {sorted(keys)}")
    return found, dropped


def select_features(
    features: Sequence[FeatureLeaf], only: str | None, where: str
) -> tuple[list[FeatureLeaf], list[str]]:
    """Return the features of a list of names, and the names of the others; None: all of them.

    A name stands for what is below it, too. What every algorithm needs always stays: actions, what
    follows them, and the time. Raises `NotFoundError` for a name that is not there.
    """
    if only is None:
        return [*features], []
    asked, known = names_in(only), [one.name for one in features]
    chosen = {name for name in known if any(f"{name}.".startswith(f"{one}.") for one in asked)}
    for one in asked:
        if not any(f"{name}.".startswith(f"{one}.") for name in known):
            raise NotFoundError(
                f"{where} has no feature {one!r}; it has {', '.join(known)}",
                hint=did_you_mean(one, known),
            )
    chosen |= {one.name for one in features if one.key[0] in {"action", "next", "timestamp"}}
    kept = [one for one in features if one.name in chosen]
    return kept, [name for name in known if name not in chosen]


def _keys(names: Iterable[str]) -> dict[str, Key]:
    """Return the leaf of each name; where one is inside another, its last parts become one."""
    keys: dict[str, Key] = {}
    names = list(names)
    has_action = any(name.split(".")[0] == "action" for name in names)
    for name in names:
        root, *below = name.split(".")
        if root == "actions" and not has_action:
            root = "action"
        above = ["observation"] if root in {"state", "states", "image", "images"} else []
        if root in RESERVED_ROOTS - {"next"}:
            above = ["steps"]
        keys[name] = (*above, root, *below)
    taken = set(keys.values())
    for name, key in keys.items():
        for depth in range(1, len(key)):
            if key[:depth] in taken:
                keys[name] = (*key[: depth - 1], "_".join(key[depth - 1 :]))
                break
    return keys


def column_of(leaf: ArrowLeaf, feature: FeatureLeaf) -> Any:
    """Return the rows of a column as a leaf, images still encoded; raises `FormatError`."""
    values = leaf.values
    if leaf.nulls is not None and feature.kind != "text":
        raise FormatError(f"{feature.name} has no value in row {leaf.nulls.argmax()} of it")
    if values is None:
        raise FormatError(f"{feature.name} is {leaf.kind}, whose rows have not all the same shape")
    if feature.kind == "image":
        return _images(values, feature)
    if (feature.kind == "text") != (values.dtype == object):
        raise FormatError(f"{feature.name} is {leaf.kind}; meta/info.json says {feature.dtype}")
    if prod(values.shape[1:]) != prod(feature.shape):
        raise FormatError(
            f"{feature.name} has rows of shape {list(values.shape[1:])}; "
            f"meta/info.json says {list(feature.shape)}"
        )
    values = values.reshape(len(values), *feature.shape)
    return values if feature.kind == "text" else _cast(values, feature)


def _cast(values: NDArray[Any], feature: FeatureLeaf) -> NDArray[Any]:
    """Return numbers of the declared dtype: floats rounded, as `datasets` does, others exactly."""
    dtype = np.dtype(feature.dtype)
    if values.dtype.kind == dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype(dtype, copy=False)
    cast = exact(values, dtype)
    if cast is None:
        raise FormatError(
            f"{feature.name} has {values.dtype} values; meta/info.json says {feature.dtype}"
        )
    return cast


def _depth(files: Sequence[bytes], feature: FeatureLeaf) -> Any:
    """Return TIFF images as PNG images, which hold the same integers, or as pixels if they are floats."""
    if len(feature.shape) < 2:
        raise FormatError(f"{feature.name} has images; meta/info.json says {list(feature.shape)}")
    height, width = feature.shape[-2:] if feature.shape[0] == 1 else feature.shape[:2]
    frames = [
        decode_tiff(one, (height, width, 1), f"{feature.name}, row {row},")
        for row, one in enumerate(files)
    ]
    dtypes = {frame.dtype.name for frame in frames}
    if len(dtypes) > 1:
        raise FormatError(f"{feature.name} has images of {' and '.join(sorted(dtypes))}")
    if frames[0].dtype.kind == "f":
        return np.stack(frames)
    kind = ("png", frames[0].dtype.name, (height, width, 1))
    images = [encode_image(frame, "png", compress_level=1) for frame in frames]
    return EncodedColumn.of(images, kind, feature.name)


def depth_note(name: str, declared: Mapping[str, Any]) -> str | None:
    """Return what the codes of a video of depth mean, if `meta/info.json` tells."""
    info = declared.get("info")
    found = info if isinstance(info, dict) else {}
    low, high, shift, log = (
        found.get(f"video.{name}") for name in ("depth_min", "depth_max", "shift", "use_log")
    )
    if not all(isinstance(one, (int, float)) for one in (low, high, shift, log)):
        return None
    metres = (
        f"exp(log({low:g} + {shift:g}) + code / 4095 * (log({high:g} + {shift:g}) - "
        f"log({low:g} + {shift:g}))) - {shift:g}"
        if log
        else f"{low:g} + code / 4095 * ({high:g} - {low:g})"
    )
    return f"Frames of {name} are codes of depth: metres are {metres}."


def _images(values: NDArray[Any], feature: FeatureLeaf) -> Any:
    files = values.tolist()
    if values.ndim != 1 or not all(isinstance(one, bytes) for one in files):
        raise FormatError(f"{feature.name} is not a column of image files")
    first = files[0]
    if first.startswith(_TIFF):
        return _depth(files, feature)
    if not (first.startswith(_PNG) or is_jpeg(first)):
        raise FormatError(f"{feature.name} has an image that is neither PNG nor JPEG")
    height, width, channels, bits = image_head(first)[1]
    flat = len(feature.shape) == 2 and channels == 1
    shape = (height, width) if flat else (height, width, channels)
    kind = ("jpeg" if is_jpeg(first) else "png", "uint16" if bits == 16 else "uint8", shape)
    column: Any = EncodedColumn.of(files, kind, feature.name)
    column.check_headers()
    return column

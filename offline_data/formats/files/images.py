"""Rows of JPEG or PNG bytes among a user's arrays, as columns of images."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.raw.arrays import BYTES, Arrays, NamedArray
from offline_data.store.encoded import EncodedColumn, image_kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from offline_data.raw.arrays import Block, Ranges
    from offline_data.store.encoded import Kind

_LEAST = 64
"""Bytes of a row from which on numbers may be a padded image: the smallest files have more."""


class ImageArrays(Arrays):
    """Arrays of which those whose first row begins like a JPEG or PNG file are columns of images.

    Rows may be padded with zeros, `[N, bytes]` of uint8, or have a length each.
    """

    def __init__(self, whole: Arrays) -> None:
        self.path, self._whole = whole.path, whole

    @cached_property
    def columns(self) -> Mapping[str, NamedArray]:
        """All arrays; images have the shape and dtype of their pixels."""
        found = dict(self._whole.columns)
        for name, (_, dtype, shape) in self._kinds.items():
            found[name] = NamedArray((found[name].shape[0], *shape), np.dtype(dtype))
        return found

    @cached_property
    def _kinds(self) -> dict[str, Kind]:
        """Encoding, dtype and shape of the columns of images."""
        found = {}
        for name, column in self._whole.columns.items():
            padded = column.dtype == np.uint8 and len(column.shape) == 2 and not column.problem
            if column.shape[:1] in {(), (0,)} or not (column.dtype == BYTES or padded):
                continue
            if padded and column.shape[1] < _LEAST:
                continue
            (block,) = self._whole.blocks([name], [(0, 1)])
            if kind := image_kind(bytes(block[name][0])):
                found[name] = kind
        return found

    def blocks(self, names: Sequence[str], ranges: Ranges) -> Iterator[Block]:
        """Yield rows; those of images are an `EncodedColumn`."""
        for block in self._whole.blocks(names, ranges):
            yield {name: self._as_images(name, values) for name, values in block.items()}

    def _as_images(self, name: str, values: Any) -> Any:
        if name not in self._kinds:
            return values
        files = [bytes(row).rstrip(b"\0") for row in values]  # neither format ends with a zero
        return EncodedColumn.of(files, self._kinds[name], f"{self.path}, {name!r}")

    def groups(self, parent: str) -> list[str]:
        """List groups as the arrays do."""
        return self._whole.groups(parent)

    @contextmanager
    def below(self, group: str) -> Iterator[Arrays]:
        """Open the arrays of a group, images among them."""
        with self._whole.below(group) as opened:
            yield ImageArrays(opened)

"""What manifests, images, batches and parts may not be: the cases are the lines of `refusals.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any

import pytest

from offline_data.episode import EpisodeBatch
from offline_data.store.encoded import EncodedColumn
from offline_data.store.join import join
from offline_data.store.layout import MANIFEST, LayoutName
from offline_data.store.manifest import Manifest, parse_manifest, read_manifest
from offline_data.testing.toy import toy_batch, write_toy
from tests.films import film_batch
from tests.pictures import PNG, ROWS, column, encoded_batch, pictures, raw, with_pixels, written
from tests.refusals import Refusals
from tests.store.test_join import header

REFUSALS = Refusals(Path(__file__).with_name("refusals.json"))
ABSENT = object()
OTHERS = sum(map(len, column(ROWS - 1).images()))
"""Bytes of all images but the first one; another Pillow writes others."""


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return calls that read a manifest with one change."""
    folder = tmp_path_factory.mktemp("datasets")
    batches = {
        "toy": toy_batch([3, 2], text=True),
        "encoded": encoded_batch(),
        "film": film_batch(folder)[0],
    }
    for name, batch in batches.items():
        write_toy(folder / name, [batch])
    return {name: partial(changed, (folder / name / MANIFEST).read_bytes()) for name in batches}


def changed(manifest: bytes, path: str, value: object = ABSENT) -> Manifest:
    """Read a manifest with another value, or none, at a path of fields, and numbers or keys of leaves."""
    whole: Any = json.loads(manifest)
    *above, last = path.split()
    holder = reduce(_inner, above, whole)
    if value is ABSENT:
        del holder[last]
    else:
        holder[last] = value
    return parse_manifest(json.dumps(whole).encode(), "FOLDER", "HINT")


def _inner(holder: Any, name: str) -> Any:
    if isinstance(holder, dict):
        return holder[name]
    return next(leaf for n, leaf in enumerate(holder) if name in {str(n), "/".join(leaf["key"])})


def damaged(folder: Path, place: str) -> Manifest:
    path = folder / place
    path.mkdir(parents=True)
    (path / MANIFEST).write_text("{}")
    return read_manifest(path)


def first_image(folder: Path, encoding: str, image: bytes) -> Manifest:
    """Write a dataset whose first image is another one."""
    images = [image, *column(ROWS - 1).images()]
    other = EncodedColumn.of(images, (encoding, *PNG[1:]), "feature 'x' of here")
    return wrote(folder, with_pixels(other))


def wrote(folder: Path, *batches: EpisodeBatch, layout: LayoutName = "compact") -> Manifest:
    try:
        return write_toy(folder / "d", batches, layout=layout)
    finally:
        assert not (folder / "d" / MANIFEST).exists()


def joined(
    folder: Path,
    *batches: EpisodeBatch,
    layouts: Sequence[LayoutName] = ("compact", "compact"),
    names: Sequence[str] = (),
) -> Manifest:
    parts = [folder / "one", folder / "two"]
    for part, batch, layout in zip(parts, batches, layouts, strict=True):
        write_toy(part, [batch], layout=layout)
    return join(parts, folder / "joined", header(parts[0]), names=names)


NAMES: dict[str, Any] = {
    "picture": pictures(1)[0],
    "EncodedColumn": EncodedColumn,
    **{
        call.__name__: call
        for call in (parse_manifest, read_manifest, written, raw, toy_batch, encoded_batch)
    },
}


@REFUSALS.cases
def test_refusals(kind: str, text: str, tmp_path: Path, manifests: dict[str, Any]) -> None:
    made = {
        call.__name__: partial(call, tmp_path) for call in (damaged, first_image, wrote, joined)
    }
    names = {**NAMES, **manifests, **made, "folder": tmp_path}
    shown = {tmp_path: "FOLDER", f" of {OTHERS}": " of ALL"}
    REFUSALS.check(kind, text, lambda: eval(text, names), shown)  # noqa: S307

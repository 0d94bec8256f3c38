"""`verify`: a manifest that was changed, or that does not fit its rows, is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.errors import IntegrityError
from offline_data.store.layout import MANIFEST, LayoutName
from offline_data.store.manifest import dump_manifest, read_manifest
from offline_data.store.reader import open_reader
from offline_data.store.verify import verify
from offline_data.testing.toy import toy_batch, write_toy


@pytest.fixture(params=["compact", "ted"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A dataset with text and unknown final observations, in each layout."""
    layout: LayoutName = request.param
    batch = toy_batch([3, 1, 4], text=True, unknown_final=(0, 1))
    write_toy(tmp_path / "d", [batch], layout=layout)
    return tmp_path / "d"


def test_any_flipped_bit_of_the_manifest_is_found(folder: Path) -> None:
    path = folder / MANIFEST
    whole = path.read_bytes()
    assert verify(folder) == ()
    rng = np.random.default_rng(0)
    tail = range(len(whole) - 90, len(whole))  # the digest's own field
    for at in [*rng.choice(len(whole) - 90, 150, replace=False).tolist(), *tail]:
        flipped = bytearray(whole)
        flipped[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        try:
            found = verify(folder)
        except IntegrityError:
            continue
        assert MANIFEST in {problem.file for problem in found}, (at, whole[at - 9 : at + 9])


def test_a_manifest_without_a_digest_still_verifies(folder: Path) -> None:
    path = folder / MANIFEST
    value = json.loads(path.read_text())
    del value["sha256"]
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
    assert read_manifest(folder).sha256 is None
    assert verify(folder) == ()


def test_a_manifest_that_is_written_again_has_its_digest(folder: Path) -> None:
    (folder / MANIFEST).write_text(dump_manifest(read_manifest(folder)))
    assert verify(folder) == ()


def rewrite(folder: Path, change: Any, *, file: str | None = None) -> None:
    """Change values of rows, and let the manifest state the digests of what is there then."""
    reader = open_reader(folder)
    table, key, where, value = change
    spec = reader.manifest.tables[table]
    leaf = spec[key]
    path = folder / (file or leaf.file)
    rows = np.memmap(path, np.uint8, mode="r+").reshape(spec.rows, leaf.stride)
    size = leaf.nbytes
    rows[where, leaf.offset : leaf.offset + size] = np.frombuffer(
        np.array(value, leaf.dtype).tobytes(), np.uint8
    )
    rows.base.flush()  # type: ignore[union-attr]
    restate(folder)


def restate(folder: Path, **fields: Any) -> None:
    """Let a manifest say something else, and have the digests that go with it."""
    import hashlib
    from dataclasses import replace

    manifest = read_manifest(folder)
    digests = {
        name: {
            "size": (folder / name).stat().st_size,
            "sha256": hashlib.sha256((folder / name).read_bytes()).hexdigest(),
        }
        for name in manifest.digests
    }
    (folder / MANIFEST).write_text(dump_manifest(replace(manifest, digests=digests, **fields)))


CHANGES = [
    ("steps", ("episode",), 2, 1),
    ("steps", ("next", "terminated"), 1, True),
    ("steps", ("next", "reward"), 1, 5.0),
    ("episodes", ("start",), 1, 2),
    ("episodes", ("length",), 1, 2),
    ("episodes", ("length",), 1, -1),
    ("episodes", ("return",), 1, 1e9),
    ("episodes", ("truncated",), 0, True),
    ("episodes", ("final_observation",), 1, True),
    ("observations", ("observation", "mission"), 3, 700),
    ("observations", ("observation", "mission"), 3, -2),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: "/".join([c[0], *c[1]]))
def test_rows_that_contradict_each_other_are_found(folder: Path, change: Any) -> None:
    if "steps" not in read_manifest(folder).tables and change[0] != "episodes":
        change = ("ted", *change[1:])
    rewrite(folder, change)
    assert verify(folder)


@pytest.mark.parametrize("name", ["valid_transitions", "terminated", "truncated"])
def test_counts_are_those_of_the_rows(folder: Path, name: str) -> None:
    counts = read_manifest(folder).counts
    restate(folder, counts={**counts, name: counts[name] - 1 or 2})
    assert [problem.file for problem in verify(folder)] == [MANIFEST]


def test_what_describes_the_files_to_tensordict_is_compared(folder: Path) -> None:
    meta = folder / "episodes" / "meta.json"
    value = json.loads(meta.read_text())
    meta.write_text(json.dumps({**value, "evil": {"type": "NonTensorData"}}))
    restate(folder)
    assert [problem.file for problem in verify(folder)] == ["episodes/meta.json"]


def test_a_vocabulary_that_lacks_a_leaf_is_found(folder: Path) -> None:
    (folder / "text.json").write_text("[]")
    restate(folder)
    assert verify(folder)

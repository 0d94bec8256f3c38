"""What was changed, or does not fit its rows, is named; a stranger's directory is read or refused."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.base.errors import IntegrityError, OfflineDataError
from offline_data.store.layout import MANIFEST, LayoutName
from offline_data.store.library import survey
from offline_data.store.manifest import dump_manifest, read_manifest
from offline_data.store.reader import open_reader
from offline_data.store.verify import verify
from offline_data.testing.toy import toy_batch, write_toy
from tests.fuzz.manifest_variants import variants
from tests.pictures import encoded_batch, restate
from tests.store.conftest import edit_manifest


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
    tail = range(len(whole) - 90, len(whole), 5)  # the digest's own field
    for at in [*rng.choice(len(whole) - 90, 40, replace=False).tolist(), *tail]:
        flipped = bytearray(whole)
        flipped[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        try:
            found = verify(folder)
        except IntegrityError:
            continue
        assert MANIFEST in {problem.file for problem in found}, (at, whole[at - 9 : at + 9])


def test_a_manifest_without_a_digest_verifies_and_gets_one_when_written(folder: Path) -> None:
    path = folder / MANIFEST
    value = json.loads(path.read_text())
    del value["sha256"]
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")
    assert read_manifest(folder).sha256 is None
    assert verify(folder) == ()
    path.write_text(dump_manifest(read_manifest(folder)))
    assert read_manifest(folder).sha256
    assert verify(folder) == ()


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
    table, key, row, value = change
    spec = read_manifest(folder).tables[table]
    leaf = spec[key]
    with (folder / leaf.file).open("r+b") as file:
        file.seek(row * leaf.stride + leaf.offset)
        file.write(np.array(value, leaf.dtype).tobytes())
    restate(folder)
    assert verify(folder)


@pytest.mark.parametrize("name", ["valid_transitions", "terminated", "truncated"])
def test_counts_are_those_of_the_rows(folder: Path, name: str) -> None:
    counts = read_manifest(folder).counts
    edit_manifest(folder, counts={**counts, name: counts[name] - 1 or 2})
    restate(folder)
    assert [problem.file for problem in verify(folder)] == [MANIFEST]


def test_what_describes_the_files_is_compared(folder: Path) -> None:
    meta = folder / "episodes" / "meta.json"
    value = json.loads(meta.read_text())
    meta.write_text(json.dumps({**value, "evil": {"type": "NonTensorData"}}))
    restate(folder)
    assert [problem.file for problem in verify(folder)] == ["episodes/meta.json"]
    meta.write_text(json.dumps(value))
    (folder / "text.json").write_text("[]")
    restate(folder)
    assert verify(folder)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "cases"), [("compact", 40), ("ted", 40), ("encoded", 25)])
def test_every_variant_is_read_or_refused(kind: str, cases: int, tmp_path: Path) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "root" / "d"
    if kind == "encoded":
        write_toy(whole, [encoded_batch()])
    else:
        batch = toy_batch([3, 1, 4], text=True, images=True, unknown_final=(1,))
        write_toy(whole, [batch], layout="ted" if kind == "ted" else "compact")

    def read() -> None:
        reader = open_reader(folder)
        for values in reader.transitions_at(np.arange(reader.transitions)).values():
            np.asarray(values)
        reader.episode_batch(0, reader.episode_count)

    for name, mutate in itertools.islice(variants(np.random.default_rng(1)), cases):
        shutil.copytree(whole, folder)
        mutate(folder)
        for act in (lambda: survey(tmp_path / "root"), read, lambda: verify(folder)):
            try:
                act()
            except OfflineDataError:
                pass
            except BaseException as error:
                raise AssertionError(name) from error
        shutil.rmtree(tmp_path / "root")

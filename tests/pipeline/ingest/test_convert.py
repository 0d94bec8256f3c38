"""`convert`: names, what they replace, and what they never do."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, IntegrityError, UsageError
from offline_data.formats.fingerprint import WHOLE, fingerprint
from offline_data.pipeline.ingest import Options, Stored, convert, plan_convert
from offline_data.store.library import list_datasets
from offline_data.store.manifest import dump_manifest, read_manifest
from offline_data.store.reader import open_reader
from offline_data.store.verify import verify
from offline_data.testing.toy import assert_same_batch, toy_batch, write_toy
from tests.pipeline.ingest.test_shards import Notes
from tests.toys.d4rl import write_d4rl_hdf5
from tests.toys.minari import toy_episode, write_minari


@pytest.fixture
def one(tmp_path: Path) -> Path:
    return write_minari(tmp_path / "one-v0", [toy_episode(e, 4) for e in range(3)])


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return write_minari(tmp_path / "other-v0", [toy_episode(7, 9)])


def ids(settings: Settings) -> list[str]:
    return [str(entry.id) for entry in list_datasets(settings.root)]


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_the_same_files_are_converted_once(settings: Settings, one: Path) -> None:
    first = convert(one, "mine", settings, Options())
    assert not first.existed
    assert convert(one, "mine", settings, Options()).existed
    assert ids(settings) == [str(first.id)]


@pytest.mark.parametrize("force", [False, True])
def test_some_episodes_never_replace_all(
    settings: Settings, one: Path, other: Path, force: bool
) -> None:
    whole = convert(one, "mine", settings, Options())
    some = convert(other, "mine", settings, Options(episodes=(0, 1), force=force))
    assert ids(settings) == sorted([str(whole.id), str(some.id)])


def test_a_dataset_directory_becomes_the_other_layout(settings: Settings, one: Path) -> None:
    compact = convert(one, "mine", settings, Options())
    ted = convert(compact.path, "plain", settings, Options(layout="ted"))
    assert ted.manifest.parents == (str(compact.id),)
    batches = [open_reader(result.path).episode_batch(0, 3) for result in (compact, ted)]
    assert_same_batch(*batches)
    in_place = convert(compact.path, "mine", settings, Options(layout="ted"))
    assert in_place.path == compact.path
    assert in_place.manifest.layout == "ted"
    assert_same_batch(open_reader(in_place.path).episode_batch(0, 3), batches[0])


@pytest.mark.parametrize("block", [512, 1024, 1 << 16])
@pytest.mark.parametrize("kind", ["minari", "d4rl"])
def test_hdf5_after_a_user_block(settings: Settings, one: Path, kind: str, block: int) -> None:
    """The signature may stand at 512, 1024, … too: HDF5 File Format Specification, II.A."""
    path = one if kind == "minari" else write_d4rl_hdf5(one.with_name("a.hdf5"))
    file = one / "data" / "main_data.hdf5" if kind == "minari" else path
    plain = open_reader(convert(path, "plain", settings, Options()).path)
    file.write_bytes(b"\0" * block + file.read_bytes())
    after = convert(path, "after", settings, Options())
    assert after.manifest.converter["adapter"] == kind
    count = after.manifest.counts["episodes"]
    assert_same_batch(
        open_reader(after.path).episode_batch(0, count), plain.episode_batch(0, count)
    )


def test_a_signature_elsewhere_is_none(settings: Settings, one: Path) -> None:
    file = one / "data" / "main_data.hdf5"
    file.write_bytes(b"\0" * 768 + file.read_bytes())
    with pytest.raises(FormatError, match="is not an HDF5 file: it begins with"):
        convert(one, "mine", settings, Options())


def same_look(path: Path, change: Callable[[bytearray], None]) -> None:
    """Change a file that keeps its name, size and times."""
    state = path.stat()
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)
    assert path.stat().st_size == state.st_size
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def d4rl(path: Path, code: int) -> Path:
    """Write a file whose every observation is `code`; all such files have one size."""
    path.parent.mkdir(exist_ok=True)
    with h5py.File(path, "w", track_order=False) as file:
        file["observations"] = np.full((50, 2), float(code))
        file["actions"] = np.ones((50, 1))
        file["rewards"] = np.ones(50)
        file["terminals"] = np.arange(50) % 10 == 9
    os.utime(path, (1, 1))
    return path


def test_another_file_of_the_same_name_size_and_time_takes_its_name_only_by_force(
    settings: Settings, tmp_path: Path
) -> None:
    first = d4rl(tmp_path / "a" / "mine.hdf5", 1)
    second = d4rl(tmp_path / "b" / "mine.hdf5", 2)
    assert first.stat().st_size == second.stat().st_size
    made = convert(first, "mine", settings, Options())
    with pytest.raises(UsageError, match="made from other files"):
        convert(second, "mine", settings, Options())
    os.utime(d4rl(tmp_path / "c" / "mine.hdf5", 1), (2, 2))  # the same one, copied later
    assert convert(tmp_path / "c" / "mine.hdf5", "mine", settings, Options()).existed
    assert ids(settings) == [str(made.id)]
    replaced = convert(second, "mine", settings, Options(force=True))
    assert ids(settings) == [str(replaced.id)]
    found = open_reader(replaced.path).episode_batch(0, 5).observations["observation",]
    assert (found == 2).all()


def test_a_file_changed_inside_a_folder_is_found(settings: Settings, one: Path) -> None:
    convert(one, "mine", settings, Options())
    value = np.array([toy_episode(1, 4).rewards[2]]).tobytes()

    def change(content: bytearray) -> None:
        at = content.find(value)
        assert at >= 0
        content[at] ^= 1

    same_look(one / "data" / "main_data.hdf5", change)
    with pytest.raises(UsageError, match="made from other files"):
        convert(one, "mine", settings, Options())


@pytest.mark.slow
def test_large_files_are_sampled_and_that_is_said(settings: Settings, tmp_path: Path) -> None:
    path = d4rl(tmp_path / "mine.hdf5", 1)
    size = WHOLE + (6 << 20)
    os.truncate(path, size)  # HDF5 does not look at what follows its own end
    told = Notes()
    first = convert(path, "mine", settings, Options(), told)
    assert first.id.revision is not None
    assert first.id.revision.endswith("-sampled")
    assert told.told == []
    assert convert(path, "mine", settings, Options(), told).existed
    assert [note for note in told.told if "samples of its content were compared" in note]
    seen = {fingerprint(path, [path])}
    assert seen == {first.id.revision}
    for begin, stop in ((0, 1), (size // 2, size // 2 + (1 << 20)), (size - 1, size)):

        def change(content: bytearray, begin: int = begin, stop: int = stop) -> None:
            content[begin:stop] = bytes(255 - byte for byte in content[begin:stop])

        same_look(path, change)
        seen.add(fingerprint(path, [path]))
    assert len(seen) == 4


def test_the_same_file_converted_otherwise_is_another_dataset(
    settings: Settings, tmp_path: Path
) -> None:
    path = tmp_path / "mine.hdf5"
    with h5py.File(d4rl(path, 1), "a") as file:
        file["next_observations"] = np.arange(100.0).reshape(50, 2)
    cut = convert(path, "cut", settings, Options())
    kept = convert(path, "kept", settings, Options(keep_episodes=True))
    assert cut.id.revision == kept.id.revision
    copied = convert(cut.path, "copy", settings, Options())
    assert convert(cut.path, "copy", settings, Options()).existed
    with pytest.raises(UsageError, match="made from other files"):
        convert(kept.path, "copy", settings, Options())
    assert copied.manifest.parents == (str(cut.id),)


@pytest.fixture
def received(one: Path, tmp_path: Path) -> tuple[Stored, Path]:
    """A dataset of a colleague, and a copy of its directory elsewhere."""
    theirs = convert(one, "door", Settings(root=tmp_path / "theirs"), Options())
    shutil.copytree(theirs.path, tmp_path / "received")
    return theirs, tmp_path / "received"


@pytest.mark.parametrize("name", ["door", "other"])
def test_a_copied_dataset_is_the_same_dataset(
    name: str, received: tuple[Stored, Path], settings: Settings
) -> None:
    theirs, path = received
    planned = plan_convert(path, name, settings, Options())
    mine = convert(path, name, settings, Options())
    assert (planned.id, planned.destination, planned.layout) == (mine.id, mine.path, mine.layout)
    assert (mine.id.name, mine.id.revision) == (name, theirs.id.revision)
    assert mine.manifest.digests == theirs.manifest.digests
    assert verify(mine.path) == ()
    same = (mine.path / "manifest.json").read_bytes() == (path / "manifest.json").read_bytes()
    assert same == (name == "door")
    assert mine.manifest.parents == (() if same else (str(theirs.id),))
    assert convert(path, name, settings, Options(layout="compact")).existed
    assert ids(settings) == [str(mine.id)]


@pytest.mark.parametrize(
    "options", [Options(layout="ted"), Options(episodes=(0, 2)), Options(images="raw")]
)
def test_a_dataset_of_which_something_changes_is_converted(
    options: Options, received: tuple[Stored, Path], settings: Settings
) -> None:
    theirs, path = received
    mine = convert(path, "door", settings, options)
    assert mine.id.revision != theirs.id.revision
    assert mine.manifest.parents == (str(theirs.id),)


def spoil_rows(path: Path) -> None:
    file = path / "steps" / "rows.memmap"
    data = bytearray(file.read_bytes())
    data[3] ^= 1
    file.write_bytes(data)


def spoil_manifest(path: Path) -> None:
    file = path / "manifest.json"
    file.write_text(file.read_text().replace('"transitions": 12', '"transitions": 11'))


def lie_with_the_right_digest(path: Path) -> None:
    manifest = read_manifest(path)
    wrong = replace(manifest, counts={**manifest.counts, "terminated": 9})
    (path / "manifest.json").write_text(dump_manifest(wrong))


def lead_elsewhere(path: Path) -> None:
    (path / "steps" / "rows.memmap").unlink()
    (path / "steps" / "rows.memmap").symlink_to("/dev/zero")


@pytest.mark.parametrize(
    "spoil", [spoil_rows, spoil_manifest, lie_with_the_right_digest, lead_elsewhere]
)
def test_a_damaged_copy_is_refused(
    spoil: Callable[[Path], None], received: tuple[Stored, Path], settings: Settings
) -> None:
    _, path = received
    spoil(path)
    with pytest.raises(IntegrityError, match="received"):
        convert(path, "door", settings, Options())
    assert ids(settings) == []
    assert not [*settings.root.rglob("manifest.json")]


def test_a_copy_replaces_no_other_files_of_its_revision(
    received: tuple[Stored, Path], settings: Settings, tmp_path: Path
) -> None:
    theirs, path = received
    there = settings.root / theirs.id.folder / str(theirs.id.revision)
    write_toy(there, [toy_batch((2, 3))], dataset=str(theirs.id))
    with pytest.raises(UsageError, match="made from other files"):
        convert(path, "door", settings, Options())
    assert convert(path, "door", settings, Options(force=True)).path == there
    assert read_manifest(there).digests == theirs.manifest.digests

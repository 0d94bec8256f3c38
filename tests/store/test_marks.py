"""`marks.json`: what is read back, killed writers, several writers, strange files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import (
    FormatError,
    IntegrityError,
    NewerFormatError,
    NoSpaceError,
    NotFoundError,
    OfflineDataError,
    UsageError,
)
from offline_data.store.content import digest_of
from offline_data.store.copies import copy_dataset, rename_dataset
from offline_data.store.library import Entry, entry_at, foreign_files, list_datasets
from offline_data.store.marks import Mark, Marks, marks_file, read_marks, write_marks
from offline_data.store.verify import verify
from offline_data.testing.toy import toy_batch, write_toy
from tests.pipeline.jobs.faults import Fault, Kind
from tests.slow import slow_but

LENGTHS = [3, 1, 4, 2, 5, 1]


@pytest.fixture
def entry(settings: Settings) -> Entry:
    folder = settings.root / "local" / "toy" / "1"
    write_toy(folder, [toy_batch(LENGTHS)])
    return entry_at(folder)


def mark(entry: Entry, number: int, name: Any, note: str | None = None) -> Marks:
    return write_marks(
        entry.path, entry.manifest, lambda marks: marks.with_mark(number, name, note)
    )


def on_disk(entry: Entry) -> dict[str, Any]:
    """Read the episodes of a file with json alone."""
    found: dict[str, Any] = json.loads(marks_file(entry.path).read_text("utf-8"))["episodes"]
    return found


def read(entry: Entry) -> dict[int, Mark]:
    marks = read_marks(entry.path, entry.manifest)
    assert marks.ignored == ""
    return dict(marks.episodes)


def test_values_after_the_disk(entry: Entry) -> None:
    assert read(entry) == {}
    mark(entry, 4, "bad", "gripper slips — twice\n")
    mark(entry, 0, "good")
    mark(entry, 2, None, "look again")
    path = entry.path.parent / ".views" / "1" / "marks.json"
    assert json.loads(path.read_bytes()) == {
        "format_version": 1,
        "dataset": "local:toy@1",
        "identity": Marks.of(entry.manifest).identity,
        "episodes": {
            "0": {"mark": "good", "note": ""},
            "2": {"mark": None, "note": "look again"},
            "4": {"mark": "bad", "note": "gripper slips — twice\n"},
        },
    }
    assert list(read(entry)) == [0, 2, 4]
    mark(entry, 4, "good")
    mark(entry, 2, None, "")
    mark(entry, 0, None)
    assert on_disk(entry) == {"4": {"mark": "good", "note": "gripper slips — twice\n"}}
    assert read(entry) == {4: Mark("good", "gripper slips — twice\n")}


def test_nothing_of_the_dataset_changes(entry: Entry) -> None:
    root = entry.path.parents[2]
    before = digest_of(entry, root)
    mark(entry, 1, "unsure", "x")
    shutil.rmtree(root / ".content")  # digests that are kept
    assert digest_of(entry, root) == before
    assert verify(entry.path) == ()
    assert foreign_files(entry.path) == []
    assert [one.path for one in list_datasets(root)] == [entry.path]


@pytest.mark.parametrize(
    ("number", "name", "note", "said"),
    [
        (6, "bad", "", "There is no episode 6 to mark: local:toy@1 has 6 episodes"),
        (-1, "bad", "", "There is no episode -1"),
        (0, "Bad", "", "A mark is 'Bad'; expected 'good', 'bad', 'unsure' or None"),
        (0, "good", "x" * 2001, "expected text of at most 2,000 characters"),
        (0, "good", 3, "A note is 3"),
    ],
)
def test_what_cannot_be_marked(entry: Entry, number: int, name: str, note: Any, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        mark(entry, number, name, note)
    assert said in refused.value.message
    assert not marks_file(entry.path).exists()


def test_longest_note_and_half_characters(entry: Entry) -> None:
    mark(entry, 0, "good", "🦾" * 2000)
    mark(entry, 1, "bad", "a\ud83d")
    assert read(entry) == {0: Mark("good", "🦾" * 2000), 1: Mark("bad", "a?")}


def test_another_dataset_under_the_name(entry: Entry) -> None:
    mark(entry, 5, "bad")
    content = marks_file(entry.path).read_bytes()
    shutil.rmtree(entry.path)
    write_toy(entry.path, [toy_batch([2] * 6)])
    other = entry_at(entry.path)
    found = read_marks(other.path, other.manifest)
    assert found.episodes == {}
    assert "marks.json is ignored: The marks are of 'local:toy@1' with other rows" in found.ignored
    for aside in ("marks.json.kept", "marks.json.kept.kept"):
        marks_file(other.path).write_bytes(content)
        mark(other, 1, "good")
        assert read(other) == {1: Mark("good")}
        assert marks_file(other.path).with_name(aside).read_bytes() == content


def test_the_other_layout_has_the_marks(entry: Entry) -> None:
    mark(entry, 5, "bad")
    shutil.rmtree(entry.path)
    write_toy(entry.path, [toy_batch(LENGTHS)], layout="ted")
    assert read(entry_at(entry.path)) == {5: Mark("bad")}


def test_deleted_meanwhile(entry: Entry) -> None:
    shutil.rmtree(entry.path)
    with pytest.raises(NotFoundError):
        mark(entry, 0, "bad")


def test_renamed_and_copied(entry: Entry, settings: Settings) -> None:
    mark(entry, 3, "unsure", "x")
    copy = copy_dataset(entry, "copy", settings)
    assert read(copy) == {}
    mark(copy, 0, "good")
    made = rename_dataset(entry, "copy", settings, force=True)
    assert made.path == copy.path
    assert read(made) == {3: Mark("unsure", "x")}
    assert not marks_file(entry.path).exists()
    assert json.loads(marks_file(made.path).read_text())["dataset"] == "local:copy@1"


HEAD = {"format_version": 1, "dataset": "local:toy@1"}


def hostile(entry: Entry) -> dict[str, Any]:
    """Return contents that are no marks of this dataset."""
    head = {**HEAD, "identity": Marks.of(entry.manifest).identity}

    def file(**more: Any) -> bytes:
        return json.dumps({**head, "episodes": {}, **more}).encode()

    deep: Any = "x"
    for _ in range(200):
        deep = [deep]
    return {
        "empty": b"",
        "text": b"hello",
        "list": b"[]",
        "number": b"3",
        "not UTF-8": b'{"format_version": 1, "dataset": "\xff"}',
        "no version": json.dumps({"episodes": {}}).encode(),
        "version of text": file(format_version="1"),
        "newer": file(format_version=2),
        "far newer": file(format_version=10**300),
        "no identity": json.dumps({**HEAD, "episodes": {}}).encode(),
        "other identity": file(identity="0" * 64),
        "wrong identity": file(identity=["a"]),
        "unknown field": file(ignored=""),
        "list of episodes": file(episodes=[{"mark": "bad", "note": ""}]),
        "out of range": file(episodes={"6": {"mark": "bad", "note": ""}}),
        "negative": file(episodes={"-1": {"mark": "bad", "note": ""}}),
        "huge number": file(episodes={"9" * 30: {"mark": "bad", "note": ""}}),
        "other digits": file(episodes={"٣": {"mark": "bad", "note": ""}}),
        "twice in other words": file(episodes={"01": {"mark": "bad", "note": ""}}),
        "twice": b'{"episodes": {"1": {}, "1": {}}}',
        "NaN": file(episodes={"1": {"mark": float("nan"), "note": ""}}),
        "other mark": file(episodes={"1": {"mark": "superb", "note": ""}}),
        "note of numbers": file(episodes={"1": {"mark": "bad", "note": 3}}),
        "long note": file(episodes={"1": {"mark": "bad", "note": "x" * 2001}}),
        "half character": file(episodes={"1": {"mark": "bad", "note": "\ud83d"}}),
        "other field": file(episodes={"1": {"mark": "bad", "note": "", "path": "/etc"}}),
        "deep": file(episodes={"1": {"mark": "bad", "note": deep}}),
        "very deep": b"[" * 200_000,
    }


def test_strange_files(entry: Entry) -> None:
    path = marks_file(entry.path)
    path.parent.mkdir(parents=True)
    for name, content in hostile(entry).items():
        path.write_bytes(content)
        found = read_marks(entry.path, entry.manifest)
        assert found.episodes == {}, name
        assert found.ignored.startswith(f"{path} is ignored: "), name
        assert len(found.ignored) < 500, name
    mark(entry, 1, "good")
    assert read(entry) == {1: Mark("good")}


def test_downloads(entry: Entry) -> None:
    for name, content in hostile(entry).items():
        if name in {"other identity", "out of range"}:
            continue
        with pytest.raises(OfflineDataError) as refused:
            Marks.of_download(content)
        assert type(refused.value) in {FormatError, NewerFormatError}, name
    mark(entry, 1, "good", "mine")
    theirs = Marks.of(entry.manifest).with_mark(1, "bad").with_mark(4, None, "theirs")
    assert Marks.of_download(theirs.to_json()) == theirs
    write_marks(entry.path, entry.manifest, lambda marks: marks.with_all(theirs))
    assert read(entry) == {1: Mark("bad"), 4: Mark(None, "theirs")}
    with pytest.raises(IntegrityError, match="are of 'local:toy@1' with other rows"):
        theirs.with_all(replace(theirs, identity="0" * 64))


def test_too_large(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offline_data.store.marks.MOST_BYTES", 400)
    mark(entry, 0, "bad")
    with pytest.raises(UsageError, match="take more than 400 bytes"):
        mark(entry, 1, "bad", "x" * 300)
    assert read(entry) == {0: Mark("bad")}
    content = marks_file(entry.path).read_bytes()
    marks_file(entry.path).write_bytes(content + b" " * 400)
    assert "is larger than 400 bytes" in read_marks(entry.path, entry.manifest).ignored
    with pytest.raises(FormatError, match="larger than 400 bytes"):
        Marks.of_download(content + b" " * 400)


def test_no_plain_file(entry: Entry, tmp_path: Path) -> None:
    path = marks_file(entry.path)
    secret = tmp_path / "secret"
    secret.write_bytes(Marks.of(entry.manifest).with_mark(0, "bad").to_json())
    content = secret.read_bytes()
    path.parent.mkdir(parents=True)
    for kind in ("folder", "fifo", "link"):
        if kind == "folder":
            path.mkdir()
        elif kind == "fifo":
            os.mkfifo(path)
        else:
            path.symlink_to(secret)
        found = read_marks(entry.path, entry.manifest)
        assert found.ignored
        assert found.episodes == {}
        mark(entry, 1, "good")
        assert read(entry) == {1: Mark("good")}
        assert not path.is_symlink()
        path.unlink()
    assert secret.read_bytes() == content


def run_with_fault(action: Callable[[], object], kind: Kind, at: int, folder: Path) -> int:
    """Run something in a fork in which a file operation fails; return its exit status, 0 if none did."""
    child = os.fork()
    if not child:
        fault = Fault(kind, at, folder)
        try:
            action()
        except NoSpaceError:
            os._exit(7)
        except BaseException as error:  # noqa: BLE001 - the parent is told
            sys.stderr.write(repr(error))
            os._exit(8)
        os._exit(0 if fault.count < at else 9)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("kind", slow_but("killed".__eq__, ["killed", "power cut", "disk full"]))
def test_a_killed_writer_leaves_the_older_marks_or_the_new(kind: Kind, entry: Entry) -> None:
    mark(entry, 0, "good", "kept")
    old, new = read(entry), {0: Mark("good", "kept"), 1: Mark("bad", "x" * 1000)}
    seen = []
    for at in range(1, 100):
        code = run_with_fault(
            lambda: mark(entry, 1, "bad", "x" * 1000), kind, at, entry.path.parent
        )
        if code == 0:
            break
        assert code in {-signal.SIGKILL, 7, 9}, (at, code)
        found = read(entry)
        assert found in (old, new), at
        seen.append(found == new)
        mark(entry, 1, "unsure", "")
        mark(entry, 1, None)
    assert len(seen) > 3
    assert not seen[0]
    assert seen[-1] or kind == "disk full"


@pytest.mark.parametrize("step", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_a_killed_rename_can_be_repeated(
    step: int, entry: Entry, settings: Settings, tmp_path: Path
) -> None:
    mark(entry, 2, "bad", "x")
    saved = shutil.copytree(settings.root, tmp_path / "saved")
    killed = 0
    for at in range(1, 1000, step):
        code = run_with_fault(
            lambda: rename_dataset(entry, "new", settings), "killed", at, settings.root
        )
        if code == 0:
            break
        assert code in {-signal.SIGKILL, 9}, (at, code)
        killed += code == -signal.SIGKILL
        if (entry.path / "manifest.json").exists():
            assert read(entry_at(entry.path)) == {2: Mark("bad", "x")}, at
            rename_dataset(entry, "new", settings, force=True)
        (made,) = list_datasets(settings.root)
        assert read(made) == {2: Mark("bad", "x")}, at
        shutil.rmtree(settings.root)
        shutil.copytree(saved, settings.root)
    assert killed > 10 // step


def test_two_writers_lose_nothing(entry: Entry) -> None:
    children = []
    for first in (0, 1):
        child = os.fork()
        if not child:
            for turn in range(10):
                for number in range(first, 6, 2):
                    mark(entry, number, "good", f"{turn}")
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    assert read(entry) == {number: Mark("good", "9") for number in range(6)}

"""`datasets.toml` and `datasets.lock` from strangers: errors name file and key, nothing else happens."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from offline_data import api
from offline_data.base.errors import NotFoundError, OfflineDataError, UsageError
from offline_data.base.ids import parse_id
from offline_data.formats.options import Options
from offline_data.project import lockfile, requests
from offline_data.project.lockfile import LockedDataset, LockedFile, dump_lock, read_lock
from offline_data.project.requests import read_requests

SHA = "0123456789abcdef" * 4
GOOD = {
    name: LockedDataset(
        parse_id("d4rl:pen-human-v1@unversioned"),
        parse_id("d4rl:pen-human-v1"),
        Options(episodes=(2, None), images="raw", keep_episodes=True),
        12,
        3,
        f"sha256:{SHA}",
        "offline-data 1.0",
        (
            LockedFile('a "quoted"\\ name\x7f\n\t\u2028é🤖.hdf5', "http://x/y", 2**63 - 1, SHA),
            LockedFile("b", None, None, None),
        ),
        name,
    )
    for name in ("b-2", "a_1")
}


def toml(folder: Path, text: str | bytes) -> Path:
    file = folder / "datasets.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_a_lock_file_reads_back(tmp_path: Path) -> None:
    file = tmp_path / "datasets.lock"
    file.write_text(dump_lock(GOOD), encoding="utf-8")
    found = read_lock(file)
    assert (found, list(found)) == (GOOD, ["a_1", "b-2"])
    assert dump_lock(dict(reversed(list(GOOD.items())))) == dump_lock(GOOD)
    assert str(found["b-2"].stored_id) == "d4rl:pen-human-v1@unversioned+episodes-2-end"
    file.write_text(dump_lock({}), encoding="utf-8")
    assert read_lock(file) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = [", "is not TOML"),
        (b"\xff", "is not UTF-8"),
        ("x = " + "[" * 5000, "is not TOML"),
        ("x = " + "9" * 5000, "is not TOML"),
        ("[datasets]\na.id" + ".x" * 5000 + " = 1", "nested deeper than 64"),
        ("", "datasets is missing; expected a table"),
        ("datasets = 3", "datasets is 3"),
        ("[dataset]\n", "unknown key 'dataset'"),
        ("[datasets]\n'../x' = 'd4rl:a'", "datasets has the key '../x'"),
        ("[datasets]\n'' = 'd4rl:a'", "datasets has the key ''"),
        ("[datasets]\na.b.c = 'd4rl:a'", "datasets.a has the unknown key 'b'"),
        ("[datasets]\na = 3", "datasets.a is 3; expected an id in quotes or a table"),
        ("[datasets]\na = 2020-01-01", "datasets.a is datetime.date"),
        ("[datasets]\na = '../../etc'", "datasets.a: "),
        ("[datasets]\na = 'd4rl:../../x'", "datasets.a: "),
        ("[datasets]\na = 'd4rl:x@../y'", "datasets.a: "),
        ("[datasets]\na = {}", "datasets.a.id is missing"),
        ("[datasets]\na = { id = ['x'] }", "datasets.a.id is "),
        ("[datasets]\na = { id = 'd4rl:x', episode = '1:2' }", "unknown key 'episode'"),
        ("[datasets]\na = { id = 'd4rl:x', episodes = 3 }", "a.episodes is 3; expected text"),
        ("[datasets]\na = { id = 'd4rl:x', episodes = '3' }", "a.episodes is '3'"),
        ("[datasets]\na = { id = 'd4rl:x', episodes = '3:1' }", "datasets.a: Episodes 3:1"),
        (f"[datasets]\na = {{ id = 'd4rl:x', episodes = ':{'9' * 99}' }}", "a.episodes is"),
        ("[datasets]\na = { id = 'd4rl:x', layout = 'wide' }", "expected compact or ted"),
        ("[datasets]\na = { id = 'd4rl:x', keep_episodes = 1 }", "expected true or false"),
        ("[datasets]\na = { id = 'd4rl:x', images = true }", "a.images is True"),
        ("[datasets]\na = 'd4rl:x'\nb = {id = 'd4rl:x', images = 'raw'}", "datasets.b is the dataset of datasets.a with other options"),
    ],
    ids=range(27),
)  # fmt: skip
def test_bad_requests(text: str | bytes, message: str, tmp_path: Path) -> None:
    file = toml(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        api.lock(file, root=tmp_path / "root", progress=False)
    assert str(file) in caught.value.message
    assert message in caught.value.message
    assert list(tmp_path.iterdir()) == [file]


def test_the_nearest_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_requests(toml(tmp_path, "[datasets]\na = { id = 'd4rl:x', episode = '1:2' }"))
    assert caught.value.hint == "did you mean episodes?"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version = 1", "version = 2", "has version 2"),
        ("version = 1", "version = true", "version is True; expected a whole number"),
        ("version = 1", "", "version is missing"),
        ("version = 1", "version = 1\nmore = 1", "unknown key 'more'"),
        ("[datasets.a_1]", "[datasets.'../a']", "datasets has the key '../a'"),
        ("pen-human-v1@unversioned", "pen-human-v1", "expected a revision of d4rl:pen-human-v1"),
        ("pen-human-v1@unversioned", "../v1@unversioned", "datasets.a_1.id"),
        ("pen-human-v1@unversioned", "pen-human-v2@unversioned", "a revision of d4rl:pen-human-v1"),
        ("requested = ", "requeste = ", "unknown key 'requeste'"),
        ('episodes = "2:"', "episodes = [2]", "options.episodes is [2]"),
        ("transitions = 12", "transitions = -1", "transitions is -1"),
        ("transitions = 12", f"transitions = {2**63}", "transitions is"),
        ("transitions = 12", "transitions = 1e3", "transitions is 1000.0"),
        ("episodes = 3", "episodes = true", "episodes is True"),
        (f"sha256:{SHA}", f"sha256:{SHA[:-1]}", "content is"),
        ('"offline-data 1.0"', "1", "converter is 1; expected text"),
        ("files = [", "files = [3,", "files[0] is 3"),
        (f"size = {2**63 - 1}", "size = -4", "files[0].size is -4"),
        (f'sha256 = "{SHA}"', 'sha256 = "x"', "files[0].sha256 is 'x'"),
        ('path = "b"', "path = 1", "files[1].path is 1"),
        ('path = "b"', "url = 'x'", "files[1].path is missing"),
        ('path = "b"', 'path = "b", mode = 1', "unknown key 'mode'"),
        ('images = "raw"', 'images = "jpg"', "options.images is 'jpg'"),
    ],
    ids=range(23),
)  # fmt: skip
def test_bad_lock_files(old: str, new: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "datasets.lock"
    text = dump_lock(GOOD)
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_lock(file)
    assert str(file) in caught.value.message
    assert message in caught.value.message
    assert caught.value.message.isprintable()


def test_sizes_are_bounded_and_special_files_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = toml(tmp_path, "[datasets]\n" + "#" * 100)
    monkeypatch.setattr(requests, "MAX_BYTES", 50)
    with pytest.raises(UsageError, match="larger than 50 bytes"):
        read_requests(file)
    lock = tmp_path / "datasets.lock"
    lock.write_text(dump_lock(GOOD), encoding="utf-8")
    monkeypatch.setattr(lockfile, "MAX_BYTES", 50)
    with pytest.raises(UsageError, match="larger than 50 bytes"):
        read_lock(lock)
    lock.unlink()
    os.mkfifo(lock)
    with pytest.raises(UsageError, match="not a plain file"):
        read_lock(lock)
    with pytest.raises(UsageError, match="is a lock file"):
        api.lock(lock)
    with pytest.raises(NotFoundError, match=r"nowhere.toml"):
        api.lock(tmp_path / "nowhere.toml")


def test_damaged_bytes_give_our_errors_only(tmp_path: Path) -> None:
    rng = random.Random(7)  # noqa: S311
    whole = dump_lock(GOOD).encode()
    request = (
        b'[datasets]\na = { id = "d4rl:x@1", episodes = "1:4", layout = "ted" }\nb = "hf://u/x"\n'
    )
    refused = 0
    for read, text in ((read_lock, whole), (read_requests, request)):
        for _ in range(300):
            data = bytearray(text)
            for _ in range(rng.randint(1, 4)):
                at = rng.randrange(len(data))
                choice = rng.random()
                if choice < 0.3:
                    del data[at : at + rng.randint(1, 20)]
                elif choice < 0.6:
                    data[at:at] = bytes(rng.choices(b"[]{}\"'=.,\n\\u0-9@:/", k=rng.randint(1, 4)))
                else:
                    data[at] = rng.randrange(256)
            try:
                read(toml(tmp_path, bytes(data)))
            except OfflineDataError as error:
                refused += 1
                assert "datasets.toml" in error.message  # noqa: PT017 -- any of them is right
    assert refused > 300

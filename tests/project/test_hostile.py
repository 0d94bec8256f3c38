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
from tests.refusals import Refusals

REFUSALS = Refusals(Path(__file__).with_name("refusals.json"))
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


@REFUSALS.cases
def test_refusals(kind: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / ("datasets.toml" if kind == "requests" else "datasets.lock")

    def request(content: str | bytes) -> object:
        return api.lock(toml(tmp_path, content), root=tmp_path / "root", progress=False)

    def locked(old: str, new: str) -> object:
        """Read a lock file with other text in one place."""
        assert old in dump_lock(GOOD)
        file.write_text(dump_lock(GOOD).replace(old, new, 1), encoding="utf-8")
        return read_lock(file)

    names = {"SHA": SHA, "request": request, "locked": locked}
    REFUSALS.check(kind, text, lambda: eval(text, names), {file: "FILE"})  # noqa: S307
    said = str(REFUSALS.known[kind][text])
    assert said.partition(": ")[2].startswith("FILE")
    assert said.isprintable()
    assert list(tmp_path.iterdir()) == [file]


def test_sizes_are_bounded_and_special_files_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="nested deeper than 64"):
        read_requests(toml(tmp_path, "[datasets]\na.id" + ".x" * 5000 + " = 1"))
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

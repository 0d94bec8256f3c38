"""What tests of fetching share: quick limits, self-identifying bytes, a progress that remembers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.base.config import Settings
from offline_data.fetch.files import FetchedFile, RemoteFile
from offline_data.fetch.plan import plan_fetch
from offline_data.fetch.retry import FetchLimits
from offline_data.fetch.run import run_fetch
from tests.toys.servers import FileServer

MAGIC = b"\x89HDF\r\n\x1a\n"


@dataclass
class Tally:
    """A progress that adds up what it is told."""

    total: int | None = None
    seen: int = 0
    skipped: int = 0
    unit: str = ""
    notes: list[str] = field(default_factory=list)
    inside: dict[str, Tally] | None = None
    """Tasks of single files, while the one of all is open."""

    def skip(self, amount: int) -> None:
        self.skipped += amount
        self.advance(amount)

    def advance(self, amount: int = 1) -> None:
        self.seen += amount

    def resize(self, total: int) -> None:
        self.total = total

    @contextmanager
    def task(self, label: str, total: int | None, unit: str) -> Iterator[Tally]:
        """Count the first task here, and those inside it apart, by their labels."""
        if self.inside is None:
            self.inside = {}
            self.total, self.unit = total, unit
            yield self
            self.inside = None
            return
        yield self.inside.setdefault(label, Tally(total, unit=unit))

    def note(self, message: str) -> None:
        self.notes.append(message)


@pytest.fixture
def tally() -> Tally:
    return Tally()


@pytest.fixture
def online(tmp_path: Path) -> Settings:
    return Settings(root=tmp_path / "root")


@pytest.fixture(scope="session")
def quick() -> FetchLimits:
    """Short waits; a host that says nothing is waited for, which `impatient` is for."""
    return FetchLimits(tries=3, first_wait=0.001, longest_wait=0.002)


@pytest.fixture(scope="session")
def impatient(quick: FetchLimits) -> FetchLimits:
    """For hosts that stall; on a busy machine others may seem to."""
    return replace(quick, read=0.5)


@pytest.fixture(scope="session")
def content() -> bytes:
    """200 KB that begin like HDF5, in which no eight bytes occur twice."""
    return MAGIC + np.arange(1, 25_000, dtype="<u8").tobytes()


@pytest.fixture(scope="session")
def sha256() -> Callable[[bytes], str]:
    return lambda data: hashlib.sha256(data).hexdigest()


@pytest.fixture
def named(online: Settings) -> Callable[[], list[str]]:
    """Give the names of whole files under the downloads folder; each must be its content's sha256."""

    def names() -> list[str]:
        files = list((online.downloads / "sha256").glob("??/*"))
        for path in files:
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
        return sorted(path.name for path in files)

    return names


@pytest.fixture
def left(online: Settings) -> Callable[[], list[str]]:
    """Give the names of parts and notes that are left."""
    folder = online.downloads / "partial"
    return lambda: sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.fixture
def server(content: bytes) -> Iterator[FileServer]:
    with FileServer({"/set/door.hdf5": content}) as running:
        yield running


@pytest.fixture
def fetch(quick: FetchLimits) -> Callable[..., FetchedFile]:
    """Plan and fetch one file with quick limits."""

    def fetch_one(
        file: RemoteFile, settings: Settings, *, force: bool = False, **rest: Any
    ) -> FetchedFile:
        plan = plan_fetch([file], settings, force=force)
        (found,) = run_fetch(plan, settings, **{"limits": quick, **rest})
        return found

    return fetch_one

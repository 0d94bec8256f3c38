from __future__ import annotations

import json
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import pytest

from offline_data.base.errors import OfflineDataError
from offline_data.episode import EpisodeBatch
from offline_data.pipeline.ingest.reading import blaming
from offline_data_cli.main import EXIT_CODES
from tests.toys.minari import ToyEpisode, box, read_minari, toy_episode, write_minari

MEMORY = 3 << 30
Ran = Callable[..., tuple[int, str]]


@pytest.fixture
def parse() -> Ran:
    """Read in this process, and give what the command would: the exit code, and what is said."""

    def run(folder: Path) -> tuple[int, str]:
        try:
            read(folder)
        except OfflineDataError as error:
            said = f"{error.message}\n{error.hint}"
            assert "unexpected" not in said
            return next(code for kind, code in EXIT_CODES if isinstance(error, kind)), said
        return 0, ""

    return run


@pytest.fixture
def bounded() -> Iterator[None]:
    """Two minutes and some more memory for each test."""

    def late(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(120)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def read(folder: Path) -> EpisodeBatch:
    """Read as the command does."""
    with blaming(folder):
        return read_minari(folder)


def two(folder: Path, storage: str = "hdf5", *between: ToyEpisode) -> Path:
    """Write episodes of three and two steps."""
    episodes = [toy_episode(0, 3), *between, toy_episode(1, 2)]
    return write_minari(folder, episodes, storage)


def hdf5(folder: Path) -> h5py.File:
    return h5py.File(folder / "data" / "main_data.hdf5", "a")


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def with_fields(folder: Path, **fields: Any) -> Path:
    """Change the metadata of a dataset."""
    edit_json(folder / "data" / "metadata.json", **fields)
    return folder


def deep(depth: int) -> str:
    return "[" * depth + "]" * depth


def nested_space(depth: int) -> str:
    return '{"type": "Tuple", "subspaces": [' * depth + json.dumps(box(3)) + "]}" * depth

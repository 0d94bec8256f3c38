"""Fixtures that several rooms of tests share."""

from __future__ import annotations

import gc
import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from offline_data.analysis.frames import image_leaves
from offline_data.base.config import Settings
from offline_data.fetch import retry
from offline_data.formats.base import Release
from offline_data.formats.d4rl.source import D4RL
from offline_data.reports.pages import preview
from offline_data.store.reader import DatasetReader
from offline_data.testing.toy import toy_batch, write_toy
from tests import entry_points
from tests.toys.servers import FileServer

REALDATA = Path(__file__).resolve().parents[2] / "shared" / "realdata"


def pytest_collection() -> None:
    """Collect tests without the garbage collector, which took a quarter of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Let it pass over modules and tests from now on: each time, they took 0.3 s."""
    gc.enable()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let Hypothesis, which pytest imports at the end, see what holds its random generators."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def realdata() -> Path:
    """Folder of small real files written by others; absent in a user's clone, then a skip."""
    if not REALDATA.is_dir():
        pytest.skip("the folder of real files is not here")
    return REALDATA


@pytest.fixture(scope="session", autouse=True)
def _signals_are_not_ignored() -> None:
    """Take back what a shell that starts tests in the background, or nohup, hands down to children."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)


@pytest.fixture(scope="session", autouse=True)
def _no_waits_for_the_disk() -> Iterator[None]:
    """Skip `os.fsync` in this process: only a cut of power would show that it was called.

    Tests of what is synced, and of disks that fail, replace it themselves; commands in processes of
    their own call the real one.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _entry_points_are_read_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        entry_points.read_once(patch)
        yield


@pytest.fixture(scope="session")
def _drawn_previews() -> dict[int, bytes | None]:
    return {}


@pytest.fixture(autouse=True)
def _a_preview_is_drawn_once(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    _drawn_previews: dict[int, bytes | None],
) -> None:
    """Draw the histograms on a card once for each number of episodes: they were most of an export's time.

    Tests of pages draw each one.
    """
    if "tests/reports" not in request.node.nodeid:

        def draw(reader: DatasetReader, stats: Any) -> bytes | None:
            if image_leaves(reader):
                return drawn(reader, stats)
            if reader.episode_count not in _drawn_previews:
                _drawn_previews[reader.episode_count] = drawn(reader, stats)
            return _drawn_previews[reader.episode_count]

        drawn = preview.draw_preview
        monkeypatch.setattr(preview, "draw_preview", draw)


@pytest.fixture(scope="session")
def _folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder, numbers = tmp_path_factory.mktemp("tests"), count()
    return lambda name: folder / f"{name}{next(numbers)}"


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, _folders: Callable[[str], Path]) -> Path:
    """Return a new folder, as the fixture of pytest, which before version 9.1 lists those of all tests.

    After some thousands, a free number for the next one took 10 ms.
    """
    path = _folders(re.sub(r"\W", "_", request.node.name)[:30])
    path.mkdir(mode=0o700)
    return path


@pytest.fixture(autouse=True)
def _usual_scheduling() -> Iterator[None]:
    """Undo what SVT-AV1 does where tests use it themselves; see `offline_data.raw.video.same_scheduling`."""
    yield
    if hasattr(os, "sched_setscheduler") and os.sched_getscheduler(0) != os.SCHED_OTHER:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@pytest.fixture(autouse=True)
def _no_garbage_of_others(request: pytest.FixtureRequest) -> None:
    """Collect garbage before input that is parsed until the stack is full.

    Finalizers that run there fail, and pytest reports those of other tests as failures of this one.
    """
    if re.search(r"deep(?!copy|/|')|\[{9}|\({9}", request.node.name):
        gc.collect()


@pytest.fixture(autouse=True)
def _no_config_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Keep tests, and programs they start, from reading the config file of whoever runs them."""
    monkeypatch.delenv("OFFLINE_DATA_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "no-config"))


@pytest.fixture(autouse=True)
def _no_published_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small files stand for D4RL's, whose sizes the catalogue knows; `published_size` does not."""
    if request.node.get_closest_marker("published_size"):
        return
    resolve = D4RL.resolve

    def unsized(self: D4RL, name: str, revision: str | None, settings: Settings) -> Release:
        release = resolve(self, name, revision, settings)
        return replace(release, files=tuple(replace(file, size=None) for file in release.files))

    monkeypatch.setattr(D4RL, "resolve", unsized)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings whose every folder is new and empty, offline, one process."""
    return Settings(
        root=tmp_path / "root", offline=True, workers=1, minari_path=tmp_path / "minari"
    )


@pytest.fixture
def server() -> Iterator[FileServer]:
    """A host whose `files` the test sets."""
    with FileServer({}) as running:
        yield running


@pytest.fixture
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that fails is tried again at once, by this process."""
    monkeypatch.setattr(retry, "wait_before", lambda *_: 0.0)


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Datasets that tests only read, each written once: `toys([3, 1], layout="ted", text=True)`.

    Arguments are those of `toy_batch`, and `layout` and `dataset` of `write_toy`. A test that
    changes files takes a copy of the folder.
    """
    written: dict[str, Path] = {}

    def write(
        lengths: Any, *, layout: Any = "compact", dataset: str = "local:toy@1", **content: Any
    ) -> Path:
        name = repr((tuple(lengths), layout, dataset, content))
        if name not in written:
            folder = tmp_path_factory.mktemp("toys") / "toy"
            batch = toy_batch(lengths, **content)
            write_toy(folder, [batch], layout=layout, dataset=dataset, audit="none")
            written[name] = folder
        return written[name]

    return write

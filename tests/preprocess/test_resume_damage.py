"""What was damaged is made again, and what was being finished is finished."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.config import Settings
from offline_data.errors import OfflineDataError
from offline_data.preprocess import engine
from offline_data.preprocess.work import Work
from offline_data.store import writer
from offline_data.store.verify import verify
from tests.preprocess.oracle import digests
from tests.preprocess.runs import Shuffled, make
from tests.preprocess.stopping import (
    STAGES,
    goes_on,
    stopped,
    whole,
    work_of,
    write_parent,
)


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write_parent(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return whole(tmp_path_factory.mktemp("whole"))


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def garbled(path: Path) -> None:
    path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size + 9))


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-9] ^= 16
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [truncated, zeroed, garbled, flipped, Path.unlink])
@pytest.mark.parametrize(
    ("pattern", "shards"),
    [
        ("plan", False),
        ("finished/*", False),
        ("dataset/steps/*", False),
        ("dataset/observations/*", False),
        ("shards/*/*/*", True),
    ],
)
def test_damage_is_never_taken_for_data(
    parent: Path,
    wanted: dict[str, str],
    tmp_path: Path,
    settings: Settings,
    damage: Callable[[Path], None],
    pattern: str,
    shards: bool,
) -> None:
    stopped(parent, tmp_path, settings, shards=shards)
    damaged = sorted(work_of(tmp_path).path.glob(pattern))[:2]
    assert damaged
    for path in damaged:
        damage(path)
    ran = goes_on(parent, tmp_path, settings, shards=shards)
    assert len(ran) in range(11, 31)
    assert digests(tmp_path / "out") == wanted


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize(
    "what", ["dump_manifest", "meta_files", "check_episodes", "publish", "clear"]
)
def test_stopped_while_it_is_finished(
    parent: Path,
    wanted: dict[str, str],
    tmp_path: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    shards: bool,
) -> None:
    place: Any = {"publish": engine, "clear": Work}.get(what, writer)
    calls = [0]

    def stop(*_: Any, **__: Any) -> None:
        calls[0] += 1
        if what != "clear" or calls[0] == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(place, what, stop)
        with pytest.raises(KeyboardInterrupt):
            make(parent, STAGES, tmp_path / "out", settings, executor=Shuffled(shards=shards))
    assert (tmp_path / "out").exists() == (what == "clear")
    if what == "clear":
        assert make(parent, STAGES, tmp_path / "out", settings).existed
    else:
        assert goes_on(parent, tmp_path, settings, shards=shards) == []
    assert digests(tmp_path / "out") == wanted
    assert verify(tmp_path / "out") == ()


def test_no_error_is_other_than_ours(parent: Path, tmp_path: Path, settings: Settings) -> None:
    """Whatever lies in the work folder."""
    for content in ("{}", "[]", '{"fingerprint": 3}', "PK\x03\x04"):
        work_of(tmp_path).path.mkdir(exist_ok=True)
        work_of(tmp_path).plan.write_text(content)
        try:
            make(parent, STAGES, tmp_path / "out", settings, resume=True, force=True)
        except OfflineDataError as error:
            pytest.fail(str(error))

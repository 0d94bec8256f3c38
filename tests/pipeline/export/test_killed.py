"""An export that is killed at any file operation leaves the older one or the new one, and can be repeated."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import AccessError, NoSpaceError
from offline_data.formats.writing.base import get_target
from offline_data.pipeline.export import writing
from tests.pipeline.jobs.faults import Fault

Store = Callable[[str], Path]


def content(dest: Path) -> dict[str, str] | None:
    """Return the digests of the files of an export, without receipt and card; None: there is none."""
    if not dest.exists():
        return None
    files = [one for one in dest.rglob("*") if one.is_file()] if dest.is_dir() else [dest]
    return {
        str(one.relative_to(dest)): hashlib.sha256(one.read_bytes()).hexdigest()
        for one in files
        if one.name not in {"export.json", "README.md"}
    }


def export_with_fault(
    path: Path,
    dest: Path,
    to: str,
    settings: Settings,
    kind: Literal["killed", "disk full"],
    at: int,
) -> int:
    """Export in a fork in which a file operation fails; return its exit status, 0 if none did."""
    child = os.fork()
    if not child:
        fault = Fault(kind, at, dest.parent)
        try:
            offline_data.export(path, dest, to=to, settings=settings, progress=False)
        except (NoSpaceError, AccessError):  # the lock's file cannot be made
            os._exit(7)
        except BaseException as error:  # noqa: BLE001 - the parent is told
            sys.stderr.write(repr(error))
            os._exit(8)
        os._exit(0 if fault.count < at else 9)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize(
    ("to", "kind", "step"),
    [
        pytest.param("parquet", "killed", 4, id="parquet-killed-every-4"),
        pytest.param("parquet", "killed", 1, marks=pytest.mark.slow),
        pytest.param("parquet", "disk full", 1, marks=pytest.mark.slow),
        pytest.param("npz", "killed", 1, marks=pytest.mark.slow),
        pytest.param("npz", "disk full", 1, marks=pytest.mark.slow),
    ],
)
def test_file_operations(
    to: str,
    kind: Literal["killed", "disk full"],
    step: int,
    stored: Store,
    settings: Settings,
    tmp_path: Path,
) -> None:
    older, path = stored("odd ends"), stored("flat")
    out, kept = tmp_path / "out", tmp_path / "kept"
    dest = out / f"toy{get_target(to).suffix}"
    offline_data.export(path, dest, to=to, settings=settings, progress=False)
    new = content(dest)
    offline_data.export(older, dest, to=to, settings=settings, progress=False)
    old = content(dest)
    assert old != new
    shutil.copytree(out, kept)
    names = {one.name for one in out.iterdir()}
    failed = 0
    for at in range(1, 1000, step):
        code = export_with_fault(path, dest, to, settings, kind, at)
        if code == 0:
            break
        assert code in {-signal.SIGKILL, 7, 9}, (at, code)
        failed += 1
        found = content(dest)
        swapped = found is None and kind == "killed" and to == "parquet"
        assert swapped or found in (old, new), at
        done = offline_data.export(path, dest, to=to, settings=settings, progress=False)
        assert content(dest) == new, at
        assert done.id == "local:flat@1"
        assert {one.name for one in out.iterdir()} == names, at
        shutil.rmtree(out)
        shutil.copytree(kept, out)
    assert failed > 10 // step


def test_space_is_looked_for_with_the_largest_file(tmp_path: Path) -> None:
    for name, size in (("a", 1), ("b", 5), ("c", 3)):
        (tmp_path / name).write_bytes(bytes(size))
    for count, path in enumerate((tmp_path, tmp_path / "x.npz"), 1):
        writing._check_space(path)
        sizes = [(tmp_path / name).stat().st_size for name in "abc"]
        assert sizes == [1, 5 + count * writing._PROBE, 3]

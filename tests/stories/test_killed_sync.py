"""`lock` and `sync` killed at several moments, then run again: nothing lost, nothing half-made."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from offline_data.store.layout import MANIFEST
from offline_data.store.verify import verify
from tests.stories.conftest import Shell
from tests.toys.minari import write_minari_hdf5

pytestmark = pytest.mark.slow

HOLD = """
import os, sys, time
published = 0
def hold(event, arguments):
    global published
    if event != "os.rename":
        return
    source, target = map(str, arguments[:2])
    at = os.environ["HOLD_AT"]
    while at == "lock" and target.endswith("datasets.lock"):
        time.sleep(0.01)
    while at.isdigit() and source.endswith("/dataset") and published >= int(at):
        time.sleep(0.01)
    published += source.endswith("/dataset")
sys.addaudithook(hold)
"""
"""Keeps a program from renaming the dataset of a number, or the lock file: it does not end."""


def manifests(root: Path) -> list[Path]:
    """Return the datasets of a root, all of which must be whole."""
    found = sorted((root / "minari").rglob(MANIFEST)) if root.exists() else []
    for manifest in found:
        assert verify(manifest.parent) == ()
    return found


def content(root: Path) -> dict[str, bytes]:
    """Read the rows of all datasets of a root, by their path in it."""
    rows = (path for folder in manifests(root) for path in folder.parent.rglob("*.memmap"))
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in rows}


def kill_once(shell: Shell, at: str, begun: Callable[[], object], *line: str) -> None:
    """Run a command that is held at a moment, and kill it once it has begun with something."""
    hold = shell.folder / "hold"
    hold.mkdir(exist_ok=True)
    (hold / "sitecustomize.py").write_text(HOLD)
    process = Shell(shell.folder, {**shell.extra, "PYTHONPATH": str(hold), "HOLD_AT": at}).start(
        *line
    )
    while not begun():
        time.sleep(0.005)
        assert process.poll() is None, process.communicate()
    process.kill()
    process.communicate()


def test_killed_then_run_again(shell: Shell) -> None:
    for name in ("a", "b"):
        write_minari_hdf5(shell.folder / "minari" / name / "run-v0", 40, 50)
    file = shell.folder / "project" / "datasets.toml"
    file.parent.mkdir()
    file.write_text('[datasets]\na = "minari:a/run-v0"\nb = "minari:b/run-v0"\n')
    lock, asked = file.with_suffix(".lock"), ("--file", str(file))

    def beside() -> list[Path]:
        return list(file.parent.glob(".datasets.lock.*"))

    kill_once(shell, "lock", beside, "lock", *asked)
    assert not lock.exists()
    assert len(manifests(shell.root)) == 2
    shell.run("lock", *asked)
    text, expected = lock.read_bytes(), content(shell.root)
    assert len(expected) > 2

    other = Shell(shell.folder, {"OFFLINE_DATA_HOME": str(shell.folder / "other")})
    root = shell.folder / "other"

    def staged() -> bool:
        with suppress(FileNotFoundError):  # what the one before left is being deleted
            return any((root / ".staging").rglob("*.memmap"))
        return False

    sync = ("sync", "--locked", *asked)
    for at, begun, done in (
        ("0", staged, 0),
        ("1", lambda: len(list((root / "minari").rglob(MANIFEST))) == 1 and staged(), 1),
    ):
        kill_once(other, at, begun, *sync)
        assert len(manifests(root)) == done
        assert lock.read_bytes() == text
    other.run(*sync)
    assert content(root) == expected
    assert lock.read_bytes() == text
    assert [path for path in (root / ".staging").iterdir() if path.is_dir()] == []
    assert [one["action"] for one in other.json(*sync)] == ["none", "none"]

"""Killed, interrupted, twice at once, on a full disk: whole datasets or none."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from offline_data.store.layout import MANIFEST
from offline_data.store.verify import verify
from tests.stories.conftest import Shell
from tests.toys.minari import toy_episode, write_minari, write_minari_hdf5
from tests.toys.servers import HubServer

pytestmark = pytest.mark.slow

NAME = "big/run-v0"

HOLD = """
import sys, time
def hold(event, arguments):
    while event == "os.rename" and str(arguments[0]).endswith("/dataset"):
        time.sleep(0.01)
sys.addaudithook(hold)
"""
"""Keeps a program from publishing: however fast it is, it does not end before it is killed."""


@pytest.fixture
def big(shell: Shell) -> Path:
    """A local Minari dataset."""
    return write_minari_hdf5(shell.folder / "minari" / NAME, 200, 200)


def whole_or_absent(shell: Shell) -> bool:
    """Return True if the dataset is there; it is whole then."""
    found = list((shell.root / "minari").rglob(MANIFEST)) if shell.root.exists() else []
    for manifest in found:
        assert verify(manifest.parent) == ()
    return bool(found)


def staged(shell: Shell) -> list[Path]:
    staging = shell.root / ".staging"
    return [path for path in staging.iterdir() if path.is_dir()] if staging.exists() else []


def download_until(shell: Shell, begun: Callable[[], object]) -> subprocess.Popen[str]:
    """Start to download `NAME`, and return once it has begun with something; it never ends."""
    (shell.folder / "hold").mkdir(exist_ok=True)
    (shell.folder / "hold" / "sitecustomize.py").write_text(HOLD)
    held = Shell(shell.folder, {"PYTHONPATH": str(shell.folder / "hold")})
    process = held.start("download", f"minari:{NAME}")
    while not begun():
        time.sleep(0.005)
        assert process.poll() is None, process.communicate()
    return process


@pytest.mark.usefixtures("big")
def test_interrupted_cleanly_and_said_how_to_go_on(shell: Shell) -> None:
    process = download_until(shell, lambda: staged(shell))
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert out == ""
    assert "run the same command again" in err
    assert "Traceback" not in err
    assert staged(shell) == []
    assert not whole_or_absent(shell)


def test_two_at_once_do_the_work_once(shell: Shell, tmp_path: Path) -> None:
    write_minari(tmp_path / "repo" / "run-v0", [toy_episode(e, 300) for e in range(4)])
    with HubServer({"farama-minari/big": tmp_path / "repo"}) as hub:
        user = Shell(shell.folder, {"HF_ENDPOINT": hub.url})
        both = [user.start("download", f"minari:{NAME}", "--json") for _ in range(2)]
        ends = [process.communicate(timeout=240) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    assert sorted('"existed": true' in out for out, _ in ends) == [False, True]
    assert len(user.datasets()) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 30 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=30m", "tmpfs", str(folder)]
    if (
        shutil.which("mount") is None
        or subprocess.run(mount, capture_output=True, check=False).returncode
    ):
        pytest.skip("this user may not mount a disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_met_before_and_while_writing(shell: Shell, small_disk: Path) -> None:
    write_minari_hdf5(shell.folder / "minari" / NAME, 110, 1000)
    verb = ("download", f"minari:{NAME}", "--layout", "ted", "--root", str(small_disk))
    before = shell.json(*verb, code=7)["error"]
    assert before["code"] == "no_space"
    assert "free" in before["message"]
    # The size of some episodes is not known before: then the disk does become full.
    after = shell.json(*verb, "--episodes", "0:107", code=7)["error"]
    assert "became full" in after["message"]
    assert sum(path.stat().st_size for path in small_disk.rglob("*") if path.is_file()) == 0

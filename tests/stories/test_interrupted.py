"""Killed, interrupted, twice at once, on a full disk: whole datasets or none."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from offline_data.store.layout import MANIFEST
from offline_data.store.verify import verify
from offline_data.testing.minari_toy import toy_episode, write_minari, write_minari_hdf5
from offline_data.testing.servers import HubServer
from tests.stories.conftest import Shell

NAME = "big/run-v0"


@pytest.fixture
def big(shell: Shell) -> Path:
    """A local Minari dataset that takes a noticeable time to convert."""
    return write_minari_hdf5(shell.folder / "minari" / NAME, 400, 500)


def whole_or_absent(shell: Shell) -> bool:
    """Tell whether the dataset is there; it is whole then."""
    found = list((shell.root / "minari").rglob(MANIFEST)) if shell.root.exists() else []
    for manifest in found:
        assert verify(manifest.parent) == ()
    return bool(found)


def staged(shell: Shell) -> list[Path]:
    staging = shell.root / ".staging"
    return [path for path in staging.iterdir() if path.is_dir()] if staging.exists() else []


@pytest.mark.usefixtures("big")
def test_killed_at_any_moment_then_finished(shell: Shell) -> None:
    begin = time.monotonic()
    shell.start("download", f"minari:{NAME}").communicate()
    whole = time.monotonic() - begin
    killed = 0
    for share in (0.3, 0.5, 0.7, 0.85):
        shutil.rmtree(shell.root, ignore_errors=True)
        process = shell.start("download", f"minari:{NAME}")
        time.sleep(whole * share)
        process.kill()
        process.communicate()
        killed += not whole_or_absent(shell)
    assert killed >= 2
    shell.run("download", f"minari:{NAME}")
    assert whole_or_absent(shell)
    assert staged(shell) == []


@pytest.mark.usefixtures("big")
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_cleanly_and_said_how_to_go_on(shell: Shell, sign: signal.Signals) -> None:
    process = shell.start("download", f"minari:{NAME}")
    while not staged(shell):
        time.sleep(0.01)
        assert process.poll() is None
    process.send_signal(sign)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert out == ""
    assert "run the same command again" in err
    assert "Traceback" not in err
    assert staged(shell) == []
    assert not whole_or_absent(shell)
    shell.run("download", f"minari:{NAME}")


def test_two_at_once_do_the_work_once(shell: Shell, tmp_path: Path) -> None:
    write_minari(tmp_path / "repo" / "run-v0", [toy_episode(e, 300) for e in range(4)])
    with HubServer({"farama-minari/big": tmp_path / "repo"}) as hub:
        user = Shell(shell.folder, {"HF_ENDPOINT": hub.url})
        both = [user.start("download", f"minari:{NAME}", "--json") for _ in range(2)]
        ends = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    assert sorted('"existed": true' in out for out, _ in ends) == [False, True]
    assert len(user.datasets()) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 110 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=110m", "tmpfs", str(folder)]
    if (
        shutil.which("mount") is None
        or subprocess.run(mount, capture_output=True, check=False).returncode
    ):
        pytest.skip("this user may not mount a disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_met_before_and_while_writing(shell: Shell, small_disk: Path) -> None:
    write_minari_hdf5(shell.folder / "minari" / NAME, 400, 1000)
    verb = ("download", f"minari:{NAME}", "--layout", "ted", "--root", str(small_disk))
    before = shell.json(*verb, code=7)["error"]
    assert before["code"] == "no_space"
    assert "free" in before["message"]
    # The size of some episodes is not known before: then the disk does become full.
    after = shell.json(*verb, "--episodes", "0:390", code=7)["error"]
    assert "became full" in after["message"]
    assert sum(path.stat().st_size for path in small_disk.rglob("*") if path.is_file()) == 0

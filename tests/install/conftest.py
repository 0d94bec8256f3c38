"""The project's files as others get them, and a folder in which a program does the tour."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import setuptools

from tests.install import tour
from tests.stories.conftest import D4RL_HOST, PEN_FILE, Shell
from tests.toys.d4rl import write_d4rl_hdf5
from tests.toys.minari import toy_episode, write_minari
from tests.toys.servers import FileServer, HubServer

ROOT = Path(__file__).parents[2]
DOUBLE = "def double(row):\n    return {'action': row['action'] * 2}\n"

Tour: TypeAlias = Callable[..., dict[str, Any]]


@pytest.fixture
def take_tour(tmp_path: Path) -> Iterator[Tour]:
    """Return a function that runs `tour.py` with a Python; takes more variables of its environment."""
    write_minari(tmp_path / "repo/door/human-v2", [toy_episode(e, 9) for e in range(3)])
    folder = tmp_path / "tour"
    folder.mkdir()
    pen = write_d4rl_hdf5(folder / "recorded.hdf5").read_bytes()
    (folder / "double.py").write_text(DOUBLE)
    with (
        HubServer({"farama-minari/D4RL": tmp_path / "repo"}) as hub,
        FileServer({PEN_FILE: pen}) as host,
    ):
        mirrors = f"{D4RL_HOST}={host.url}/"
        shell = Shell(tmp_path, {"HF_ENDPOINT": hub.url, "OFFLINE_DATA_MIRRORS": mirrors})

        def take(python: str | Path = sys.executable, **more: str) -> dict[str, Any]:
            result = tmp_path / "result.json"
            done = subprocess.run(
                [str(python), "-W", "error", tour.__file__, str(result)],
                cwd=folder,
                env={**shell.environ, **more},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            return dict(json.loads(result.read_text("utf-8")))

        yield take


def setup_options(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what setup.py gives to setuptools, run in a folder."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **options: given.update(options))
    monkeypatch.chdir(folder)
    runpy.run_path(str(ROOT / "setup.py"))
    return given


@pytest.fixture(scope="session")
def tracked() -> list[str]:
    """List the files of the project, as git knows them."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(name for name in listed.stdout.splitlines() if (ROOT / name).is_file())


def build(source: Path, out: Path, *, what: str) -> Path:
    """Build the sdist or wheel of a folder, in an environment of its own; returns the file."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(out),
    ]
    if what == "sdist":
        code = "from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
        command = [sys.executable, "-W", "ignore", "-c", f"import sys; {code}", str(out)]
    else:
        command.append(str(source))
    out.mkdir(exist_ok=True)
    plain = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=source, env=plain, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="session")
def sdist(tracked: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist of the project, built in a copy of its files."""
    folder: Path = tmp_path_factory.mktemp("tree")
    for name in tracked:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    (folder / "offline_data" / "__pycache__").mkdir()
    (folder / "offline_data" / "__pycache__" / "old.cpython-311.pyc").write_bytes(b"old")
    return build(folder, tmp_path_factory.mktemp("sdist"), what="sdist")


@pytest.fixture(scope="session")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the unpacked sdist in a clean folder."""
    folder: Path = tmp_path_factory.mktemp("unpacked")
    shutil.unpack_archive(sdist, folder, filter="data")
    (source,) = folder.iterdir()
    return build(source, tmp_path_factory.mktemp("wheel"), what="wheel")

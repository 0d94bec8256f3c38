"""Arguments that make no sense: a documented exit code and a sentence."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from offline_data.store.reader import open_reader
from tests.toys.minari import toy_episode, write_minari

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

BIG, HUGE, BYTES = "9" * 30, "9" * 5000, os.fsdecode(b"\xff")
DOWNLOAD, CLIP = "download d4rl:pen-human-v1", "--step reward_clip:high=1"

LINES = {
    "head local:toy -n -1": {2},
    f"head local:toy -n {BIG}": {0},
    f"head local:toy -n {HUGE}": {2},
    f"head local:toy --episode {BIG}": {2, 3},
    f"sample local:toy --batch {BIG}": {2},
    f"sample local:toy --slices {BIG}": {2},
    f"{DOWNLOAD} --episodes {HUGE}:": {2},
    f"{DOWNLOAD} --episodes 1:\u0663": {2},
    f"{DOWNLOAD} --audit nan": {2},
    f"{DOWNLOAD} --audit {BYTES}": {2},
    f"cache prune --older-than {HUGE} -y": {2},
    f"info local:{BYTES}": {2, 3},
    "info ": {2, 3},
    f"list --prefix {BYTES}": {0},
    f"search {BYTES}": {3},
    "search ": {0},
    "": {2},
    BYTES: {2},
    "list --root ~nosuchuser/x": {2},
    "info ~nosuchuser/x": {2},
    f"preprocess ~nosuchuser/x {CLIP} --out y": {2},
    "convert ~nosuchuser/x y": {2},
    f"preprocess local:toy {CLIP} --dest ~nosuchuser/x": {2},
    "preprocess local:toy --fn ~nosuchuser/x.py:f --out y": {2},
    "worker --plan ~nosuchuser/x --rank 0": {2},
    "cache rm ~nosuchuser/x -y": {2},
    f"list --root /srv/{'a' * 300}": {2},
    f"cache rm {BYTES} -y": {3},
}


PATHS = {
    "convert {}/one-v0 hdf5": 0,
    "convert {}/arrow-v0 arrow": 0,
    "convert {}/parquet-v0 parquet": 0,
    "convert {}/one-v0 plan --plan-only --plan {}/plan.json": 2,
    "convert {} folder": 5,
    "convert {}/gone x": 3,
    "info hdf5 --json": 0,
    "info local:hdf5": 0,
    "list": 0,
    "check hdf5 --output-format sarif --out {}/x.sarif --fail-on never": 0,
    "verify {root}/local/toy/1": 0,
    "preprocess toy --step reward_clip:high=1 --out a": 0,
    "preprocess toy --fn {}/f.py:same --dest {}/b": 0,
    "preprocess toy --step reward_clip:high=1 --out c --plan-only --plan {}/plan.json": 2,
    "filter toy length>2 --out d": 0,
    "report toy --out {}/x.html": 0,
    "cache ls": 0,
    "cp toy e": 0,
    "config set root {}": 2,
    "rm a d e --yes": 0,
}
"""Commands below a folder with a name that is not UTF-8."""


def test_paths_that_are_not_utf_8(
    cli: Cli, toy_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, folder = tmp_path / "plain", tmp_path / f"a{BYTES}"
    for name, storage in (("one-v0", "hdf5"), ("arrow-v0", "arrow"), ("parquet-v0", "parquet")):
        write_minari(plain / name, [toy_episode(n, 3) for n in range(2)], storage)
    (plain / "one-v0" / f"notes{BYTES}").touch()
    (plain / "f.py").write_text("def same(td):\n    return td\n")
    (plain / "config.toml").touch()
    shutil.copytree(plain, folder)
    shutil.copytree(toy_root, folder / "root")
    monkeypatch.setenv("OFFLINE_DATA_HOME", str(folder / "root"))
    monkeypatch.setenv("OFFLINE_DATA_CONFIG", str(folder / "config.toml"))
    for stream in (sys.stdout, sys.stderr):  # the program's write such bytes as they are
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    for line, code in PATHS.items():
        ran = cli(*(w.format(folder, root=folder / "root") for w in line.split(" ")))
        assert ran.code == code, (line, ran.err)
        assert code == 0 or ran.err.startswith("error: "), line
        for word in ("unexpected", "Traceback", "damaged"):
            assert word not in ran.err, line
    actions = np.concatenate([toy_episode(n, 3).actions for n in range(2)])
    for name in ("hdf5", "arrow", "parquet"):
        (path,) = (folder / "root" / "local" / name).iterdir()
        reader = open_reader(path)
        np.testing.assert_array_equal(reader.step(("action",)), actions)
        assert ("notes?" in str(reader.manifest.files)) == (name == "hdf5")
    assert not (folder / "plan.json").exists()


def test_odd_arguments(cli: Cli, toy: Path) -> None:
    for line, codes in LINES.items():
        ran = cli(*line.split(" "), "--offline")
        assert ran.code in codes, (line, ran.err)
        for word in ("unexpected", "Traceback"):
            assert word not in ran.err, line

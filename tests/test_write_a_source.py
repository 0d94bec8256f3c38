"""Every block of `docs/write-a-source.md`, run as a reader would: the adapter, its tests, the commands."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from offline_data.base.errors import NotFoundError
from offline_data.store.library import list_datasets
from offline_data.store.reader import open_reader
from tests.pipeline.ingest.here import convert_here
from tests.stories.conftest import Shell
from tests.toys.servers import FileServer

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGE = (Path(__file__).parents[1] / "docs" / "write-a-source.md").read_text("utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
SHARDED = """
import h5py
import numpy as np
from lab_flat import LabFlat
from lab_shards import LabShards


class TestLabShards(SourceContract):
    @pytest.fixture
    def case(self, tmp_path):
        raw, release = tmp_path / "raw", LabShards().resolve("reach-v1", None, None)
        raw.mkdir()
        for n, file in enumerate(release.files[1:]):
            (raw / file.path).write_text("".join(LINE % (e, e + 1, -n) for e in range(3)))
        (raw / "index.json").write_text(str({f.path: 3 for f in release.files[1:]}).replace("'", '"'))
        return SourceCase(LabShards(), release, raw)


class TestLabFlat(SourceContract):
    @pytest.fixture
    def case(self, tmp_path):
        path = tmp_path / "mine.hdf5"
        with h5py.File(path, "w") as file:
            for name, rows in flat_columns().items():
                file[name] = rows
        return SourceCase(LabFlat(), LabFlat().release_of(path, "mine"), path)
"""
FLAT = """


def flat_columns():
    import numpy as np

    rows = np.arange(10)
    state = np.stack([rows, rows + 0.5], axis=1).astype(np.float32)
    after = state + 1
    after[[3, 9]] = -1
    ends = {"success": rows == 3, "time_up": rows == 6}
    steps = {"command": -state[:, :1], "score": rows / 8, "effort": rows * 3}
    return {"state": state, "state_after": after, **steps, **ends}
"""


def blocks(language: str) -> dict[str, str]:
    """Return the blocks of a language by the file that their first line names."""
    found = [body for kind, body in BLOCKS if kind == language]
    return {body.splitlines()[0].removeprefix("# "): body for body in found}


def install(folder: Path) -> None:
    """Write the files of the page, and register the adapter as pip would."""
    for name, body in {**blocks("python"), **blocks("toml")}.items():
        (folder / name).write_text(body, "utf-8")
    project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    ((group, points),) = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {place}" for name, place in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def recorded(episodes: int) -> bytes:
    """Write episodes of 1 to 4 transitions, whose values tell episode and step."""
    lines = []
    for number in range(episodes):
        length = 1 + number % 4
        code = [1000.0 * (number + 1) + t + 1 for t in range(length + 1)]
        row = {"obs": [[one, one + 0.5] for one in code], "action": [[-one] for one in code[:-1]]}
        reward = [one / 10 for one in code[1:]]
        lines.append(json.dumps({**row, "reward": reward, "success": number % 2 == 0}))
    return ("\n".join(lines) + "\n").encode()


def test_the_adapter_is_short_and_every_kind_of_block_is_run() -> None:
    assert [kind for kind, _ in BLOCKS] == ["json", "python", "toml", "console", *["python"] * 3]
    assert list(blocks("python")) == ["lab.py", "test_lab.py", "lab_flat.py", "lab_shards.py"]
    assert len(blocks("python")["lab_flat.py"].splitlines()) <= 60
    code = [line for line in blocks("python")["lab.py"].splitlines() if line.strip()]
    begin = next(n for n, line in enumerate(code) if line.startswith("DIGESTS"))
    assert len(code[begin:]) < 40
    assert max(map(len, code)) <= 100


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path)
    convert_here(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "lab", None)  # so that it is forgotten afterwards
    monkeypatch.delitem(sys.modules, "lab")
    data = recorded(10)
    (tmp_path / "recorded.jsonl").write_bytes(data)
    text = (tmp_path / "lab.py").read_text("utf-8")
    digest = hashlib.sha256(data).hexdigest()
    (tmp_path / "lab.py").write_text(re.sub("sha256:[0-9a-f]{64}", f"sha256:{digest}", text))
    assert digest in (tmp_path / "lab.py").read_text("utf-8")
    with FileServer({"/data/reach-v1.jsonl": data}) as server:
        mirrors = f"https://lab.example={server.url}"
        shell = Shell(tmp_path, {"OFFLINE_DATA_MIRRORS": mirrors})
        for command in blocks("console").popitem()[1].splitlines():
            dollar, program, *arguments = shlex.split(command)
            assert (dollar, program) == ("$", "offline-data")
            assert shell.run(*arguments).stdout
    stored = list_datasets(shell.root)
    assert [f"{one.id.source}:{one.id.name}" for one in stored] == ["lab:reach-v1", "local:mine"]
    rows = [json.loads(line) for line in data.splitlines()]
    for one in stored:
        reader = open_reader(one.path)
        assert reader.lengths.tolist() == [len(row["action"]) for row in rows]
        for leaf, key in ((("action",), "action"), (("next", "reward"), "reward")):
            expected = np.concatenate([np.reshape(row[key], (-1, 1)) for row in rows])
            assert np.array_equal(reader.step(leaf), expected.astype(reader.step(leaf).dtype))
        after = np.concatenate([row["obs"][1:] for row in rows]).astype(np.float32)
        found = reader.observations_at(("observation",), np.arange(len(after)), after=True)
        assert np.array_equal(found, after)
        ended = np.concatenate([[False] * (len(r["action"]) - 1) + [r["success"]] for r in rows])
        assert np.array_equal(reader.step(("next", "terminated"))[:, 0], ended)


def test_a_flat_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "lab_flat", None)  # so that it is forgotten afterwards
    monkeypatch.delitem(sys.modules, "lab_flat")
    source = import_module("lab_flat").LabFlat()
    scope: dict[str, Any] = {}
    exec(FLAT, scope)  # noqa: S102 - of this file
    columns = scope["flat_columns"]()
    with h5py.File(tmp_path / "mine.hdf5", "w") as file:
        for name, rows in columns.items():
            file[name] = rows
    np.savez(tmp_path / "mine.npz", **columns)
    for path in (tmp_path / "mine.hdf5", tmp_path / "mine.npz"):
        assert source.accepts(path) == 4
        found = source.open(source.release_of(path, "mine"), path)
        (batch,) = [found.read_part(part) for part in found.parts(1 << 20)]
        assert batch.lengths.tolist() == [4, 3, 3]
        assert np.flatnonzero(batch.steps["next", "terminated"]).tolist() == [3]
        assert np.flatnonzero(batch.steps["next", "truncated"]).tolist() == [6, 9]
        assert np.array_equal(batch.steps["action",], columns["command"])
        assert batch.steps["next", "reward"].ravel().tolist() == columns["score"].tolist()
        assert batch.steps["info", "effort"].tolist() == columns["effort"].tolist()
        state, after = columns["state"], columns["state_after"]
        expected = [[*state[:4], after[3]], [*state[4:7], after[6]], [*state[7:], after[9]]]
        assert np.array_equal(batch.observations["observation",], np.concatenate(expected))
        assert batch.final_observation.all()
    with pytest.raises(NotFoundError, match="There is no lab_flat:pull-v1"):
        source.resolve("pull-v1", None, None)
    assert source.resolve("push-v1", None, None).files[0].path == "push-v1.hdf5"


@pytest.mark.slow
def test_the_contract(tmp_path: Path) -> None:
    install(tmp_path)
    with (tmp_path / "test_lab.py").open("a") as file:
        file.write(FLAT + SHARDED)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_lab.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"\d\d passed", done.stdout)

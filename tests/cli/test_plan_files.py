"""What `--plan` may name: whatever it is, the command ends with a documented code."""

from __future__ import annotations

import copy
import functools
import json
import operator
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from offline_data.testing.toy import toy_batch, write_toy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Cli

PROGRAM = "from offline_data_cli.main import run; run()"
FILES: dict[str, tuple[bytes | None, int]] = {
    "FIFO": (None, 5),
    "deep": (b"[" * 100_000, 5),
    "list": (b"[]", 5),
    "binary": (b"\x00\xff", 5),
    "of a text version": (b'{"format_version": "x"}', 5),
    "newer": (b'{"format_version": 99}', 5),
}


@pytest.mark.parametrize("case", FILES)
@pytest.mark.parametrize("making", [False, True])
def test_a_file_that_is_no_plan(case: str, making: bool, tmp_path: Path) -> None:
    content, code = FILES[case]
    file = tmp_path / "plan.json"
    if content is None:
        os.mkfifo(file)
    else:
        file.write_bytes(content)
    write_toy(tmp_path / "toy", [toy_batch([2])])
    command = ["worker", "--rank", "0"]
    if making:
        step = ("--step", "reward_clip:high=1", "--out", "made")
        command = ["preprocess", str(tmp_path / "toy"), *step, "--plan-only"]
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, *command, "--plan", str(file)],
        env={**os.environ, "OFFLINE_DATA_HOME": str(tmp_path / "root")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == code, ran.stderr
    assert str(file) in ran.stderr
    assert "unexpected" not in ran.stderr


SPOILT: tuple[Any, ...] = (None, True, -1, 1.5, "", "../x", "a\0b", [], [None], {"x": 1})
"""Values of every type and of wrong lengths; each field of a plan is given all of them."""

OF_SEVERAL_TYPES = {
    *("name", "dest", "sha256", "batched", "vectorize", "num_frames", "layout", "chunksize")
}


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every field, and of everything in it."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for name, inner in pairs:
        yield (*above, name)
        if isinstance(inner, (dict, list)):
            yield from places(inner, (*above, name))


def spoilt(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a copy with another value at a path."""
    copied = copy.deepcopy(value)
    within = copied
    for name in path[:-1]:
        within = within[name]
    within[path[-1]] = new
    return copied


@pytest.fixture
def plan(cli: Cli, tmp_path: Path) -> Path:
    """A plan of a function and two steps."""
    write_toy(tmp_path / "toy", [toy_batch([3, 2])])
    (tmp_path / "f.py").write_text("def half(td):\n    return td.set('action', td['action'] / 2)\n")
    steps = ("--fn", f"{tmp_path}/f.py:half", "--step", "normalize", "--step", "reward_shift:1")
    target = ("--dest", str(tmp_path / "made"), "--plan-only", "--plan", str(tmp_path / "p.json"))
    made = cli("preprocess", str(tmp_path / "toy"), *steps, *target)
    assert made.code == 0, made.err
    return tmp_path / "p.json"


def test_every_field_that_is_spoilt(cli: Cli, plan: Path) -> None:
    whole = json.loads(plan.read_text())
    fields = [path for path in places(whole) if path[0] != "recipe"]
    assert len(fields) > 30
    for path in fields:
        for new in SPOILT:
            plan.write_text(json.dumps(spoilt(whole, path, new)))
            ran = cli("worker", "--plan", str(plan), "--finish")
            assert ran.code in {1, 2, 3, 5}, (path, new, ran.err)
            assert "unexpected" not in ran.err, (path, new, ran.err)
            old = functools.reduce(operator.getitem, path, whole)
            if type(new) is not type(old) and path[-1] not in OF_SEVERAL_TYPES:
                assert ran.code == 5, (path, new, ran.err)
                assert str(plan) in ran.err, (path, new, ran.err)


def test_states_and_stages_of_another_number(cli: Cli, plan: Path) -> None:
    whole = json.loads(plan.read_text())
    for name in ("states", "stages"):
        for new in (whole[name][:-1], [*whole[name], whole[name][0]], []):
            plan.write_text(json.dumps({**whole, name: new}))
            ran = cli("worker", "--plan", str(plan), "--rank", "0")
            assert ran.code == 5, ran.err
            assert f"{plan} is no plan of offline-data" in ran.err
    for name in whole:
        plan.write_text(json.dumps({key: value for key, value in whole.items() if key != name}))
        ran = cli("worker", "--plan", str(plan), "--rank", "0")
        assert ran.code == 5, (name, ran.err)
        assert str(plan) in ran.err


def test_a_recipe_that_is_spoilt_is_shown_or_refused(cli: Cli, plan: Path, tmp_path: Path) -> None:
    whole = json.loads(plan.read_text())
    steps = ("--fn", f"{tmp_path}/f.py:half", "--step", "normalize", "--step", "reward_shift:1")
    target = ("--dest", str(tmp_path / "made"), "--plan-only", "--plan", str(plan), "--resume")
    for path in [path for path in places(whole) if path[0] == "recipe"]:
        for new in (None, "", {"x": 1}):
            plan.write_text(json.dumps(spoilt(whole, path, new)))
            ran = cli("preprocess", str(tmp_path / "toy"), *steps, *target)
            assert ran.code in {0, 5}, (path, new, ran.err)
            assert "unexpected" not in ran.err, (path, new, ran.err)

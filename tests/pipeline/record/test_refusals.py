"""What `Recorder` refuses, by what was recorded before: the cases are the lines of `refusals.json`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import offline_data
from tests.pipeline.record.games import BOX, Game
from tests.pipeline.record.test_recorder import play
from tests.pipeline.record.test_resume import continue_it
from tests.refusals import Refusals

REFUSALS = Refusals(Path(__file__).with_name("refusals.json"))


def recorded(kind: str, root: Path) -> tuple[Any, str]:
    """Record what the kind says; returns the recorder, and the version of the dataset that there was."""
    if kind in {"nothing", "no gymnasium"}:
        return None, "none"
    if kind == "not recorded":
        rows = {"observations": np.eye(3), "actions": np.eye(3), "rewards": np.ones(3)}
        made = offline_data.convert({**rows, "terminals": np.arange(3) == 2}, "mine", root=root)
        return None, made.path.name
    version = continue_it(root)[0].path.name if kind == "continued and gone" else "none"
    env = offline_data.Recorder(Game(), "mine", root=root, progress=False, resume="gone" in kind)
    if kind == "an episode":
        env.reset()
        for _ in range(3):
            env.step(0)
        env.mark(score=0.25)
    elif kind != "begun":
        play(env, 5)
        env.close() if kind == "finished" else env._held.close()  # as after a kill
    if kind == "continued and gone":
        offline_data.remove("local:mine", root=root)
    if kind == "finished":
        version = env.stored.path.name
    return env, version


@REFUSALS.cases
def test_refusals(kind: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env, version = recorded(kind, tmp_path)
    recorder = partial(offline_data.Recorder, name="mine", root=tmp_path)
    names = {"env": env, "Recorder": recorder, "Game": Game, "BOX": BOX}
    names |= {"spaces": spaces, "gymnasium": gymnasium}
    if kind == "no gymnasium":
        monkeypatch.setitem(sys.modules, "gymnasium", None)
    words: dict[object, str] = {tmp_path: "FOLDER", version: "VERSION"}
    REFUSALS.check(kind, text, lambda: eval(text, names), words)  # noqa: S307 - of the table
    if kind in {"unfinished", "finished"}:
        assert continue_it(tmp_path)[0].episodes > 2
    elif kind in {"begun", "an episode"}:
        env.close()

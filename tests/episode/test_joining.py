"""Advice for episodes that cannot be read: to skip them, where a part is bad."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import FormatError
from offline_data.episode.batch import EpisodeBatch
from offline_data.episode.joining import join_episodes
from offline_data.formats.options import TextOptions
from offline_data.pipeline.ingest import Options, convert
from tests.pipeline.ingest.here import convert_here
from tests.toys.robomimic import toy_demo, write_demos
from tests.toys.text import write_tokenizer
from tests.toys.vd4rl import write_vd4rl_npz

SKIP = "skip-bad-episodes"
WHOLE = "the episodes next to it fail as well"
ALONE = "skip-bad-episodes leaves it out, if other files have episodes"


def episode(width: int) -> EpisodeBatch:
    if not width:
        raise FormatError("it is bad")
    flags: dict[Any, Any] = {
        ("next", name): np.zeros((2, 1), bool) for name in ("terminated", "truncated")
    }
    steps = {("action",): np.zeros((2, width)), ("next", "reward"): np.zeros((2, 1)), **flags}
    return EpisodeBatch(
        np.array([2]), steps, {("observation",): np.zeros((3, 1))}, np.array([True])
    )


@pytest.mark.parametrize(
    ("widths", "advice"),
    [
        ([0], ALONE),
        ([0] * 3, WHOLE),
        ([0] * 99, WHOLE),
        ([0, 1], SKIP),
        ([0, 0, 0, 1], SKIP),
        ([1, 0], SKIP),
        ([1, 1, 0, 0], SKIP),
        ([1, 0, 1], SKIP),
        ([1, 2], SKIP),
        ([1, 2, 2], WHOLE),  # the first differs from all others
        ([1, *[2] * 99], WHOLE),
        ([2, 1, 2], SKIP),
    ],
)
def test_advice(widths: list[int], advice: str) -> None:
    readings = [(f"record {n}", partial(episode, width)) for n, width in enumerate(widths)]
    with pytest.raises(FormatError, match=r"^record ") as caught:
        list(join_episodes(readings, skip_bad=False))
    assert advice in (caught.value.shell_hint or "")
    assert (SKIP in (caught.value.shell_hint or "")) == (advice != WHOLE)


def _d3rlpy(folder: Path, bad: set[int]) -> Path:
    path = folder / "x.h5"
    with h5py.File(path, "w") as file:
        file["columns"], file["num_episodes"] = np.array([b"observations"]), 4
        for n in range(4):
            file[f"observations_{n}"] = np.zeros((2, 3), "f4")
            file[f"actions_{n}"] = np.zeros((3 if n in bad else 2, 1))
            file[f"rewards_{n}"], file[f"terminated_{n}"] = np.ones((2, 1)), True
    return path


def _robomimic(folder: Path, bad: set[int]) -> Path:
    demos = {n: toy_demo(n, 4) for n in range(4)}
    for n in bad:
        demos[n]["actions"] = np.zeros((9, 2))
    return write_demos(folder / "x.hdf5", demos)


def _vd4rl(folder: Path, bad: set[int]) -> Path:
    raw = write_vd4rl_npz(folder / "raw", (5, 3, 4, 2))
    for n, file in enumerate(sorted(raw.iterdir())):
        if n in bad:
            arrays = dict(np.load(file))
            np.savez(file, **(arrays | {"reward": np.zeros((9, 2), "f4")}))
    return raw


def _arff(folder: Path, bad: set[int]) -> Path:
    rows = "".join("x,1,2\n" if n in bad else f"{n},1,2\n" for n in range(4))
    header = "@relation x\n" + "".join(f"@attribute {c} numeric\n" for c in "abc")
    path = folder / "x.arff"
    path.write_text(f"{header}@data\n{rows}")
    return path


def _text(folder: Path, bad: set[int]) -> Path:
    path = folder / "x.jsonl"
    path.write_text("".join('{"text": %s}\n' % ("5" if n in bad else '"a b"') for n in range(4)))
    return path


@pytest.mark.parametrize("bad", [{0}, {3}, {0, 1, 2, 3}])
@pytest.mark.parametrize("write", [_d3rlpy, _robomimic, _vd4rl, _arff, _text])
def test_advice_of_sources(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, write: Any, bad: set[int]
) -> None:
    convert_here(monkeypatch)
    path = write(tmp_path, bad)
    text = TextOptions(str(write_tokenizer(tmp_path))) if write is _text else None
    options, source = Options(text=text), "openml" if write is _arff else None
    with pytest.raises(FormatError) as caught:
        convert(path, "x", settings, options, source=source)
    assert (SKIP in (caught.value.shell_hint or "")) == (len(bad) == 1)


@pytest.mark.parametrize("bad", [{0}, {3}, {0, 1, 2, 3}])
def test_advice_in_memory(settings: Settings, bad: set[int]) -> None:
    ends = {name: np.array([False, True]) for name in ("terminations", "truncations")}
    values = {"observations": np.zeros((3, 2)), "actions": np.zeros((2, 1)), "rewards": np.zeros(2)}
    one = values | ends
    short = one | {"rewards": np.zeros(9)}
    episodes = [short if n in bad else one for n in range(4)]
    with pytest.raises(FormatError) as caught:
        offline_data.convert(episodes, "x", root=settings.root, progress=False)
    assert ("skip_bad_episodes=True" in (caught.value.hint or "")) == (len(bad) == 1)

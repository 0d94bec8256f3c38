"""The example of every step, run on a dataset, and all its values read back and checked by hand."""

from __future__ import annotations

import itertools
import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offline_data
from offline_data.episodes import EpisodeBatch, Key
from offline_data.executors.local import LocalProcesses
from offline_data.preprocess.steps.parse import usage_error
from offline_data.preprocess.steps.registry import step_class, step_names
from offline_data.store.layout import LAYOUTS, LayoutName
from offline_data.store.reader import DatasetReader, decode, open_reader
from offline_data.testing.toy import write_toy

LENGTHS = [53, 3, 2, 4, 1, 5, 2, 3, 4, 2, 3]
LAST = len(LENGTHS) - 1
"""The last episode has the content of episode 1."""

POSITION, VELOCITY, PIXELS = (("observation", name) for name in ("position", "velocity", "pixels"))
CODE, ACTION, GOAL, REWARD = ("info", "code"), ("action",), ("goal",), ("next", "reward")
FRAME = (72, 66, 3)

Rows = dict[Key, Any]
"""All leaves of TED, `[N, …]` each, in the order of the rows."""


def toy_episodes() -> EpisodeBatch:
    """Make episodes that have what all examples name; no value is zero, no two rows alike."""
    numbers = [*range(LAST), 1]
    v = np.concatenate(
        [100.0 * n + np.arange(t) + 1 for n, t in zip(numbers, LENGTHS, strict=True)]
    )
    w = np.concatenate(
        [100.0 * n + np.arange(t + 1) + 1 for n, t in zip(numbers, LENGTHS, strict=True)]
    )
    ends = np.isin(np.arange(len(v)), np.cumsum(LENGTHS) - 1)[:, None]
    pixels = w[:, None, None, None] * 7 + np.arange(math.prod(FRAME)).reshape(FRAME)
    return EpisodeBatch(
        np.array(LENGTHS),
        {
            ACTION: np.stack([np.sin(v), v / 2, -v / 4], axis=1).astype(np.float32),
            GOAL: np.array([f"goal {int(x) % 5}" for x in v], object),
            REWARD: (v / 8).astype(np.float32)[:, None],
            ("next", "terminated"): ends,
            ("next", "truncated"): np.zeros_like(ends),
        },
        {
            POSITION: np.stack([w + 0.25, -w], axis=1),
            VELOCITY: (w + 0.5).astype(np.float32),
            PIXELS: (pixels % 251 + 1).astype(np.uint8),
            CODE: (7 * w).astype(np.int64)[:, None],
        },
        np.ones(len(LENGTHS), bool),
        {("seed",): np.arange(len(LENGTHS)) + 100},
    )


@pytest.fixture(scope="module", params=LAYOUTS)
def parent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples") / "toy"
    layout: LayoutName = request.param
    write_toy(folder, [toy_episodes()], layout=layout)
    return folder


def rows_of(reader: DatasetReader) -> Rows:
    found = reader.transitions_at(np.arange(reader.transitions))
    words = {key: reader.words(key) for key in found}
    return {
        key: column if words[key] is None else decode(column, words[key] or [])
        for key, column in found.items()
        if key != ("episode",)
    }


def both(key: Key) -> tuple[Key, Key]:
    return key, ("next", *key)


def ends() -> Any:
    return np.cumsum(LENGTHS)


def only(rows: Rows, *episodes: int) -> Rows:
    chosen = np.isin(np.repeat(np.arange(len(LENGTHS)), LENGTHS), episodes)
    return {key: column[chosen] for key, column in rows.items()}


def without(rows: Rows, *keys: Key) -> Rows:
    gone = {side for key in keys for side in both(key)}
    return {key: column for key, column in rows.items() if key not in gone}


def seen(change: Callable[[Any], Any], key: Key) -> Callable[[Rows], Rows]:
    """Return what changes one observation leaf, before and after the action."""
    return lambda rows: {**rows, **{side: change(rows[side]) for side in both(key)}}


def cast(rows: Rows) -> Rows:
    new = {side: rows[side].astype(np.float32) for side in both(POSITION)}
    return {**rows, **new, **{side: rows[side].astype(np.float32) for side in both(PIXELS)}}


def concat(rows: Rows) -> Rows:
    new = {}
    sides = zip(both(POSITION), both(VELOCITY), both(("observation", "state")), strict=True)
    for position, velocity, state in sides:
        new[state] = np.concatenate([rows[position], rows[velocity][:, None]], axis=1)
    return without({**rows, **new}, POSITION, VELOCITY)


def rename(rows: Rows) -> Rows:
    new = {}
    for old, name in ((POSITION, ("state",)), (CODE, ("extra", "code"))):
        new.update({to: rows[side] for side, to in zip(both(old), both(name), strict=True)})
    return without({**rows, **new}, POSITION, CODE)


def normalize(rows: Rows) -> Rows:
    batch, new = toy_episodes(), dict(rows)
    for key in (POSITION, VELOCITY):
        each = [row.astype(np.float64) for row in np.asarray(batch.observations[key])]
        mean = sum(each) / len(each)
        std = np.sqrt(sum((row - mean) ** 2 for row in each) / len(each))
        for side in both(key):
            scaled = [(row.astype(np.float64) - mean) / (std + 1e-3) for row in rows[side]]
            new[side] = np.array(scaled).astype(rows[side].dtype)
    return new


def normalize_return(rows: Rows) -> Rows:
    reward, stops = rows[REWARD].astype(np.float64), [0, *ends()]
    returns = [reward[a:b].sum() for a, b in itertools.pairwise(stops)]
    scaled = reward * 1000 / (max(returns) - min(returns))
    return {**rows, REWARD: scaled.astype(np.float32)}


def return_to_go(rows: Rows) -> Rows:
    leaf, later = np.zeros((sum(LENGTHS), 1)), 0.0
    for row in reversed(range(sum(LENGTHS))):
        later = float(rows[REWARD][row, 0]) + (0.0 if row + 1 in ends() else 0.99 * later)
        leaf[row] = later
    return {**rows, ("return_to_go",): leaf.astype(np.float32)}


def grayscale(frames: Any) -> Any:
    red, green, blue = (frames[..., [channel]].astype(np.int64) for channel in range(3))
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16).astype(np.uint8)


def resize(frames: Any) -> Any:
    down, across = covered(FRAME[0], 84), covered(FRAME[1], 84)
    means = np.einsum("ih,nhwc,jw->nijc", down, frames.astype(np.float64), across, optimize=True)
    return np.floor(means + 0.5 + 1e-9).astype(np.uint8)


def covered(old: int, new: int) -> Any:
    """Return what part of each new pixel lies in each old one, `[new, old]`."""
    return np.array(
        [
            [max(0, min((i + 1) * old, (j + 1) * new) - max(i * old, j * new)) / old]
            for i in range(new)
            for j in range(old)
        ]
    ).reshape(new, old)


def dealt(count: int) -> list[int]:
    """Return the episodes that the views of a dataset deal out first."""
    from offline_data.buffers.views import split_episodes

    parts = split_episodes(len(LENGTHS), {"a": count / len(LENGTHS)}, 0)
    return [int(one) for one in parts["a"]]


BY_HAND: dict[str, Callable[[Rows], Rows]] = {
    "cast": cast,
    "clip": lambda rows: {**rows, ACTION: np.minimum(np.maximum(rows[ACTION], -1), 1)},
    "concat": concat,
    "crop": seen(lambda frames: frames[:, 8:72, 1:65], PIXELS),
    "dedupe": lambda rows: only(rows, *range(LAST)),
    "exclude": lambda rows: without(rows, CODE, VELOCITY),
    "filter": lambda rows: only(rows, 0),
    "flatten": seen(lambda frames: frames.reshape(len(frames), math.prod(FRAME)), PIXELS),
    "grayscale": seen(grayscale, PIXELS),
    "normalize": normalize,
    "normalize_return": normalize_return,
    "rename": rename,
    "resize": seen(resize, PIXELS),
    "return_to_go": return_to_go,
    "reward_clip": lambda rows: {**rows, REWARD: np.minimum(np.maximum(rows[REWARD], -1), 1)},
    "reward_scale": lambda rows: {**rows, REWARD: rows[REWARD] * np.float32(0.1)},
    "reward_shift": lambda rows: {**rows, REWARD: rows[REWARD] - np.float32(1)},
    "select": lambda rows: without(rows, CODE, GOAL),
    "split": lambda rows: only(rows, *dealt(10)),
    "subsample": lambda rows: only(rows, *dealt(1)),
    "to_chw": seen(
        lambda frames: np.moveaxis(frames, 3, 1).astype(np.float32) / np.float32(255), PIXELS
    ),
}
"""What the example of each step makes of all leaves, reckoned without the step."""


def assert_rows(found: Rows, expected: Rows) -> None:
    """Assert equal leaves, types and shapes; floats to the rounding of float32."""
    assert found.keys() == expected.keys()
    for key, column in expected.items():
        assert (found[key].dtype, found[key].shape) == (column.dtype, column.shape), key
        if column.dtype.kind == "f":
            np.testing.assert_allclose(found[key], column, rtol=3e-6, atol=1e-6, err_msg=str(key))
        else:
            np.testing.assert_array_equal(found[key], column, str(key))


def example_of(name: str) -> str:
    return str(vars(step_class(name))["example"])


def test_every_built_in_step_is_here() -> None:
    built_in = [n for n in step_names() if step_class(n).__module__.startswith("offline_data.")]
    apart = {"decode", "encode"}  # see test_encoded.py: not every parent has such images
    assert built_in == sorted({*BY_HAND, *apart})


@pytest.mark.parametrize("name", BY_HAND)
def test_an_example(name: str, parent: Path, tmp_path: Path) -> None:
    before = open_reader(parent)
    offline_data.open_dataset(parent).preprocess(
        example_of(name), dest=tmp_path / "made", audit="all"
    )
    after = open_reader(tmp_path / "made")
    assert after.manifest.layout == before.manifest.layout
    assert_rows(rows_of(after), BY_HAND[name](rows_of(before)))


def test_examples_one_after_the_other_in_two_processes(parent: Path, tmp_path: Path) -> None:
    names = ["normalize", "reward_scale", "return_to_go", "grayscale", "to_chw", "dedupe"]
    offline_data.open_dataset(parent).preprocess(
        [example_of(name) for name in names],
        dest=tmp_path / "made",
        engine=LocalProcesses(2),
        num_chunks=5,
        audit="all",
    )
    expected = rows_of(open_reader(parent))
    for name in names:
        expected = BY_HAND[name](expected)
    assert_rows(rows_of(open_reader(tmp_path / "made")), expected)


def test_examples_in_hints_are_one_word_of_a_shell() -> None:
    names = step_names()
    hints = [str(usage_error(step_class(name), "is wrong").hint) for name in names]
    words = " ".join(hint.removeprefix("for example --step ") for hint in hints)
    shell = subprocess.run(["sh", "-c", f"printf '%s\\n' {words}"], capture_output=True, check=True)
    assert shell.stdout.decode().splitlines() == [example_of(name) for name in names]

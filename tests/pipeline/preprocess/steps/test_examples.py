"""The example of every step, run on a dataset: its files have what the step alone makes of them."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path

import numpy as np
import pytest

import offline_data
from offline_data.episode import EpisodeBatch
from offline_data.pipeline.preprocess.steps.base import Selection
from offline_data.pipeline.preprocess.steps.parse import usage_error
from offline_data.pipeline.preprocess.steps.registry import parse_step, step_class, step_names
from offline_data.store.chunk import EpisodeChunk, read_chunk, select_episodes
from offline_data.store.reader import decode, open_reader
from offline_data.testing.chunks import episodes_of, join_chunks
from offline_data.testing.steps import prepare_step
from offline_data.testing.toy import write_toy
from tests.pipeline.preprocess.runs import Shuffled

LENGTHS = [53, 3, 2, 4, 1, 5, 2, 3, 4, 2, 3]
"""The last episode has the content of episode 1."""
FRAME = (72, 66, 3)
ENCODED = {"decode", "encode"}
"""Steps that need another dataset: see test_encoded.py."""


def toy_episodes() -> EpisodeBatch:
    """Make episodes that have what all examples name; no value is zero, no two rows alike."""
    numbers = [*range(len(LENGTHS) - 1), 1]
    v, w = (
        np.concatenate(
            [100.0 * n + np.arange(t + more) + 1 for n, t in zip(numbers, LENGTHS, strict=True)]
        )
        for more in (0, 1)
    )
    ends = np.isin(np.arange(len(v)), np.cumsum(LENGTHS) - 1)[:, None]
    pixels = w[:, None, None, None] * 7 + np.arange(math.prod(FRAME)).reshape(FRAME)
    return EpisodeBatch(
        np.array(LENGTHS),
        {
            ("action",): np.stack([np.sin(v), v / 2, -v / 4], axis=1).astype(np.float32),
            ("goal",): np.array([f"goal {int(x) % 5}" for x in v], object),
            ("next", "reward"): (v / 8).astype(np.float32)[:, None],
            ("next", "terminated"): ends,
            ("next", "truncated"): np.zeros_like(ends),
        },
        {
            ("observation", "position"): np.stack([w + 0.25, -w], axis=1),
            ("observation", "velocity"): (w + 0.5).astype(np.float32),
            ("observation", "pixels"): (pixels % 251 + 1).astype(np.uint8),
            ("info", "code"): (7 * w).astype(np.int64)[:, None],
        },
        np.ones(len(LENGTHS), bool),
        {("seed",): np.arange(len(LENGTHS)) + 100},
    )


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples") / "toy"
    write_toy(folder, [toy_episodes()])
    lines = [f"{number},{number % 2}\n" for number in range(len(LENGTHS))]
    (folder.parent / "labels.csv").write_text("".join(["episode,success\n", *lines]))
    return folder


def episodes_on_disk(folder: Path) -> EpisodeChunk:
    reader = open_reader(folder)
    return read_chunk(reader, select_episodes(reader))


def done(name: str, chunk: EpisodeChunk) -> EpisodeChunk:
    """Return what a step makes of all episodes at once."""
    step = prepare_step(parse_step(example_of(name)), chunk)
    if not isinstance(step, Selection):
        return step.apply(chunk)
    chosen = step.choose({**step.measure(chunk), ("length",): chunk.batch.lengths}, chunk.words)
    return join_chunks([one for one, keep in zip(episodes_of(chunk), chosen, strict=True) if keep])


def assert_same_rows(found: EpisodeChunk, expected: EpisodeChunk) -> None:
    """Assert equal leaves, types, shapes and texts; floats to the rounding of statistics."""
    for table in ("steps", "observations", "episodes"):
        mine, theirs = (getattr(one.batch, table) for one in (found, expected))
        assert mine.keys() == theirs.keys()
        for key, column in theirs.items():
            assert (mine[key].dtype, mine[key].shape) == (column.dtype, column.shape), key
            if words := expected.words.get(key):
                column, mine[key] = (
                    decode(column, list(words)),
                    decode(mine[key], list(found.words[key])),
                )
            if column.dtype.kind == "f":
                np.testing.assert_allclose(mine[key], column, rtol=3e-6, atol=1e-6)
            else:
                np.testing.assert_array_equal(mine[key], column, str(key))
    np.testing.assert_array_equal(found.batch.lengths, expected.batch.lengths)


def example_of(name: str) -> str:
    return str(vars(step_class(name))["example"])


EXAMPLES = sorted(
    {n for n in step_names() if step_class(n).__module__.startswith("offline_data.")} - ENCODED
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example(
    name: str, parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(parent.parent)  # that of labels.csv
    offline_data.open_dataset(parent).preprocess(
        example_of(name), dest=tmp_path / "made", audit="all"
    )
    expected = done(name, episodes_on_disk(parent))
    assert_same_rows(episodes_on_disk(tmp_path / "made"), expected)


def test_examples_one_after_the_other_in_several_tasks(parent: Path, tmp_path: Path) -> None:
    names = ["normalize", "reward_scale", "return_to_go", "grayscale", "to_chw", "dedupe"]
    offline_data.open_dataset(parent).preprocess(
        [example_of(name) for name in names],
        dest=tmp_path / "made",
        engine=Shuffled(),
        num_chunks=5,
        audit="all",
    )
    expected = episodes_on_disk(parent)
    for name in names:
        expected = done(name, expected)
    assert_same_rows(episodes_on_disk(tmp_path / "made"), expected)


def test_examples_in_hints_are_one_word_of_a_shell() -> None:
    names = step_names()
    hints = [str(usage_error(step_class(name), "is wrong").shell_hint) for name in names]
    words = " ".join(hint.removeprefix("for example --step ") for hint in hints)
    shell = subprocess.run(["sh", "-c", f"printf '%s\\n' {words}"], capture_output=True, check=True)
    assert shell.stdout.decode().splitlines() == [example_of(name) for name in names]

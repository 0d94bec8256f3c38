"""Random schemas: every format writes each dataset so that the proof holds, or says why it cannot."""

from __future__ import annotations

import string
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import offline_data
from offline_data.base.errors import UsageError
from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED, Key
from offline_data.formats.writing.base import TARGETS, get_target
from offline_data.testing.toy import write_toy
from tests.slow import every_second

DTYPES = ("float32", "float64", "float16", "int64", "int32", "uint8", "int8", "bool", "text")
NAMES = st.text(string.ascii_lowercase + "_-0", min_size=1, max_size=6)
SHAPES = st.sampled_from([(), (1,), (3,), (2, 3), (4, 5, 3)])


def column(draw: Any, rows: int, dtype: str, shape: tuple[int, ...]) -> Any:
    """Return random rows; floats with NaN and infinity, texts with missing and odd ones."""
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    if dtype == "text":
        words = np.array(["", "a b", "é\\u2028", None, "x" * 40], dtype=object)
        return rng.choice(words, rows)
    size = (rows, *shape)
    if dtype.startswith("float"):
        values = rng.standard_normal(size).astype(dtype)
        values[rng.random(size) < 0.1] = rng.choice([np.nan, np.inf, -0.0])
        return values
    return rng.integers(0, 100, size).astype(dtype)


@st.composite
def batches(draw: Any) -> EpisodeBatch:
    """Return episodes of random lengths and leaves."""
    lengths = np.array(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    rows = int(lengths.sum())
    last = np.cumsum(lengths) - 1
    leaf = st.tuples(NAMES, st.sampled_from(DTYPES), SHAPES)

    def leaves(root: Key, count: int, length: int) -> dict[Key, Any]:
        found = draw(st.lists(leaf, min_size=0, max_size=count, unique_by=lambda one: one[0]))
        return {(*root, name): column(draw, length, kind, shape) for name, kind, shape in found}

    ended = np.zeros((rows, 1), bool)
    ended[last] = np.array(draw(st.lists(st.booleans(), min_size=len(last), max_size=len(last))))[
        :, None
    ]
    truncated = np.zeros((rows, 1), bool)
    truncated[last] = ~ended[last]
    final = np.array(draw(st.lists(st.booleans(), min_size=len(last), max_size=len(last))))
    observations = leaves(("observation",), 3, rows + len(last)) or {
        ("observation",): column(draw, rows + len(last), "float32", (3,))
    }
    observations |= leaves(("info",), 2, rows + len(last))
    ends = np.cumsum(lengths + 1) - 1
    for key, values in observations.items():  # as a source repeats what it does not know
        for at in ends[~final]:
            observations[key][at] = values[at - 1]
    steps = {
        ("action",): column(draw, rows, draw(st.sampled_from(DTYPES[:5])), draw(SHAPES)),
        REWARD: column(draw, rows, draw(st.sampled_from(["float32", "float64", "int64"])), (1,)),
        TERMINATED: ended,
        TRUNCATED: truncated,
        **leaves(("extra",), 1, rows),
        **leaves(("next", "info"), 1, rows),
    }
    steps = {key: c for key, c in steps.items() if key[1:] not in observations}  # stored once
    facts = leaves((), 2, len(last))
    taken = {"start", "length", "return", "terminated", "truncated", "final"}
    facts = {key: values for key, values in facts.items() if key[0] not in taken}
    return EpisodeBatch(lengths, steps, observations, final, facts)


@pytest.mark.slow
@pytest.mark.parametrize("to", TARGETS)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(batch=batches())
def test_random_schemas(to: str, batch: EpisodeBatch) -> None:
    target = get_target(to)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_toy(folder / "toy", [batch])
        chosen = min(key for key in batch.observations if key[0] == "observation")
        observation = None if target.holds.nested else "/".join(chosen)
        dest = folder / f"out-v0{target.suffix}"
        more: dict[str, Any] = {"root": folder / "root", "progress": False}
        if to == "lerobot":
            more["fps"] = 10
        try:
            done = offline_data.export(folder / "toy", dest, to=to, observation=observation, **more)
        except UsageError as error:
            assert "needs" in str(error) or "has no place" in str(error), error  # noqa: PT017
            return
        assert done.compared
        assert dest.exists()


@pytest.mark.parametrize(
    ("texts", "final"),
    every_second(
        ["a-aa", "--aa", "a-a-", "aaa-", "-aaa"], [[True, True], [True, False], [False, False]]
    ),
)
def test_missing_texts_of_lerobot(tmp_path: Path, texts: str, final: list[bool]) -> None:
    """A missing one may be that of a final observation, which `next` has in LeRobot's files."""
    words = np.array([None if text == "-" else text for text in texts], dtype=object)
    ones = np.ones((2, 1), np.float32)
    steps: dict[Key, Any] = {("action",): ones, REWARD: ones}
    steps |= {TERMINATED: ones > 0, TRUNCATED: ones < 0}
    seen: dict[Key, Any] = {("observation", "x"): np.ones((4, 1), np.float32), ("info", "0"): words}
    write_toy(tmp_path / "toy", [EpisodeBatch(np.array([1, 1]), steps, seen, np.array(final))])
    done = offline_data.export(
        tmp_path / "toy", tmp_path / "out", to="lerobot", fps=10, progress=False
    )
    assert [loss.rows for loss in done.losses if loss.leaf == "info/0"] == [texts.count("-")]

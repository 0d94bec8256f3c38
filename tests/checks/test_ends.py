"""Ends of episodes: flags, final observations, continuity, lengths."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from offline_data.episodes.fields import TERMINATED, TRUNCATED
from tests.checks.planted import Write, changed, clean_batch, found

ENDS = [f"RL01{n}" for n in range(8)]
LAYOUTS = pytest.mark.parametrize("layout", ["compact", "ted"])


@LAYOUTS
def test_clean(write: Write, layout: str) -> None:
    path = write(clean_batch(), layout=layout)
    assert [one for code in ENDS for one in found(path, code)] == []


def flags(**rows: bool) -> dict[tuple[str, ...], Any]:
    """Return the flags of `clean_batch` with those of some rows changed: `terminated_11=False`."""
    batch = clean_batch()
    columns = {key: batch.steps[key].copy() for key in (TERMINATED, TRUNCATED)}
    for name, value in rows.items():
        flag, _, row = name.partition("_")
        columns["next", flag][int(row)] = value
    return columns


@pytest.mark.parametrize(
    ("code", "rows", "place", "count"),
    [
        ("RL010", {"terminated_11": False, "truncated_31": False}, (None, 0, 11), 2),
        ("RL011", {"terminated_31": True}, (None, 1, 31), 1),
        ("RL012", {"terminated_14": True, "terminated_20": True}, ("next/terminated", 1, 14), 2),
        ("RL012", {"truncated_0": True}, ("next/truncated", 0, 0), 1),
    ],
)
@LAYOUTS
def test_flags(
    write: Write,
    layout: str,
    code: str,
    rows: dict[str, bool],
    place: tuple[object, ...],
    count: int,
) -> None:
    path = write(changed(clean_batch(), steps=flags(**rows)), layout=layout)
    (one,) = found(path, code)
    assert ((one.leaf, one.episode, one.row), one.count) == (place, count)


def test_unknown_final_observations(write: Write) -> None:
    batch = clean_batch()
    seen = batch.observations["observation",].copy()
    seen[[12, 33]] = seen[[11, 32]]  # the last known one is repeated
    unknown = replace(
        changed(batch, observations={("observation",): seen}),
        final_observation=np.array([False, False, True]),
    )
    (one,) = found(write(unknown), "RL013")
    assert (one.severity, one.episode, one.row, one.count) == ("info", 1, 31, 1)  # 0 is terminated


@pytest.mark.parametrize("value", [0, np.nan])
@LAYOUTS
def test_made_up_final_observation(write: Write, layout: str, value: float) -> None:
    batch = clean_batch()
    seen = batch.observations["observation",].copy()
    seen[33] = value
    path = write(changed(batch, observations={("observation",): seen}), layout=layout)
    (one,) = found(path, "RL014")
    assert (one.leaf, one.episode, one.row, one.count) == ("next/observation", 1, 31, 1)
    assert one.message.startswith("1 of 1 episodes that are not terminated have only")


def test_zero_is_a_state_like_others(write: Write) -> None:
    batch = clean_batch()
    seen = batch.observations["observation",].copy()
    seen[[33, 5]] = 0
    assert found(write(changed(batch, observations={("observation",): seen})), "RL014") == []


def test_a_terminal_state_may_be_zero(write: Write) -> None:
    batch = clean_batch()
    seen = batch.observations["observation",].copy()
    seen[12] = 0
    assert found(write(changed(batch, observations={("observation",): seen})), "RL014") == []


@LAYOUTS
def test_discontinuity(write: Write, layout: str) -> None:
    batch = clean_batch()
    rows = batch.transitions
    seen = np.arange(2 * rows, dtype=np.float64).reshape(rows, 2)
    after = np.concatenate([seen[1:], seen[:1]])
    after[7, 1] += 3
    after[20, 0] = np.nan
    both = {("extra",): seen, ("next", "extra"): after}
    path = write(changed(batch, steps=both), layout=layout, two_copies=(("extra",),))
    (one,) = found(path, "RL015")
    assert (one.leaf, one.episode, one.row, one.count) == ("next/extra", 0, 7, 2)
    assert one.message.endswith("the greatest difference is 3")


@LAYOUTS
def test_discontinuity_of_rows_of_other_shapes(write: Write, layout: str) -> None:
    batch = clean_batch()
    both = {
        ("extra",): np.ones((batch.transitions, 2)),
        ("next", "extra"): np.ones((batch.transitions, 3)),
    }
    path = write(changed(batch, steps=both), layout=layout, two_copies=(("extra",),))
    (one,) = found(path, "RL015")
    assert (one.leaf, one.message) == (
        "next/extra",
        "rows of 'next/extra' have shape [3], and those of 'extra' [2]: they cannot be compared",
    )


def test_one_step_episodes(write: Write) -> None:
    (one,) = found(write(clean_batch((5, 1, 9, 1))), "RL016")
    assert (one.episode, one.row, one.count) == (1, 5, 2)
    assert found(write(clean_batch((1, 1, 1))), "RL016") == []
    assert found(write(clean_batch((5, 1, 9, 1))), "RL016", share=0.6) == []


def test_outlier_length(write: Write) -> None:
    lengths = [5] * 24 + [300]
    (one,) = found(write(clean_batch(lengths)), "RL017")
    assert (one.episode, one.row, one.count) == (24, 120, 1)
    assert found(write(clean_batch(lengths[-10:])), "RL017") == []

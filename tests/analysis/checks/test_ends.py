"""Ends of episodes: flags, final observations, continuity, lengths."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from offline_data.episode.fields import TERMINATED, TRUNCATED
from tests.analysis.checks.planted import Write, changed, clean_batch, found

if TYPE_CHECKING:
    from offline_data.episode import EpisodeBatch

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
    assert one.message.startswith("Of 1 episode that is not terminated, 1 has only ")


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


def two_copies() -> tuple[Any, Any, EpisodeBatch]:
    """Observations that are stored apart, as of `--keep-episodes`; root, next, and the batch."""
    batch = clean_batch()
    seen = np.asarray(batch.observations["observation",], np.float64)
    root, after = seen[batch.root_rows], seen[batch.next_rows]
    steps = {("observation",): root, ("next", "observation"): after}
    return root, after, replace(changed(batch, steps=steps), observations={})


RECIPES: dict[str, tuple[dict[str, Any], str]] = {
    "normalize": (
        {"step": "normalize", "keys": ["observation"], "eps": 0.01, "std": True, "leaves": {}},
        "--step normalize:eps=0.01",
    ),
    "clip": (
        {"step": "clip", "keys": ["obs"], "low": -1.0, "high": None},
        "--step clip:obs,low=-1.0",
    ),
    "cast": ({"step": "cast", "types": [["observation", "float16"]]}, "cast:observation=float16"),
}


@pytest.mark.parametrize("name", RECIPES)
@LAYOUTS
def test_steps_of_before_that_forgot_next(write: Write, layout: str, name: str) -> None:
    root, _, batch = two_copies()
    step, argument = RECIPES[name]
    batch = replace(batch, steps={**batch.steps, ("observation",): root * 0.5})
    made: dict[str, Any] = {
        "layout": layout,
        "two_copies": (("observation",),),
        "parents": ("local:raw@1",),
        "name": "small",
    }
    old = {"options": {"recipe": [step]}}
    (one,) = found(write(batch, converter=old, **made), "RL015")
    assert one.leaf == "next/observation"
    assert f"step {name!r} of an earlier version changed the root feature" in one.message
    command = one.message.rpartition("`offline-data ")[2].rstrip("`")
    assert command.startswith("preprocess local:raw@1 --step ")
    assert argument in command
    assert command.endswith("--out small --force")
    others: list[dict[str, Any]] = [
        {"options": {"recipe": [step], "next_too": True}},
        {"options": {"recipe": [{**step, "step": "exclude"}]}},
        {"options": {"recipe": []}},
        {},
    ]
    for other in others:
        (one,) = found(write(batch, converter=other, **made), "RL015")
        assert "earlier" not in one.message


def test_leaves_renamed_or_flattened_without_next(write: Write) -> None:
    root, after, batch = two_copies()
    steps = {key: values for key, values in batch.steps.items() if key[-1] != "observation"}
    steps |= {("state",): root, ("next", "observation"): after}
    old = {"options": {"recipe": [{"step": "rename", "names": [["observation", "state"]]}]}}
    (one,) = found(write(replace(batch, steps=steps), converter=old), "RL015")
    assert one.message.startswith("'next/observation' is the next value of 'state', under its")
    assert "--step rename:observation=state" in one.message
    flat = {("observation",): root[:, :1], ("next", "observation"): after}
    old = {"options": {"recipe": [{"step": "flatten", "keys": []}]}}
    twice = {"two_copies": (("observation",),)}
    batch = replace(batch, steps={**batch.steps, **flat})
    (one,) = found(write(batch, converter=old, **twice), "RL015")
    assert "they cannot be compared; step 'flatten' of an earlier version" in one.message
    assert "--step flatten --out" in one.message

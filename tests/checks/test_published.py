"""Returns and counts against what the source publishes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offline_data.episodes.fields import REWARD
from tests.checks.planted import Write, changed, clean_batch, found

SCORES = {"ref_min_score": 0.0, "ref_max_score": 100.0}


def with_return(write: Write, name: str, total: float, **manifest: Any) -> Any:
    rewards = np.full((41, 1), total * 3 / 41)  # three episodes
    about = {"about": SCORES, **manifest}
    return write(changed(clean_batch(), steps={REWARD: rewards}), dataset=f"d4rl:{name}@1", **about)


@pytest.mark.parametrize(
    ("name", "total", "said"),
    [
        ("hopper-expert-v2", 12, "12.0; for expert data it is usually between 60 and 200"),
        ("hopper-random-v2", 80, "80.0; for random data it is usually between -30 and 30"),
    ],
)
def test_returns_that_do_not_fit_the_name(write: Write, name: str, total: float, said: str) -> None:
    (one,) = found(with_return(write, name, total), "RL070")
    assert one.message == f"The mean normalised return is {said}"


@pytest.mark.parametrize(
    ("name", "total", "manifest"),
    [
        ("hopper-expert-v2", 100, {}),
        ("hopper-medium-v2", 50, {}),
        ("hopper-medium-replay-v2", 1, {}),
        ("hopper-medium-expert-v2", 1, {}),
        ("door-human-v1", 1, {}),
        ("hopper-expert-v2", 12, {"about": {}}),
        ("hopper-expert-v2", 12, {"about": {**SCORES, "ref_max_score": "many"}}),
        ("hopper-expert-v2", 12, {"converter": {"options": {"episodes": [0, 3]}}}),
        ("hopper-expert-v2", 12, {"parents": ("d4rl:hopper-expert-v2@0",)}),
    ],
)
def test_returns_that_are_not_reported(
    write: Write, name: str, total: float, manifest: dict[str, Any]
) -> None:
    assert found(with_return(write, name, total, **manifest), "RL070") == []


def test_counts_in_the_metadata(write: Write) -> None:
    about = {"total_steps": 41, "total_episodes": 4}
    (one,) = found(write(clean_batch(), about=about), "RL071")
    assert (one.message, one.severity) == ("3 episodes; its source publishes 4", "error")
    assert (
        found(write(clean_batch(), about={"total_steps": 41, "total_episodes": 3}), "RL071") == []
    )


def test_counts_in_the_catalogue(write: Write) -> None:
    path = write(clean_batch(), dataset="minari:D4RL/door/human-v2@1")
    first, second = found(path, "RL071")
    assert first.message == "41 transitions; its source publishes 6,729"
    assert second.message == "3 episodes; its source publishes 25"


@pytest.mark.parametrize(
    "manifest",
    [
        {"converter": {"options": {"episodes": [0, 3]}}},
        {"skipped": ({"where": "x", "reason": "y"},)},
        {"parents": ("minari:D4RL/door/human-v2@0",)},
    ],
)
def test_parts_are_not_compared(write: Write, manifest: dict[str, Any]) -> None:
    path = write(clean_batch(), dataset="minari:D4RL/door/human-v2@1", **manifest)
    assert found(path, "RL071") == []


@pytest.mark.parametrize(
    "about", [{"total_steps": "41"}, {"total_steps": True}, {"total_steps": None}]
)
def test_metadata_of_a_stranger(write: Write, about: dict[str, Any]) -> None:
    assert found(write(clean_batch(), about=about), "RL071") == []


def test_a_source_that_is_not_installed(write: Write) -> None:
    assert found(write(clean_batch(), dataset="elsewhere:x@1"), "RL071") == []

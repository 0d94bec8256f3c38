"""Returns and counts are compared with what sources publish."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.episode import EpisodeBatch
from tests.analysis.checks.planted import Write, changed, clean_batch, found
from tests.analysis.checks.test_files import described

ABOUT = {"ref_min_score": -20.0, "ref_max_score": 180.0}


def with_returns(mean: float, lengths: tuple[int, ...] = (10, 10)) -> EpisodeBatch:
    """Return episodes of equal length whose average return is `mean`."""
    rewards = np.full((sum(lengths), 1), mean / lengths[0])
    return changed(clean_batch(lengths), steps={("next", "reward"): rewards})


@pytest.mark.parametrize(
    ("name", "mean", "score"),
    [
        ("hopper-random-v2", 60, 40.0),
        ("hopper-expert-v2", 80, 50.0),
        ("D4RL/door/expert-v2", 80, 50.0),
        ("hopper-random-v2", 30, None),
        ("hopper-expert-v2", 110, None),
        ("hopper-medium-expert-v2", 0, None),
        ("hopper-medium-v2", 0, None),
        ("expert/hopper", 0, None),
    ],
)
def test_returns(write: Write, name: str, mean: float, score: float | None) -> None:
    path = described(write(with_returns(mean)), source="d4rl", name=name, about=ABOUT)
    findings = found(path, "RL070")
    assert len(findings) == (score is not None)
    for one in findings:
        assert one.message.startswith(f"The average return has a normalized score of {score:.1f}, ")
        assert (one.leaf, one.severity, one.count) == ("next/reward", "warning", 2)


def test_the_limits_of_scores(write: Write) -> None:
    path = described(write(with_returns(60)), source="d4rl", name="x-random-v0", about=ABOUT)
    assert found(path, "RL070", random=41) == []
    (one,) = found(path, "RL070", random=39)
    assert one.message.endswith("expected at most 39 of a set named random")


@pytest.mark.parametrize(
    "fields",
    [
        {"about": {}},
        {"about": {"ref_min_score": "a", "ref_max_score": [1]}},
        {"about": {"ref_min_score": 0, "ref_max_score": 10**390}},
        {"about": {"ref_min_score": 5, "ref_max_score": 5}},
        {"about": {"ref_min_score": float("nan"), "ref_max_score": True}},
        {"parents": ("d4rl:x@1",)},
        {"converter": {"options": {"episodes": [0, 2]}}},
        {"converter": {"options": {"checkpoints": [0, 2]}}},
    ],
)
def test_returns_that_are_not_compared(write: Write, fields: dict[str, Any]) -> None:
    named = {"source": "d4rl", "name": "hopper-random-v2", "about": ABOUT}
    path = described(write(with_returns(100)), **{**named, **fields})
    assert found(path, "RL070") == []


def published(write: Write, **fields: Any) -> Path:
    """Write three episodes of 41 transitions as a Minari set that has 6,729 in 25."""
    named = {"source": "minari", "name": "D4RL/door/human-v2", "revision": "4e3f"}
    return described(write(clean_batch()), **{**named, **fields})


def test_counts(write: Write) -> None:
    transitions, episodes = found(published(write), "RL071")
    assert transitions.message == "It has 41 transitions, and 6,729 are published"
    assert (transitions.about, transitions.count) == ("transitions", 6688)
    assert episodes.message == "It has 3 episodes, and 25 are published"
    assert episodes.severity == "error"


def test_skipped_episodes_count_as_there(write: Write) -> None:
    skipped = tuple({"where": str(n), "reason": "bad"} for n in range(22))
    assert found(published(write, skipped=skipped), "RL071") == []
    (one,) = found(published(write, skipped=skipped[1:]), "RL071")
    assert one.about == "episodes"


@pytest.mark.parametrize(
    "fields",
    [
        {"revision": "local-4e3f"},
        {"source": "local"},
        {"source": "d4rl", "name": "hopper-medium-v2"},
        {"name": "D4RL/door/human-v9"},
        {"parents": ("minari:D4RL/door/human-v2@4e3f",)},
        {"converter": {"options": {"episodes": [0, 3]}}},
    ],
)
def test_counts_that_are_not_compared(write: Write, fields: dict[str, Any]) -> None:
    assert found(published(write, **fields), "RL071") == []


def test_counts_that_fit(write: Write) -> None:
    batch = clean_batch((6729 - 24 * 250, *[250] * 24))
    path = described(write(batch), source="minari", name="D4RL/door/human-v2", revision="4e3f")
    assert found(path, "RL071") == []

"""Episodes that are cut, chosen, dropped and shortened, before, between and after maps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.config import Settings
from offline_data.preprocess.spec import Calling, Stage, function_step
from offline_data.store.verify import verify
from tests.preprocess import oracle
from tests.preprocess.oracle import Row, check, cut, episodes_of, mapped
from tests.preprocess.pairs import (
    CLIP,
    LAYOUTS,
    clipped,
    plain_root_only,
    plain_scaled,
    plain_shorter,
    root_only,
    scaled,
    shorter,
)
from tests.preprocess.runs import (
    LENGTHS,
    Shuffled,
    make,
    small_groups,
    write_plain,
    write_rich,
)


@pytest.mark.parametrize("frames", [1, 2, 3, 4, 5, 8, 9, 17, 22, 23, 24, 1000])
def test_first_frames(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, frames: int
) -> None:
    small_groups(monkeypatch, rows=4, width=100)
    for layout in LAYOUTS:
        parent = write_plain(tmp_path / layout, LENGTHS, unknown_final=[3], text=True)
        found = make(
            parent, [CLIP, scaled], tmp_path / f"{layout}-out", settings, num_frames=frames
        )
        episodes = mapped(mapped(cut(episodes_of(parent), frames), clipped), plain_scaled)
        check(tmp_path / f"{layout}-out", episodes)
        inside = frames not in np.cumsum(LENGTHS) and frames < sum(LENGTHS)
        assert any("is cut after" in note for note in found.manifest.notes) == inside


def test_choices_before_between_and_after_maps(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch, rows=4, width=5200)
    parent = write_rich(tmp_path / "rich")
    stages: list[Stage] = [
        "filter:length > 1",
        scaled,
        "filter:return > 9000 and label != 'label 1'",
        root_only,
        "subsample:every=2",
    ]
    make(parent, stages, tmp_path / "out", settings, executor=Shuffled())
    episodes = [one for one in episodes_of(parent) if len(one.rows) > 1]
    episodes = mapped(episodes, plain_scaled)
    returns = [sum(float(row["next", "reward"][0]) for row in one.rows) for one in episodes]
    kept = zip(episodes, returns, strict=True)
    episodes = [one for one, r in kept if r > 9000 and one.extras["label",] != "label 1"]
    episodes = mapped(episodes, plain_root_only)[::2]
    assert 0 < len(episodes) < 4
    check(tmp_path / "out", episodes)


def test_choices_see_episodes_as_they_were_cut(tmp_path: Path, settings: Settings) -> None:
    parent = write_plain(tmp_path / "toy")
    episodes = cut(episodes_of(parent), 9)
    assert [len(one.rows) for one in episodes] == [3, 1, 4, 1]
    for text, wanted in [("length == 1", [1, 3]), ("truncated", [1, 3]), ("length == 4", [2])]:
        dest = tmp_path / text.replace(" ", "")
        make(parent, [f"filter:{text}"], dest, settings, num_frames=9)
        check(dest, [one for one in episodes if one.number in wanted])


def alike(td: Any) -> Any:
    """Let episodes of one length and one ending be the same."""
    for place in (td, td["next"]):
        place["observation", "state"] = place["observation", "state"] * 0 + 3
        place["info", "code"] = place["info", "code"] * 0 + 5
    td["action"], td["next", "reward"] = td["action"] * 0 + 7, td["next", "reward"] * 0 + 9
    return td


def plain_alike(row: Row) -> Row:
    fixed = {"state": 3, "code": 5, "action": 7, "reward": 9}
    return {k: np.full_like(v, fixed[k[-1]]) if k[-1] in fixed else v for k, v in row.items()}


def test_episodes_that_have_become_the_same(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch, rows=4, width=60)
    parent = write_plain(tmp_path / "toy", [3, 1, 3, 1, 2, 3, 3, 2, 2])
    stages: list[Stage] = ["dedupe", alike, "dedupe", scaled]
    make(parent, stages, tmp_path / "out", settings, executor=Shuffled())
    first: dict[tuple[int, int], oracle.Episode] = {}
    for one in mapped(episodes_of(parent), plain_alike):
        first.setdefault((len(one.rows), one.number % 2), one)
    assert [one.number for one in first.values()] == [0, 1, 4, 5, 7]
    check(tmp_path / "out", mapped(list(first.values()), plain_scaled))


@pytest.mark.parametrize("shards", [False, True])
def test_episodes_that_get_shorter_and_go(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, shards: bool
) -> None:
    small_groups(monkeypatch, rows=2, width=5200)
    parent = write_rich(tmp_path / "rich", [3, 1, 1, 1, 4, 2, 7, 1, 5])
    stages: list[Stage] = [
        "filter:number != 8",
        function_step(shorter, Calling(by="episode")),
        "filter:length > 1",
        scaled,
    ]
    for layout in LAYOUTS:
        executor = Shuffled(shards=shards)
        dest = tmp_path / layout
        make(parent, stages, dest, settings, executor=executor, chunksize=2, layout=layout)
        assert len(executor.ran) > 3
        episodes = plain_shorter([one for one in episodes_of(parent) if one.number != 8])
        check(dest, mapped([one for one in episodes if len(one.rows) > 1], plain_scaled))
        assert verify(dest) == ()


def test_functions_of_episodes_after_functions_that_tell_copies_apart(
    tmp_path: Path, settings: Settings
) -> None:
    parent = write_plain(tmp_path / "toy")
    by_episode = function_step(shorter, Calling(by="episode"))
    make(parent, [root_only, by_episode], tmp_path / "one", settings)
    episodes = episodes_of(parent)
    check(tmp_path / "one", plain_shorter(mapped(episodes, plain_root_only)))
    make(parent, [by_episode, root_only], tmp_path / "two", settings)
    check(tmp_path / "two", mapped(plain_shorter(episodes), plain_root_only))


def test_one_huge_episode(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch, rows=4, width=100)
    parent = write_plain(tmp_path / "toy", [700])
    executor = Shuffled()
    make(parent, [CLIP, scaled], tmp_path / "out", settings, executor=executor, chunksize=10)
    assert executor.ran == [0]
    check(tmp_path / "out", mapped(mapped(episodes_of(parent), clipped), plain_scaled))


def test_thousands_of_episodes(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch, rows=200, width=60)
    parent = write_plain(tmp_path / "toy", [1, 1, 2] * 700)
    executor = Shuffled()
    stages: list[Stage] = [CLIP, scaled, "filter:length < 2 or number < 4000"]
    make(parent, stages, tmp_path / "out", settings, executor=executor)
    assert len(set(executor.ran)) > 4
    check(tmp_path / "out", mapped(mapped(episodes_of(parent), clipped), plain_scaled))

"""Recordings that are continued: after a kill at every file operation, a full disk, or as finished ones."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offline_data
from offline_data.base.config import resolve_settings
from offline_data.base.errors import NoSpaceError, UsageError
from offline_data.pipeline.record.log import read_recording
from offline_data.store.library import entry_at
from offline_data.store.reader import open_reader
from tests.forks import FORKS
from tests.pipeline.jobs.faults import Fault, Kind
from tests.pipeline.record.games import Game, assert_recorded, ended
from tests.pipeline.record.test_recorder import play

STEPS = 15
"""Episodes of 3, 1, 4, 2 and 3 steps, and two steps more."""
EPISODES = 5


def record(root: Path, kind: Kind, at: int | None, counts: Any) -> None:
    """Play with a fault; `counts` are the file operations, and episodes that had ended before it."""
    fault = Fault(kind, at, root)
    game = Game()
    env = offline_data.Recorder(game, "mine", root=root, progress=False)
    env.reset()
    for _ in range(STEPS):
        if any(env.step(0)[2:4]):
            counts[1] += 1
            env.reset()
    env.close()
    counts[0] = fault.count
    counts[2] = 1


def run(root: Path, kind: Kind, at: int | None) -> tuple[int, int, bool]:
    """Return file operations, ended episodes, and whether it came to its end."""
    counts = FORKS.Array("i", [0, 0, 0], lock=False)
    process = FORKS.Process(target=record, args=(root, kind, at, counts))
    process.start()
    process.join(60)
    assert process.exitcode in ({0} if counts[2] else {-signal.SIGKILL, 1})
    return counts[0], counts[1], bool(counts[2])


def continue_it(root: Path) -> Any:
    """Return what is published if the recording is continued, with one more episode of three steps."""
    game = Game()
    with offline_data.Recorder(game, "mine", root=root, resume=True, progress=False) as env:
        env.reset()
        for _ in range(3):
            env.step(0)
    return env.stored, game


@pytest.mark.parametrize(
    ("kind", "every"),
    [
        pytest.param("killed", 9, id="killed, every ninth"),
        *(
            pytest.param(kind, 3, id=kind, marks=pytest.mark.slow)
            for kind in ("killed", "power cut", "disk full")
        ),
    ],
)
def test_a_fault_at_every_third_file_operation(tmp_path: Path, kind: Kind, every: int) -> None:
    total, _, whole = run(tmp_path / "whole", kind, None)
    assert whole
    for at in range(1 + len(kind) % 3, total + 1, every):
        root = tmp_path / str(at)
        _, before, _ = run(root, kind, at)
        for path in (root / "local/mine").glob("*"):
            assert offline_data.verify(str(path)).problems == ()
        stored, _ = continue_it(root)
        rewards = rewards_of(stored.path)
        game = Game()
        play(game, STEPS)
        expected = [one.rewards for one in ended(game)]
        assert rewards[-1] == expected[0]
        kept = rewards[:-1]
        least = 0 if kind == "power cut" else before
        assert kept == expected[: len(kept)], (at, kept)
        assert len(kept) >= least, (at, len(kept), before)
        assert not [*(root / ".recordings").glob("*.log")]
        assert len([*(root / "local/mine").glob("*")]) == 1


def test_killed_at_any_moment(tmp_path: Path) -> None:
    for number in range(8):
        root = tmp_path / str(number)
        counts = FORKS.Array("i", [0, 0, 0], lock=False)
        process = FORKS.Process(target=_record_forever, args=(root, counts))
        process.start()
        while counts[1] < 20:
            time.sleep(0.001)
        time.sleep(0.0037 * number)
        process.kill()
        process.join()
        (log,) = (root / ".recordings").glob("*.log")
        found = read_recording(log)
        assert found is not None
        assert len(found.episodes) in {counts[1], counts[1] + 1}  # written, and not yet counted


def _record_forever(root: Path, counts: Any) -> None:
    env = offline_data.Recorder(Game(), "mine", root=root)
    env.reset()
    while True:
        if any(env.step(0)[2:4]):
            counts[1] += 1
            env.reset()


def record_again(root: Path, kind: Kind, at: int | None, counts: Any) -> None:
    """Replace what is there, by another game; as `record`."""
    fault = Fault(kind, at, root)
    env = offline_data.Recorder(Game(first=70), "mine", root=root, progress=False, force=True)
    counts[1] = 1
    play(env, STEPS)
    env.close()
    counts[0] = fault.count
    counts[2] = 1


@pytest.mark.slow
@pytest.mark.parametrize("unfinished", [False, True])
@pytest.mark.parametrize("finished", [False, True])
def test_a_fault_while_replacing(tmp_path: Path, finished: bool, unfinished: bool) -> None:
    def prepared(name: str) -> Path:
        root = tmp_path / name
        if finished:
            with offline_data.Recorder(Game(), "mine", root=root, progress=False) as env:
                play(env, 5)
        if unfinished:
            env = offline_data.Recorder(Game(), "mine", root=root, resume=True, progress=False)
            play(env, 9)
            env._held.close()
        return root

    def run_again(root: Path, at: int | None) -> list[int]:
        counts = FORKS.Array("i", [0, 0, 0], lock=False)
        process = FORKS.Process(target=record_again, args=(root, "killed", at, counts))
        process.start()
        process.join(60)
        return list(counts)

    total = run_again(prepared("whole"), None)[0]
    game = Game(first=70)
    with offline_data.Recorder(game, "mine", root=tmp_path / "alone", progress=False) as env:
        play(env, STEPS)
    new = rewards_of(env.stored.path)
    for at in range(1 + finished, total + 1, 4):
        root = prepared(str(at))
        begun = run_again(root, at)[1]
        with offline_data.Recorder(
            Game(first=70), "mine", root=root, resume=True, progress=False
        ) as env:
            play(env, 3)
        kept = rewards_of(env.stored.path)
        assert not begun or kept[:-1] == new[: len(kept) - 1], (at, kept)
        assert not [*(root / ".recordings").glob("*.log")]
        assert len([*(root / "local/mine").glob("*/manifest.json")]) == 1


def rewards_of(path: Path) -> list[list[float]]:
    reader = open_reader(path)
    bounds = zip(reader.starts, reader.starts + reader.lengths, strict=True)
    return [reader.step(("next", "reward"))[a:b, 0].tolist() for a, b in bounds]


def test_a_dataset_that_came_while_a_recording_was_unfinished(tmp_path: Path) -> None:
    root, other = tmp_path / "first", tmp_path / "second"
    env = offline_data.Recorder(Game(), "mine", root=root, progress=False)
    play(env, 5)
    env._held.close()
    with offline_data.Recorder(Game(first=9), "mine", root=other, progress=False) as env:
        play(env, 5)
    (other / "local").rename(root / "local")
    with pytest.raises(UsageError, match="begins local:mine; found local:mine@") as error:
        offline_data.Recorder(Game(), "mine", root=root, resume=True)
    hint = str(error.value.shell_hint)
    assert hint.startswith("remove local:mine@")
    assert hint.endswith("force=True replaces both")
    offline_data.remove("local:mine", root=root)
    assert continue_it(root)[0].episodes == 3


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("layout", ["compact", "ted"])
def test_continued_twice(tmp_path: Path, finished: bool, layout: Any) -> None:
    games = [Game(first=first) for first in (0, 100, 200)]
    for number, game in enumerate(games):
        env = offline_data.Recorder(
            game, "mine", root=tmp_path, resume=number > 0, layout=None if number else layout
        )
        env.reset(seed=number)
        env.mark(**({"good": True} if number == 1 else {"score": number}))
        for _ in range(11):
            if any(env.step(0)[2:4]):
                env.reset()
        if finished or number == 2:
            env.close()
        else:
            env._held.close()
    games_ended = [
        game
        for game in ended(*games)
        if finished or game.terminated or game.truncated or game is games[2].played[-1]
    ]
    manifest = entry_at(env.stored.path).manifest
    if finished:
        assert manifest.layout == layout
    path = env.stored.path
    reader = open_reader(path)
    assert reader.episode_count == len(games_ended)
    good = list(np.asarray(reader.episodes[("good",)]))
    score = list(np.asarray(reader.episodes[("score",)]))
    assert sum(good) == 1
    assert sorted({*score}) == [0, 2]
    assert_recorded(path, games_ended, games[0], {"good": good, "score": score})
    assert offline_data.verify("local:mine", root=tmp_path).problems == ()


def test_a_name_that_is_taken_is_replaced(tmp_path: Path) -> None:
    first, game = continue_it(tmp_path)[0], Game(first=50)
    with offline_data.Recorder(game, "mine", root=tmp_path, force=True) as env:
        play(env, 5)
    assert not first.path.exists()
    assert_recorded(env.stored.path, ended(game), game)


def test_damage_in_the_middle_loses_one_episode(tmp_path: Path) -> None:
    env = offline_data.Recorder(Game(), "mine", root=tmp_path)
    play(env, 14)
    env._held.close()
    (log,) = (tmp_path / ".recordings").glob("*.log")
    data = bytearray(log.read_bytes())
    data[data.index(b'"serial": 1')] ^= 1
    log.write_bytes(data)
    found = read_recording(log)
    assert found is not None
    assert [*found.episodes] == [0, 2, 3, 4, 5]
    stored, _ = continue_it(tmp_path)
    (skipped,) = entry_at(stored.path).manifest.skipped
    assert skipped["where"] == "the log"


def test_what_was_recorded_stays_after_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = offline_data.Recorder(Game(), "mine", root=tmp_path)
    play(env, 4)
    (log,) = (tmp_path / ".recordings").glob("*.log")
    size = log.stat().st_size

    class Full:
        def write(self, data: Any) -> int:
            if log.stat().st_size > size:
                raise OSError(28, "No space left on device")
            return int(real.write(data[:10]))

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    log_of: Any = env._log
    real = log_of._file
    log_of._file = Full()
    env.reset()
    with pytest.raises(NoSpaceError):
        [env.step(0) for _ in range(4)]
    assert log.stat().st_size == size
    log_of._file = real
    env.reset()
    env.step(0)
    env.close()
    assert env.stored.episodes == 3


def test_threads_that_record_different_names(tmp_path: Path) -> None:
    settings, found = resolve_settings(root=tmp_path), {}

    def one(name: str) -> None:
        game = Game(first=4 * len(name))
        with offline_data.Recorder(game, name, root=settings.root) as env:
            play(env, 200)
        found[name] = env.stored.path, game

    threads = [threading.Thread(target=one, args=(name,)) for name in ("a", "a/b", "abc")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for path, game in found.values():
        assert_recorded(path, ended(game), game)
    assert len(found) == 3

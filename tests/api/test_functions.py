"""The public functions, as a user of Python calls them; the command line prints the same values."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import IntegrityError, NotFoundError, OfflineError, UsageError
from offline_data.base.progress import SilentProgress
from offline_data.testing.toy import toy_batch
from offline_data_cli.main import main
from tests.toys.stored import write_stored

LENGTHS = [3, 1, 2]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root with `local:toy` of 6 rows and `local:zoo/large` of 40."""
    folder = tmp_path / "root"
    write_stored(folder, "local:toy@1", toy_batch(LENGTHS))
    write_stored(folder, "local:zoo/large@1", toy_batch([40]))
    monkeypatch.setenv("OFFLINE_DATA_HOME", str(folder))
    monkeypatch.setenv("OFFLINE_DATA_OFFLINE", "1")
    return folder


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Return what the command prints as JSON."""
    capsys.readouterr()
    main([*arguments, "--json"])
    return json.loads(capsys.readouterr().out)


def test_a_list_is_a_sequence_of_frozen_values(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = offline_data.list_datasets()
    assert [one.id for one in found] == ["local:toy@1", "local:zoo/large@1"]
    assert (len(found), found[0].transitions, found[0].episodes) == (2, 6, 3)
    assert found[0].path == root / "local" / "toy" / "1"
    with pytest.raises(FrozenInstanceError):
        found[0].id = "other"  # type: ignore[misc]
    told = [{**asdict(one), "path": str(one.path)} for one in found]
    assert printed(capsys, "list") == told
    largest = [one.id for one in offline_data.list_datasets("local", sort="size")]
    assert largest == ["local:zoo/large@1", "local:toy@1"]
    assert [one.id for one in offline_data.list_datasets(prefix="zoo/")] == ["local:zoo/large@1"]
    assert not offline_data.list_datasets("d4rl")
    assert not offline_data.list_datasets(root=root / "elsewhere")


def test_a_list_names_what_it_leaves_out(root: Path) -> None:
    (root / "local" / "toy" / "1" / "manifest.json").write_text("{")
    found = offline_data.list_datasets()
    assert [one.id for one in found] == ["local:zoo/large@1"]
    assert str(root / "local" / "toy" / "1") in found.notes[0]


def test_catalogues(root: Path) -> None:
    listed = offline_data.list_datasets("d4rl", remote=True, prefix="pen-")
    found = offline_data.search("pen-*")
    assert {one.id for one in listed} == {one.id for one in found if one.source == "d4rl"} != set()
    small = offline_data.search("pen-*", max_bytes=1 << 22, limit=1)
    assert [one.bytes is not None and one.bytes <= 1 << 22 for one in small] == [True]
    assert [(one.id, one.here) for one in offline_data.search("zoo")] == [("local:zoo/large", True)]
    with pytest.raises(NotFoundError, match="minary"):
        offline_data.list_datasets("minary")
    with pytest.raises(UsageError, match="sort is 'age'"):
        offline_data.list_datasets(sort="age")  # type: ignore[call-overload]


def test_info_and_stats_are_what_the_command_prints(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("local:toy", root / "local" / "toy" / "1"):
        about = offline_data.info(name)
        assert (about.id, about.transitions, about.episodes) == ("local:toy@1", 6, 3)
    told = printed(capsys, "info", "local:toy")
    assert (told["id"], told["path"]) == (about.id, str(root / "local" / "toy" / "1"))
    assert told["licence"] is about.licence
    figures = offline_data.stats("local:toy")
    reward = next(leaf for leaf in figures.leaves if leaf.key == "next/reward")
    rewards = toy_batch(LENGTHS).steps["next", "reward"]
    assert (reward.min, reward.max) == (rewards.min(), rewards.max())
    assert reward.mean == pytest.approx(rewards.mean())
    assert printed(capsys, "stats", "local:toy")["transitions"] == figures.transitions == 6
    listed = offline_data.info("d4rl:pen-human-v1")
    assert (listed.id, listed.here) == ("d4rl:pen-human-v1", False)  # type: ignore[union-attr]
    with pytest.raises(NotFoundError, match="local:tuy"):
        offline_data.info("local:tuy")


def test_verify_is_false_for_a_damaged_dataset(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = offline_data.verify("local:toy")
    assert sound
    assert sound.ok
    rows = root / "local" / "toy" / "1" / "steps" / "rows.memmap"
    assert rows.exists()
    content = bytearray(rows.read_bytes())
    content[5] ^= 1
    rows.chmod(0o644)
    rows.write_bytes(content)
    found = offline_data.verify("local:toy")
    assert not found
    assert [problem.file for problem in found.problems] == ["steps/rows.memmap"]
    told = printed(capsys, "verify", "local:toy")
    assert (told["ok"], told["problems"]) == (False, [asdict(one) for one in found.problems])


@pytest.mark.parametrize("function", ["verify", "info", "stats", "remove", "load_dataset"])
@pytest.mark.parametrize("wrong", [["local:toy"], 3, b"local:toy"])
def test_a_dataset_is_an_id_or_a_path(root: Path, function: str, wrong: Any) -> None:
    with pytest.raises(UsageError, match="found a") as caught:
        getattr(offline_data, function)(wrong)
    assert caught.value.message == (
        f"A dataset is named by its id or its path; found a {type(wrong).__name__}"
    )


def test_a_root_is_a_path(root: Path) -> None:
    with pytest.raises(UsageError, match="expected one path"):
        offline_data.info("local:toy", root=[root])  # type: ignore[arg-type]


def test_remove_deletes_only_what_was_named(root: Path) -> None:
    own = root / "local" / "toy" / "1" / "notes.txt"
    own.write_text("mine")
    plan = offline_data.remove("local:toy", dry_run=True)
    assert (plan.dry_run, [one.id for one in plan.removed]) == (True, ["local:toy@1"])
    assert plan.kept == (own,)
    assert plan.cannot_be_fetched_again == ("local:toy@1",)
    assert len(offline_data.list_datasets()) == 2
    with pytest.raises(NotFoundError):  # nothing is deleted where one is not found
        offline_data.remove("local:zoo/large", "local:none")
    done = offline_data.remove("local:toy", root / "local" / "toy" / "1")
    assert (done.bytes, len(done.removed)) == (plan.bytes, 1)
    assert [one.id for one in offline_data.list_datasets()] == ["local:zoo/large@1"]
    assert own.read_text() == "mine"


def test_download_says_what_is_here_and_what_cannot_be(root: Path) -> None:
    there = offline_data.download("local:toy")
    assert (str(there.id), there.existed, there.transitions) == ("local:toy@1", True, 6)
    assert (there.layout, there.episodes, there.path) == ("compact", 3, offline_data.info("local:toy").path)  # type: ignore[union-attr]  # fmt: skip
    assert len(offline_data.load_dataset(there.id)) == 6
    with pytest.raises(OfflineError, match="pen-human-v1"):
        offline_data.download("d4rl:pen-human-v1", progress=False)
    with pytest.raises(UsageError, match="root= and settings="):
        offline_data.info("local:toy", root=root, settings=Settings(root))
    with pytest.raises(UsageError, match="progress is 3"):
        offline_data.verify("local:toy", progress=3)  # type: ignore[arg-type]


def test_notes_are_logged_and_progress_is_the_callers(
    root: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    class Seen(SilentProgress):
        def __init__(self) -> None:
            self.labels: list[str] = []

        def task(self, label: str, total: int | None, unit: str) -> Any:
            self.labels.append(label)
            return super().task(label, total, unit)

    seen = Seen()
    offline_data.verify("local:toy", progress=seen)
    assert seen.labels == ["verify"]
    # a row whose next observation is not the following one: a warning of the conversion
    arrays = flat()
    arrays["next_observations"] = arrays["observations"] + 1
    with caplog.at_level(logging.WARNING, "offline_data"):
        offline_data.convert(arrays, "jumps", progress=False)
    assert ["next_observations is not the next row" in one.message for one in caplog.records] == [
        True
    ]
    assert capsys.readouterr() == ("", "")


def flat() -> dict[str, Any]:
    """Arrays as D4RL's environments give them: episodes of 3, 1 and 2 rows."""
    return {
        "observations": np.arange(12, dtype=np.float32).reshape(6, 2),
        "actions": -np.arange(6, dtype=np.float32).reshape(6, 1),
        "rewards": np.linspace(1, 2, 6),
        "terminals": np.array([0, 0, 1, 0, 0, 1], bool),
        "timeouts": np.array([0, 0, 0, 1, 0, 0], bool),
        "infos/qpos": np.arange(6) * 10,
    }


def test_arrays_become_a_dataset_with_their_values(root: Path) -> None:
    arrays = flat()
    stored = offline_data.convert(arrays, "mine")
    assert (stored.transitions, stored.episodes, stored.existed) == (6, 3, False)
    assert offline_data.verify("local:mine")
    back = offline_data.load_dataset("local:mine").to_numpy("episodes")
    for name in ("observations", "actions", "rewards", "terminals", "timeouts"):
        assert back[name].dtype == arrays[name].dtype
        np.testing.assert_array_equal(back[name], arrays[name])
    ds = offline_data.load_dataset("local:mine")
    assert ds[:]["info", "qpos"].tolist() == [0, 10, 20, 30, 40, 50]
    assert ds.episodes["final_observation"].tolist() == [False] * 3
    assert offline_data.convert(arrays, "mine").existed
    arrays["rewards"] = arrays["rewards"] + 1
    with pytest.raises(UsageError, match="local:mine already exists"):
        offline_data.convert(arrays, "mine")
    assert not offline_data.convert(arrays, "mine", force=True).existed
    assert [one.id for one in offline_data.list_datasets(prefix="mine")] != [str(stored.id)]
    assert len(offline_data.list_datasets(prefix="mine")) == 1
    assert list((root / ".staging").glob("*.*/dataset")) == []


def test_arrays_of_a_dataset_make_the_same_dataset_again(root: Path) -> None:
    offline_data.convert(flat(), "mine")
    data = offline_data.load_arrays("local:mine", "episodes")
    parts = {name: data[name] for name in data if name != "next_observations"}
    offline_data.convert(parts, "again")
    for name, array in offline_data.load_arrays("local:again", "episodes").items():
        np.testing.assert_array_equal(array, data[name])


def recorded() -> Iterator[dict[str, Any]]:
    """Episodes from one buffer, as a program that saves memory gives them."""
    seen = np.zeros((4, 2), np.float32)
    for number, length in enumerate(LENGTHS):
        seen[: length + 1, 0] = 100 * number + np.arange(length + 1)
        seen[: length + 1, 1] = number
        yield {
            "observations": {"eye": seen[: length + 1], "goal": seen[: length + 1, 1]},
            "actions": seen[:length, :1],
            "rewards": [float(number)] * length,
            "terminations": number != 1,
            "infos": {"x": list(range(length + 1))},
            "id": f"run {number}",
            "seed": number + 7,
        }


def test_episodes_of_a_generator(root: Path) -> None:
    stored = offline_data.convert(recorded(), "local:rec", audit="all")
    ds = offline_data.load_dataset("local:rec")
    for number, length in enumerate(LENGTHS):
        one = ds.episode(number)
        want = 100 * number + np.arange(length + 1)
        assert one.observations["eye"][:, 0].tolist() == want.tolist()
        assert one.observations["goal"].tolist() == [number] * (length + 1)
        assert one.observed("info")["x"].tolist() == list(range(length + 1))
        assert one.transitions["action"][:, 0].tolist() == want[:-1].tolist()
        assert (one.id, one.seed, one.return_) == (f"run {number}", number + 7, number * length)
    assert ds.episodes["terminated"].tolist() == [True, False, True]
    assert ds.episodes["truncated"].tolist() == [False, True, False]
    unread = recorded()
    with pytest.raises(UsageError, match="local:rec already exists"):
        offline_data.convert(unread, "rec")
    assert len(list(unread)) == 3  # none was lost
    kept = offline_data.convert([*map(copied, recorded())], "rec")
    assert (kept.existed, kept.id) == (True, stored.id)


def copied(episode: dict[str, Any]) -> dict[str, Any]:
    seen = {name: array.copy() for name, array in episode["observations"].items()}
    return {**episode, "observations": seen, "actions": episode["actions"].copy()}


def test_episodes_of_a_dataset_and_of_a_view(root: Path) -> None:
    toy = offline_data.load_dataset("local:toy")
    long = toy.filter(lambda episodes: episodes["length"] > 1)
    offline_data.convert(long.iter_episodes(), "long")
    copy = offline_data.load_dataset("local:long")
    assert copy.episodes["id"].tolist() == [0, 2]
    for mine, theirs in zip(copy.iter_episodes(), long.iter_episodes(), strict=True):
        assert (mine.observations == theirs.observations).all()
        assert (mine.transitions["action"] == theirs.transitions["action"]).all()


def test_episodes_of_minari(root: Path) -> None:
    data = pytest.importorskip("minari.dataset.episode_data")
    episode = data.EpisodeData(
        id=5,
        observations=np.arange(4.0)[:, None],
        actions=np.arange(3),
        rewards=np.ones(3),
        terminations=np.array([False, False, True]),
        truncations=np.zeros(3, bool),
        infos={},
    )
    offline_data.convert([episode], "minari")
    one = offline_data.load_dataset("local:minari").episode(0)
    assert (one.observations[:, 0].tolist(), one.id) == ([0, 1, 2, 3], 5)
    assert one.transitions["action"].tolist() == [0, 1, 2]


BAD: dict[str, tuple[Any, str]] = {
    "a number": (3, "A int cannot be converted"),
    "an array": (np.zeros(3), "A ndarray cannot be converted"),
    "no arrays": ({}, "The arrays lack 'observations'"),
    "no rows": ({**flat(), "observations": np.zeros((0, 2))}, "The arrays have no rows"),
    "too few": ({**flat(), "rewards": np.zeros(5)}, "'rewards' has 5 rows, expected 6"),
    "no ends": (
        {**flat(), "terminals": np.zeros(6), "timeouts": None},
        "marks no end of an episode",
    ),
    "text": ({**flat(), "rewards": ["a"] * 6}, "'rewards' has dtype <U1"),
    "ragged arrays": ({**flat(), "actions": [[1], [1, 2]]}, "'actions' cannot be made an array"),
    "no episodes": ([], "no episodes"),
    "numbers": ([1], "episode 0: it is a int without observations"),
    "a name": ([{"obs": 1}], "episode 0: it has unknown fields obs"),
    "lengths": (
        [{"observations": [1, 2, 3], "actions": [1], "rewards": [1], "terminals": True}],
        "episode 0: .*3 rows, expected 2",
    ),
    "ragged": (
        [{"observations": [[1], [1, 2]], "actions": [1], "rewards": [1], "terminals": True}],
        "episode 0: 'observation' cannot be made an array",
    ),
    "unlike": (
        [
            {"observations": [1, 2], "actions": [1], "rewards": [1], "terminals": True},
            {"observations": [1.0, 2], "actions": [1], "rewards": [1], "terminals": True},
        ],
        "episode 1: feature 'observation' is float64",
    ),
    "large beside floats": (
        {**flat(), "rewards": [2**53 + 1, *[0.5] * 5]},
        "'rewards' has 9007199254740993 among other numbers, which float64 does not hold",
    ),
    "large and negative": (
        [
            {"observations": [[2**63, -1], [1, 2]], "actions": [1, 2], "terminals": True},
            {"observations": [[2**64 - 1, -1], [1, 2]], "actions": [1, 2], "terminals": True},
        ],
        "episode 1: 'observation' has 18446744073709551615 among other numbers",
    ),
    "no flags": (
        [{"observations": [1, 2], "actions": [1], "rewards": [1]}],
        "episode 0: it has none of terminations",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_converted_leaves_nothing(root: Path, case: str) -> None:
    data, message = BAD[case]
    with pytest.raises((IntegrityError, NotFoundError), match=message):
        offline_data.convert(data, "bad")
    assert not offline_data.list_datasets(prefix="bad")
    assert [path for path in (root / ".staging").glob("*") if path.is_dir()] == []


def test_bad_episodes_can_be_left_out(root: Path) -> None:
    good = [*map(copied, recorded())]
    bad = {**good[1], "rewards": [1.0, 2.0, 3.0]}
    stored = offline_data.convert([good[0], bad, good[2]], "some", skip_bad_episodes=True)
    assert (stored.episodes, stored.transitions) == (2, LENGTHS[0] + LENGTHS[2])
    assert [one["where"] for one in stored.manifest.skipped] == ["episode 1"]
    ds = offline_data.load_dataset("local:some")
    assert ds.episodes["id"] == ["run 0", "run 2"]


def test_rows_that_lack_the_last_observation(root: Path) -> None:
    lacks = {"observations": [1.0, 2.0], "actions": [3, 4], "rewards": [5, 6]}
    offline_data.convert([{**lacks, "terminals": False}], "local:lacks")
    ds = offline_data.load_dataset("local:lacks")
    assert ds.episode(0).observations.tolist() == [1, 2, 2]
    assert not ds.episode(0).final_observation
    assert ds.valid_rows.tolist() == [0]


def test_an_error_of_the_generator_is_its_own(root: Path) -> None:
    def breaks() -> Iterator[Any]:
        yield from recorded()
        raise ZeroDivisionError("the simulator")

    with pytest.raises(ZeroDivisionError, match="the simulator"):
        offline_data.convert(breaks(), "bad")
    assert not offline_data.list_datasets(prefix="bad")
    assert [path for path in (root / ".staging").glob("*") if path.is_dir()] == []


def test_a_generator_runs_in_the_callers_thread(root: Path) -> None:
    import threading

    threads = set()

    def episodes() -> Iterator[Any]:
        for one in recorded():
            threads.add(threading.current_thread())
            yield one

    offline_data.convert(episodes(), "rec")
    assert threads == {threading.current_thread()}


def test_options_of_files_are_refused_for_data(root: Path) -> None:
    with pytest.raises(UsageError, match="source=, split= and executor="):
        offline_data.convert(flat(), "mine", source="d4rl")
    with pytest.raises(UsageError, match="checkpoints"):
        offline_data.convert(flat(), "mine", checkpoints=(0, 1))
    some = offline_data.convert(flat(), "mine", episodes=(1, 3), layout="ted")
    assert (some.transitions, some.layout) == (3, "ted")

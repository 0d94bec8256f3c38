"""Atari DQN Replay: every step of the log against what was played, ids, and damage."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data import open_dataset
from offline_data.base.config import Settings
from offline_data.base.errors import AuthError, OfflineDataError
from offline_data.base.ids import parse_id
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED
from offline_data.episode.joining import concatenate
from offline_data.formats.atari_dqn import source as atari_dqn
from offline_data.formats.atari_dqn.log import file_of
from offline_data.formats.atari_dqn.source import AtariDQN, d4rl_atari_names
from offline_data.formats.base import RandomAccess, Release
from offline_data.pipeline.ingest import Options, Stored, convert, download
from offline_data.pipeline.jobs.executors import InProcess
from offline_data.rows.derived import frame_stack
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.sources import SourceCase, SourceContract
from tests.refusals import Refusals
from tests.slow import slow_but
from tests.toys.atari import PADS, ToyLog, toy_step, write_gz, write_replay_log
from tests.toys.servers import Answer, Fault, GcsServer

REFUSALS = Refusals.beside(__file__)
LENGTHS = (6, 1, 24, 2, 31, 9, 5, 20, 12, 15, 22, 3)
"""Episodes of a log of four checkpoints of 40 rows, or of five where the last is written, too.

One ends in the last row of a checkpoint, one in the row before, one goes on in the next.
"""

Truth = list[tuple[int, list[int], bool, bool]]
"""Of each episode to come: its number in the log, its steps, whether the first and last are there."""


def truth_of(log: ToyLog, taken: Collection[int]) -> Truth:
    """Tell from the order in which rows were added what the checkpoints `taken` have of each episode."""
    covered: set[int] = set()
    heads = set()
    last = {row[0]: row[1] for row in log.rows if row is not None}
    for number in sorted(taken):
        first, stop = log.written[number]
        covered.update(range(first, stop))
        # the one that ends the training tells by a terminal of the round before what it follows
        left = log.rows[stop - log.capacity : first - 1] if stop - first < log.capacity - 1 else []
        told = not left or any(row and row[1] == last[row[0]] for row in left)
        if number - 1 in taken and log.written[number - 1][0] == first - log.capacity and told:
            covered.add(first - 1)
        elif first:
            heads.add(first)
    found: Truth = []
    at = -2
    for number in sorted(covered):
        row = log.rows[number]
        if row is not None:
            if number != at + 1 or row[1] == 0:
                # a first step right at the head cannot be told from a later one
                found.append((row[0], [], row[1] == 0 and number not in heads, False))
            found[-1][1].append(row[1])
            found[-1] = (*found[-1][:3], row[1] == last[row[0]])
            at = number
    return found


def episodes_of(raw: Any) -> Iterator[dict[str, Any]]:
    """Give the episodes of a raw dataset one by one."""
    for shard in raw.shards():
        batches = list(raw.read(shard))
        assert sum(len(batch.lengths) for batch in batches) == shard.episodes
        for batch in batches:
            frames = batch.observations["observation",]
            assert frames.dtype == np.uint8
            for e, (start, length) in enumerate(zip(batch.starts, batch.lengths, strict=True)):
                rows = slice(start, start + length)
                yield {
                    "observation": frames[start + e : start + e + length + 1],
                    "action": batch.steps["action",][rows],
                    "reward": batch.steps[REWARD][rows],
                    "flags": [batch.steps[TERMINATED][rows], batch.steps[TRUNCATED][rows]],
                    "final_observation": batch.final_observation[e],
                    "initial_observation": batch.episodes["initial_observation",][e],
                }


def assert_is(truth: Truth, episodes: Iterator[dict[str, Any]]) -> None:
    """Compare every leaf of every row."""
    for (number, steps, begun, ended), found in zip(truth, episodes, strict=True):
        rows = [toy_step(number, step) for step in steps]
        frames = np.array([row["observation"] for row in rows])
        flags = np.zeros((2, len(rows), 1), bool)
        flags[0 if ended else 1, -1] = True
        expected = {
            "observation": np.array([*frames, frames[-1]]),
            "action": [row["action"] for row in rows],
            "reward": np.array([[row["reward"]] for row in rows], np.float32),
            "flags": flags,
            "final_observation": False,
            "initial_observation": begun,
        }
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values, err_msg=name)


def opened(folder: Path, **options: Any) -> Any:
    release = Release("mine", "local-0", local=folder, options=Options(**options))
    return AtariDQN().open(release, folder)


class TestContract(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        write_replay_log(tmp_path / "raw", LENGTHS)
        source = AtariDQN()
        release = source.resolve("Pong/1", None, Settings(tmp_path, offline=True))
        release = source.with_options(release, Options(checkpoints=(0, 4)))
        return SourceCase(source, release, tmp_path / "raw")


@pytest.mark.parametrize("seed", slow_but(lambda seed: seed < 2, range(12)))
def test_what_was_played_is_what_comes(tmp_path: Path, seed: int) -> None:
    """Episodes of any length, also of one step or of several checkpoints; any checkpoints taken."""
    random = np.random.default_rng(seed)
    lengths = random.choice([1, 2, 5, 17, 35, 36, 37, 40, 90, 130], random.integers(3, 14))
    log = write_replay_log(tmp_path / "log", [int(n) for n in lengths], final=seed % 2 == 1)
    if not log.written:
        return
    raw = opened(tmp_path / "log")
    truth = truth_of(log, range(len(log.written)))
    assert_is(truth, episodes_of(raw))
    assert raw.info.transitions in {None, sum(len(steps) for _, steps, *_ in truth)}
    for number in random.permutation(len(log.written))[: random.integers(len(log.written))]:
        for file in (tmp_path / "log").glob(f"*.{number}.gz"):
            file.unlink()
    taken = [
        n for n in range(len(log.written)) if (tmp_path / "log" / file_of("action", n)).exists()
    ]
    assert_is(truth_of(log, taken), episodes_of(opened(tmp_path / "log")))


def test_the_last_checkpoint_is_written_at_any_row(tmp_path: Path) -> None:
    """Behind its new rows are those of the checkpoint before, which are not taken twice."""
    log = write_replay_log(tmp_path / "log", LENGTHS, final=True)
    assert len(log.written) == 5
    assert 0 < log.written[-1][1] - log.written[-1][0] < log.capacity - 1
    assert_is(truth_of(log, range(5)), episodes_of(opened(tmp_path / "log")))
    assert_is(truth_of(log, [4]), episodes_of(opened(tmp_path / "log", checkpoints=(4, None))))


@pytest.mark.parametrize("lengths", [[36, 37], [10, 23, 1, 33]])
def test_a_training_that_ends_when_a_checkpoint_is_due(tmp_path: Path, lengths: list[int]) -> None:
    """It writes the same rows twice; one of the two files is read."""
    log = write_replay_log(tmp_path / "log", lengths, final=True)
    assert log.written[-1] == log.written[-2]
    truth = truth_of(log, range(len(log.written) - 1))
    assert_is(truth, episodes_of(opened(tmp_path / "log")))
    alone = opened(tmp_path / "log", checkpoints=(len(log.written) - 1, None))
    assert_is(truth_of(log, [len(log.written) - 1]), episodes_of(alone))


def test_a_checkpoint_that_was_never_written(tmp_path: Path) -> None:
    """Rows of zeros that pass the last but one row leave a checkpoint out; numbers go on."""
    log = write_replay_log(tmp_path / "log", [10, 60, 50, 20])
    (first, _), (second, _) = log.written
    assert second - first == 2 * log.capacity
    raw = opened(tmp_path / "log")
    assert any("does not follow" in note for note in raw.info.notes)
    assert_is(truth_of(log, range(2)), episodes_of(raw))


@dataclass(frozen=True)
class Converted:
    log: ToyLog
    reader: DatasetReader
    path: Path


@pytest.fixture
def converted(settings: Settings, tmp_path: Path) -> Converted:
    log = write_replay_log(tmp_path / "Pong" / "1" / "replay_logs", LENGTHS, final=True)
    result = convert(tmp_path / "Pong" / "1", "pong", settings, Options(), executor=InProcess())
    return Converted(log, open_reader(result.path), result.path)


def stored(reader: DatasetReader) -> Iterator[dict[str, Any]]:
    """Give the episodes of a dataset directory one by one."""
    for e, (start, length) in enumerate(zip(reader.starts, reader.lengths, strict=True)):
        rows = reader.transitions_at(np.arange(start, start + length))
        yield {
            "observation": [*rows["observation",], rows["next", "observation"][-1]],
            "action": rows["action",],
            "reward": rows["next", "reward"],
            "flags": [rows[TERMINATED], rows[TRUNCATED]],
            "final_observation": reader.episodes["final_observation",][e],
            "initial_observation": reader.episodes["initial_observation",][e],
        }


def test_on_the_disk(converted: Converted) -> None:
    reader = converted.reader
    assert_is(truth_of(converted.log, range(5)), stored(reader))
    begun = [sum(n <= row for n in (40, 80, 120, 160)) for row in first_rows(converted.log)]
    np.testing.assert_array_equal(reader.episodes["checkpoint",], begun)
    assert any("rows of zeros" in note for note in reader.manifest.notes)


def first_rows(log: ToyLog) -> list[int]:
    return [number for number, row in enumerate(log.rows) if row is not None and row[1] == 0]


def test_stacks_are_those_that_the_agent_saw(converted: Converted) -> None:
    """Frames of the log itself, with its rows of zeros, are stacked for comparison."""
    blank = {"observation": np.zeros((5, 4), np.uint8)}
    frames = [
        (blank if row is None else toy_step(*row))["observation"] for row in converted.log.rows
    ]
    place = {row: number for number, row in enumerate(converted.log.rows)}
    batch = open_dataset(converted.path, derived=[frame_stack(4, pad="zero")])[:]
    for row in range(len(batch)):
        code = int(batch["action"][row])
        at = place[code // 1000 - 1, code % 1000 - 1]
        np.testing.assert_array_equal(batch["observation"][row], frames[at - 3 : at + 1])
        if not batch["next", "done"][row]:
            np.testing.assert_array_equal(
                batch["next", "observation"][row], frames[at - 2 : at + 2]
            )
    assert place[0, 0] == PADS


def test_the_generated_log_of_others(realdata: Path, settings: Settings) -> None:
    """Rows of the padded files are laid end to end, the last of each in its place."""
    folder = realdata / "atari_dqn_generated" / "Pong" / "1" / "replay_logs"

    def column(name: str) -> Any:
        arrays = [
            np.load(io.BytesIO(gzip.decompress((folder / file_of(name, number)).read_bytes())))
            for number in range(3)
        ]
        joined = [a[:-1] for a in arrays]
        return np.concatenate([joined[0], arrays[1][-1:], joined[1], arrays[2][-1:], joined[2]])

    frames, terminal = column("observation"), column("terminal").astype(bool)
    kept = np.ones(len(terminal), bool)
    for end in [-1, *np.flatnonzero(terminal)]:
        kept[end + 1 : end + 4] = False
    reader = open_reader(convert(folder, "pong", settings, Options(), executor=InProcess()).path)
    rows = reader.transitions_at(np.arange(reader.transitions))
    np.testing.assert_array_equal(rows["observation",], frames[kept])
    np.testing.assert_array_equal(rows["action",], column("action")[kept])
    np.testing.assert_array_equal(rows["next", "reward"][:, 0], column("reward")[kept])
    np.testing.assert_array_equal(rows[TERMINATED][:, 0], terminal[kept])
    # its first column counts the steps of an episode
    counted = [np.arange(1, n + 1) for n in reader.lengths]
    np.testing.assert_array_equal(rows["observation",][:, 0, 0], np.concatenate(counted))
    followed = np.flatnonzero(~rows["next", "done"][:, 0])
    np.testing.assert_array_equal(
        rows["next", "observation"][followed], rows["observation",][followed + 1]
    )


# ---- ids, and files from elsewhere -----------------------------------------------------------


def test_ids(settings: Settings) -> None:
    source = AtariDQN()
    entries = source.catalog()
    assert len(entries) == 300
    assert sum(bool(entry.notes) for entry in entries) == 30
    assert {entry.transitions for entry in entries} == {50_000_000}
    whole = source.resolve("Breakout/3", None, settings)
    assert (len(whole.files), whole.shards) == (51 * 6, 51)
    assert whole.files[0].urls[0] == (
        "https://storage.googleapis.com/atari-replay-datasets/dqn/Breakout/3/replay_logs/"
        "%24store%24_observation_ckpt.0.gz"
    )
    for name, run, number in [
        ("pong-mixed-v0", "Pong/1", 1),
        ("up-n-down-medium-v4", "UpNDown/5", 10),
        ("ms-pacman-expert-v1", "MsPacman/2", 50),
        ("air-raid-epoch-7-v2", "AirRaid/3", 7),
    ]:
        release = source.resolve(name, None, settings)
        assert release.name == name
        assert {file.path.split(".")[-2] for file in release.files} == {str(number)}
        assert f"dqn/{run}/" in release.files[0].urls[0]
    assert len(d4rl_atari_names()) == 60
    for wrong in ("Pong/6", "Pog/1", "pong-mixed-v5", "pong-epoch-51-v0", "zzz"):
        REFUSALS.check("names", wrong, partial(source.resolve, wrong, None, settings))
    REFUSALS.check("names", "a revision", lambda: source.resolve("Pong/1", "3f2a", settings))


def test_a_range_of_checkpoints(settings: Settings, tmp_path: Path) -> None:
    source = AtariDQN()
    whole = source.resolve("Pong/1", None, settings)
    some = source.with_options(whole, Options(checkpoints=(49, None)))
    assert (some.shards, len(some.files), some.options.checkpoints) == (2, 12, (49, None))
    assert set(some.opening or ()) < {file.path for file in some.files}
    beyond = Options(checkpoints=(51, None))
    REFUSALS.check("names", "a range", lambda: source.with_options(whole, beyond))
    log = write_replay_log(tmp_path / "log", LENGTHS)
    release = source.release_of(tmp_path / "log", "mine")
    mine = source.with_options(release, Options(checkpoints=(1, 3)))
    assert_is(truth_of(log, [1, 2]), episodes_of(source.open(mine, tmp_path / "log")))


def objects(log: Path) -> dict[str, bytes]:
    return {f"dqn/Pong/1/replay_logs/{file.name}": file.read_bytes() for file in log.iterdir()}


@pytest.mark.usefixtures("no_waits")
def test_from_the_bucket(settings: Settings, tmp_path: Path) -> None:
    """What is listed is fetched and compared; a shard's files go with the last that needs them."""
    log = write_replay_log(tmp_path / "log", LENGTHS)
    files = objects(tmp_path / "log")
    del files[f"dqn/Pong/1/replay_logs/{file_of('reward', 3)}"]
    with GcsServer({atari_dqn.BUCKET: files}) as server:
        online = replace(settings, offline=False, mirrors=(server.mirror,))

        def get(name: str, options: Options) -> Stored:
            return download(parse_id(f"atari_dqn:{name}"), online, options, executor=InProcess())

        result = get("Pong/1", Options())
        assert_is(truth_of(log, range(3)), stored(open_reader(result.path)))
        notes = " ".join(result.manifest.notes)
        assert "no checkpoint 3-50 of this run" in notes
        assert "episode of checkpoint 2 continues" in notes
        assert result.manifest.about["run"] == "Pong/1"
        assert result.manifest.environment["id"] == "PongNoFrameskip-v0"
        assert len(result.manifest.files) == 18
        assert not [
            f for f in settings.downloads.rglob("*") if f.is_file() and f.stat().st_size > 2000
        ]
        some = get("Pong/1", Options(checkpoints=(1, 2)))
        assert_is(truth_of(log, [1]), stored(open_reader(some.path)))
        alias = get("pong-mixed-v0", Options())
        assert_is(truth_of(log, [1]), stored(open_reader(alias.path)))
        wrong = f"/{atari_dqn.BUCKET}/dqn/Pong/1/replay_logs/{file_of('reward', 2)}"
        server.always(wrong, Fault(Answer(b"<!DOCTYPE html>")))
        with pytest.raises(OfflineDataError, match=r"reward_ckpt\.2\.gz"):
            get("Pong/1", Options(checkpoints=(2, 3)))


def test_a_bucket_that_refuses(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AuthError("gs://atari-replay-datasets cannot be listed: 403")

    monkeypatch.setattr(atari_dqn, "list_bucket", refuse)
    online = replace(settings, offline=False)
    REFUSALS.check("names", "refused", lambda: AtariDQN().resolve("Pong/1", None, online))
    mirrored = replace(online, mirrors=(("https://storage.googleapis.com/atari", "https://x/"),))
    assert len(AtariDQN().resolve("Pong/1", None, mirrored).files) == 306


def test_folders_that_are_taken(tmp_path: Path) -> None:
    write_replay_log(tmp_path / "1" / "replay_logs", LENGTHS)
    assert AtariDQN().accepts(tmp_path / "1")
    assert AtariDQN().accepts(tmp_path / "1" / "replay_logs")
    none = partial(AtariDQN().release_of, tmp_path, "mine")
    REFUSALS.check("log", "none", none, {tmp_path: "FOLDER"})


# ---- damage ----------------------------------------------------------------------------------


def npy(values: Any, *, pickled: bool = False) -> bytes:
    file = io.BytesIO()
    np.save(file, values, allow_pickle=pickled)
    return gzip.compress(file.getvalue())


def declared(shape: tuple[int, ...]) -> bytes:
    """Return the header of an array, without the array."""
    header = io.BytesIO()
    facts: Any = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, facts)
    return gzip.compress(header.getvalue())


DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "cut": ("observation", lambda b: b[:-20]),
    "a wrong checksum": ("observation", lambda b: b[:-8] + b"\0\0\0\0" + b[-4:]),
    "bytes behind": ("reward", lambda b: gzip.compress(gzip.decompress(b) + b"x")),
    "a web page": ("action", lambda _: b"<!DOCTYPE html><title>x"),
    "a pointer": ("action", lambda _: b"version https://git-lfs.github.com/spec/v1\n"),
    "empty": ("terminal", lambda _: b""),
    "no array": ("terminal", lambda _: gzip.compress(b"hello")),
    "objects": ("reward", lambda _: npy(np.array([{}] * 40), pickled=True)),
    "floats": ("observation", lambda _: npy(np.zeros((40, 5, 4)))),
    "fewer rows": ("action", lambda _: npy(np.zeros(39, np.int32))),
    "a wrong item type": ("action", lambda _: npy(np.zeros(40, np.float32))),
    "no rows": ("reward", lambda _: npy(np.zeros(0))),
    "no flag": ("terminal", lambda _: npy(np.full(40, 2, np.uint8))),
    "terminal padding": ("terminal", lambda _: npy(np.ones(40, np.uint8))),
    "another count": ("add_count", lambda _: npy(np.array(57))),
    "a huge array": ("terminal", lambda _: declared((1 << 40,))),
}
"""What is changed of checkpoint 1."""


@REFUSALS.of("damage", DAMAGE)
def test_damage_is_named(tmp_path: Path, name: str) -> None:
    column, change = DAMAGE[name]
    write_replay_log(tmp_path / "log", LENGTHS)
    path = tmp_path / "log" / file_of(column, 1)
    path.write_bytes(change(path.read_bytes()))

    def read() -> None:
        list(episodes_of(opened(tmp_path / "log")))

    REFUSALS.check("damage", name, read, {tmp_path: "FOLDER"})


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    write_replay_log(tmp_path / "log", LENGTHS)
    (tmp_path / "log" / file_of("reward", 2)).unlink()
    REFUSALS.check("log", "missing", lambda: opened(tmp_path / "log"), {tmp_path: "FOLDER"})
    assert not isinstance(opened(tmp_path / "log", checkpoints=(0, 2)), RandomAccess)


def test_rows_before_an_episode_that_are_no_padding(tmp_path: Path) -> None:
    """Such an episode is refused, or left out by itself; the frames are not shifted by it."""
    log = write_replay_log(tmp_path / "log", LENGTHS)
    path = tmp_path / "log" / file_of("action", 0)
    action = np.load(io.BytesIO(gzip.decompress(path.read_bytes())))
    action[10] = 5  # of the three before episode 1
    write_gz(path, action)

    def read() -> object:
        return list(episodes_of(opened(tmp_path / "log")))

    REFUSALS.check("log", "no padding", read, {tmp_path: "FOLDER"})
    raw = opened(tmp_path / "log", skip_bad_episodes=True)
    batch = concatenate([batch for shard in raw.shards() for batch in raw.read(shard)])
    truth = truth_of(log, range(4))
    kept = [len(steps) for number, steps, *_ in truth if number != 1]
    np.testing.assert_array_equal(batch.lengths, kept)
    assert "row 12" in batch.skipped[0].where


def test_a_cut_file_ends_its_shard(tmp_path: Path) -> None:
    write_replay_log(tmp_path / "log", LENGTHS)
    path = tmp_path / "log" / file_of("observation", 3)
    path.write_bytes(path.read_bytes()[:-40])
    raw = opened(tmp_path / "log", skip_bad_episodes=True)
    batches = [list(raw.read(shard)) for shard in raw.shards()]
    skipped = [sum(len(batch.skipped) for batch in shard) > 0 for shard in batches]
    assert skipped == [False, False, True, True]

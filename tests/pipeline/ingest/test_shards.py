"""Datasets of several shards: the same rows and bytes whoever converts them, however often it is killed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import (
    FormatError,
    OfflineDataError,
    WorkerDiedError,
)
from offline_data.base.ids import parse_id
from offline_data.base.progress import SilentProgress
from offline_data.pipeline.ingest import Options, Stored, convert, download
from offline_data.pipeline.ingest.shards import ConvertShard
from offline_data.pipeline.jobs.executors import InProcess, LocalProcesses
from offline_data.store.manifest import Manifest
from offline_data.store.reader import open_reader
from offline_data.store.verify import verify
from offline_data.testing.sources import SourceCase, SourceContract
from offline_data.testing.toy import toy_batch
from tests.pipeline.ingest.here import convert_here
from tests.toys.servers import FileServer
from tests.toys.sharded import (
    ShardToy,
    served,
    shard_file,
    toy_length,
    write_toy_shards,
)


@pytest.fixture
def settings(sharded: Settings) -> Settings:
    return sharded


class Notes(SilentProgress):
    def __init__(self) -> None:
        self.told: list[str] = []

    def note(self, message: str) -> None:
        self.told.append(message)


class Shuffled(InProcess):
    """Runs tasks here, in another order; ends after some of them."""

    name = "shuffled"

    def __init__(self, ends_after: int | None = None) -> None:
        super().__init__()
        self.ends_after, self.ran = ends_after, list[int]()

    def run(
        self,
        job: Callable[[Any], Any],
        tasks: Sequence[Any],
        progress: Any,  # noqa: ARG002
    ) -> Iterator[Any]:
        order = np.random.default_rng(len(tasks)).permutation(len(tasks))
        for number in map(int, order):
            if self.ends_after is not None and len(self.ran) >= self.ends_after:
                raise KeyboardInterrupt
            self.ran.append(tasks[number][0])
            yield number, job(tasks[number])


def get(
    name: str,
    settings: Settings,
    server: FileServer,
    executor: Any = None,
    progress: Any = None,
    **options: Any,
) -> Stored:
    server.files.update(served(name))
    dataset, notes = parse_id(f"shardtoy:{name}"), progress or Notes()
    return download(dataset, settings, Options(**options), notes, executor=executor or Shuffled())


def check(stored: Stored, episodes: Sequence[int]) -> None:
    """Compare a dataset with what the numbers of its episodes say that it has."""
    lengths = [toy_length(number) for number in episodes]
    expected = [toy_batch([n], first_episode=e) for e, n in zip(episodes, lengths, strict=True)]
    reader = open_reader(stored.path)
    found = reader.episode_batch(0, reader.episode_count)
    np.testing.assert_array_equal(found.lengths, lengths)
    np.testing.assert_array_equal(found.episodes["id",], episodes)
    assert found.episodes["task",].tolist() == [f"task {number % 5}" for number in episodes]
    states = np.concatenate([one.observations["observation", "state"] for one in expected])
    np.testing.assert_array_equal(found.observations["observation", "state"], states)
    missions = [f"go to {int(code) % 7}" for code in states[:, 0]]
    assert found.observations["observation", "mission"].tolist() == missions
    for key in expected[0].steps:
        column = np.concatenate([one.steps[key] for one in expected])
        np.testing.assert_array_equal(found.steps[key], column)
    assert verify(stored.path) == ()


def raw_files(settings: Settings) -> list[Path]:
    return [path for path in (settings.downloads / "sha256").rglob("*") if path.is_file()]


def left(settings: Settings) -> list[str]:
    return [path.name for path in settings.staging.iterdir() if path.is_dir()]


def plain(manifest: Manifest) -> dict[str, Any]:
    return replace(manifest, created="", sha256=None).to_json()


@pytest.mark.slow
def test_rows_are_those_of_the_shards_in_order(settings: Settings, server: FileServer) -> None:
    stored = get("sharded-6x3-empty2", settings, server)
    check(stored, [e for e in range(18) if e // 3 != 2])
    manifest = stored.manifest
    assert [file["path"] for file in manifest.files] == [
        "features.json",
        *(shard_file(number, 6) for number in range(6)),
    ]
    assert all(len(str(file["sha256"])) == 64 for file in manifest.files)
    assert manifest.converter["options"] == Options().recorded()
    assert manifest.notes == ("Every value tells its episode and step.",)
    assert manifest.audit["of"] == manifest.counts["transitions"]
    assert raw_files(settings) == []
    assert left(settings) == []
    assert download(stored.id, settings, Options()).existed


@pytest.mark.slow
def test_bytes_depend_neither_on_workers_nor_on_order(
    settings: Settings, server: FileServer
) -> None:
    """Some here, in another order, and all in processes of their own, at once."""
    name = "sharded-3x2"
    first = get(name, settings, server)
    again = get(name, settings, server, LocalProcesses(2), force=True)
    assert plain(again.manifest) == plain(first.manifest)


def test_one_writer_that_gets_all_rows_writes_the_same(
    settings: Settings, server: FileServer, tmp_path: Path
) -> None:
    """One shard that has everything gives the bytes that many joined ones give."""
    many = get("sharded-4x3", settings, server)
    folder = write_toy_shards(tmp_path / "raw", "sharded-4x3")
    whole = write_toy_shards(tmp_path / "whole", "sharded-1x12")
    one = convert(whole, "one", settings, Options(), source="shardtoy")
    joined = convert(folder, "joined", settings, Options(), source="shardtoy")
    assert joined.manifest.digests == one.manifest.digests == many.manifest.digests
    check(joined, range(12))
    assert [file["path"] for file in joined.manifest.files] == sorted(
        path.name for path in folder.iterdir()
    )


def test_a_finished_shard_is_not_made_again(settings: Settings, server: FileServer) -> None:
    name, stopped = "sharded-6x3", Shuffled(ends_after=4)
    with pytest.raises(KeyboardInterrupt, match=r"4 of 6 shards .* same command again"):
        get(name, settings, server, stopped)
    assert len(left(settings)) == 1
    notes, rest = Notes(), Shuffled()
    check(get(name, settings, server, rest, notes), range(18))
    assert sorted(stopped.ran + rest.ran) == list(range(6))
    assert any("resuming: 4 of 6 shards done" in note for note in notes.told)
    assert left(settings) == []


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"audit": 1.0}, {"layout": "ted"}, {"force": True}])
def test_other_options_make_all_shards_again(
    settings: Settings, server: FileServer, change: dict[str, Any]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        get("sharded-4x2", settings, server, Shuffled(ends_after=2))
    other = Shuffled()
    get("sharded-4x2", settings, server, other, **change)
    assert sorted(other.ran) == [0, 1, 2, 3]
    assert len(left(settings)) == 1  # of the run that was interrupted


@pytest.mark.slow
def test_raw_files_stay_only_if_asked_to(settings: Settings, server: FileServer) -> None:
    get("sharded-3x2", settings, server, keep_raw=True)
    assert len(raw_files(settings)) == 4
    get("sharded-3x2", settings, server, force=True)
    assert len(raw_files(settings)) == 4  # a manifest that is there said so before
    get("sharded-3x2", settings, server, force=True)
    assert raw_files(settings) == []


@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize(
    ("episodes", "shards"),
    [((4, 8), [1, 2]), ((7, None), [2, 3]), ((None, 3), [0])],
)
def test_a_range_of_episodes_is_exactly_that(
    settings: Settings,
    server: FileServer,
    episodes: tuple[int | None, int | None],
    shards: list[int],
    unknown: bool,
) -> None:
    name = f"sharded-4x3{'-unknown' if unknown else ''}"
    executor = Shuffled()
    stored = get(name, settings, server, executor, episodes=episodes)
    check(stored, range(12)[slice(*episodes)])
    before = list(range(shards[0])) if unknown else []
    assert sorted(executor.ran) == before + shards
    asked = {request.path.rpartition("/")[2] for request in server.requests}
    assert asked == {"features.json", *(shard_file(n, 4) for n in before + shards)}
    assert stored.manifest.converter["options"]["episodes"] == list(episodes)


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_a_crash_in_the_parser_is_the_shards_fault(settings: Settings, server: FileServer) -> None:
    with pytest.raises(FormatError, match=r"Shard 'part 0': it is damaged: .* SIGSEGV"):
        get("sharded-1x2-crash0", settings, server, InProcess())


@pytest.mark.usefixtures("no_waits")
def test_a_shard_that_is_damaged_at_the_server(settings: Settings, server: FileServer) -> None:
    name = "sharded-4x2"
    server.files.update(served(name))
    path = f"/{name}/{shard_file(2, 4)}"
    right = server.files[path]
    server.files[path] = right[:-2] + b"x\n"
    with pytest.raises(OfflineDataError, match=f"Shard 'part 2': {shard_file(2, 4)}(?s:.*)sha256"):
        download(parse_id(f"shardtoy:{name}"), settings, Options(), executor=InProcess())
    check(get(name, settings, server), range(8))


def test_hostile_names_lead_nowhere(settings: Settings, server: FileServer, tmp_path: Path) -> None:
    before = {path for path in tmp_path.rglob("*") if settings.root not in path.parents}
    check(get("sharded-3x2-hostile", settings, server), range(6))
    after = {path for path in tmp_path.rglob("*") if settings.root not in path.parents}
    assert after - before <= {settings.root}


def test_what_the_source_says_is_compared_with_all_shards(
    settings: Settings, server: FileServer
) -> None:
    notes = Notes()
    manifest = get("sharded-3x2-says7", settings, server, None, notes).manifest
    count = manifest.counts["transitions"]
    warning = "Counts are not to be trusted."
    assert notes.told == [warning]
    stated = f"The source states 7 transitions; it has {count}."
    assert [manifest.notes.count(note) for note in (warning, stated)] == [1, 1]


def test_a_worker_that_dies_twice(settings: Settings, server: FileServer) -> None:
    class Dying(InProcess):
        def run(self, *_: Any) -> Iterator[Any]:
            yield from ()
            raise WorkerDiedError("A process was ended by SIGKILL, like the previous worker")

    notes = Notes()
    with pytest.raises(KeyboardInterrupt):
        get("sharded-4x2", settings, server, Shuffled(ends_after=2))
    with pytest.raises(WorkerDiedError):
        get("sharded-4x2", settings, server, Dying(), notes)
    kept = "2 of 4 shards are finished and kept: run the same command again to continue"
    assert notes.told[-1] == kept


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_a_shard_lists_itself_in_a_process_of_its_own(
    settings: Settings, server: FileServer
) -> None:
    """Without an executor of the caller's: processes of this machine, which import the adapter."""
    server.files.update(served("sharded-2x2"))
    stored = download(parse_id("shardtoy:sharded-2x2"), replace(settings, workers=1), Options())
    check(stored, range(4))
    assert "tests.toys.sharded" in sys.modules


class TestShardToy(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        source, name = ShardToy(), "sharded-6x3"
        release = source.resolve(name, None, Settings(tmp_path))
        return SourceCase(source, release, write_toy_shards(tmp_path / "raw", name))


class TestUnknownCounts(TestShardToy):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        source, name = ShardToy(), "sharded-3x3-unknown"
        release = source.resolve(name, None, Settings(tmp_path))
        return SourceCase(source, release, write_toy_shards(tmp_path / "raw", name))


NAME = "sharded-4x2"


class Looking(InProcess):
    """Counts the raw files after each task."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings, self.counts = settings, list[int]()

    def run(self, job: Callable[[Any], Any], tasks: Sequence[Any], progress: Any) -> Iterator[Any]:
        for number, answer in super().run(job, tasks, progress):
            self.counts.append(len(raw_files(self.settings)))
            yield number, answer


@pytest.mark.parametrize(("keep_raw", "counts"), [(False, [1, 1, 1, 1]), (True, [2, 3, 4, 5])])
def test_a_shards_files_go_with_it(
    settings: Settings, server: FileServer, keep_raw: bool, counts: list[int]
) -> None:
    looking = Looking(settings)
    check(get(NAME, settings, server, looking, keep_raw=keep_raw), range(8))
    assert looking.counts == counts  # one is what opening needs
    assert bool(raw_files(settings)) == keep_raw


def test_a_file_of_several_shards_is_fetched_once_and_goes_with_the_last(
    settings: Settings, server: FileServer
) -> None:
    looking, name = Looking(settings), f"{NAME}-overlap"
    check(get(name, settings, server, looking), range(8))
    asked = Counter(request.path for request in server.requests)
    assert looking.counts == [2, 2, 2, 1]
    assert set(asked.values()) == {1}


def test_what_a_kill_left_of_a_finished_shard_goes_first(
    settings: Settings, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ConvertShard, "free", die)
        with pytest.raises(KeyboardInterrupt):
            get(NAME, settings, server, InProcess())
    assert len(raw_files(settings)) == 2
    looking = Looking(settings)
    get(NAME, settings, server, looking)
    assert looking.counts == [1, 1, 1]


@pytest.mark.usefixtures("processes")
def test_no_more_shards_at_once_than_half_of_the_free_disk_has_room_for(
    settings: Settings, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert_here(monkeypatch)
    server.files.update(served(NAME))
    workers: list[int] = []

    def local(count: int) -> InProcess:
        workers.append(count)
        return InProcess()

    largest = max(len(content) for path, content in served(NAME).items() if "shard" in path)
    monkeypatch.setattr("offline_data.pipeline.ingest.shards.LocalProcesses", local)
    monkeypatch.setattr("offline_data.pipeline.ingest.shards.free_bytes", lambda _: 2 * 3 * largest)
    download(parse_id(f"shardtoy:{NAME}"), replace(settings, workers=8), Options())
    assert workers == [3]

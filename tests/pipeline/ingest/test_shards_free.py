"""Raw files of shards: never more at a time than there are tasks under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from offline_data.base.config import Settings
from offline_data.base.ids import parse_id
from offline_data.pipeline.ingest import Options, download
from offline_data.pipeline.ingest.shards import ConvertShard
from offline_data.pipeline.jobs.executors import InProcess
from tests.pipeline.ingest.here import convert_here
from tests.pipeline.ingest.test_shards import check, get, raw_files
from tests.toys.servers import FileServer
from tests.toys.sharded import served

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


@pytest.fixture
def settings(sharded: Settings, server: FileServer) -> Settings:
    server.files.update(served(NAME))
    return sharded


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
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert_here(monkeypatch)
    workers: list[int] = []

    def local(count: int) -> InProcess:
        workers.append(count)
        return InProcess()

    largest = max(len(content) for path, content in served(NAME).items() if "shard" in path)
    monkeypatch.setattr("offline_data.pipeline.ingest.shards.LocalProcesses", local)
    monkeypatch.setattr("offline_data.pipeline.ingest.shards.free_bytes", lambda _: 2 * 3 * largest)
    download(parse_id(f"shardtoy:{NAME}"), replace(settings, workers=8), Options())
    assert workers == [3]

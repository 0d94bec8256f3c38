"""Shards on Ray, in processes, and by the ranks of a plan: the same bytes as in this process."""

from __future__ import annotations

import fnmatch
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from offline_data.base.config import Settings
from offline_data.base.ids import parse_id
from offline_data.pipeline.ingest import Options, download
from offline_data.pipeline.jobs.executors import InProcess
from offline_data.pipeline.jobs.ray import RayExecutor
from offline_data.store.library import list_datasets
from offline_data.store.manifest import Manifest
from tests.pipeline.ingest.test_shards import Notes, check, left, plain, raw_files
from tests.pipeline.jobs.executors.ray_cluster import RayNode, two_nodes
from tests.stories.conftest import Shell
from tests.toys.servers import Answer, FileServer, Request
from tests.toys.sharded import PUBLISHED, install, served

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("processes")]

LARGER = "sharded-12x3"


class HoldingServer(FileServer):
    """While it is told to hold, it answers for no shard; `two_wait` tells that two are waited for."""

    def __init__(self) -> None:
        super().__init__(served(LARGER))
        self.hold = False
        self.waiting: set[str] = set()
        self.two_wait, self.go_on = threading.Event(), threading.Event()

    def answer(self, request: Request) -> Answer:
        if self.hold and "/data-" in request.path:
            self.waiting.add(request.path)
            if len(self.waiting) >= 2:
                self.two_wait.set()
            self.go_on.wait(120)
        return super().answer(request)


@pytest.mark.filterwarnings("default")
def test_processes_a_cluster_that_loses_a_node_and_four_ranks_make_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    plugin = str(install(tmp_path / "plugin"))
    monkeypatch.syspath_prepend(plugin)
    dataset, notes = parse_id(f"shardtoy:{LARGER}"), Notes()
    with HoldingServer() as server:
        mirrors = ((PUBLISHED, server.url),)

        def settings(name: str) -> Settings:
            return Settings(tmp_path / name, workers=3, mirrors=mirrors, minari_path=tmp_path)

        expected = download(dataset, settings("here"), Options(), executor=InProcess())
        check(expected, range(36))
        processes = download(dataset, settings("processes"), Options())
        with two_nodes() as cluster:
            executor = RayExecutor(cluster.address)

            def lose_a_node() -> None:
                if server.two_wait.wait(240):  # a node has one CPU: both of them are at work
                    RayNode(cluster.handle, next(iter(cluster.handle.worker_nodes))).lose()
                server.go_on.set()

            server.hold, watcher = True, threading.Thread(target=lose_a_node)
            watcher.start()
            try:
                there = settings("cluster")
                spread = download(dataset, there, Options(), notes, executor=executor)
            finally:
                server.two_wait.set()
                watcher.join()
        assert any(note.endswith("running it again") for note in notes.told), notes.told
        assert (left(there), raw_files(there)) == ([], [])

        environ = {"OFFLINE_DATA_MIRRORS": f"{PUBLISHED}={server.url}", "PYTHONPATH": plugin}
        shell, plan = Shell(tmp_path / "ranks", environ), str(tmp_path / "plan.json")
        shell.run("download", str(dataset), "--plan-only", "--plan", plan)
        ranks = [
            shell.start("worker", "--plan", plan, "--rank", str(rank), "--world", "4")
            for rank in range(4)
        ]
        ended = [(rank.communicate(timeout=240), rank.returncode) for rank in ranks]
        assert {code for _, code in ended} == {0}, ended
    (by_ranks,) = list_datasets(shell.root)
    for made in (processes, spread, by_ranks):
        assert published(made.manifest) == published(expected.manifest)
        assert bytes_in(made.path) == bytes_in(expected.path)


@pytest.mark.filterwarnings("default")
def test_a_driver_that_is_killed_and_run_again_makes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    plugin = str(install(tmp_path / "plugin"))
    monkeypatch.syspath_prepend(plugin)
    dataset = parse_id(f"shardtoy:{LARGER}")
    with HoldingServer() as server, two_nodes() as cluster:
        mirrors = ((PUBLISHED, server.url),)
        here, there = (
            Settings(tmp_path / name / "root", workers=3, mirrors=mirrors, minari_path=tmp_path)
            for name in ("here", "there")
        )
        expected = download(dataset, here, Options(), executor=InProcess())
        environ = {"OFFLINE_DATA_MIRRORS": f"{PUBLISHED}={server.url}", "PYTHONPATH": plugin}
        shell = Shell(tmp_path / "there", environ)

        def finished() -> list[str]:
            """Unlike `Path.rglob`, `os.walk` passes over folders that go meanwhile."""
            names = [name for *_, files in os.walk(there.staging) for name in files]
            return fnmatch.filter(names, "000[0-9][0-9].record")

        line = ("download", str(dataset), "--engine", "ray", "--address", cluster.address)
        process = shell.start(*line)
        while len(finished()) < 3:
            time.sleep(0.01)
            assert process.poll() is None, process.communicate()
        server.hold = True  # no other shard begins from now on
        assert server.two_wait.wait(240)
        process.kill()
        process.communicate()
        done = len(finished())
        assert 3 <= done < 12
        assert list_datasets(there.root) == []
        server.go_on.set()
        asked = len(server.requests)
        shell.run(*line)
        fetched = {one.path for one in server.requests[asked:] if "/data-" in one.path}
        assert len(fetched) <= 12 - done  # finished shards are not made again
        (made,) = list_datasets(there.root)
    assert published(made.manifest) == published(expected.manifest)
    assert bytes_in(made.path) == bytes_in(expected.path)
    assert (left(there), raw_files(there)) == ([], [])


def published(manifest: Manifest) -> dict[str, Any]:
    """Return the manifest as `plain` does, each file with the URL under which it is published.

    If a process ends after it named a file and before it recorded the mirror that gave it, the
    next one knows the file by its content alone, and its published URL instead of the mirror's.
    """
    files = [{**file, "url": f"{PUBLISHED}/{LARGER}/{file['path']}"} for file in manifest.files]
    return {**plain(manifest), "files": files}


def bytes_in(root: Path) -> dict[str, bytes]:
    """Read every file of a dataset but its manifest, which has a time in it."""
    files = (path for path in root.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}

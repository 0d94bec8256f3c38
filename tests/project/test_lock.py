"""`lock` and `sync`: what is kept, fetched, refused."""

from __future__ import annotations

import hashlib
import shutil
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import pytest

from offline_data import api
from offline_data.base.config import Settings
from offline_data.base.errors import (
    IntegrityError,
    LockError,
    NetworkError,
    NotFoundError,
    OfflineError,
    UsageError,
)
from offline_data.formats.base import Release, RemoteFile
from offline_data.formats.d4rl.source import D4RL
from offline_data.project.lockfile import read_lock
from offline_data.store.library import entry_at, list_datasets
from offline_data.testing.toy import toy_batch
from tests.project.conftest import HOPPER, HOST, SHARDS
from tests.toys.d4rl import TOYS, write_d4rl_hdf5
from tests.toys.minari import toy_episode, write_minari
from tests.toys.servers import FileServer
from tests.toys.sharded import PUBLISHED, served
from tests.toys.stored import write_stored

Project = Callable[..., Path]
HOP = 'hop = "d4rl:hopper-medium-v2"'
TOY = f'toy = "shardtoy:{SHARDS}"'


def lock(file: Path, settings: Settings, **how: Any) -> tuple[str, ...]:
    return api.lock(file, settings=settings, progress=False, **how).changes


def sync(file: Path, settings: Settings, **how: Any) -> list[tuple[str, str]]:
    done = api.sync(file, settings=settings, progress=False, **how)
    assert all(entry_at(one.path).id == one.id for one in done if not how.get("dry_run"))
    return [(one.name, one.action) for one in done]


def record(settings: Settings, length: int) -> Path:
    """Write a dataset in Minari's own folder."""
    assert settings.minari_path is not None
    folder = settings.minari_path / "my" / "set-v0"
    shutil.rmtree(folder, ignore_errors=True)
    return write_minari(folder, [toy_episode(e, length) for e in range(2)])


def test_from_request_to_another_machine(
    online: Settings, elsewhere: Settings, project: Project, server: FileServer
) -> None:
    file = project(HOP, TOY)
    assert lock(file, online) == (
        "added hop: d4rl:hopper-medium-v2@unversioned",
        "added toy: shardtoy:sharded-3x2@v1",
    )
    text = file.with_suffix(".lock").read_text()
    assert text.endswith("]\n")
    assert server.url not in text  # a mirror of one machine
    locked = read_lock(file.with_suffix(".lock"))
    assert (locked["hop"].transitions, locked["toy"].episodes) == (17, 6)
    (raw,) = locked["hop"].files
    assert raw.url == f"{HOST}{HOPPER}"
    assert raw.size == len(server.files[HOPPER])
    assert len(locked["toy"].files) == 4
    assert sync(file, elsewhere, locked=True, dry_run=True) == [
        ("hop", "download"),
        ("toy", "download"),
    ]
    assert list_datasets(elsewhere.root) == []
    assert sync(file, elsewhere, locked=True) == [("hop", "download"), ("toy", "download")]
    asked = len(server.requests)
    for settings in (online, replace(elsewhere, offline=True)):
        assert sync(file, settings, locked=True) == [("hop", "none"), ("toy", "none")]
    assert not api.lock(file, settings=online, progress=False).written
    assert lock(file, online) == ()
    assert lock(file, online, check=True) == ()
    assert len(server.requests) == asked
    file.with_suffix(".lock").unlink()
    lock(file, elsewhere)  # on another machine, at another time
    assert file.with_suffix(".lock").read_text() == text


def test_without_locked_it_is_locked_first(online: Settings, project: Project) -> None:
    file = project(HOP)
    for how in ({"locked": True}, {"dry_run": True}):
        with pytest.raises(LockError, match="hop is not in the lock file"):
            sync(file, online, **how)
    assert sync(file, online) == [("hop", "none")]
    project(HOP, TOY)
    assert lock(file, online, check=True) == ("toy is not in the lock file",)
    before = read_lock(file.with_suffix(".lock"))["hop"]
    assert sync(file, online) == [("hop", "none"), ("toy", "none")]
    assert read_lock(file.with_suffix(".lock"))["hop"] == before
    project(TOY)
    assert lock(file, online, check=True) == ("hop is only in the lock file",)
    assert lock(file, online) == ("removed hop",)
    assert len(list_datasets(online.root)) == 2


def test_options(online: Settings, elsewhere: Settings, project: Project) -> None:
    part = f'toy = {{ id = "shardtoy:{SHARDS}", episodes = "1:4", layout = "ted" }}'
    file = project(part)
    lock(file, online)
    one = read_lock(file.with_suffix(".lock"))["toy"]
    assert (str(one.id), one.episodes) == (f"shardtoy:{SHARDS}@v1", 3)
    assert str(one.stored_id) == f"shardtoy:{SHARDS}@v1+episodes-1-4"
    sync(file, elsewhere, locked=True)
    (entry,) = list_datasets(elsewhere.root)
    assert (entry.manifest.layout, entry.id) == ("ted", one.stored_id)
    project(part.replace("ted", "compact"))
    assert lock(file, online, check=True) == ("toy has layout compact, in the lock file ted",)
    lock(file, online)
    assert read_lock(file.with_suffix(".lock"))["toy"].content == one.content
    assert sync(file, elsewhere, dry_run=True) == [("toy", "rewrite")]
    assert sync(file, elsewhere) == [("toy", "rewrite")]
    assert list_datasets(elsewhere.root)[0].manifest.layout == "compact"


def test_what_was_made_with_other_options_is_not_replaced(
    online: Settings, project: Project
) -> None:
    name = "shardtoy:sharded-2x2-images1"
    with FileServer(served("sharded-2x2-images1")) as server:
        settings = replace(online, mirrors=((PUBLISHED, server.url),))
        api.download(name, images="raw", settings=settings, progress=False)
        with pytest.raises(UsageError, match="images is raw, not encoded"):
            lock(project(f'toy = "{name}"'), settings)
        file = project(f'toy = {{ id = "{name}", images = "raw" }}')
        lock(file, settings)
        encoded = replace(settings, root=online.root / "encoded")
        api.download(name, settings=encoded, progress=False)
        with pytest.raises(IntegrityError, match="images is encoded, not raw"):
            sync(file, encoded, locked=True)
        assert list_datasets(encoded.root)[0].manifest.converter["options"]["images"] is None


def test_the_host_changed_its_file(
    online: Settings,
    elsewhere: Settings,
    project: Project,
    server: FileServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw_file = RemoteFile("hopper_medium-v2.hdf5", (server.at(HOPPER),))
    release = Release("hopper-medium-v2", "unversioned", (raw_file,))
    monkeypatch.setattr(D4RL, "resolve", lambda *_: release)
    file = project(HOP, TOY)
    lock(file, online)
    published = server.files[HOPPER]
    other = write_d4rl_hdf5(tmp_path / "other.hdf5", TOYS["mujoco-v2"])
    with h5py.File(other, "r+") as raw:
        raw["rewards"][0] = 99
    server.files[HOPPER] = other.read_bytes()
    with pytest.raises(IntegrityError, match=r"^hop: .*sha256"):
        sync(file, elsewhere, locked=True)
    # nothing of it is published, and the other dataset is here
    assert [one.id.source for one in list_datasets(elsewhere.root)] == ["shardtoy"]
    # who has converted the new file keeps it, and is told each difference
    api.download("d4rl:hopper-medium-v2", settings=elsewhere, progress=False)
    with pytest.raises(IntegrityError) as caught:
        sync(file, elsewhere, locked=True)
    digests = [hashlib.sha256(one).hexdigest() for one in (other.read_bytes(), published)]
    sizes = [len(one) for one in (other.read_bytes(), published)]
    texts = [f"{n:,} bytes with sha256 {one}" for n, one in zip(sizes, digests, strict=True)]
    assert f"hopper_medium-v2.hdf5 is {texts[0]}, not {texts[1]}" in caught.value.message
    assert "its content is sha256:" in caught.value.message
    assert len(list_datasets(elsewhere.root)) == 2
    (change,) = lock(file, elsewhere, upgrade="hop")
    assert change == "updated hop: d4rl:hopper-medium-v2@unversioned with other content"
    assert sync(file, elsewhere, locked=True) == [("hop", "none"), ("toy", "none")]


def test_the_source_lost_a_file(online: Settings, elsewhere: Settings, project: Project) -> None:
    file = project(TOY)
    lock(file, online)
    path = file.with_suffix(".lock")
    path.write_text(path.read_text().replace("data-00002-of-00003", "data-00009-of-00003"))
    with pytest.raises(IntegrityError, match="has no file data-00009-of-00003"):
        sync(file, elsewhere, locked=True)
    with pytest.raises(IntegrityError, match=r"data-00002.*data-00009"):
        sync(file, online, locked=True)
    path.write_text(path.read_text().replace("-of-00003", "-of-00004"))
    with pytest.raises(IntegrityError, match=r"data-00001-of-0000.*; 1 more file differs"):
        sync(file, online, locked=True)
    assert list_datasets(elsewhere.root) == []


def test_upgrade(online: Settings, project: Project) -> None:
    settings = replace(online, minari_path=online.root.parent / "minari", offline=True)
    record(settings, 3)
    file = project('mine = "minari:my/set-v0"')
    lock(file, settings)
    first = read_lock(file.with_suffix(".lock"))["mine"]
    record(settings, 4)
    assert lock(file, settings) == ()
    project('mine = { id = "minari:my/set-v0", layout = "compact" }')
    assert lock(file, settings) == (f"updated mine: {first.id}",)  # at the same revision
    assert sync(file, settings, locked=True) == [("mine", "none")]
    with pytest.raises(NotFoundError, match="no dataset 'mien'") as caught:
        lock(file, settings, upgrade=["mien"])
    assert caught.value.hint == "did you mean mine?"
    (change,) = lock(file, settings, upgrade=["mine"])
    assert change.startswith(f"updated mine: {first.id} -> minari:my/set-v0@local-")
    second = read_lock(file.with_suffix(".lock"))["mine"]
    assert (first.transitions, second.transitions) == (6, 8)
    # a revision in datasets.toml is kept, also by an upgrade
    project(f'mine = {{ id = "{first.id}", layout = "compact" }}')
    assert len(lock(file, settings, check=True)) == 1
    lock(file, settings, upgrade=True)
    assert read_lock(file.with_suffix(".lock"))["mine"] == replace(
        first, requested=first.id, options=second.options
    )


def test_without_a_network(offline: Settings, project: Project) -> None:
    file = project(HOP)
    with pytest.raises(OfflineError, match="hop: d4rl:hopper-medium-v2"):
        lock(file, offline)
    assert not file.with_suffix(".lock").exists()
    online = replace(offline, offline=False, mirrors=())
    lock(file, replace(offline, offline=False))
    shutil.rmtree(offline.root)
    with pytest.raises(NetworkError):
        sync(file, replace(online, offline=True), locked=True)


def test_a_local_dataset(offline: Settings, elsewhere: Settings, project: Project) -> None:
    path = write_stored(offline.root, "local:mine@1", toy_batch([3, 2], text=True))
    file = project('mine = "local:mine"')
    lock(file, offline)
    assert sync(file, offline, locked=True) == [("mine", "none")]
    with pytest.raises(NotFoundError, match="mine: There is no local:mine@1"):
        sync(file, elsewhere, locked=True)
    shutil.rmtree(path)
    write_stored(offline.root, "local:mine@1", toy_batch([3, 2, 1], text=True))
    with pytest.raises(IntegrityError) as caught:
        sync(file, offline, locked=True)
    for difference in ("6 transitions, not 5", "3 episodes, not 2", "its content is sha256:"):
        assert difference in caught.value.message
    assert len(list_datasets(offline.root)) == 1


def test_several_failures_are_all_named(offline: Settings, project: Project) -> None:
    file = project(HOP, TOY)
    lock(file, replace(offline, offline=False))
    shutil.rmtree(offline.root)
    with pytest.raises(OfflineError) as caught:
        sync(file, offline, locked=True)
    first, *lines = caught.value.message.splitlines()
    assert first == "2 of 2 datasets are not as locked"
    assert [line.partition(":")[0] for line in lines] == ["hop", "toy"]


def test_an_interrupt_leaves_nothing_half_made(
    online: Settings, elsewhere: Settings, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = project(HOP, TOY)
    lock(file, online)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        # the package has a function of the module's name
        patch.setattr(
            sys.modules["offline_data.pipeline.ingest.shards"], "finish_and_publish", interrupted
        )
        with pytest.raises(KeyboardInterrupt):
            sync(file, elsewhere, locked=True)
    assert list(elsewhere.root.rglob("manifest.json")) == []
    assert sync(file, elsewhere, locked=True) == [("hop", "download"), ("toy", "download")]
    assert not any(path.is_dir() for path in elsewhere.staging.iterdir())


def test_two_at_once_fetch_once(
    online: Settings, elsewhere: Settings, project: Project, server: FileServer
) -> None:
    file = project(HOP)
    lock(file, online)
    server.requests.clear()
    together = threading.Barrier(2)

    def run() -> list[tuple[str, str]]:
        together.wait(60)
        return sync(file, elsewhere, locked=True)

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(run) for _ in range(2)]
        found = [one.result(timeout=120) for one in both]
    assert all([name for name, _ in one] == ["hop"] for one in found)
    assert len([one for one in server.requests if one.path == HOPPER]) == 1
    assert len(list_datasets(elsewhere.root)) == 1

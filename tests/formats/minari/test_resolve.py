"""Finding Minari datasets: on this machine, at a hub, in a bucket, or nowhere; and listing them."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import AuthError, NetworkError, NotFoundError, OfflineError
from offline_data.formats.minari.remote import Remote
from offline_data.formats.minari.source import Minari
from offline_data.raw.hdf5 import MAGIC
from offline_data_cli.main import main
from tests.refusals import Refusals
from tests.toys.minari import toy_episode, write_minari
from tests.toys.servers import Answer, GcsServer, HubServer, LocalServer, Request

REFUSALS = Refusals.beside(__file__)
NAME = "D4RL/door/human-v2"
LEAVING = ["../x-v0", "/etc/x-v0", "a//b", "a/../../b"]
UNKNOWN = ["D4RL/door/hunan-v2", "D4RRL/door/human-v2", "D4RL/door/human-v22"]
NO_REMOTES = ["gs://bucket", "hf://", "farama-minari", "hf://a/b"]


def write(folder: Path, storage: str = "hdf5", count: int = 3) -> Path:
    return write_minari(folder, [toy_episode(n, 20) for n in range(count)], storage)


@pytest.fixture
def online(settings: Settings) -> Settings:
    return replace(settings, offline=False)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    remote = tmp_path / "remote"
    write(remote / "door" / "human-v2")
    write(remote / "door" / "table-v0", "parquet", 12)
    (remote / "namespace_metadata.json").write_text(
        json.dumps({"description": "", "datasets": ["D4RL/door/table-v0", NAME]})
    )
    with HubServer({"farama-minari/D4RL": remote}, page_size=5) as server:
        yield server


@pytest.fixture
def at_hub(online: Settings, hub: HubServer) -> Settings:
    return replace(online, hub_endpoint=hub.url)


class TestLocal:
    def test_local_comes_first(self, settings: Settings, tmp_path: Path) -> None:
        folder = write(tmp_path / "minari" / NAME)
        release = Minari().resolve(NAME, None, settings)
        assert (release.name, release.local, release.files) == (NAME, folder, ())
        assert Minari().resolve(NAME, release.revision, settings) == release
        with pytest.raises(NotFoundError, match="not at local-000000000000: they are at local-"):
            Minari().resolve(NAME, "local-000000000000", settings)
        for name, revision in ((NAME, "abc"), (f"hf://user/{NAME}", None)):
            with pytest.raises(OfflineError):  # that is asked of the remote
                Minari().resolve(name, revision, settings)

    def test_revision_changes_with_the_files(self, settings: Settings, tmp_path: Path) -> None:
        data = write(tmp_path / "minari" / NAME) / "data"
        seen = [Minari().resolve(NAME, None, settings).revision]
        for name in ("metadata.json", "main_data.hdf5", "more"):
            content = bytearray((data / name).read_bytes() if name != "more" else b"x")
            content[-1] ^= 1
            if name != "more":
                state = (data / name).stat()
                (data / name).write_bytes(content)
                os.utime(data / name, ns=(state.st_atime_ns, state.st_mtime_ns))
            else:
                (data / name).touch()
            seen.append(Minari().resolve(NAME, None, settings).revision)
        assert len(set(seen)) == len(seen)
        assert all(len(r) == len("local-") + 12 and r.startswith("local-") for r in seen)

    @REFUSALS.of("leaving", LEAVING)
    def test_a_name_that_leaves_its_folder(self, settings: Settings, name: str) -> None:
        REFUSALS.check("leaving", name, lambda: Minari().resolve(name, None, settings))

    def test_forms_of_a_users_path(self, tmp_path: Path) -> None:
        folder, source = write(tmp_path / "a-v0"), Minari()
        for path in (folder, folder / "data", folder / "data" / "main_data.hdf5"):
            assert source.accepts(path)
            release = source.release_of(path, "mine")
            assert release.local == path
            assert source.open(release, path).parts(1 << 40)[0].stop == 3

    def test_list(self, settings: Settings, tmp_path: Path) -> None:
        root = tmp_path / "minari"
        write(root / NAME)
        write(root / "cartpole-v0", "arrow")
        (root / "empty" / "data").mkdir(parents=True)
        (root / "link").symlink_to(root)
        write(root.joinpath(*"abcdefghijk"))  # deeper than any namespace
        found = {entry.name: entry for entry in Minari().local(settings)}
        assert list(found) == [NAME, "cartpole-v0"]
        assert found[NAME].bytes == (root / NAME / "data" / "main_data.hdf5").stat().st_size
        assert found[NAME].transitions == 6729


class TestHub:
    def test_files(self, at_hub: Settings, tmp_path: Path) -> None:
        write(tmp_path / "minari" / NAME)  # is not looked for: the name has a remote
        release = Minari().resolve(f"hf://farama-minari/{NAME}", None, at_hub)
        assert (release.name, release.local) == (f"hf://farama-minari/{NAME}", None)
        assert len(release.revision) == 40
        data = tmp_path / "remote" / "door" / "human-v2" / "data"
        content, text = (data / f for f in ("main_data.hdf5", "metadata.json"))
        blob = b"blob %d\0" % text.stat().st_size + text.read_bytes()
        digests = (
            f"sha256:{hashlib.sha256(content.read_bytes()).hexdigest()}",
            f"git:{hashlib.sha1(blob).hexdigest()}",  # noqa: S324 - git's
        )
        at = f"hf://datasets/farama-minari/D4RL@{release.revision}/door/human-v2"
        for file, path, digest in zip(release.files, (content, text), digests, strict=True):
            assert (file.path, file.urls) == (f"data/{path.name}", (f"{at}/data/{path.name}",))
            assert (file.size, file.digest) == (path.stat().st_size, digest)
        assert [file.magic for file in release.files] == [MAGIC, b""]

    def test_every_page_of_a_listing(self, at_hub: Settings) -> None:
        release = Minari().resolve("D4RL/door/table-v0", None, at_hub)
        parts = [file.path for file in release.files if file.path.endswith(".parquet")]
        assert sorted(parts) == sorted(f"data/{n}/part-0.parquet" for n in range(12))
        assert len(release.files) == 25

    def test_an_earlier_revision(self, at_hub: Settings, hub: HubServer, tmp_path: Path) -> None:
        first = Minari().resolve(NAME, None, at_hub)
        (tmp_path / "remote" / "door" / "human-v2" / "data" / "metadata.json").write_text("{}")
        hub.commit("farama-minari/D4RL", tmp_path / "remote")
        second = Minari().resolve(NAME, None, at_hub)
        assert second.revision != first.revision
        assert Minari().resolve(NAME, first.revision, at_hub) == first
        with pytest.raises(NotFoundError):
            Minari().resolve(NAME, "0" * 40, at_hub)

    def test_a_dataset_that_is_a_repository(
        self, at_hub: Settings, hub: HubServer, tmp_path: Path
    ) -> None:
        hub.commit("user/cart-v0", write(tmp_path / "single"))
        settings = replace(at_hub, minari_remote="hf://user")
        files = Minari().resolve("cart-v0", None, settings).files
        assert [file.path for file in files] == ["data/main_data.hdf5", "data/metadata.json"]
        assert [entry.name for entry in Minari().remote(settings)] == ["cart-v0"]

    def test_list(self, at_hub: Settings, hub: HubServer, tmp_path: Path) -> None:
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "README.md").write_text("no dataset")
        hub.commit("farama-minari/readme", tmp_path / "other")
        found = Minari().remote(at_hub)
        assert [entry.name for entry in found] == [NAME, "D4RL/door/table-v0"]
        assert found[0].episodes == 25

    @REFUSALS.of("unknown", UNKNOWN)
    def test_unknown_name(self, at_hub: Settings, name: str) -> None:
        REFUSALS.check("unknown", name, lambda: Minari().resolve(name, None, at_hub))

    @pytest.mark.usefixtures("no_waits")
    def test_refused_or_no_answer(self, online: Settings, tmp_path: Path) -> None:
        folder = write(tmp_path / "remote" / "door")
        right, wrong = "hf_right", "hf_wrong"
        with HubServer({"farama-minari/D4RL": folder.parent}, token=right) as server:
            settings = replace(online, hub_endpoint=server.url, hub_token=wrong)
            with pytest.raises(AuthError):
                Minari().resolve(NAME, None, settings)
        with pytest.raises(NetworkError):
            Minari().resolve(NAME, None, replace(online, hub_endpoint="http://127.0.0.1:1"))


def test_offline_opens_no_socket(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(OfflineError) as caught:
        Minari().resolve(NAME, None, settings)
    assert caught.value.shell_hint == f"online: `offline-data download minari:{NAME}`"
    with pytest.raises(OfflineError):
        Minari().remote(settings)


@REFUSALS.of("remotes", NO_REMOTES)
def test_a_remote_that_is_none(online: Settings, name: str) -> None:
    settings = replace(online, minari_remote=name)
    REFUSALS.check("remotes", name, lambda: Minari().resolve(NAME, None, settings))


class Answers(LocalServer):
    """Answers a path with a text, everything else with 404."""

    def __init__(self, answers: dict[str, str]) -> None:
        super().__init__()
        self.answers = answers

    def answer(self, request: Request) -> Answer:
        text = self.answers.get(request.path)
        return Answer(b"", 404) if text is None else Answer(text.encode())


def test_a_hub_that_cannot_be_reached_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert main(["--root", str(tmp_path), "--no-progress", "list", "minari", "--remote"]) == 0
    said = capsys.readouterr()
    assert "D4RL/door/human-v2" in said.out  # the catalogue of the package stands in
    (line,) = said.err.splitlines()
    assert line.startswith("minari: http://127.0.0.1:1/api/datasets")
    assert "catalogue that comes with the package" in line


REPO = [{"id": "a/pen"}]
NAMESPACE = "/datasets/a/pen/resolve/main/namespace_metadata.json"


NO_LISTINGS = {
    "a page": {"/api/datasets": "<html>log in</html>"},
    "an object": {"/api/datasets": '{"error": "x"}'},
    "numbers": {"/api/datasets": "[1]"},
    "an id that is a number": {"/api/datasets": '[{"id": 3}]'},
    "an id that clears a screen": {"/api/datasets": '[{"id": "a\\u001b[2J"}]'},
    "half a character": {"/api/datasets": '[{"id": "\\ud800"}]'},
    "deep lists": {"/api/datasets": "[" * 10**5},
    "a namespace that is a list": {"/api/datasets": json.dumps(REPO), NAMESPACE: "[]"},
    "a namespace of lists": {
        "/api/datasets": json.dumps(REPO), NAMESPACE: '{"datasets": [["pen"]]}'
    },
    "a namespace of half a character": {
        "/api/datasets": json.dumps(REPO), NAMESPACE: '{"datasets": ["\\ud800"]}'
    },
}  # fmt: skip


@REFUSALS.of("listings", NO_LISTINGS)
def test_answers_that_are_no_listing(tmp_path: Path, name: str) -> None:
    with Answers(NO_LISTINGS[name]) as server:
        names: dict[object, str] = {server.url: "HOST"}
        REFUSALS.check("listings", name, lambda: listed(tmp_path, server.url), names)


def listed(tmp_path: Path, url: str, **more: Any) -> list[str]:
    settings = Settings(tmp_path, hub_endpoint=url, minari_remote="hf://a", **more)
    return [entry.name for entry in Minari().remote(settings)]


def test_a_repository_is_a_namespace_or_a_dataset_or_neither(tmp_path: Path) -> None:
    repos = [{"id": "a/pen"}, {"id": "a/cart-v0"}, {"id": "a/notes"}]
    answers = {
        "/api/datasets": json.dumps(repos),
        NAMESPACE: '{"datasets": ["pen/human-v0", "pen/expert-v0"]}',
        "/datasets/a/cart-v0/resolve/main/data/metadata.json": "{}",
    }
    with Answers(answers) as server:
        assert listed(tmp_path, server.url) == ["cart-v0", "pen/expert-v0", "pen/human-v0"]


PEN, REMOTE = "pen/human-v0", Remote("gcp", "minari-remote")
OBJECTS = {
    f"{PEN}/data/": b"",
    f"{PEN}/data/1/part a": b"2001",
    f"{PEN}/data/main_data.hdf5": MAGIC + b" 1001",
    f"{PEN}/data/metadata.json": b'{"total_steps": 1001}',
    f"{PEN}0/data/metadata.json": b"{}",
}


@pytest.mark.parametrize("composed", [False, True])
def test_a_bucket(online: Settings, composed: bool) -> None:
    """A revision is part of the paths of datasets that were downloaded before: it stays."""
    part = f"{PEN}/data/1/part a"
    with GcsServer(
        {REMOTE.account: OBJECTS}, page_size=2, composed={part} if composed else set()
    ) as server:
        at_bucket = replace(online, minari_remote=str(REMOTE), mirrors=(server.mirror,))
        release = Minari().resolve(PEN, None, at_bucket)
        assert composed or release.revision == "gcs-bef08d545b6e"
        assert [(file.path, file.magic) for file in release.files] == [
            ("data/1/part a", b""),
            ("data/main_data.hdf5", MAGIC),
            ("data/metadata.json", b""),
        ]
        assert str(release.files[0].digest).startswith("crc32c:" if composed else "md5:")
        assert Minari().resolve(PEN, release.revision, at_bucket) == release
        assert [entry.name for entry in Minari().remote(at_bucket)] == [PEN, f"{PEN}0"]
        server.buckets = {REMOTE.account: {**OBJECTS, part: b"2002"}}
        with pytest.raises(NotFoundError, match=f"now, not {release.revision}"):
            Minari().resolve(PEN, release.revision, at_bucket)
        with pytest.raises(NotFoundError, match="gcp://minari-remote"):
            Minari().resolve("pen/human", None, at_bucket)

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from huggingface_hub import hf_hub_download

from offline_data.base.config import Settings
from offline_data.base.errors import (
    AuthError,
    IntegrityError,
    NetworkError,
    NotFoundError,
    OfflineDataError,
    OfflineError,
    UsageError,
)
from offline_data.fetch.files import FetchedFile, RemoteFile
from offline_data.fetch.hub import hub_api, hub_errors, list_hub
from offline_data.fetch.plan import plan_fetch
from offline_data.fetch.retry import FetchLimits
from offline_data.fetch.run import run_fetch
from tests.toys.servers import Answer, Fault, FileServer, HubServer, Request

REPO = "farama/D4RL"
BIG = "door/human-v2/data/main_data.hdf5"
SMALL = "door/human-v2/data/metadata.json"
MAGIC = b"\x89HDF\r\n\x1a\n"


@pytest.fixture
def folder(tmp_path: Path, content: bytes) -> Path:
    data = tmp_path / "repo" / "door/human-v2/data"
    data.mkdir(parents=True)
    (data / "main_data.hdf5").write_bytes(content)
    (data / "metadata.json").write_bytes(b'{"total_episodes": 25}')
    return tmp_path / "repo"


@pytest.fixture(autouse=True)
def users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Hugging Face cache of a user who has nothing, and does not sleep between tries."""
    cache = tmp_path / "users-cache"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    return cache


@pytest.fixture
def hub(folder: Path) -> Iterator[HubServer]:
    with HubServer({REPO: folder}) as running:
        yield running


@pytest.fixture
def settings(online: Settings, hub: HubServer) -> Settings:
    return replace(online, hub_endpoint=hub.url)


@pytest.fixture
def commit(hub: HubServer, settings: Settings) -> str:
    return str(hub_api(settings).dataset_info(REPO).sha)


def at(commit: str, path: str = BIG) -> str:
    return f"hf://datasets/{REPO}@{commit}/{path}"


def fetch(settings: Settings, *files: RemoteFile, **rest: Any) -> tuple[FetchedFile, ...]:
    return run_fetch(plan_fetch(files, settings), settings, **rest)


def test_files_arrive_and_nothing_else_stays(
    settings: Settings, commit: str, content: bytes, tally: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    sha256 = hashlib.sha256(content).hexdigest()
    big = RemoteFile("a/main_data.hdf5", (at(commit),), len(content), f"sha256:{sha256}", MAGIC)
    small = RemoteFile("a/metadata.json", (at(commit, SMALL),), 22)
    found = fetch(settings, big, small, progress=tally)
    assert [file.path.read_bytes() for file in found] == [content, b'{"total_episodes": 25}']
    assert found[0].path == settings.downloads / "sha256" / sha256[:2] / sha256
    assert not list((settings.downloads / "partial").iterdir())
    assert (tally.seen, tally.total) == (len(content) + 22, len(content) + 22)
    assert capfd.readouterr() == ("", "")


def test_the_users_own_cache_is_used_and_left_alone(
    settings: Settings, commit: str, hub: HubServer, users_cache: Path, content: bytes
) -> None:
    own = hf_hub_download(REPO, BIG, repo_type="dataset", revision=commit, endpoint=hub.url)
    asked = len(hub.requests)
    offline = replace(settings, offline=True)
    file = RemoteFile("x", (at(commit),), len(content), magic=MAGIC)
    assert "Hugging Face cache" in str(plan_fetch([file], offline))
    (found,) = fetch(offline, file)
    assert (found.path.read_bytes(), len(hub.requests)) == (content, asked)
    assert users_cache in found.path.parents
    assert found.path.samefile(own)
    assert found.path.stat().st_mode & 0o200
    assert not (settings.downloads / "sha256").exists()
    assert plan_fetch([file], offline).steps[0].action == "keep"


def test_a_damaged_file_in_the_users_cache_is_passed_over(
    settings: Settings, commit: str, hub: HubServer, content: bytes, tally: Any
) -> None:
    own = hf_hub_download(REPO, BIG, repo_type="dataset", revision=commit, endpoint=hub.url)
    damaged = content[:-1] + b"!"
    with open(own, "wb") as file:  # noqa: PTH123 - huggingface_hub gives a string
        file.write(damaged)
    wanted = RemoteFile("x", (at(commit),), digest=f"sha256:{hashlib.sha256(content).hexdigest()}")
    with pytest.raises(IntegrityError, match="sha256"):
        fetch(replace(settings, offline=True), wanted)
    (found,) = fetch(settings, wanted, progress=tally)
    assert found.path.read_bytes() == content
    assert len(tally.notes) == 1


@pytest.mark.parametrize(
    "url",
    [
        "hf://datasets/farama/D4RL@main/missing.hdf5",
        "hf://datasets/farama/D4RL@nobranch/x",
        "hf://datasets/farama/missing@main/x",
    ],
)
def test_what_the_hub_does_not_have(url: str, settings: Settings) -> None:
    with pytest.raises(NotFoundError, match=url.partition("@")[0]):
        fetch(settings, RemoteFile("x", (url,)))
    assert not (settings.downloads / "sha256").exists()


@pytest.mark.parametrize(
    ("token", "kind"), [("right", None), ("wrong", AuthError), (None, NotFoundError)]
)
def test_a_private_dataset_needs_its_token(
    token: str | None,
    kind: type[Exception] | None,
    folder: Path,
    online: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    with HubServer({REPO: folder}, token="right") as hub:  # noqa: S106 - of this test only
        settings = replace(online, hub_endpoint=hub.url, hub_token=token)
        if kind is None:
            assert fetch(settings, RemoteFile("x", (at("main", SMALL),)))[0].size == 22
            return
        with pytest.raises(kind) as caught:
            fetch(settings, RemoteFile("x", (at("main", SMALL),)))
        assert "HF_TOKEN" in str(getattr(caught.value, "hint", ""))


def test_a_refusal_is_an_auth_error(settings: Settings, commit: str, hub: HubServer) -> None:
    path = f"/datasets/{REPO}/resolve/{commit}/{BIG}"
    hub.always(path, Fault(Answer(b"", 403, {"X-Error-Message": "no"})))
    with pytest.raises(AuthError, match="403"):
        fetch(settings, RemoteFile("x", (at(commit),)))
    hub.always(path, Fault(Answer(b"", 403, {"X-Error-Code": "GatedRepo"})))
    with pytest.raises(AuthError, match="gated"):
        fetch(settings, RemoteFile("x", (at(commit),)))


def test_a_hub_that_is_down_is_a_network_error_and_a_mirror_helps(
    settings: Settings, commit: str, content: bytes, quick: FetchLimits
) -> None:
    down = replace(settings, hub_endpoint="http://127.0.0.1:9")
    with pytest.raises(NetworkError, match="hf://datasets") as caught:
        fetch(down, RemoteFile("x", (at(commit),)), limits=quick)
    assert not isinstance(caught.value, OfflineError)
    with FileServer({f"/m/{BIG}": content}) as mirror:
        near = replace(down, mirrors=((at(commit, ""), f"{mirror.url}/m/"),))
        (found,) = fetch(near, RemoteFile("x", (at(commit),)), limits=quick)
        assert (found.path.read_bytes(), found.url) == (content, mirror.at(f"/m/{BIG}"))


@pytest.mark.slow
def test_a_cut_is_gone_on_with_behind_the_redirect(
    settings: Settings, commit: str, hub: HubServer, content: bytes, impatient: FetchLimits
) -> None:
    blob = f"/cdn/{hashlib.sha256(content).hexdigest()}"
    hub.script(blob, Fault(cut_after=70_000), Fault(Answer(b"", 503)), Fault(stall_after=90_000))
    limits = replace(impatient, read=1.0)
    (found,) = fetch(settings, RemoteFile("x", (at(commit),)), limits=limits)
    assert found.path.read_bytes() == content
    assert found.url == at(commit)
    asked = [request.headers.get("range") for request in hub.requests if request.path == blob]
    assert asked == [None, "bytes=70000-", "bytes=70000-", "bytes=160000-"]


@pytest.mark.parametrize("path", [BIG, SMALL])
def test_what_the_hub_publishes_is_compared_where_the_listing_said_nothing(
    path: str, settings: Settings, commit: str, hub: HubServer, folder: Path, quick: FetchLimits
) -> None:
    right = (folder / path).read_bytes()
    wrong = Fault(Answer(right[:-1] + b"?"))
    where = f"/datasets/{REPO}/resolve/{commit}/{path}"
    if path == BIG:
        hub.always(f"/cdn/{hashlib.sha256(right).hexdigest()}", wrong)
    else:
        head = hub.answer(Request("HEAD", where, where, {}, {}))
        hub.script(where, Fault(head))
        hub.always(where, wrong)
    with pytest.raises(IntegrityError, match="sha256" if path == BIG else "git"):
        fetch(settings, RemoteFile("x", (at(commit, path),)), limits=quick)
    assert not (settings.downloads / "sha256").exists()


def test_a_token_goes_to_the_hub_and_not_where_it_sends_us(
    folder: Path, online: Settings, content: bytes, quick: FetchLimits
) -> None:
    with (
        FileServer({"/elsewhere": content}) as cdn,
        HubServer({REPO: folder}, token="right") as hub,  # noqa: S106 - of this test only
    ):
        settings = replace(online, hub_endpoint=hub.url, hub_token="right")  # noqa: S106
        commit = str(hub_api(settings).dataset_info(REPO).sha)
        away = Answer(b"", 302, {"Location": cdn.at("/elsewhere")})
        hub.always(f"/datasets/{REPO}/resolve/{commit}/{BIG}", Fault(away))
        file = RemoteFile("x", (at(commit),), digest=f"md5:{hashlib.md5(content).hexdigest()}")  # noqa: S324
        (found,) = fetch(settings, file, limits=quick)
        assert found.path.read_bytes() == content
        assert hub.requests[-1].headers["authorization"] == "Bearer right"
        assert [request.headers.get("authorization") for request in cdn.requests] == [None]


def test_listings_through_the_api(
    settings: Settings, commit: str, hub: HubServer, content: bytes
) -> None:
    api = hub_api(settings)
    with hub_errors(REPO):
        rows = list(api.list_repo_tree(REPO, "door", repo_type="dataset", recursive=True))
    files = {row.path: row for row in rows if hasattr(row, "size")}
    assert set(files) == {BIG, SMALL}
    assert files[BIG].lfs.sha256 == hashlib.sha256(content).hexdigest()
    assert (files[BIG].size, files[SMALL].lfs) == (len(content), None)
    with pytest.raises(NotFoundError, match="no/where"), hub_errors("no/where"):
        api.dataset_info("no/where")
    with pytest.raises(UsageError), hub_errors("a//b"):
        api.dataset_info("a//b")


FILE = {"type": "file", "path": "a.hdf5", "size": 3, "oid": "0" * 40}
TREE = f"/api/datasets/{REPO}/tree/{'0' * 40}"


@pytest.mark.parametrize("kind", ["the same page", "two pages", "empty pages", "new files"])
def test_a_listing_without_end_is_a_network_error(
    kind: str, settings: Settings, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offline_data.fetch.hub._MOST_PAGES", 20)

    def turn(request: Request, _answer: Answer) -> list[bytes]:
        number = int(request.query.get("cursor", ["0"])[0])
        after = {"the same page": 0, "two pages": 1 - number}.get(kind, number + 1)
        page = [] if kind == "empty pages" else [FILE | {"path": f"{number}.hdf5"}]
        body = json.dumps(page).encode()
        link = f'<{hub.url}{TREE}?cursor={after}>; rel="next"'
        head = f"HTTP/1.1 200 OK\r\nLink: {link}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        return [head.encode() + body]

    info = {"sha": "0" * 40}
    hub.always(f"/api/datasets/{REPO}", Fault(Answer(json.dumps(info).encode())))
    hub.always(TREE, Fault(wire=turn))
    with pytest.raises(NetworkError, match="listing does not end after"):
        list_hub(REPO, "", None, settings)


@pytest.mark.parametrize("link", ["http://[::1>", "http://h:99999999/", "?cursor=1", "file:///x"])
def test_a_next_page_that_is_nowhere_is_a_network_error(
    link: str, settings: Settings, hub: HubServer
) -> None:
    head = {"Link": f'<{link}>; rel="next"'}
    hub.always(f"/api/datasets/{REPO}", Fault(Answer(json.dumps({"sha": "0" * 40}).encode())))
    hub.always(TREE, Fault(Answer(json.dumps([FILE]).encode(), headers=head)))
    with pytest.raises(NetworkError, match=f"about dataset repository {REPO}"):
        list_hub(REPO, "", None, settings)


@pytest.mark.parametrize("body", [[], ["x"], 7, {"error": [7], "errors": 3}])
def test_an_error_of_another_form_is_one_of_ours(
    body: Any, settings: Settings, hub: HubServer
) -> None:
    hub.always(f"/api/datasets/{REPO}", Fault(Answer(json.dumps(body).encode(), 451)))
    with pytest.raises(OfflineDataError, match=f"dataset repository {REPO}"):
        list_hub(REPO, "", None, settings)


def test_a_listing_of_several_pages(settings: Settings, folder: Path) -> None:
    with HubServer({REPO: folder}, page_size=1) as hub:
        listing = list_hub(REPO, "", None, replace(settings, hub_endpoint=hub.url))
    assert [file.path for file in listing.files] == [BIG, SMALL]

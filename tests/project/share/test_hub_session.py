"""The token goes to the hub only, whatever its answers name; a hub that fails is not asked for hours."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from huggingface_hub.utils import _http, get_session

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import NetworkError, OfflineDataError
from offline_data.fetch.hub import hub_headers, list_hub
from offline_data.project.share.push import push_dataset
from offline_data.store.library import Entry
from tests.toys.hub import TOKEN, WritableHub
from tests.toys.servers import Answer, Fault, LocalServer, Request

AT_LEAST_1 = hasattr(_http, "set_client_factory")
"""Version of huggingface_hub."""
REPO = "me/toy"
TO = f"hf://{REPO}"
JSON = {"Content-Type": "application/json"}


class Elsewhere(LocalServer):
    """Another host, which takes everything."""

    def answer(self, request: Request) -> Answer:  # noqa: ARG002
        return Answer(b"[]", 200, JSON)


@pytest.fixture
def other() -> Iterator[Elsewhere]:
    with Elsewhere() as running:
        yield running


def _lfs_actions(hub: WritableHub, **urls: str) -> Callable[[Request], Answer]:
    """Answer like the hub, with other addresses for the actions of uploads."""
    right = hub.answer

    def answer(request: Request) -> Answer:
        found = right(request)
        if not request.path.endswith("lfs/objects/batch"):
            return found
        objects = json.loads(found.body)["objects"]
        for each in objects:
            if "actions" in each:
                each["actions"] |= {name: {"href": url} for name, url in urls.items()}
        return Answer(json.dumps({"objects": objects, "transfer": "basic"}).encode(), 200, JSON)

    return answer


@dataclass(frozen=True)
class Way:
    """How an answer of the hub leads to another host."""

    lead: Callable[[WritableHub, str], None]
    follow: Callable[[Entry, Settings], Any]


def _next_page(hub: WritableHub, url: str) -> None:
    info, commit = {"sha": "0" * 40}, f"/api/datasets/{REPO}"
    hub.always(commit, Fault(Answer(json.dumps(info).encode(), 200, JSON)))
    head = {**JSON, "Link": f'<{url}/more>; rel="next"'}
    page = json.dumps([{"type": "file", "path": "a", "size": 1, "oid": "0" * 40}]).encode()
    hub.always(f"{commit}/tree/{'0' * 40}", Fault(Answer(page, 200, head)))


WAYS = {
    "verify": Way(
        lambda hub, url: setattr(hub, "answer", _lfs_actions(hub, verify=f"{url}/verify")),
        lambda toy, here: push_dataset(toy, TO, here),
    ),
    "upload and verify": Way(
        lambda hub, url: setattr(hub, "answer", _lfs_actions(hub, verify=url, upload=url)),
        lambda toy, here: push_dataset(toy, TO, here),
    ),
    "a next page": Way(_next_page, lambda _, here: list_hub(REPO, "", None, here)),
    "a redirect": Way(
        lambda hub, url: hub.always(
            f"/api/datasets/{REPO}", Fault(Answer(b"", 307, {"Location": f"{url}/there"}))
        ),
        lambda _, here: list_hub(REPO, "", None, here),
    ),
}


def _forget_session() -> None:
    getattr(_http, "close_session" if AT_LEAST_1 else "reset_sessions")()


def _replace_factory() -> None:
    if AT_LEAST_1:
        _http.set_client_factory(_http.default_client_factory)
    else:
        _http.configure_http_backend()


@pytest.mark.parametrize(
    ("name", "way", "before"),
    [
        *(("localhost", way, "") for way in WAYS),
        ("127.0.0.1", "verify", ""),
        ("localhost", "verify", "a lost connection"),
        ("localhost", "verify", "a factory of the user's"),
    ],
)
def test_the_token_goes_to_the_hub_only(
    toy: Entry, hub: WritableHub, here: Settings, other: Elsewhere, name: str, way: str, before: str
) -> None:
    """`127.0.0.1` with another port is another host, too."""
    hub_headers(here)
    if before == "a lost connection":
        _forget_session()  # as the library does after it
    elif before:
        _replace_factory()
    WAYS[way].lead(hub, other.url.replace("127.0.0.1", name))
    try:
        WAYS[way].follow(toy, here)
    except OfflineDataError as error:
        assert TOKEN not in f"{error}{error.hint}"  # noqa: PT017 - it may or may not fail
    assert other.requests
    assert [request for request in other.requests if TOKEN in str(dict(request.headers))] == []
    assert any(TOKEN in str(dict(request.headers)) for request in hub.requests)


def test_requests_of_others_keep_their_token(here: Settings, other: Elsewhere) -> None:
    """Of the user's own endpoints, by the same session."""
    hub_headers(here)
    get_session().get(f"{other.url}/mine", headers={"authorization": "Bearer mine"})
    assert other.requests[0].headers["authorization"] == "Bearer mine"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch, hub: WritableHub) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", found.append)
    return found


FAILING = {
    "create": "/api/repos/create",
    "preupload": f"/api/datasets/{REPO}/preupload/main",
    "batch": f"/datasets/{REPO}.git/info/lfs/objects/batch",
    "upload": "/upload",
    "verify": "/verify",
    "commit": f"/api/datasets/{REPO}/commit/main",
}


@pytest.mark.parametrize(
    ("status", "headers"),
    [(500, {}), (503, {"Retry-After": "99999"}), (429, {"ratelimit": '"api";r=0;t=99999'})],
)
@pytest.mark.parametrize("where", FAILING)
def test_a_hub_that_keeps_failing(
    toy: Entry,
    hub: WritableHub,
    here: Settings,
    waits: list[float],
    where: str,
    status: int,
    headers: dict[str, str],
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    right = _lfs_actions(hub, verify=f"{hub.url}/verify") if where == "verify" else hub.answer
    tried: list[str] = []

    def answer(request: Request) -> Answer:
        if request.path.startswith(FAILING[where]):
            tried.append(request.path)
            return Answer(b'{"error": "no"}', status, {**JSON, **headers})
        return right(request)

    hub.answer = answer  # type: ignore[method-assign]
    with pytest.raises(NetworkError) as caught, caplog.at_level(logging.INFO):
        push_dataset(toy, TO, here)
    most = max(tried.count(path) for path in tried)
    assert most <= (6 if where != "verify" else 6 * 5)  # five files are sent at once
    assert sum(waits) <= most * 30
    assert "\n" not in caught.value.message
    assert "hush" not in caught.value.message
    assert "more information" not in caught.value.message
    assert capsys.readouterr().err == ""
    assert [record for record in caplog.records if record.name.startswith("huggingface_hub")] == []
    assert offline_data.verify("local:toy", settings=here)

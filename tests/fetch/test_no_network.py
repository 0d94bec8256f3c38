"""A machine without a network: two tries, then one sentence, and what is on this disk."""

from __future__ import annotations

import errno
import json
import socket
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from huggingface_hub.utils import build_hf_headers

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import NetworkError, NoNetworkError
from offline_data.fetch.client import get_json
from offline_data.fetch.files import RemoteFile
from offline_data.fetch.gcs import list_bucket
from offline_data.fetch.hub import list_hub
from offline_data.fetch.plan import plan_fetch
from offline_data.fetch.retry import FetchLimits, TransientError, with_retries
from offline_data.fetch.run import run_fetch
from offline_data.testing.toy import toy_batch
from offline_data.text.tokenizer import load_tokenizer
from offline_data_cli.main import main
from tests.toys.servers import FileServer
from tests.toys.stored import write_stored

HTTP = RemoteFile("a.hdf5", ("http://a.example/a.hdf5",))
BOTH = RemoteFile("a.hdf5", ("http://a.example/a.hdf5", "https://a.example/a.hdf5"))
FAILURES: dict[str, tuple[OSError, str]] = {
    "no such name": (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "not found"),
    "no resolver": (socket.gaierror(socket.EAI_AGAIN, "Temporary failure"), "is not found"),
    "no route": (OSError(errno.ENETUNREACH, "Network is unreachable"), "there is no route to "),
    "no route to the host": (OSError(errno.EHOSTUNREACH, "No route to host"), "no route to "),
}


class Unplugged:
    """Fails every connection but those to this machine; counts them by host."""

    def __init__(self, error: OSError) -> None:
        self.error, self.asked = error, dict[str, int]()
        self._connect = socket.create_connection

    def __call__(self, address: tuple[str, int], *rest: Any, **options: Any) -> socket.socket:
        if address[0] in {"127.0.0.1", "localhost"}:
            return self._connect(address, *rest, **options)
        self.asked[address[0]] = self.asked.get(address[0], 0) + 1
        raise self.error


@pytest.fixture(params=FAILURES)
def unplugged(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Unplugged:
    found = Unplugged(FAILURES[request.param][0])
    monkeypatch.setattr(socket, "create_connection", found)
    # before 1.0, huggingface_hub asks through requests
    monkeypatch.setattr("urllib3.util.connection.create_connection", found)
    monkeypatch.setattr("offline_data.fetch.retry.wait_before", lambda *_: 0.0)
    build_hf_headers()  # asks the hub once in a process, for itself
    found.asked.clear()
    return found


def _fetch(file: RemoteFile, settings: Settings) -> Any:
    return run_fetch(plan_fetch([file], settings), settings)


WAYS: dict[str, tuple[str, Callable[[Settings], Any]]] = {
    "a file": ("a.example", lambda s: _fetch(HTTP, s)),
    "a file with two addresses": ("a.example", lambda s: _fetch(BOTH, s)),
    "a document": ("b.example", lambda s: get_json("https://b.example/x", s)),
    "a bucket": ("storage.googleapis.com", lambda s: list_bucket("gs://some/x", s)),
    "the hub": ("huggingface.co", lambda s: list_hub("a/b", "", None, s)),
    "a tokenizer": ("huggingface.co", lambda _: load_tokenizer("some/tokenizer-not-here")),
    **{
        f"download {name}": (host, lambda s, name=name: offline_data.download(name, settings=s))  # type: ignore[misc]
        for name, host in (
            ("d4rl:hopper-medium-v2", "rail.eecs.berkeley.edu"),
            ("minari:D4RL/door/human-v2", "huggingface.co"),
            ("lerobot:lerobot/pusht", "huggingface.co"),
            ("hf://me/mine", "huggingface.co"),
            ("https://c.example/mine", "c.example"),
            ("openx:viola", "storage.googleapis.com"),
            ("atari_dqn:Pong/1", "storage.googleapis.com"),
            ("openml:adult_num", "www.openml.org"),
        )
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_one_sentence_after_two_tries(
    online: Settings, unplugged: Unplugged, way: str, request: pytest.FixtureRequest
) -> None:
    host, call = WAYS[way]
    with pytest.raises(NoNetworkError) as caught:
        call(online)
    reason = FAILURES[request.node.callspec.params["unplugged"]][1]
    assert caught.value.message.startswith("this machine seems to have no network: ")
    assert host in caught.value.message
    assert reason in caught.value.message
    assert unplugged.asked == {host: 2}
    shown = "".join(traceback.format_exception(caught.value))
    assert shown.count("Traceback (most recent call last)") == 1


@pytest.mark.parametrize("here", [[], ["local:one"], [f"local:{number}" for number in range(7)]])
def test_the_command_says_what_is_on_this_disk(
    online: Settings, unplugged: Unplugged, here: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in here:
        write_stored(online.root, f"{name}@1", toy_batch([2]))
    line = ["download", "d4rl:hopper-medium-v2", "--root", str(online.root)]
    assert main(line) == 6
    said = capsys.readouterr().err
    assert said.startswith("error: this machine seems to have no network: ")
    assert "rail.eecs.berkeley.edu" in said.partition("hint:")[0]
    assert main([*line, "--json"]) == 6
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "no_network"
    assert "OFFLINE_DATA_OFFLINE=1 or --offline asks no host" in error["hint"]
    for name in here[:5]:
        assert name in error["hint"]
    assert ("and 2 more (`offline-data list`)" in error["hint"]) == (len(here) == 7)


@pytest.mark.parametrize(
    ("name", "typed"),
    [("https://a.example/x", True), ("hf://me/x", False), ("d4rl:pen-human-v1", False)],
)
def test_an_address_that_was_typed_may_be_wrong(
    online: Settings, unplugged: Unplugged, name: str, typed: bool
) -> None:
    with pytest.raises(NoNetworkError) as caught:
        offline_data.download(name, settings=online)
    assert ("is the address right?" in str(caught.value.hint)) == typed


def test_another_host_answers(online: Settings, unplugged: Unplugged, tally: Any) -> None:
    """Then there is a network, and the other host alone is named."""
    with FileServer({"/a.hdf5": b"content"}) as server:
        file = RemoteFile("a.hdf5", ("http://a.example/a.hdf5", server.at("/a.hdf5")))
        (found,) = run_fetch(plan_fetch([file], online), online, tally)
        assert found.path.read_bytes() == b"content"
        (failed,) = found.failed
        mirrored = replace(online, mirrors=(("http://b.example/", f"{server.url}/none/"),))
        with pytest.raises(NetworkError, match="any of 2 places") as caught:
            _fetch(RemoteFile("b", ("http://b.example/b",)), mirrored)
    for said in (failed, *tally.notes, caught.value.message):
        assert ".example" in said
        assert "no network" not in said


def test_a_host_that_refuses_is_no_missing_network(online: Settings, quick: FetchLimits) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/x"
        with pytest.raises(NetworkError, match="after 3 attempts") as caught:
            get_json(url, online, limits=quick)
    assert not isinstance(caught.value, NoNetworkError)


@pytest.mark.parametrize(("arrived", "tries"), [([0] * 9, 2), ([0, 9, 9, 9, 9, 9], 5)])
def test_a_network_that_goes_away_in_the_middle_may_come_back(
    arrived: list[int], tries: int
) -> None:
    reached, tried = iter(arrived), list[int]()

    def attempt() -> None:
        tried.append(1)
        raise NoNetworkError.of("a.org is not found")

    limits = FetchLimits(tries=4, fruitful=5)
    with pytest.raises(NoNetworkError):
        with_retries(attempt, limits, lambda _: None, lambda: next(reached))
    assert len(tried) == tries


def test_a_network_that_is_there_at_the_second_try() -> None:
    errors: list[Exception] = [TransientError("cut"), NoNetworkError.of("a.org is not found")]

    def attempt() -> str:
        if errors:
            raise errors.pop()
        return "done"

    assert with_retries(attempt, FetchLimits(tries=4), lambda _: None) == "done"


def test_a_name_is_looked_up_twice(online: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the resolver itself."""
    asked: list[str] = []

    def resolve(host: str, *_: Any, **__: Any) -> Any:
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr("offline_data.fetch.retry.wait_before", lambda *_: 0.0)
    with pytest.raises(NoNetworkError, match=r"a\.example is not found"):
        _fetch(BOTH, online)
    assert asked == ["a.example"] * 2

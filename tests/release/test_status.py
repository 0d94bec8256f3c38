"""The weekly requests of first bytes, answered by servers of this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from offline_data.base.config import Settings
from offline_data.formats.registry import iter_catalogs
from tests.formats.test_refused_requests import PAGE, PUBLISHED, serve_every_host
from tests.toys.servers import Answer, Fault, FileServer, LocalServer

D4RL = "pen-human-v1"
FILE = "/datasets/offline_rl/hand_dapg_v1/pen-human-v1.hdf5"
HDF5 = b"\x89HDF\r\n\x1a\n" + bytes(5000)


@pytest.fixture
def status(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("status")


def settings_for(server: LocalServer, folder: Path) -> Settings:
    return Settings(folder, hub_endpoint=server.url, workers=1, minari_path=folder)


@pytest.mark.usefixtures("no_waits")
@pytest.mark.parametrize("id_", [one for one in PUBLISHED if "@" not in one])
def test_each_source_answers(
    status: ModuleType, id_: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = tmp_path / "published"
    published.mkdir()
    source, _, name = id_.partition(":")
    with PUBLISHED[id_](published) as server:
        serve_every_host(server, monkeypatch)
        finding = status.check(source, name, settings_for(server, tmp_path / "root"), 1)
    assert (finding.id, finding.outcome, finding.message) == (f"{source}:{name}", "available", "")
    last = server.requests[-1]
    assert last.headers["range"] == "bytes=0-1023"
    assert finding.file
    assert not list(tmp_path.glob("root/**/*.*"))


@pytest.mark.usefixtures("no_waits")
@pytest.mark.parametrize(
    ("fault", "outcome", "words"),
    [
        (Fault(), "available", ""),
        (Fault(Answer(b"", 403)), "refused", "answered 403"),
        (Fault(Answer(b"", 404)), "failed", "answered 404"),
        (Fault(Answer(b"", 500)), "failed", "answered 500"),
        (Fault(PAGE), "failed", "expected it to begin with"),
        (Fault(cut_after=0), "failed", "was not received"),
        (Fault(ignore_range=True), "available", ""),
    ],
)
def test_answers_of_a_host(
    status: ModuleType,
    fault: Fault,
    outcome: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FileServer({FILE: HDF5}) as server:
        serve_every_host(server, monkeypatch)
        server.always(FILE, fault)
        finding = status.check("d4rl", D4RL, settings_for(server, tmp_path), 1)
    assert finding.outcome == outcome
    assert words in finding.message


@pytest.mark.published_size
@pytest.mark.parametrize("ignore_range", [True, False])
def test_file_of_another_size(
    status: ModuleType, ignore_range: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FileServer({FILE: HDF5}) as server:
        serve_every_host(server, monkeypatch)
        server.always(FILE, Fault(ignore_range=ignore_range))
        finding = status.check("d4rl", D4RL, settings_for(server, tmp_path), 1)
    assert finding.outcome == "failed"
    assert f"has {len(HDF5):,} bytes; published for {D4RL}.hdf5" in finding.message


def test_sample(status: ModuleType) -> None:
    one, same, other = (status.sample(3, seed) for seed in (1, 1, 2))
    assert one == same != other
    for catalog in iter_catalogs():
        names = {entry.name for entry in catalog.catalog()}
        assert set(one[catalog.name]) <= names
        assert len(one[catalog.name]) == min(3, len(names))


def test_a_host_that_sends_nothing_does_not_hold_up_the_others(status: ModuleType) -> None:
    released = threading.Event()

    def ask(source: str, name: str) -> Any:
        if name == "silent":
            released.wait(20)
        return status.Finding(f"{source}:{name}", "available")

    found = status.check_all({"a": ["x", "silent", "z"], "b": ["y"]}, 0.2, ask)
    released.set()
    outcomes = {one.id: one.outcome for some in found.values() for one in some}
    late = dict.fromkeys(("a:silent", "a:z"), "unanswered")
    assert outcomes == {"a:x": "available", "b:y": "available", **late}


def test_page_and_exit_code(
    status: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcomes = {"door": "available", "pen": "failed", "ant": "refused", "cube": "failed"}

    def answered(source: str, name: str, *_: object, **__: object) -> Any:
        return status.Finding(f"{source}:{name}", outcomes[name], "a.org", message="not\nfound")

    chosen = {"d4rl": ["door", "pen"], "minari": ["ant"]}
    monkeypatch.setattr(status, "sample", lambda *_: chosen)
    monkeypatch.setattr(status, "check", answered)
    assert status.main(["--out", str(tmp_path)]) == 0
    page = (tmp_path / "status.md").read_text("utf-8")
    assert "| d4rl | 1 of 2 | a.org | 0.0 s |\n| minari | 0 of 1 | a.org |" in page
    assert "- `d4rl:pen` failed: not found\n- `minari:ant` refused: not found\n" in page
    listed = json.loads((tmp_path / "status.json").read_text("utf-8"))["datasets"]
    assert [one["id"] for one in listed] == ["d4rl:door", "d4rl:pen", "minari:ant"]

    chosen["ogbench"] = ["cube"]
    assert status.main(["--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "no dataset is available of: ogbench\n"

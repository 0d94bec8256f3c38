"""`download` and `convert`: options through to the library, results and failures back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offline_data import ingest
from offline_data.errors import NetworkError, NotFoundError
from offline_data.fetch.files import RemoteFile
from offline_data.fetch.plan import FetchPlan, FileStep
from offline_data.store.audit import DEFAULT_AUDIT as LIBRARY_AUDIT
from offline_data.store.library import entry_at
from offline_data_cli.options import DEFAULT_AUDIT

if TYPE_CHECKING:
    from offline_data.config import Settings
    from offline_data.ids import DatasetId
    from offline_data.progress import Progress
    from tests.cli.conftest import Cli


@dataclass
class Library:
    """Stands in for downloading: remembers what it was asked, and has one dataset."""

    toy: Path
    asked: list[tuple[str, str, ingest.Options]] = field(default_factory=list)

    def _ask(self, what: str, dataset: DatasetId, options: ingest.Options) -> None:
        self.asked.append((what, str(dataset), options))
        if dataset.name == "missing":
            raise NotFoundError("Nothing is called missing", hint="search")
        if dataset.name == "away":
            raise NetworkError("No answer")

    def download(
        self, dataset: DatasetId, settings: Settings, options: ingest.Options, progress: Progress
    ) -> ingest.Result:
        assert settings.root == self.toy.parents[2]
        progress.note("working")
        self._ask("download", dataset, options)
        entry = entry_at(self.toy)
        return ingest.Result(dataset.at("1"), entry.path, entry.manifest, True, 1.5)

    def fetch_raw(
        self, dataset: DatasetId, settings: Settings, options: ingest.Options, progress: Progress
    ) -> Path:
        progress.note("fetching")
        self._ask("fetch_raw", dataset, options)
        return settings.downloads

    def plan_download(
        self, dataset: DatasetId, settings: Settings, options: ingest.Options
    ) -> ingest.DownloadPlan:
        self._ask("plan", dataset, options)
        file = RemoteFile("a.hdf5", ("https://a.example/a.hdf5",), 2048)
        step = FileStep(file, "fetch", "not here", file.urls, 2048)
        plan = FetchPlan((step,), settings.downloads, 10**9)
        return ingest.DownloadPlan(dataset.at("3f2a"), Path("/there"), None, plan, 10**9)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, toy: Path) -> Library:
    made = Library(toy)
    for name in ("download", "fetch_raw", "plan_download"):
        monkeypatch.setattr(ingest, name, getattr(made, name))
    return made


def test_download_says_what_is_here_now(cli: Cli, library: Library, toy: Path) -> None:
    ran = cli("download", "d4rl:x")
    assert ran.code == 0
    assert ran.rows[0] == ["ID", "TRANSITIONS", "EPISODES", "SIZE", "SECONDS"]
    assert ran.rows[1][:3] == ["d4rl:x@1", "5", "2"]
    assert ran.err == f"working\nd4rl:x@1 already exists: {toy}\n"
    (data,) = cli("download", "d4rl:x", "--json").json
    assert (data["id"], data["path"], data["existed"]) == ("d4rl:x@1", str(toy), True)
    assert cli("download", "d4rl:x", "-q") == type(ran)(0, "d4rl:x@1\n", "")


def test_options_reach_the_library(cli: Cli, library: Library) -> None:
    cli("download", "d4rl:x")
    cli(
        "download", "d4rl:x", "--layout", "ted", "--episodes", "2:7", "--force", "--keep-raw",
        "--strict", "--audit", "all",
    )  # fmt: skip
    cli("download", "d4rl:x", "--raw-only", "--audit", "0.5")
    assert library.asked == [
        ("download", "d4rl:x", ingest.Options()),
        ("download", "d4rl:x", ingest.Options("ted", (2, 7), True, "all", True, True)),
        ("fetch_raw", "d4rl:x", ingest.Options(audit=0.5)),
    ]


def test_the_default_audit_is_the_librarys() -> None:
    assert float(DEFAULT_AUDIT) == LIBRARY_AUDIT


@pytest.mark.parametrize(
    "arguments",
    [("--audit", "2"), ("--audit", "some"), ("--episodes", "7"), ("--episodes", "7:3")],
)
def test_options_that_cannot_be_meant(
    cli: Cli, library: Library, arguments: tuple[str, str]
) -> None:
    ran = cli("download", "d4rl:x", *arguments)
    assert (ran.code, library.asked) == (2, [])


@pytest.mark.parametrize("text", ["x", "d4rl:../x", "d4rl:/etc/passwd", "d4rl:x@../y"])
def test_what_is_no_id(cli: Cli, library: Library, text: str) -> None:
    ran = cli("download", "d4rl:ok", text)
    assert (ran.code, library.asked) == (2, [])


def test_one_failure_is_its_own_code(cli: Cli, library: Library) -> None:
    assert cli("download", "d4rl:away").code == 6
    ran = cli("download", "d4rl:missing", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (3, "not_found")


def test_one_failure_of_several_is_partial(cli: Cli, library: Library) -> None:
    ran = cli("download", "d4rl:a", "d4rl:missing", "d4rl:b")
    assert ran.code == 1
    assert [row[0] for row in ran.rows] == ["ID", "d4rl:a@1", "d4rl:b@1"]
    assert "error: Nothing is called missing\nhint: search\n" in ran.err
    as_json = cli("download", "d4rl:a", "d4rl:missing", "d4rl:b", "--json")
    assert as_json.code == 1
    assert [item["id"] for item in as_json.json] == ["d4rl:a@1", "d4rl:missing", "d4rl:b@1"]
    assert as_json.json[1]["error"]["code"] == "not_found"


def test_raw_only(cli: Cli, library: Library, tmp_path: Path) -> None:
    (data,) = cli("download", "d4rl:x", "--raw-only", "--json").json
    assert data == {"id": "d4rl:x", "raw": str(tmp_path / "root" / ".downloads")}


def test_dry_run_plans(cli: Cli, library: Library) -> None:
    ran = cli("download", "d4rl:x", "--dry-run")
    assert ["destination", "/there"] in ran.rows
    assert ["to download", "2048"] in ran.rows
    assert ["a.hdf5", "fetch", "2048", "not here"] in ran.rows
    (data,) = cli("download", "d4rl:x", "--dry-run", "--json").json
    assert (data["id"], data["bytes"], data["dry_run"]) == ("d4rl:x@3f2a", 2048, True)
    assert {what for what, _, _ in library.asked} == {"plan"}


def test_convert_a_directory_to_the_other_layout(cli: Cli, toy: Path) -> None:
    ran = cli("convert", str(toy), "other", "--from", "local", "--layout", "ted")
    assert ran.code == 0
    data = cli("info", "local:other", "--json").json
    assert (data["layout"], data["transitions"]) == ("ted", 5)
    same = cli("head", "local:other", "-n", "5", "--json").json
    assert same == cli("head", "local:toy", "-n", "5", "--json").json


def test_convert_a_web_page(cli: Cli, tmp_path: Path) -> None:
    page = tmp_path / "page.hdf5"
    page.write_text("<!DOCTYPE html><title>Not found</title>")
    ran = cli("convert", str(page), "page", "--from", "d4rl")
    assert ran.code == 5
    assert "web page" in ran.err
    assert cli("list", "--json").json == []


def test_convert_what_is_not_there(cli: Cli, tmp_path: Path) -> None:
    ran = cli("convert", str(tmp_path / "no.hdf5"), "x", "--from", "d4rl")
    assert (ran.code, ran.out) == (3, "")

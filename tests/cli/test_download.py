"""`download` and `convert`: options through to the library, results and failures back."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy as np
import pytest

from offline_data import api
from offline_data.base.config import Settings, TransferLimits
from offline_data.base.errors import NetworkError, NotFoundError
from offline_data.base.files import human_bytes
from offline_data.base.ids import DatasetId
from offline_data.base.progress import Progress
from offline_data.fetch.files import RemoteFile
from offline_data.fetch.plan import FetchPlan, FileStep
from offline_data.formats.options import options_of, parse_range
from offline_data.pipeline import ingest
from offline_data.store.library import entry_at
from tests.cli.conftest import Cli
from tests.toys.d4rl import TOYS, write_d4rl_hdf5
from tests.toys.minari import toy_episode, write_minari
from tests.toys.text import write_tokenizer


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
        self,
        dataset: DatasetId,
        settings: Settings,
        options: ingest.Options,
        progress: Progress,
        executor: object,
    ) -> ingest.Stored:
        assert executor is None
        assert settings.root == self.toy.parents[2]
        progress.note("working")
        self._ask("download", dataset, options)
        entry = entry_at(self.toy)
        return ingest.Stored(dataset.at("1"), entry.path, entry.manifest, True, 1.5)

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
    assert ran.rows[0] == ["ID", "STEPS", "EPISODES", "SIZE", "SECONDS"]
    assert ran.rows[1][:3] == ["d4rl:x@1", "5", "2"]
    assert ran.err == f"working\nd4rl:x@1 already exists: {toy}\n"
    (data,) = cli("download", "d4rl:x", "--json").json
    assert (data["id"], data["path"], data["existed"]) == ("d4rl:x@1", str(toy), True)
    assert cli("download", "d4rl:x", "-q") == type(ran)(0, "d4rl:x@1\n", "")


def test_options_reach_the_library(cli: Cli, library: Library, tmp_path: Path) -> None:
    cli("download", "d4rl:x")
    cli(
        "download", "d4rl:x", "--layout", "ted", "--episodes", "2:7", "--force", "--keep-raw",
        "--strict", "--audit", "all",
    )  # fmt: skip
    (data,) = cli("download", "d4rl:x", "--raw-only", "--audit", "0.5", "--json").json
    assert data == {"id": "d4rl:x", "raw": str(tmp_path / "root" / ".downloads")}
    assert library.asked == [
        ("download", "d4rl:x", ingest.Options()),
        (
            "download",
            "d4rl:x",
            ingest.Options(
                layout="ted", episodes=(2, 7), strict=True, audit="all", keep_raw=True, force=True
            ),
        ),
        ("fetch_raw", "d4rl:x", ingest.Options(raw_only=True, audit=0.5)),
    ]


def test_functions_have_the_options_of_the_table() -> None:
    for function in (api.download, api.convert):
        own = {
            name
            for name, option in options_of(ingest.Options).items()
            if option.only in {None, function.__name__} and name != "raw_only"
        }
        assert own == own & inspect.signature(function).parameters.keys()


def test_ranges_of_episodes() -> None:
    ranges = ("0:10", "5:", " :5 ", f"0:{'9' * 18}")
    expected = [(0, 10), (5, None), (None, 5), (0, 10**18 - 1)]
    assert [parse_range(text) for text in ranges] == expected


def test_failures(cli: Cli, library: Library) -> None:
    assert cli("download", "d4rl:away").code == 6
    ran = cli("download", "d4rl:missing", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (3, "not_found")
    ran = cli("download", "d4rl:a", "d4rl:missing", "d4rl:b")
    assert ran.code == 1
    assert [row[0] for row in ran.rows] == ["ID", "d4rl:a@1", "d4rl:b@1"]
    assert "error: Nothing is called missing\nhint: search\n" in ran.err
    as_json = cli("download", "d4rl:a", "d4rl:missing", "d4rl:b", "--json")
    assert as_json.code == 1
    assert [item["id"] for item in as_json.json] == ["d4rl:a@1", "d4rl:missing", "d4rl:b@1"]
    assert as_json.json[1]["error"]["code"] == "not_found"


def test_dry_run_plans(cli: Cli, library: Library) -> None:
    ran = cli("download", "d4rl:x", "--dry-run")
    assert ["destination", "/there"] in ran.rows
    assert ["to download", "2048"] in ran.rows
    assert ["a.hdf5", "fetch", "2048", "not here"] in ran.rows
    (data,) = cli("download", "d4rl:x", "--dry-run", "--json").json
    assert (data["id"], data["bytes"], data["dry_run"]) == ("d4rl:x@3f2a", 2048, True)
    assert {what for what, _, _ in library.asked} == {"plan"}


def test_convert_force_keeps_what_is_not_the_datasets(cli: Cli, toy: Path, tmp_path: Path) -> None:
    assert cli("convert", str(toy), "mine").code == 0
    made = next((tmp_path / "root" / "local" / "mine").iterdir())
    (made / "notes.txt").write_text("mine")
    ran = cli("convert", str(toy), "mine", "--force")
    assert ran.code == 0
    assert f"{made}/notes.txt" in ran.err
    assert (made / "notes.txt").read_text() == "mine"


def test_a_d4rl_file_by_any_name_and_its_kept_episodes(cli: Cli, tmp_path: Path) -> None:
    path = write_d4rl_hdf5(tmp_path / "data", TOYS["bullet"])
    with h5py.File(path, "a") as file:
        file["next_observations"][1] += 1
    ran = cli("convert", str(path), "cut", "--json")
    assert ran.json[0]["episodes"] == 4
    assert re.search(r"In 1 of \d+ rows inside episodes", ran.err)
    ran = cli("convert", str(path), "kept", "--keep-episodes", "--json")
    assert ran.json[0]["episodes"] == 3
    assert "the episodes are kept" in ran.err
    notes = cli("info", "local:kept", "--json").json["notes"]
    assert [note for note in notes if re.match(r"In 1 of \d+ rows inside", note)]


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)  # names of sockets are short


def _hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros(3)


UNFIT: dict[str, tuple[Callable[[Path], object], str]] = {
    "fifo": (os.mkfifo, "a named pipe"),
    "socket": (_socket, "a socket"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "a device"),
    "empty": (lambda path: path.touch(), "empty"),
    "page": (lambda path: path.write_text("<!DOCTYPE html><title>404"), "a web page"),
    "pointer": (
        lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"),
        "a Git LFS pointer",
    ),
    "text": (lambda path: path.write_text("hello"), "it begins with b'hello'"),
    "hdf5": (_hdf5, "HDF5 with x; no known format has these arrays"),
    "folder": (lambda path: path.mkdir(), "a folder without files of a known format"),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_what_is_no_dataset_is_named(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make, said = UNFIT[kind]
    path = tmp_path / "mine.hdf5"
    make(path)
    ran = cli("convert", str(path), "mine")
    assert ran.code == 5
    assert f"Cannot tell what {path} is: " in ran.err
    assert said in ran.err
    special = kind in {"fifo", "socket", "device"}
    advised = "name its format with --from (`offline-data env` lists all)" in ran.err
    assert advised is (kind in {"text", "hdf5", "folder"})
    for source in ("d4rl", "minari", "local") if special else ():
        assert said in cli("convert", str(path), "mine", "--from", source).err
    assert cli("list", "--json").json == []


def test_a_damaged_file_and_two_formats(cli: Cli, tmp_path: Path) -> None:
    path = write_d4rl_hdf5(tmp_path / "mine.hdf5")
    path.write_bytes(path.read_bytes()[:700])
    ran = cli("convert", str(path), "mine")
    assert ran.code == 5
    assert f"{path} is damaged or cut short" in ran.err
    folder = write_minari(tmp_path / "one-v0", [toy_episode(0, 4)])
    (folder / "manifest.json").write_text("{}")
    ran = cli("convert", str(folder), "mine")
    assert ran.code == 2
    assert f"Cannot tell what {folder} is: it looks like local and minari data" in ran.err


@pytest.mark.parametrize("name", ["t.jsonl", "t.csv", "folder"])
def test_text_is_recognised_by_its_tokenizer(cli: Cli, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    file = path if path.suffix else path / "t.txt"
    file.parent.mkdir(exist_ok=True)
    file.write_text(
        {".jsonl": '{"text": "a b"}\n', ".csv": "text\na b\n"}.get(path.suffix, "a b\n")
    )
    refused = cli("convert", str(path), "mine")
    assert refused.code == 5
    assert f"`offline-data convert {path} NAME --tokenizer gpt2` reads it as text" in refused.err
    tokenizer = write_tokenizer(tmp_path)
    assert cli("convert", str(path), "mine", "--tokenizer", str(tokenizer)).code == 0
    assert cli("info", "mine", "--json").json["episodes"] == 1


def test_a_part_is_found_by_its_name(cli: Cli, tmp_path: Path) -> None:
    path = write_d4rl_hdf5(tmp_path / "mine.hdf5")
    assert cli("convert", str(path), "mine", "--episodes", "0:1").code == 0
    assert cli("info", "mine", "--json").json["episodes"] == 1
    assert cli("convert", str(path), "mine", "--episodes", "0:2").code == 0
    refused = cli("info", "mine")
    assert refused.code == 3
    for command in re.findall(r"`offline-data (info [^`]*)`", refused.err):
        assert cli(*shlex.split(command)).code == 0


@pytest.mark.parametrize("name", ["loop", "x" * 300, "file/x", "no.hdf5"])
def test_paths_that_lead_nowhere(cli: Cli, tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    ran = cli("convert", str(tmp_path / name), "mine")
    assert ran.code == (3 if name in {"file/x", "no.hdf5"} else 2)
    assert "unexpected" not in ran.err
    assert str(tmp_path / name)[:200] in ran.err.replace("\n", "")


def test_limits_of_the_transfer_reach_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[TransferLimits] = []

    def plan(dataset: object, settings: Settings, options: object) -> None:
        asked.append(settings.transfer)
        raise NotFoundError("nothing")

    monkeypatch.setattr("offline_data.pipeline.ingest.plan_download", plan)
    words = ("--jobs", "3", "--timeout", "2.5", "--retries", "0", "--limit-rate", "5MB")
    assert cli("download", "d4rl:pen-human-v1", "--dry-run", *words).code == 3
    assert asked == [TransferLimits(3, 2.5, 1, 5_000_000)]


def test_a_size_that_is_not_published_is_not_zero(cli: Cli, toy: Path) -> None:
    here = {row[0]: row[1] for row in cli("download", "local:toy", "--dry-run").rows}
    assert here["already exists"].endswith(str(toy.name))
    assert "files of unknown size" not in here
    ran = cli("download", "d4rl:door-human-v1", "--dry-run", "--offline")
    fields = {row[0]: row[1] for row in ran.rows if len(row) == 2}
    sized = int(fields.get("to download", 0))
    assert (sized > 0) != ("files of unknown size" in fields)
    assert "TransferLimits" not in cli("env").out


def test_what_was_stored_is_one_line(toy: Path) -> None:
    entry = entry_at(toy)
    shown = repr(ingest.Stored(entry.id, entry.path, entry.manifest, True, 1.5))
    size = human_bytes(entry.bytes)
    assert shown == f"Stored(local:toy@1, 5 steps, 2 episodes, {size}, {str(toy)!r})"

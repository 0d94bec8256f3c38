"""`cache` as a user and a script meet it: losses are said, in every mode, before anything goes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from offline_data.config import Settings
from offline_data.fetch.cache import FetchRecord, write_record
from offline_data.progress import SILENT
from offline_data.store.locks import dataset_lock, lock_name
from offline_data_cli.main import main
from tests.cli.conftest import Cli, Terminal

LOST, AGAIN = "1" * 64, "2" * 64
SENTENCE = "local:toy@1, {} exist only here and cannot be downloaded again."


@pytest.fixture
def raw(tmp_path: Path) -> Settings:
    """A root with two raw files: one of 10 bytes that no host has, one of 20 that a host has."""
    settings = Settings(tmp_path / "root")
    for sha256, size in ((LOST, 10), (AGAIN, 20)):
        path = settings.downloads / "sha256" / sha256[:2] / sha256
        path.parent.mkdir(parents=True)
        path.write_bytes(b"r" * size)
    url = "http://host.example/again"
    write_record(settings, FetchRecord(url, AGAIN, 20, url, "2024-01-01"))
    return settings


@pytest.fixture
def lost(raw: Settings) -> Path:
    return raw.downloads / "sha256" / "11" / LOST


def test_ls_says_all_and_adds_up(cli: Cli, toy: Path, raw: Settings) -> None:
    data = cli("cache", "ls", "--json").json
    files = [path for path in raw.root.rglob("*") if path.is_file()]
    assert data["bytes"] + data["other_bytes"] == sum(path.stat().st_size for path in files)
    ran = cli("cache", "ls")
    again = {row[3].partition(",")[0]: row[2] for row in ran.rows[1:]}
    assert again == {
        "local:toy@1": "no",
        "unknown origin": "no",
        "http://host.example/again": "yes",
    }
    assert "in download records, locks and other files" in ran.err
    quiet = cli("cache", "ls", "-q")
    assert quiet.out.split() == [item["path"] for item in data["items"]]
    assert quiet.err == ""


def test_prune_keeps_what_no_host_has_and_says_so(cli: Cli, lost: Path) -> None:
    ran = cli("cache", "prune", "--dry-run", "--json")
    assert [item["bytes"] for item in ran.json["removed"]] == [20]
    assert ran.json["kept"] == [{"path": str(lost), "reason": "cannot be fetched again"}]
    assert ran.json["cannot_be_fetched_again"] == []
    ran = cli("cache", "prune", "--yes")
    assert ran.out == "deleted 1 item, 20 B\n"
    assert "1 item kept, 10 B: cannot be fetched again" in ran.err
    assert "offline-data cache rm" in ran.err
    assert "download records are kept" in ran.err
    assert lost.exists()


@pytest.mark.parametrize("flags", [("--yes",), ("--yes", "-q"), ("--yes", "--json")])
def test_yes_still_says_what_is_lost(
    flags: tuple[str, ...], cli: Cli, toy: Path, lost: Path
) -> None:
    ran = cli("cache", "rm", "dataset", "download", *flags)
    assert ran.code == 0
    assert SENTENCE.format(lost) in ran.err
    assert not lost.exists()
    assert not toy.exists()
    if "--json" in flags:
        assert ran.json["cannot_be_fetched_again"] == [str(toy), str(lost)]
        assert len(ran.json["removed"]) == 3


@pytest.mark.parametrize("flags", [(), ("-q",), ("--json",)])
def test_a_dry_run_says_what_would_be_lost(
    flags: tuple[str, ...], cli: Cli, toy: Path, lost: Path
) -> None:
    ran = cli("cache", "rm", "dataset", "download", "--dry-run", *flags)
    assert SENTENCE.format(lost) in ran.err
    assert lost.exists()
    if flags == ("--json",):
        assert ran.json["cannot_be_fetched_again"] == [str(toy), str(lost)]


def test_without_a_terminal_the_error_says_it(cli: Cli, toy: Path, lost: Path) -> None:
    error = cli("cache", "rm", "dataset", "download", "--json").json["error"]
    assert error["message"].startswith(SENTENCE.format(lost) + " Delete 3 items, ")
    assert lost.exists()


@pytest.mark.parametrize(("typed", "code"), [("n\n", 1), ("y\n", 0)])
def test_the_question_says_it(
    terminal: Callable[..., Terminal], toy: Path, lost: Path, typed: str, code: int
) -> None:
    screen = terminal(typed)
    assert main(["cache", "rm", "dataset", "download"]) == code
    assert SENTENCE.format(lost) + " Delete 3 items, " in screen.err.text
    assert lost.exists() is (code == 1)
    table = screen.err.text.partition("local:toy@1, ")[0]
    assert max(map(len, table.splitlines())) <= 80


def test_many_losses_are_counted(cli: Cli, raw: Settings) -> None:
    for name in "abcdef":
        (raw.downloads / "sha256" / "11" / (name * 64)).write_bytes(b"r")
    said = cli("cache", "rm", "download", "--dry-run").err
    assert said.count(str(raw.downloads)) == 5
    assert " and 2 more exist only here and cannot be downloaded again." in said


@pytest.mark.parametrize("form", ["absolute", "below the root"])
def test_a_path_as_ls_shows_it(form: str, cli: Cli, raw: Settings, lost: Path) -> None:
    shown = next(row[4] for row in cli("cache", "ls").rows if row[3] == "unknown origin")
    assert shown == str(lost.relative_to(raw.root))
    target = shown if form == "below the root" else str(lost)
    assert cli("cache", "rm", target, "--yes").out == "deleted 1 item, 10 B\n"
    assert not lost.exists()


def test_what_is_worked_on_is_left_alone(cli: Cli, raw: Settings) -> None:
    staged = raw.staging / f"{lock_name('local/x')}.live"
    staged.mkdir(parents=True)
    with dataset_lock(raw.staging, "local/x", SILENT):
        ran = cli("cache", "rm", "staging", "download", "--yes")
        assert (ran.code, ran.out) == (1, "deleted 0 items, 0 B\n")
        assert "3 items kept, 30 B: a process is working on it" in ran.err
        ran = cli("cache", "prune", "--yes", "--json")
        assert (ran.code, ran.json["removed"]) == (0, [])
    assert cli("cache", "prune", "--yes", "-q").out.split() == [
        str(raw.downloads / "sha256" / "22" / AGAIN),
        str(staged),
    ]


def test_a_failure_is_told_beside_what_was_done(
    cli: Cli, raw: Settings, lost: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = Path.unlink

    def refuse(self: Path, missing_ok: bool = False) -> None:
        if self == lost:
            raise PermissionError(13, "Permission denied", str(self))
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", refuse)
    ran = cli("cache", "rm", "download", "--yes")
    assert (ran.code, ran.out) == (1, "deleted 1 item, 20 B\n")
    assert f"error: {lost} cannot be used: Permission denied" in " ".join(ran.err.split())


def test_rm_of_a_dataset_says_what_is_lost(cli: Cli, toy: Path) -> None:
    sentence = "local:toy@1 exists only here and cannot be downloaded again."
    ran = cli("rm", "local:toy", "--dry-run", "--json")
    assert sentence in ran.err
    assert ran.json["cannot_be_fetched_again"] == ["local:toy@1"]
    assert sentence in cli("rm", "local:toy", "--json").json["error"]["message"]
    assert sentence in cli("rm", "local:toy", "--yes", "-q").err
    assert not toy.exists()


def test_rm_of_what_a_host_has_says_nothing(cli: Cli, toy: Path) -> None:
    manifest = toy / "manifest.json"
    files = [{"path": "x", "url": "http://host.example/x"}]
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "files": files}))
    ran = cli("rm", "local:toy", "--yes", "-q")
    assert (ran.code, ran.err) == (0, "")


def test_two_at_once_are_no_traceback(raw: Settings, toy: Path) -> None:
    code = "from offline_data_cli.main import run; run()"
    command = [sys.executable, "-c", code, "cache", "rm", "dataset", "download", "--yes"]
    both = [
        subprocess.Popen([*command, "--root", str(raw.root)], stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate()[1] for process in both]
    assert not any("Traceback" in text or "unexpected" in text for text in said)
    assert not toy.exists()

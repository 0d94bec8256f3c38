"""`verify`, `rm` and `cache`: losses are said and a yes is needed, in every mode, before anything goes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from offline_data.base.config import Settings
from offline_data.base.progress import SILENT
from offline_data.fetch.cache import FetchRecord, write_record
from offline_data.store.publish import dataset_lock, lock_name
from offline_data_cli.main import main
from tests.cli.conftest import RUN, Cli, Terminal

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


@pytest.fixture
def leftover(tmp_path: Path) -> Path:
    """What a killed conversion left behind, of 1,000 bytes."""
    folder = tmp_path / "root" / ".staging" / "local+x.0123"
    folder.mkdir(parents=True)
    (folder / "rows.memmap").write_bytes(bytes(1000))
    return folder


def test_verify_names_every_file_that_differs(cli: Cli, toy: Path) -> None:
    assert "local:toy@1: OK, " in cli("verify", "local:toy").out
    whole = cli("verify", "local:toy", "--json")
    assert (whole.code, whole.json["ok"], whole.json["problems"]) == (0, True, [])
    names = ["observations/rows.memmap", "steps/rows.memmap"]
    for name in names:
        content = (toy / name).read_bytes()
        (toy / name).write_bytes(content[:-1])
    ran = cli("verify", "local:toy")
    assert ran.code == 5
    assert [row[0] for row in ran.rows[1:]] == names
    assert re.search(rf"2 of \d+ files in {re.escape(str(toy))} are damaged", ran.err)
    assert "offline-data convert PATH toy --force" in ran.err
    as_json = cli("verify", "local:toy", "--json")
    assert (as_json.code, as_json.json["ok"]) == (5, False)
    assert [problem["file"] for problem in as_json.json["problems"]] == names
    opened = cli("stats", "local:toy")
    assert opened.code == 5
    assert "offline-data check --files" in opened.err


def test_rm_says_what_is_lost_and_keeps_what_is_the_users(cli: Cli, toy: Path) -> None:
    said = "local:toy@1 exists only here and cannot be downloaded again."
    (toy / "notes.txt").write_text("mine")
    ran = cli("rm", "local:toy")
    assert (ran.code, toy.exists()) == (2, True)
    assert said in ran.err
    assert "--yes" in ran.err
    ran = cli("rm", "local:toy", "--dry-run", "--yes")
    assert [ran.rows[1][0], ran.rows[1][2]] == ["local:toy@1", str(toy)]
    assert "would delete 1 dataset" in ran.out
    data = cli("rm", "local:toy", "--dry-run", "--json").json
    assert (data["cannot_be_fetched_again"], data["dry_run"]) == (["local:toy@1"], True)
    assert cli("rm", "local:toy", "local:nope", "--yes").code == 3  # all or none
    assert (toy / "manifest.json").exists()
    ran = cli("rm", "local:toy", str(toy), "--yes", "--json")  # the same one, named twice
    assert [item["id"] for item in ran.json["removed"]] == ["local:toy@1"]
    assert said in ran.err
    assert f"{toy}/notes.txt" in ran.err
    assert [path.name for path in toy.iterdir()] == ["notes.txt"]
    assert cli("rm", "local:toy", "-y").code == 3


def test_rm_of_one_that_shares_files(cli: Cli, toy: Path) -> None:
    assert cli("preprocess", "local:toy", "--step", "reward_scale:2", "--out", "half").code == 0
    size = (toy / "observations" / "rows.memmap").stat().st_size
    said = f"{size} B in files that are linked elsewhere stay on the disk"
    assert said in cli("rm", "local:toy", "--yes").err
    assert said not in cli("rm", "local:half", "--yes").err


def test_rm_of_what_a_host_has_says_nothing(cli: Cli, toy: Path) -> None:
    manifest = toy / "manifest.json"
    files = [{"path": "x", "url": "http://host.example/x"}]
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "files": files}))
    ran = cli("rm", "local:toy", "--yes", "-q")
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize(("typed", "code"), [("n\n", 1), ("", 1), ("y\n", 0), ("YES\n", 0)])
def test_rm_asks(terminal: Callable[..., Terminal], toy: Path, typed: str, code: int) -> None:
    screen = terminal(typed)
    assert main(["rm", "local:toy"]) == code
    assert "Delete 1 dataset, " in screen.err.text
    assert "? [y/N] " in screen.err.text
    assert str(toy)[-20:] in screen.err.text.replace("\n", "").replace(" ", "")
    assert toy.exists() is (code == 1)


def test_ls_says_all_and_adds_up(cli: Cli, toy: Path, raw: Settings, leftover: Path) -> None:
    data = cli("cache", "ls", "--json").json
    files = [path for path in raw.root.rglob("*") if path.is_file()]
    assert data["bytes"] + data["other_bytes"] == sum(path.stat().st_size for path in files)
    assert {item["path"]: item["kind"] for item in data["items"]}[str(leftover)] == "staging"
    ran = cli("cache", "ls")
    assert ran.rows[0] == ["KIND", "SIZE", "DOWNLOADABLE", "CONTENT", "PATH"]
    again = {row[3].partition(",")[0]: row[2] for row in ran.rows[1:] if row[0] != "staging"}
    expected = {"local:toy@1": "no", "unknown origin": "no", "http://host.example/again": "yes"}
    assert again == expected
    assert "in download records, locks and other files" in ran.err
    quiet = cli("cache", "ls", "-q")
    assert quiet.out.split() == [item["path"] for item in data["items"]]
    assert quiet.err == ""


def test_prune_keeps_datasets_and_what_no_host_has(
    cli: Cli, toy: Path, lost: Path, leftover: Path
) -> None:
    assert cli("cache", "prune").code == 2
    ran = cli("cache", "prune", "--dry-run", "--json")
    assert [item["bytes"] for item in ran.json["removed"]] == [20, 1000]
    assert ran.json["kept"] == [{"path": str(lost), "reason": "cannot be fetched again"}]
    assert ran.json["cannot_be_fetched_again"] == []
    assert cli("cache", "prune", "--older-than", "2", "--yes", "--json").json["removed"] == []
    assert leftover.exists()
    ran = cli("cache", "prune", "--yes")
    assert ran.out == "deleted 2 items, 1020 B\n"
    assert "1 item kept, 10 B: cannot be fetched again" in ran.err
    assert "download records are kept" in ran.err
    assert lost.exists()
    assert toy.exists()
    assert not leftover.exists()
    ran = cli("cache", "prune")
    assert (ran.code, ran.out) == (0, "nothing to delete\n")


@pytest.mark.parametrize("mode", [(), ("-q",), ("--json",)])
def test_cache_rm_says_what_is_lost(mode: tuple[str, ...], cli: Cli, toy: Path, lost: Path) -> None:
    for more, exists in ((("--dry-run",), True), (("--yes",), False)):
        ran = cli("cache", "rm", "dataset", "download", *more, *mode)
        assert ran.code == 0
        assert SENTENCE.format(lost) in ran.err
        assert lost.exists() is toy.exists() is exists
        if mode == ("--json",):
            assert ran.json["cannot_be_fetched_again"] == [str(toy), str(lost)]
            assert len(ran.json["removed"]) == 3


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


def test_cache_rm_takes_paths_as_ls_shows_them(
    cli: Cli, raw: Settings, lost: Path, toy: Path, tmp_path: Path
) -> None:
    shown = next(row[4] for row in cli("cache", "ls").rows if row[3] == "unknown origin")
    assert shown == str(lost.relative_to(raw.root))
    assert cli("cache", "rm", shown, "--yes").out == "deleted 1 item, 10 B\n"
    assert not lost.exists()
    other = raw.downloads / "sha256" / "22" / AGAIN
    assert cli("cache", "rm", str(other), "--yes").out == "deleted 1 item, 20 B\n"
    hints = {str(tmp_path): "offline-data cache ls", "local:toy": "offline-data rm local:toy"}
    for target, hint in hints.items():
        ran = cli("cache", "rm", target, "--yes")
        assert ran.code == 3
        assert "dataset, download, partial, staging" in ran.err
        assert ran.err.rstrip().endswith(hint)
    assert toy.exists()


def test_what_is_worked_on_is_left_alone(cli: Cli, raw: Settings) -> None:
    staged = raw.staging / f"{lock_name('local/x')}.live"
    staged.mkdir(parents=True)
    with dataset_lock(raw.staging, "local/x", SILENT):
        ran = cli("cache", "rm", "staging", "download", "--yes")
        assert (ran.code, ran.out) == (1, "nothing to delete\n")
        assert "3 items kept, 30 B: a process is working on it" in ran.err
        ran = cli("cache", "prune", "--yes", "--json")
        assert (ran.code, ran.json["removed"]) == (0, [])
    assert cli("cache", "prune", "--yes", "-q").out.split() == [
        str(raw.downloads / "sha256" / "22" / AGAIN),
        str(staged),
    ]


def test_a_failure_is_told_beside_what_was_done(
    cli: Cli, lost: Path, monkeypatch: pytest.MonkeyPatch
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


def test_two_at_once_are_no_traceback(raw: Settings, toy: Path) -> None:
    command = [sys.executable, "-c", RUN, "cache", "rm", "dataset", "download", "--yes"]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[1] for process in both]
    assert not any("Traceback" in text or "unexpected" in text for text in said)
    assert not toy.exists()


def test_a_dataset_that_is_not_here_and_was_never_published(cli: Cli, toy: Path) -> None:
    """Nothing offers a download of it, and `rm` does not say how to make it."""
    for verb in ("rm", "info", "check"):
        ran = cli(verb, "local:tow")
        assert (ran.code, "download" in ran.err) == (3, False)
        assert "did you mean local:toy? " in ran.err
        assert ("convert PATH tow" in ran.err) is (verb != "rm")
        assert f"did you mean {'local:toy@1'}? " in cli(verb, "local:toy@2").err
    (toy / "manifest.json").write_text("{")
    for verb in ("rm", "info", "check", "verify"):
        ran = cli(verb, "local:toy", "-y")
        assert ran.code == (1 if verb == "check" else 5)
        assert "download" not in ran.err
        assert "offline-data convert PATH toy --force" in ran.err + ran.out


def test_a_damaged_dataset_that_was_made_of_another(cli: Cli, toy: Path) -> None:
    assert (
        cli("preprocess", "local:toy", "--step", "cast:action=float64", "--out", "made").code == 0
    )
    made = Path(cli("path", "local:made").out.strip())
    next(made.glob("steps/*.memmap")).write_bytes(b"")
    said = cli("verify", "local:made").err
    assert "to replace it: offline-data preprocess local:toy@1 … --out made --force" in said
    assert cli("verify", str(toy)).code == 0

"""`rm` and `cache`: what goes is shown first, and nothing goes without a yes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offline_data_cli.main import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Cli, Terminal


@pytest.fixture
def leftover(tmp_path: Path) -> Path:
    """What a killed conversion left behind, of 1,000 bytes."""
    folder = tmp_path / "root" / ".staging" / "local+x.0123"
    folder.mkdir(parents=True)
    (folder / "rows.memmap").write_bytes(bytes(1000))
    return folder


def test_rm_with_yes(cli: Cli, toy: Path) -> None:
    ran = cli("rm", "local:toy", "--yes")
    assert ran.code == 0
    assert not toy.exists()
    assert ran.out.startswith("deleted 1 dataset, ")
    assert "local:toy@1" in ran.err
    assert cli("rm", "local:toy", "-y").code == 3


def test_rm_without_a_terminal_fails_at_once(cli: Cli, toy: Path) -> None:
    ran = cli("rm", "local:toy")
    assert ran.code == 2
    assert "--yes" in ran.err
    assert toy.exists()
    assert cli("rm", "local:toy", "--json").json["error"]["code"] == "usage"


@pytest.mark.parametrize(("typed", "code", "stays"), [("n\n", 1, True), ("y\n", 0, False)])
def test_rm_asks(
    terminal: Callable[..., Terminal], toy: Path, typed: str, code: int, stays: bool
) -> None:
    screen = terminal(typed)
    assert main(["rm", "local:toy"]) == code
    assert "Delete 1 dataset, " in screen.err.text
    assert str(toy)[-20:] in screen.err.text.replace("\n", "").replace(" ", "")
    assert toy.exists() is stays


def test_rm_dry_run_shows_and_keeps(cli: Cli, toy: Path) -> None:
    ran = cli("rm", "local:toy", "--dry-run", "--yes")
    assert ran.code == 0
    assert ["local:toy@1", str(toy)] == [ran.rows[1][0], ran.rows[1][2]]
    assert "would delete 1 dataset" in ran.out
    assert toy.exists()
    data = cli("rm", "local:toy", "--dry-run", "--json").json
    assert (data["dry_run"], data["removed"][0]["id"]) == (True, "local:toy@1")


def test_rm_names_all_or_removes_none(cli: Cli, toy: Path) -> None:
    assert cli("rm", "local:toy", "local:nope", "--yes").code == 3
    assert toy.exists()


def test_rm_of_one_dataset_named_twice(cli: Cli, toy: Path) -> None:
    ran = cli("rm", "local:toy", str(toy), "--yes", "--json")
    assert [item["id"] for item in ran.json["removed"]] == ["local:toy@1"]


def test_cache_ls(cli: Cli, toy: Path, leftover: Path) -> None:
    data = cli("cache", "ls", "--json").json
    assert [(item["kind"], item["path"]) for item in data["items"]] == [
        ("dataset", str(toy)),
        ("staging", str(leftover)),
    ]
    assert data["bytes"] == sum(item["bytes"] for item in data["items"])
    ran = cli("cache", "ls")
    assert ran.rows[0] == ["KIND", "SIZE", "DOWNLOADABLE", "CONTENT", "PATH"]
    assert [row[0] for row in ran.rows[1:]] == ["dataset", "staging"]
    assert f"in 2 items under {toy.parents[2]}" in ran.err


def test_cache_prune_leaves_datasets(cli: Cli, toy: Path, leftover: Path) -> None:
    assert cli("cache", "prune").code == 2
    assert leftover.exists()
    assert "would delete 1 item, 1000 B" in cli("cache", "prune", "--dry-run").out
    assert leftover.exists()
    assert cli("cache", "prune", "--yes").out == "deleted 1 item, 1000 B\n"
    assert not leftover.exists()
    assert toy.exists()


def test_cache_prune_of_what_is_old(cli: Cli, leftover: Path) -> None:
    assert cli("cache", "prune", "--older-than", "2", "--yes", "--json").json["removed"] == []
    assert leftover.exists()


def test_cache_prune_without_anything_to_do(cli: Cli) -> None:
    ran = cli("cache", "prune")
    assert (ran.code, ran.out) == (0, "deleted 0 items, 0 B\n")


@pytest.mark.parametrize("by", ["kind", "path"])
def test_cache_rm_of_a_kind_or_a_path(cli: Cli, toy: Path, leftover: Path, by: str) -> None:
    target = "staging" if by == "kind" else str(leftover)
    assert cli("cache", "rm", target).code == 2
    assert leftover.exists()
    assert cli("cache", "rm", target, "--yes").code == 0
    assert not leftover.exists()
    assert toy.exists()


def test_cache_rm_of_something_else(cli: Cli, toy: Path, tmp_path: Path) -> None:
    other = tmp_path / "mine"
    other.mkdir()
    ran = cli("cache", "rm", str(other), "--yes")
    assert ran.code == 3
    assert "dataset, download, partial, staging" in ran.err
    assert other.exists()

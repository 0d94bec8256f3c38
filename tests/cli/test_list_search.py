"""`list`, `search` and `info` of what is not here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offline_data.errors import NotFoundError
from offline_data.reports import catalog
from offline_data.reports.catalog import CatalogDataset, CatalogListing
from offline_data.testing.toy import toy_batch, write_toy

if TYPE_CHECKING:
    from pathlib import Path

    from offline_data.config import Settings
    from tests.cli.conftest import Cli


def _put_here(root: Path, dataset: str, lengths: list[int]) -> None:
    folder = root / dataset.replace(":", "/") / "1"
    folder.mkdir(parents=True)
    write_toy(folder, [toy_batch(lengths)], dataset=f"{dataset}@1")


@pytest.fixture
def three(tmp_path: Path) -> list[str]:
    """Three datasets here; their ids, from the smallest to the largest."""
    for dataset, lengths in (("local:b/two", [9, 9]), ("d4rl:c", [2]), ("local:a", [500])):
        _put_here(tmp_path / "root", dataset, lengths)
    return ["d4rl:c@1", "local:b/two@1", "local:a@1"]


def test_list_by_id(cli: Cli, three: list[str]) -> None:
    rows = cli("list").rows
    assert rows[0] == ["ID", "TRANSITIONS", "EPISODES", "SIZE", "LAYOUT"]
    assert [row[0] for row in rows[1:]] == sorted(three)
    assert rows[-1][1:3] == ["18", "2"]


def test_list_by_size(cli: Cli, three: list[str]) -> None:
    assert cli("ls", "--sort", "size", "-q").out.split() == three[::-1]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("local",), ["local:a@1", "local:b/two@1"]),
        (("--prefix", "b/"), ["local:b/two@1"]),
        (("--prefix", "local:b"), ["local:b/two@1"]),
        (("minari",), []),
    ],
)
def test_list_less(
    cli: Cli, three: list[str], arguments: tuple[str, ...], expected: list[str]
) -> None:
    assert cli("list", "-q", *arguments).out.split() == expected


def test_list_tells_of_what_it_cannot_read(cli: Cli, three: list[str], tmp_path: Path) -> None:
    broken = tmp_path / "root" / "d4rl" / "c" / "1"
    (broken / "manifest.json").write_text("{")
    ran = cli("list")
    assert ran.code == 0
    assert [row[0] for row in ran.rows[1:]] == ["local:a@1", "local:b/two@1"]
    assert f"offline-data verify {broken}" in ran.err


def test_list_as_json(cli: Cli, three: list[str], tmp_path: Path) -> None:
    found = cli("list", "d4rl", "--json").json
    assert [{k: v for k, v in item.items() if k != "bytes"} for item in found] == [
        {
            "id": "d4rl:c@1",
            "path": str(tmp_path / "root" / "d4rl" / "c" / "1"),
            "layout": "compact",
            "transitions": 2,
            "episodes": 1,
        }
    ]
    assert found[0]["bytes"] > 0


def test_an_empty_root_is_no_error(cli: Cli) -> None:
    ran = cli("list")
    assert (ran.code, ran.out) == (0, "")
    assert "offline-data search" in ran.err
    assert cli("list", "--json").json == []


def test_a_source_that_is_not_one(cli: Cli) -> None:
    ran = cli("list", "minary")
    assert ran.code == 3
    assert "minari" in ran.err


def test_a_catalogue(cli: Cli) -> None:
    ids = cli("list", "d4rl", "--remote", "--offline", "-q").out.split()
    assert "d4rl:halfcheetah-medium-v2" in ids
    assert all(text.startswith("d4rl:") for text in ids)
    some = cli("list", "d4rl", "--remote", "--offline", "--prefix", "pen-", "-q").out.split()
    assert some == [text for text in ids if text.startswith("d4rl:pen-")] != []


def test_what_a_catalogue_could_not_say_is_on_stderr(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def list_remote(source: str | None, settings: Settings) -> CatalogListing:
        assert source is None
        assert not settings.offline
        small = CatalogDataset("x:a", "x", "a", False, None, None, 5, "", ())
        large = CatalogDataset("x:b", "x", "b", True, None, None, 50, "", ())
        return CatalogListing((small, large), ("x: no answer",))

    monkeypatch.setattr(catalog, "list_remote", list_remote)
    ran = cli("list", "--remote", "--sort", "size")
    assert [row[:1] + row[3:5] for row in ran.rows[1:]] == [["x:b", "50", "yes"], ["x:a", "5", ""]]
    assert ran.err == "x: no answer\n"


def test_search_takes_every_word(cli: Cli) -> None:
    ids = cli("search", "HalfCheetah", "v2", "-q").out.split()
    assert "d4rl:halfcheetah-medium-v2" in ids
    assert all("halfcheetah" in text.lower() for text in ids)


def test_a_search_without_a_find_is_no_error(cli: Cli) -> None:
    ran = cli("search", "halfcheeta-medum-v2")
    assert (ran.code, ran.out) == (0, "")
    assert "no dataset matches" in ran.err
    assert "d4rl:halfcheetah-medium-v2" in ran.err
    assert cli("search", "zzz", "--json").json == []


def test_info_of_what_a_catalogue_knows(cli: Cli) -> None:
    ran = cli("info", "d4rl:halfcheetah-medium-v2", "--offline")
    assert ran.code == 0
    assert ran.err == "to download it: offline-data download d4rl:halfcheetah-medium-v2\n"
    data = cli("show", "d4rl:halfcheetah-medium-v2", "--offline", "--json").json
    assert (data["id"], data["source"], data["remote"], data["here"]) == (
        "d4rl:halfcheetah-medium-v2",
        "d4rl",
        True,
        False,
    )
    assert data["command"] == "offline-data download d4rl:halfcheetah-medium-v2"


def test_info_of_nothing(cli: Cli) -> None:
    ran = cli("info", "d4rl:halfcheeta-medium-v2", "--offline", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (3, NotFoundError.code)

"""`list`, `search`, `sources` and `env`."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import MissingDependencyError
from offline_data.formats import search as catalog
from offline_data.formats.registry import source_names
from offline_data.formats.search import CatalogDataset
from offline_data.reports import environment
from offline_data.store.library import Listing
from offline_data.testing.toy import toy_batch
from tests.toys.stored import write_stored

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

HOST = "http://host.example/"


@pytest.fixture
def three(tmp_path: Path) -> list[str]:
    """Three datasets here; their ids, from the smallest to the largest."""
    for dataset, lengths in (("local:b/two", [9, 9]), ("d4rl:c", [2]), ("local:a", [500])):
        write_stored(tmp_path / "root", f"{dataset}@1", toy_batch(lengths))
    return ["d4rl:c@1", "local:b/two@1", "local:a@1"]


def test_list(cli: Cli, three: list[str], tmp_path: Path) -> None:
    rows = cli("list").rows
    assert rows[0] == ["ID", "STEPS", "EPISODES", "SIZE", "LAYOUT"]
    assert [row[0] for row in rows[1:]] == sorted(three)
    assert rows[-1][1:3] == ["18", "2"]
    assert cli("ls", "--sort", "size", "-q").out.split() == three[::-1]
    for arguments, expected in (
        (("local",), ["local:a@1", "local:b/two@1"]),
        (("--prefix", "b/"), ["local:b/two@1"]),
        (("--prefix", "local:b"), ["local:b/two@1"]),
        (("minari",), []),
    ):
        assert cli("list", "-q", *arguments).out.split() == expected
    broken = tmp_path / "root" / "d4rl" / "c" / "1"
    (found,) = cli("list", "d4rl", "--json").json
    assert found.pop("bytes") > 0
    assert found == {
        "id": "d4rl:c@1",
        "path": str(broken),
        "layout": "compact",
        "transitions": 2,
        "episodes": 1,
    }
    (broken / "manifest.json").write_text("{")
    ran = cli("list")
    assert ran.code == 0
    assert [row[0] for row in ran.rows[1:]] == ["local:a@1", "local:b/two@1"]
    assert f"offline-data check --files {broken}" in ran.err


def test_an_empty_root_is_no_error(cli: Cli) -> None:
    ran = cli("list")
    assert (ran.code, ran.out) == (0, "")
    assert "offline-data search" in ran.err
    assert cli("list", "--json").json == []


def test_a_catalogue(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = cli("list", "d4rl", "--remote", "--offline", "-q").out.split()
    assert "d4rl:halfcheetah-medium-v2" in ids
    assert all(text.startswith("d4rl:") for text in ids)
    some = cli("list", "d4rl", "--remote", "--offline", "--prefix", "pen-", "-q").out.split()
    assert some == [text for text in ids if text.startswith("d4rl:pen-")] != []

    def list_remote(source: str | None, settings: Settings) -> Listing[CatalogDataset]:
        assert source is None
        assert not settings.offline
        small = CatalogDataset("x:a", "x", "a", False, None, None, 5, "", ())
        large = CatalogDataset("x:b", "x", "b", True, None, None, 50, "", ())
        return Listing((small, large), ("x: no answer",))

    monkeypatch.setattr(catalog, "list_remote", list_remote)
    ran = cli("list", "--remote", "--sort", "size")
    assert [row[:1] + row[3:5] for row in ran.rows[1:]] == [["x:b", "50", "yes"], ["x:a", "5", ""]]
    assert ran.err == "x: no answer\n"


def test_search(cli: Cli) -> None:
    ids = cli("search", "HalfCheetah", "v2", "-q").out.split()
    assert "d4rl:halfcheetah-medium-v2" in ids
    assert all("halfcheetah" in text.lower() for text in ids)
    assert cli("search", "hopper", "medium", "-q").out.split()[0] == "d4rl:hopper-medium-v2"
    ran = cli("search", "halfcheeta-medum-v2")
    assert (ran.code, ran.out) == (3, "")
    assert "no dataset matches" in ran.err
    assert "d4rl:halfcheetah-medium-v2" in ran.err
    none = cli("search", "zzz", "--json")
    assert (none.code, none.json) == (3, [])
    for line in ("zzz -q", "hopper --max-size 1", "hopper --max-size 1 -q"):
        assert cli("search", *line.split()).code == 3


def test_sources(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    data = cli("sources", "--json").json
    assert [source["name"] for source in data] == source_names()
    assert next(one for one in data if one["name"] == "d4rl")["datasets"] > 100
    rows = cli("sources").rows
    assert rows[0] == ["SOURCE", "DATASETS", "REQUIRES", "CONTENT"]
    assert rows[1][:3] == [data[0]["name"], str(data[0]["datasets"]), "nothing"]

    class Needy:
        name, title, extra = "needy", "for this test", "needy"
        needs = ("numpy", "package_that_is_not_here")

        def catalog(self) -> list[object]:
            return []

    def get_source(name: str) -> Needy:
        if name == "broken":
            raise MissingDependencyError("Source 'broken' cannot be imported", hint="pip it")
        return Needy()

    monkeypatch.setattr(environment, "source_names", lambda: ["broken", "needy"])
    monkeypatch.setattr(environment, "get_source", get_source)
    ran = cli("sources")
    assert ran.rows[1:] == [
        ["broken", "0", "nothing", "Source 'broken' cannot be imported"],
        ["needy", "0", "numpy (installed), package_that_is_not_here (missing)", "for this test"],
    ]
    assert ran.err == "broken: pip it\nneedy: pip install 'offline-data[needy]'\n"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(
        f'workers = 3\n[mirrors]\n"{HOST}" = ["/mnt/x", "https://me:hush@mirror.example/"]\n'
    )
    monkeypatch.setenv("OFFLINE_DATA_CONFIG", str(path))
    return path


def test_env_has_every_setting_with_its_origin_and_no_secret(
    cli: Cli, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from offline_data.rows.gather import native

    monkeypatch.setenv("HF_TOKEN", "hf_hush")
    monkeypatch.setenv("HF_ENDPOINT", "https://me:hush@hub.example")
    monkeypatch.setenv("OFFLINE_DATA_MIRRORS", f"{HOST}=http://env.example/")
    ran = cli("env", "--offline")
    assert ["config file", str(config)] in ran.rows
    assert ["root", str(tmp_path / "root"), "OFFLINE_DATA_HOME"] in ran.rows
    assert ["workers", "3", "config file"] in ran.rows
    assert ["offline", "yes", "argument"] in ran.rows
    assert ["minari_remote", "hf://farama-minari", "default"] in ran.rows
    assert ["hub_token", "set", "HF_TOKEN"] in ran.rows
    assert ["hub_endpoint", "https://***@hub.example", "HF_ENDPOINT"] in ran.rows
    assert [row for row in ran.rows if row[0] == "mirrors"] == [
        ["mirrors", f"{HOST}=http://env.example/", "OFFLINE_DATA_MIRRORS"],
        ["mirrors", f"{HOST}=file:///mnt/x/", "config file"],
        ["mirrors", f"{HOST}=https://***@mirror.example/", "config file"],
    ]
    as_json = cli("env", "--json")
    assert "hush" not in ran.out + ran.err + as_json.out + cli("env", "-q").out
    found, settings = as_json.json, as_json.json["settings"]
    assert found["version"] == version("offline-data")
    assert found["packages"]["numpy"] == version("numpy")
    assert "offline-data" not in found["packages"]
    assert ("tomli" in found["packages"]) == (sys.version_info < (3, 11))
    assert found["compiled_gather"] is (native.compiled is not None)
    assert found["free_bytes"] > 0
    assert settings["config"] == settings["config_place"] == str(config)
    assert settings["origins"]["workers"] == "config file"
    assert settings["origins"][settings["mirrors"][2]] == "config file"


def test_env_does_not_show_the_home_directory(
    cli: Cli, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "jane.doe"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("OFFLINE_DATA_HOME", f"{home}/data")
    config.rename(home / "settings.toml")
    monkeypatch.setenv("OFFLINE_DATA_CONFIG", f"{home}/settings.toml")
    monkeypatch.setenv("OFFLINE_DATA_MIRRORS", f"{HOST}=file://{home}/mirror/")
    monkeypatch.setenv("MINARI_DATASETS_PATH", f"{home}s/minari")
    ran, as_json = cli("env"), cli("env", "--json")
    assert "jane.doe/" not in ran.out + as_json.out
    settings = as_json.json["settings"]
    assert (settings["root"], settings["config_place"]) == ("~/data", "~/settings.toml")
    assert settings["mirrors"][0] == f"{HOST}=file://~/mirror/"
    assert settings["minari_path"] == f"{home}s/minari"
    assert ["mirrors", f"{HOST}=file://~/mirror/", "OFFLINE_DATA_MIRRORS"] in ran.rows
    monkeypatch.setenv("HOME", "/")
    assert cli("env", "--json").json["settings"]["root"] == f"{home}/data"


def test_the_config_file(
    cli: Cli, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("wokers = 3")
    for verb in ("env", "list", "cache dir"):
        ran = cli(*verb.split(), "--json")
        assert ran.code == 2
        assert ran.json["error"]["message"].startswith(f"{config} has wokers; expected only root")
    monkeypatch.delenv("OFFLINE_DATA_HOME")
    config.write_text(f'root = "{tmp_path / "of the file"}"')
    assert cli("cache", "dir").out == f"{tmp_path / 'of the file'}\n"
    assert cli("cache", "dir", "--root", "/argument").out == "/argument\n"
    monkeypatch.delenv("OFFLINE_DATA_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nowhere")
    place = "/nowhere/offline_data/config.toml"
    assert ["config file", f"none ({place} does not exist)"] in cli("env").rows
    settings = cli("env", "--json").json["settings"]
    assert (settings["config"], settings["config_place"]) == (None, place)

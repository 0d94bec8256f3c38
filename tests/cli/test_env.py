"""`env` shows which config file was read, and what decided each setting and mirror."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli

HOST = "http://host.example/"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(
        f'workers = 3\n[mirrors]\n"{HOST}" = ["/mnt/x", "https://me:hush@mirror.example/"]\n'
    )
    monkeypatch.setenv("OFFLINE_DATA_CONFIG", str(path))
    return path


def test_every_setting_has_its_origin(
    cli: Cli, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFLINE_DATA_MIRRORS", f"{HOST}=http://env.example/")
    rows = cli("env", "--offline").rows
    assert ["config file", str(config)] in rows
    assert ["root", str(tmp_path / "root"), "OFFLINE_DATA_HOME"] in rows
    assert ["workers", "3", "config file"] in rows
    assert ["offline", "True", "argument"] in rows
    assert ["minari_remote", "hf://farama-minari", "default"] in rows
    assert [row for row in rows if row[0] == "mirrors"] == [
        ["mirrors", f"{HOST}=http://env.example/", "OFFLINE_DATA_MIRRORS"],
        ["mirrors", f"{HOST}=file:///mnt/x/", "config file"],
        ["mirrors", f"{HOST}=https://***@mirror.example/", "config file"],
    ]


def test_json_has_the_same_and_no_secret(cli: Cli, config: Path) -> None:
    ran = cli("env", "--json")
    assert "hush" not in ran.out
    settings = ran.json["settings"]
    assert settings["config"] == settings["config_place"] == str(config)
    assert settings["mirrors"] == [f"{HOST}=file:///mnt/x/", f"{HOST}=https://***@mirror.example/"]
    assert settings["origins"]["workers"] == "config file"
    assert settings["origins"][settings["mirrors"][1]] == "config file"


def test_no_file_is_said_with_its_place(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nowhere")
    place = "/nowhere/offline_data/config.toml"
    assert ["config file", f"none ({place} does not exist)"] in cli("env").rows
    settings = cli("env", "--json").json["settings"]
    assert (settings["config"], settings["config_place"]) == (None, place)


@pytest.mark.parametrize("verb", ["env", "list", "cache dir"])
def test_a_broken_file_is_a_usage_error_of_every_verb(verb: str, cli: Cli, config: Path) -> None:
    config.write_text("wokers = 3")
    ran = cli(*verb.split(), "--json")
    assert ran.code == 2
    assert ran.json["error"]["message"].startswith(f"{config} has wokers; expected only root")


def test_the_file_decides_where_datasets_lie(
    cli: Cli, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OFFLINE_DATA_HOME")
    config.write_text(f'root = "{tmp_path / "of the file"}"')
    assert cli("cache", "dir").out == f"{tmp_path / 'of the file'}\n"
    assert cli("cache", "dir", "--root", "/argument").out == "/argument\n"

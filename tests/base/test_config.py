"""Settings: argument, environment, config file, default; the config file and mirrors are checked whole."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import platformdirs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline_data.base.config import Settings, check_mirror, config_place, resolve_settings
from offline_data.base.errors import UsageError
from offline_data.fetch.mirrors import path_of_url, with_mirrors
from tests.documented import BLOCK
from tests.documented import read as read_page

FLAGS = {"1": True, "TRUE": True, "0": False, "": False}


@pytest.fixture
def file(tmp_path: Path) -> dict[str, str]:
    """An environment whose config file says everything."""
    path = tmp_path / "config.toml"
    path.write_text(
        'root = "/file"\noffline = true\nworkers = 5\n[mirrors]\n'
        '"http://a/" = ["http://file/", "http://same/"]\n"http://z/" = "/mnt/z"\n'
    )
    return {"OFFLINE_DATA_CONFIG": str(path)}


def test_argument_beats_environment_beats_file_beats_default(
    tmp_path: Path, file: dict[str, str]
) -> None:
    said = {"OFFLINE_DATA_HOME": "/env", "OFFLINE_DATA_OFFLINE": "0", "OFFLINE_DATA_WORKERS": "3"}
    named = resolve_settings(root=tmp_path, offline=True, workers=2, environ={**file, **said})
    assert (named.root, named.offline, named.workers) == (tmp_path, True, 2)
    assert {named.origins[name] for name in ("root", "offline", "workers")} == {"argument"}
    read = resolve_settings(environ={**file, **said})
    assert (read.root, read.offline, read.workers) == (Path("/env"), False, 3)
    assert [read.origins[name] for name in ("root", "offline", "workers")] == list(said)
    stored = resolve_settings(environ=file)
    assert (stored.root, stored.offline, stored.workers) == (Path("/file"), True, 5)
    assert {stored.origins[name] for name in ("root", "offline", "workers")} == {"config file"}
    empty = dict.fromkeys(said, "")
    assert resolve_settings(environ={**file, **empty}).origins == stored.origins
    # what an argument gives is not read
    assert resolve_settings(workers=2, environ={"OFFLINE_DATA_WORKERS": "many"}).workers == 2
    default = resolve_settings(environ={})
    assert default.root.name == "offline_data"
    assert not default.offline
    assert default.workers >= 1
    assert (default.origins, default.config) == ({}, None)


def test_the_hub_s_flag_takes_off_the_net_but_never_puts_on(file: dict[str, str]) -> None:
    for name in ("OFFLINE_DATA_OFFLINE", "HF_HUB_OFFLINE"):
        said = {value: resolve_settings(environ={name: value}).offline for value in FLAGS}
        assert said == FLAGS
    both = {"OFFLINE_DATA_OFFLINE": "0", "HF_HUB_OFFLINE": "1"}
    found = resolve_settings(environ=both)
    assert (found.offline, found.origins["offline"]) == (True, "HF_HUB_OFFLINE")
    assert resolve_settings(environ={**file, "HF_HUB_OFFLINE": "0"}).offline
    assert not resolve_settings(offline=False, environ={**file, "HF_HUB_OFFLINE": "1"}).offline
    found = resolve_settings(environ=dict.fromkeys(both, "1"))
    assert found.origins["offline"] == "OFFLINE_DATA_OFFLINE and HF_HUB_OFFLINE"


def test_mirrors_add_up_in_order_each_once(file: dict[str, str]) -> None:
    text = " http://a/ = http://env/?path= ;;http://a/=http://same/ ; "
    found = resolve_settings(environ={**file, "OFFLINE_DATA_MIRRORS": text})
    origins = {
        ("http://a/", "http://env/?path="): "OFFLINE_DATA_MIRRORS",
        ("http://a/", "http://same/"): "OFFLINE_DATA_MIRRORS",
        ("http://a/", "http://file/"): "config file",
        ("http://z/", "file:///mnt/z/"): "config file",
    }
    assert found.mirrors == tuple(origins)
    assert {name: by for name, by in found.origins.items() if "=" in name} == {
        "=".join(pair): by for pair, by in origins.items()
    }


def test_tools_variables_are_honoured() -> None:
    minari = {"MINARI_DATASETS_PATH": "~/m", "MINARI_REMOTE": "gcp://bucket"}
    settings = resolve_settings(environ={**minari, "HF_ENDPOINT": "http://hub", "HF_TOKEN": "t"})
    assert (settings.minari_path, settings.minari_remote) == (Path.home() / "m", "gcp://bucket")
    assert (settings.hub_endpoint, settings.hub_token) == ("http://hub", "t")
    assert settings.origins["minari_remote"] == "MINARI_REMOTE"
    default = resolve_settings(environ={})
    assert default.minari_path == Path.home() / ".minari/datasets"
    assert (default.minari_remote, default.hub_endpoint) == ("hf://farama-minari", None)


def read(text: str, folder: Path) -> Settings:
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    return resolve_settings(environ={"OFFLINE_DATA_CONFIG": str(path)})


def test_the_example_of_the_guide_is_read(tmp_path: Path) -> None:
    (example,) = (
        code for kind, code in BLOCK.findall(read_page("docs/guides/settings.md")) if kind == "toml"
    )
    found = read(example, tmp_path)
    assert found.root == Path.home() / "datasets"
    assert (found.offline, found.workers) == (False, 4)
    places = ["file:///mnt/data/", "https://mirror.example/data/"]
    assert [place for _, place in found.mirrors] == places


@pytest.mark.parametrize("folder", [None, "", "/other"])
def test_it_lies_where_platformdirs_says(
    folder: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    if folder is not None:
        monkeypatch.setenv("XDG_CONFIG_HOME", folder)
    expected = platformdirs.user_config_path("offline_data", appauthor=False) / "config.toml"
    assert config_place(os.environ) == expected


def test_its_place_comes_from_the_environment_given(tmp_path: Path) -> None:
    path = tmp_path / "offline_data" / "config.toml"
    path.parent.mkdir()
    path.write_text("workers = 7")
    (tmp_path / "file").write_text("not a folder")
    assert resolve_settings(environ={"XDG_CONFIG_HOME": str(tmp_path)}).workers == 7
    for place in ("none", "file"):  # an error only where the file itself was named
        assert resolve_settings(environ={"XDG_CONFIG_HOME": str(tmp_path / place)}).origins == {}


@given(st.text(st.sampled_from("[]='\"\n.#,{}0-:/abrotT "), max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    place = Path(os.environ["XDG_CONFIG_HOME"])
    place.mkdir(exist_ok=True)
    with suppress(UsageError):
        read(text, place)


def test_deep_lists_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not TOML"):
        read("a = " + "[" * 5000, tmp_path)


def test_urls_stay_as_they_are_and_folders_files_are_found(tmp_path: Path) -> None:
    for pair in (
        ("http://a", "https://b"),
        ("http://a/data/", "http://b/get?path="),
        ("https://huggingface.co/", "https://u:p@hub.example:8080/x/"),
        ("hf://datasets/u/n@", "https://mirror.example/n/"),
    ):
        assert check_mirror(*pair, "here") == pair
    assert check_mirror("http://a", "/b c", "here") == ("http://a", "file:///b%20c")
    folder = tmp_path / "50% of it, é"
    for slash in ("", "/"):
        mirror = check_mirror("http://a.example/data/", f"{folder}{slash}", "here")
        place, _ = with_mirrors(["http://a.example/data/door/x%20y.hdf5"], [mirror])
        assert path_of_url(place) == folder / "door" / "x y.hdf5"

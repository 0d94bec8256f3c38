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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OFFLINE_DATA_OFFLINE", "maybe"),
        ("OFFLINE_DATA_WORKERS", "1.5"),
        ("OFFLINE_DATA_WORKERS", "-1"),
        ("OFFLINE_DATA_MIRRORS", "http://a"),
        ("OFFLINE_DATA_MIRRORS", "=x"),
        ("OFFLINE_DATA_MIRRORS", "http://a/="),
        ("OFFLINE_DATA_MIRRORS", "a=http://b"),
        ("OFFLINE_DATA_HOME", "~nobody-of-this-name/x"),
        ("OFFLINE_DATA_HOME", "x" * 256),
        ("OFFLINE_DATA_HOME", "a\0b"),
        ("MINARI_DATASETS_PATH", "~nobody-of-this-name/x"),
        ("OFFLINE_DATA_CONFIG", "~nobody-of-this-name/x"),
        ("OFFLINE_DATA_CONFIG", "/there/is/none.toml"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=name):
        resolve_settings(environ={name: value})


def test_a_wrong_argument_is_named() -> None:
    with pytest.raises(UsageError, match="workers is 0; expected at least 1"):
        resolve_settings(workers=0, environ={})
    assert resolve_settings(workers=2, environ={"OFFLINE_DATA_WORKERS": "many"}).workers == 2


def test_tools_variables_are_honoured() -> None:
    env = {
        "MINARI_DATASETS_PATH": "~/m",
        "MINARI_REMOTE": "gcp://bucket",
        "HF_ENDPOINT": "http://hub",
        "HF_TOKEN": "t",
    }
    settings = resolve_settings(environ=env)
    assert settings.minari_path == Path.home() / "m"
    assert settings.minari_remote == "gcp://bucket"
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


@pytest.mark.parametrize("kind", ["folder", "FIFO", "device", "huge"])
def test_what_is_no_plain_small_file_in_its_place_is_one_clear_error(
    kind: str, tmp_path: Path
) -> None:
    place = Path("/dev/zero") if kind == "device" else tmp_path / "config.toml"
    if kind == "folder":
        place.mkdir()
    elif kind == "FIFO":
        os.mkfifo(place)
    elif kind == "huge":
        place.touch()
        os.truncate(place, 1 << 40)
    said = "is larger than" if kind == "huge" else "is not a plain file"
    with pytest.raises(UsageError, match=f"{place} {said}") as caught:
        resolve_settings(environ={"OFFLINE_DATA_CONFIG": str(place)})
    assert "OFFLINE_DATA_CONFIG" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rot = '/x'", "has rot; expected only root, offline, workers, mirrors"),
        ("root = 3", "root is 3; expected an absolute path"),
        ("root = 'data'", "root is 'data'; expected an absolute path"),
        ("root = '~nobody-of-this-name/x'", "root is '~nobody-of-this-name/x'"),
        ("offline = 1", "offline is 1; expected true or false"),
        ("workers = 0", "workers is 0; expected a whole number of at least 1"),
        ("workers = true", "workers is True; expected a whole number"),
        ("mirrors = 'http://a/=http://b/'", "mirrors is 'http://a/=http://b/'; expected a table"),
        ("[mirrors]\n'http://a/' = ['http://b/', 3]", r'mirrors."http://a/" is \[.*3\]; expected'),
        ("[mirrors]\n'a' = 'http://b/'", "mirrors: a mirror is for 'a'; expected how a URL begins"),
        ("root = /data", r"is not TOML: .*line 1"),
        ("a = " + "[" * 5000, "is not TOML"),
        ("root = '\udcff'", "is not TOML: it is not UTF-8"),
    ],
)
def test_what_is_wrong_is_named_with_its_file(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match=said) as caught:
        resolve_settings(environ={"OFFLINE_DATA_CONFIG": str(tmp_path / "config.toml")})
    assert str(tmp_path / "config.toml") in str(caught.value)


@given(st.text(st.sampled_from("[]='\"\n.#,{}0-:/abrotT "), max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    place = Path(os.environ["XDG_CONFIG_HOME"])
    place.mkdir(exist_ok=True)
    with suppress(UsageError):
        read(text, place)


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


@pytest.mark.parametrize(
    ("prefix", "replacement", "said"),
    [
        ("a.org/data/", "http://b/", "here: a mirror is for 'a.org/data/'; expected how a URL"),
        ("http://a b/", "http://b/", "a mirror is for 'http://a b/'"),
        ("http://a/", "b.org/", r"http://a/ is 'b.org/'; expected an http\(s\)://, file:///"),
        ("http://a/", "ftp://b/", "is 'ftp://b/'"),
        ("http://a/", "file://b/", "is 'file://b/'"),
        ("http://a/", "http:///x/", "is 'http:///x/'"),
        ("http://a/", "http://b:99999/", "is 'http://b:99999/'"),
        ("http://a/", "http://b/ http://c/", "is 'http://b/ http://c/'"),
        ("http://a/", "", "is ''"),
        ("http://a/", "http://b", "is http://b, without the slash at the end"),
    ],
)
def test_a_mirror_of_another_form_is_refused(prefix: str, replacement: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        check_mirror(prefix, replacement, "here")
    assert caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        '"me:hush@a/" = "/mnt/a/"',
        '[mirrors]\n"http://a/" = ["me:hush@b/", 3]',
        'root = "http://me:hush@a/"',
        '[mirrors]\n"http://me:hush@a/" = 3',
        '[mirrors]\n"http://me:hush@b/" = "ftp://b/"',
    ],
)
def test_no_message_shows_a_password(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read(text, tmp_path)
    assert "hush" not in str(caught.value)

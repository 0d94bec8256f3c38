"""The config file: found where platformdirs would look, read whole or refused by file and key."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import platformdirs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offline_data.config_file import ConfigFile, config_place, read_config
from offline_data.errors import UsageError

FULL = """
root = "/data/sets"
offline = true
workers = 3

[mirrors]
"http://z.example/" = ["/mnt/z", "https://mirror.example/z/"]
"http://a.example/" = "file:///mnt/a/"
"""


def read(text: str, folder: Path) -> ConfigFile:
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    return read_config({"OFFLINE_DATA_CONFIG": str(path)})


def test_everything_it_may_say_in_the_order_written(tmp_path: Path) -> None:
    assert read(FULL, tmp_path) == ConfigFile(
        Path("/data/sets"),
        True,
        3,
        (
            ("http://z.example/", "file:///mnt/z/"),
            ("http://z.example/", "https://mirror.example/z/"),
            ("http://a.example/", "file:///mnt/a/"),
        ),
    )
    assert read("", tmp_path) == ConfigFile()
    assert read('root = "~/sets"', tmp_path).root == Path.home() / "sets"


def test_the_readme_s_example_is_read(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    block = readme.split("```toml\n")[1].split("```")[0]
    found = read(block, tmp_path)
    assert found.root == Path.home() / "datasets"
    assert (found.offline, found.workers) == (False, 4)
    assert [place for _, place in found.mirrors] == [
        "file:///mnt/data/",
        "https://mirror.example/data/",
    ]


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
    assert read_config({"XDG_CONFIG_HOME": str(tmp_path)}).workers == 7
    assert read_config({"XDG_CONFIG_HOME": str(tmp_path / "none"), "HOME": "/"}) == ConfigFile()
    assert config_place({}) is None
    assert read_config({}) == ConfigFile()


@pytest.mark.parametrize("place", ["none", "file"])
def test_no_file_is_an_error_only_where_one_was_named(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert read_config({"XDG_CONFIG_HOME": str(tmp_path / place)}) == ConfigFile()
    named = tmp_path / place / "config.toml"
    with pytest.raises(UsageError, match=f"OFFLINE_DATA_CONFIG is '{named}': there is no such"):
        read_config({"OFFLINE_DATA_CONFIG": str(named)})


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
        read_config({"OFFLINE_DATA_CONFIG": str(place)})
    assert "OFFLINE_DATA_CONFIG" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rot = '/x'", "has rot; expected only root, offline, workers, mirrors"),
        ("[mirror]\n", "has mirror; expected only"),
        ("root = 3", "root is 3; expected an absolute path"),
        ("root = 'data'", "root is 'data'; expected an absolute path"),
        ("root = '~nobody-of-this-name/x'", "root is '~nobody-of-this-name/x'"),
        ("offline = 1", "offline is 1; expected true or false"),
        ("offline = 'yes'", "offline is 'yes'; expected true or false"),
        ("workers = 0", "workers is 0; expected a whole number of at least 1"),
        ("workers = true", "workers is True; expected a whole number"),
        ("workers = 2.0", r"workers is 2\.0; expected a whole number"),
        ("mirrors = 'http://a/=http://b/'", "mirrors is 'http://a/=http://b/'; expected a table"),
        ("[[mirrors]]\nprefix = 'http://a/'", "expected a table"),
        ("[mirrors]\n'http://a/' = 3", 'mirrors."http://a/" is 3; expected a URL or path'),
        ("[mirrors]\n'http://a/' = ['http://b/', 3]", r'mirrors."http://a/" is \[.*3\]; expected'),
        ("[mirrors]\n'a' = 'http://b/'", "mirrors: a mirror is for 'a'; expected how a URL begins"),
        ("[mirrors]\n'http://a/' = 'b'", "mirrors: the mirror of http://a/ is 'b'; expected an"),
        ("root = /data", r"is not TOML: .*line 1"),
        ("root = '/a'\nroot = '/b'", "is not TOML: Cannot overwrite a value"),
        ("a = " + "[" * 5000, "is not TOML"),
    ],
)
def test_what_is_wrong_is_named_with_its_file(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        read(text, tmp_path)
    assert str(tmp_path / "config.toml") in str(caught.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(b"root = '\xff'")
    with pytest.raises(UsageError, match="is not TOML: it is not UTF-8"):
        read_config({"OFFLINE_DATA_CONFIG": str(path)})


@given(st.text(st.sampled_from("[]='\"\n.#,{}0-:/abrotT "), max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    place = Path(os.environ["XDG_CONFIG_HOME"])
    place.mkdir(exist_ok=True)
    with suppress(UsageError):
        assert isinstance(read(text, place), ConfigFile)


def test_no_parser_is_loaded_where_there_is_no_file() -> None:
    code = (
        "import sys; from offline_data.config import resolve_settings\n"
        "resolve_settings(environ={'HOME': '/nowhere', 'OFFLINE_DATA_HOME': '/data'})\n"
        "print(*sorted({'tomllib', 'tomli', 'numpy'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


@pytest.mark.parametrize(
    "text",
    [
        '"http://me:hush@a/" = "/mnt/a/"',
        '"me:hush@a/" = "/mnt/a/"',
        'root = "me:hush@a/"',
        '[mirrors]\n"me:hush@a/" = 3',
        '[mirrors]\n"http://a/" = ["me:hush@b/", 3]',
        'root = "http://me:hush@a/"',
        'workers = ["http://me:hush@a/"]',
        '[mirrors]\n"http://me:hush@a/" = 3',
        '[mirrors]\n"http://a/" = {url = "http://me:hush@b/"}',
        '[mirrors]\n"http://a/" = ["http://me:hush@b/", 3]',
        '[mirrors]\n"http://me:hush@a/" = "ftp://b/"',
        'mirrors = "http://me:hush@a/"',
    ],
)
def test_no_message_shows_a_password(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read(text, tmp_path)
    assert "hush" not in str(caught.value)

"""Settings: argument over environment over config file over default; wrong values are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from offline_data.config import resolve_settings
from offline_data.errors import UsageError


@pytest.fixture
def file(tmp_path: Path) -> dict[str, str]:
    """An environment whose config file says everything."""
    path = tmp_path / "config.toml"
    path.write_text(
        'root = "/file"\noffline = true\nworkers = 5\n[mirrors]\n'
        '"http://a/" = ["http://file/", "http://same/"]\n'
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
    default = resolve_settings(environ={})
    assert default.root.name == "offline_data"
    assert not default.offline
    assert default.workers >= 1
    assert (default.origins, default.config) == ({}, None)


def test_empty_variables_say_nothing(file: dict[str, str]) -> None:
    empty = dict.fromkeys(("OFFLINE_DATA_HOME", "OFFLINE_DATA_OFFLINE", "OFFLINE_DATA_WORKERS"), "")
    found = resolve_settings(environ={**file, **empty})
    assert (found.root, found.offline, found.workers) == (Path("/file"), True, 5)


@pytest.mark.parametrize("name", ["OFFLINE_DATA_OFFLINE", "HF_HUB_OFFLINE"])
@pytest.mark.parametrize(
    ("value", "offline"), [("1", True), ("TRUE", True), ("0", False), ("", False)]
)
def test_offline_flags(name: str, value: str, offline: bool) -> None:
    assert resolve_settings(environ={name: value}).offline is offline


def test_the_hub_s_flag_takes_off_the_net_but_never_puts_on(file: dict[str, str]) -> None:
    both = {"OFFLINE_DATA_OFFLINE": "0", "HF_HUB_OFFLINE": "1"}
    found = resolve_settings(environ=both)
    assert (found.offline, found.origins["offline"]) == (True, "HF_HUB_OFFLINE")
    assert resolve_settings(environ={**file, "HF_HUB_OFFLINE": "0"}).offline
    assert not resolve_settings(offline=False, environ={**file, "HF_HUB_OFFLINE": "1"}).offline
    found = resolve_settings(environ=dict.fromkeys(both, "1"))
    assert found.origins["offline"] == "OFFLINE_DATA_OFFLINE and HF_HUB_OFFLINE"


def test_mirrors_add_up_in_order_each_once(file: dict[str, str]) -> None:
    text = "http://a/=http://env/;http://a/=http://same/ ; "
    found = resolve_settings(
        mirrors=[("http://a/", "/argument")], environ={**file, "OFFLINE_DATA_MIRRORS": text}
    )
    assert found.mirrors == (
        ("http://a/", "file:///argument/"),
        ("http://a/", "http://env/"),
        ("http://a/", "http://same/"),
        ("http://a/", "http://file/"),
    )
    assert {name: by for name, by in found.origins.items() if "=" in name} == {
        "http://a/=file:///argument/": "argument",
        "http://a/=http://env/": "OFFLINE_DATA_MIRRORS",
        "http://a/=http://same/": "OFFLINE_DATA_MIRRORS",
        "http://a/=http://file/": "config file",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OFFLINE_DATA_OFFLINE", "maybe"),
        ("OFFLINE_DATA_WORKERS", "many"),
        ("OFFLINE_DATA_WORKERS", "1.5"),
        ("OFFLINE_DATA_WORKERS", "0"),
        ("OFFLINE_DATA_WORKERS", "-1"),
        ("OFFLINE_DATA_MIRRORS", "http://a"),
        ("OFFLINE_DATA_MIRRORS", "=x"),
        ("OFFLINE_DATA_MIRRORS", "a=http://b"),
        ("OFFLINE_DATA_HOME", "~nobody-of-this-name/x"),
        ("MINARI_DATASETS_PATH", "~nobody-of-this-name/x"),
        ("OFFLINE_DATA_CONFIG", "~nobody-of-this-name/x"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=name):
        resolve_settings(environ={name: value})


def test_a_wrong_argument_is_named() -> None:
    with pytest.raises(UsageError, match="workers is 0; expected at least 1"):
        resolve_settings(workers=0, environ={})
    with pytest.raises(UsageError, match="mirrors: a mirror is for 'a'"):
        resolve_settings(mirrors=[("a", "http://b")], environ={})


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

"""Settings: argument over environment over default, and wrong variables are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from offline_data.config import resolve_settings
from offline_data.errors import UsageError


def test_argument_beats_environment_beats_default(tmp_path: Path) -> None:
    env = {"OFFLINE_DATA_HOME": "/env", "OFFLINE_DATA_OFFLINE": "1", "OFFLINE_DATA_WORKERS": "3"}
    named = resolve_settings(root=tmp_path, offline=False, workers=2, environ=env)
    assert (named.root, named.offline, named.workers) == (tmp_path, False, 2)
    read = resolve_settings(environ=env)
    assert (read.root, read.offline, read.workers) == (Path("/env"), True, 3)
    default = resolve_settings(environ={})
    assert default.root.name == "offline_data"
    assert not default.offline
    assert default.workers >= 1


@pytest.mark.parametrize("name", ["OFFLINE_DATA_OFFLINE", "HF_HUB_OFFLINE"])
@pytest.mark.parametrize(
    ("value", "offline"), [("1", True), ("TRUE", True), ("0", False), ("", False)]
)
def test_offline_flags(name: str, value: str, offline: bool) -> None:
    assert resolve_settings(environ={name: value}).offline is offline


def test_mirrors_keep_their_order() -> None:
    text = "http://a/=http://b/;http://a/=file:///c/ ; "
    found = resolve_settings(environ={"OFFLINE_DATA_MIRRORS": text}).mirrors
    assert found == (("http://a/", "http://b/"), ("http://a/", "file:///c/"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OFFLINE_DATA_OFFLINE", "maybe"),
        ("OFFLINE_DATA_WORKERS", "many"),
        ("OFFLINE_DATA_WORKERS", "0"),
        ("OFFLINE_DATA_MIRRORS", "http://a"),
        ("OFFLINE_DATA_MIRRORS", "=x"),
    ],
)
def test_a_wrong_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=name):
        resolve_settings(environ={name: value})


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

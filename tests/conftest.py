"""Fixtures that several rooms of tests share."""

from __future__ import annotations

import functools
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from offline_data.config import Settings

REALDATA = Path(__file__).resolve().parents[2] / "shared" / "realdata"


@pytest.fixture(scope="session")
def realdata() -> Path:
    """Folder of small real files written by others; absent in a user's clone, then a skip."""
    if not REALDATA.is_dir():
        pytest.skip("the folder of real files is not here")
    return REALDATA


@pytest.fixture(scope="session", autouse=True)
def _signals_are_not_ignored() -> None:
    """Take back what a shell that starts tests in the background, or nohup, hands down to children."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def _one_tree_of_commands() -> Iterator[None]:
    """Build typer's tree of commands once: it is four fifths of the time of a short command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture(autouse=True)
def _no_config_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Keep tests, and programs they start, from reading the config file of whoever runs them."""
    monkeypatch.delenv("OFFLINE_DATA_CONFIG", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "no-config"))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings whose every folder is new and empty, offline, one process."""
    return Settings(
        root=tmp_path / "root", offline=True, workers=1, minari_path=tmp_path / "minari"
    )

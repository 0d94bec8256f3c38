"""`sources`, `env` and `demo`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from offline_data.errors import MissingDependencyError
from offline_data_cli import recording

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Cli


def test_sources(cli: Cli) -> None:
    data = cli("sources", "--json").json
    assert [source["name"] for source in data] == ["d4rl", "local", "minari"]
    by_name = {source["name"]: source for source in data}
    assert by_name["d4rl"]["datasets"] > 100
    assert by_name["d4rl"]["missing"] == []
    rows = cli("sources").rows
    assert rows[0] == ["SOURCE", "DATASETS", "REQUIRES", "CONTENT"]
    assert rows[1][:3] == ["d4rl", str(by_name["d4rl"]["datasets"]), "nothing"]


def test_env_hides_the_token(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_hush")
    for arguments in (("env",), ("env", "--json"), ("env", "-q")):
        ran = cli(*arguments)
        assert ran.code == 0
        assert "hush" not in ran.out + ran.err
    rows = cli("env").rows
    assert ["hub_token", "set", "HF_TOKEN"] in rows
    assert ["root", str(tmp_path / "root"), "OFFLINE_DATA_HOME"] in rows


def test_the_demo_needs_its_extra(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "find_spec", lambda name: None if name == "jax" else name)
    ran = cli("demo", "--json")
    assert (ran.code, ran.json["error"]["code"]) == (1, MissingDependencyError.code)
    assert ran.json["error"]["hint"] == "pip install 'offline-data[demo]'"


@pytest.mark.slow
def test_the_demo_does_all_and_leaves_nothing(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="Minari's DataCollector uses it")
    data = cli("demo", "--json").json
    assert data["verify"]["ok"] is True
    assert data["info"]["transitions"] == data["stats"]["transitions"] > 1000
    assert data["stats"]["per_episode"]["length"]["max"] <= 500
    assert data["sample"]["leaves"]["observation"]["shape"] == [32, 4]
    assert cli("list", "--json").json == []
    assert not (tmp_path / "minari").exists()
    kept = cli("demo", "--keep", "-q").out.strip()
    assert cli("list", "-q").out.strip() == kept
    assert kept.startswith("local:demo/cartpole@")

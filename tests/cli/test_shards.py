"""Datasets of several shards from the command line: plans, workers, engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from offline_data.pipeline.ingest.shards import ShardedRun
from offline_data.pipeline.jobs.executors import InProcess
from tests.cli.conftest import Cli
from tests.toys.servers import FileServer
from tests.toys.sharded import PUBLISHED, install, served, write_toy_shards

NAME = "sharded-3x2"


@pytest.fixture(autouse=True)
def _server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(install(tmp_path / "plugin")))
    monkeypatch.setattr(ShardedRun, "_local", lambda *_: InProcess())
    with FileServer(served(NAME)) as server:
        monkeypatch.setenv("OFFLINE_DATA_MIRRORS", f"{PUBLISHED}={server.url}")
        yield


def test_a_plan_and_its_workers(cli: Cli, tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.json")
    planned = cli("download", f"shardtoy:{NAME}", "--plan-only", "--plan", plan, "--json")
    assert planned.code == 0
    (made,) = [planned.json] if isinstance(planned.json, dict) else planned.json
    assert (made["id"], made["tasks"], made["existed"]) == (f"shardtoy:{NAME}@v1", 3, False)
    assert "worker --plan" in cli("download", f"shardtoy:{NAME}", "--plan-only", "--plan", plan).err
    first = cli("worker", "--plan", plan, "--rank", "0", "--world", "2", "--json").json
    assert (first["ran"], first["missing"], first["path"]) == (2, [1], None)
    assert cli("worker", "--plan", plan, "--finish").code == 1
    last = cli("worker", "--plan", plan, "--rank", "1", "--world", "2", "--json").json
    assert (last["ran"], last["missing"], last["episodes"]) == (1, [], 6)
    assert cli("verify", f"shardtoy:{NAME}").code == 0
    assert "already exists" in cli("download", f"shardtoy:{NAME}").err


def test_a_folder_of_shards(cli: Cli, tmp_path: Path) -> None:
    folder, plan = write_toy_shards(tmp_path / "raw", NAME), str(tmp_path / "plan.json")
    arguments = ("convert", str(folder), "mine", "--from", "shardtoy")
    assert cli(*arguments, "--plan-only", "--plan", plan).code == 0
    assert cli("worker", "--plan", plan, "--rank", "0", "--json").json["ran"] == 1
    assert cli(*arguments, "--workers", "1", "--json").json[0]["episodes"] == 6
    assert cli("worker", "--plan", plan, "--finish", "--json").json["existed"]


def test_a_dry_run_tells_the_number_of_shards(cli: Cli) -> None:
    (found,) = cli("download", f"shardtoy:{NAME}", "--dry-run", "--json").json
    assert found["shards"] == 3
    assert len(found["files"]) == 4
    (other,) = cli("download", "d4rl:pen-human-v1", "--dry-run", "--json").json
    assert "shards" not in other


@pytest.mark.parametrize(
    "arguments",
    [
        ("--plan-only",),
        ("--plan", "p.json"),
        ("--plan-only", "--plan", "p.json", "--engine", "ray"),
        ("--plan-only", "--plan", "p.json", "--raw-only"),
        ("--plan-only", "--plan", "p.json", "--dry-run"),
        ("--plan-only", "--plan", "p.json", "shardtoy:sharded-6x3"),
        ("--address", "127.0.0.1:6379"),
        ("--workers", "0"),
    ],
)
def test_arguments_that_do_not_fit(cli: Cli, arguments: tuple[str, ...]) -> None:
    ran = cli("download", f"shardtoy:{NAME}", *arguments)
    assert ran.code == 2
    assert not Path("p.json").exists()


def test_shards_of_an_interrupted_run_are_pruned_unless_in_use(cli: Cli, tmp_path: Path) -> None:
    from offline_data.base.files import file_lock

    plan = str(tmp_path / "plan.json")
    cli("download", f"shardtoy:{NAME}", "--plan-only", "--plan", plan)
    cli("worker", "--plan", plan, "--rank", "0", "--world", "2")
    (work,) = (tmp_path / "root" / ".staging").glob("*.shards/*/")
    with file_lock(work / "00001.lock", lambda: None):
        cli("cache", "prune", "--yes")
        assert (work / "finished" / "00000.record").exists()
    cli("cache", "prune", "--yes")
    assert not work.exists()
    assert cli("worker", "--plan", plan, "--rank", "0", "--world", "1", "--json").json["ran"] == 3

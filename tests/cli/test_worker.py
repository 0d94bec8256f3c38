"""`preprocess --plan-only` and `worker`: a plan on disk, and programs that follow it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from offline_data.preprocess import plan as planning
from offline_data.store.reader import open_reader
from offline_data.testing.toy import toy_batch, write_toy

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

LENGTHS = [4, 3, 5, 2, 4]
LINE = ("preprocess", "local:five", "--step", "clip:action,low=-3002", "--out", "new")


@pytest.fixture
def plan(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a plan of 3 tasks."""
    parent = tmp_path / "root" / "local" / "five" / "1"
    parent.mkdir(parents=True)
    write_toy(parent, [toy_batch(LENGTHS)], dataset="local:five@1")
    monkeypatch.setattr(planning, "GROUP_BYTES", 200)
    monkeypatch.chdir(tmp_path)
    ran = cli(*LINE, "--chunk-rows", "8", "--plan-only", "--plan", "plan.json", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["tasks"] == 3
    return tmp_path / "plan.json"


def work(cli: Cli, plan: Path, *arguments: str) -> object:
    ran = cli("worker", "--plan", str(plan), *arguments, "--json")
    assert ran.code == 0, ran.err
    return ran.json


def test_the_plan_is_told(cli: Cli, plan: Path) -> None:
    ran = cli(*LINE, "--plan-only", "--plan", "plan.json", "--resume")
    value = json.loads(plan.read_text())
    assert dict(ran.rows) == {
        "id": value["id"],
        "plan": str(plan),
        "destination": value["destination"],
        "tasks": "3",
    }
    assert f"offline-data worker --plan {plan} --rank I --world N" in ran.err
    assert (
        cli(*LINE, "--plan-only", "--plan", "plan.json", "--resume", "-q").out == f"{value['id']}\n"
    )
    refused = cli(*LINE, "--plan-only", "--plan", "plan.json")
    assert refused.code == 2
    assert "--resume keeps it" in refused.err


def test_ranks_make_the_dataset(cli: Cli, plan: Path) -> None:
    first = cli("worker", "--plan", "plan.json", "--rank", "0", "--world", "2")
    assert (first.code, first.out) == (
        0, "rank 0 ran 2 tasks; 1 left for other ranks\n",
    )  # fmt: skip
    assert "the last rank publishes local:new@" in first.err
    ran = cli("worker", "--plan", "plan.json", "--rank", "1", "--world", "2", "--json")
    data = ran.json
    assert (data["ran"], data["missing"], data["existed"]) == (1, [], False)
    assert {"id", "path", "layout", "transitions", "bytes", "schema", "recipe"} < set(data)
    action = np.asarray(open_reader(Path(data["path"])).step(("action",)))
    np.testing.assert_array_equal(action, np.maximum(toy_batch(LENGTHS).steps["action",], -3002))
    local = cli(*LINE, "--json").json
    assert (local["existed"], local["path"]) == (True, data["path"])
    again = cli("worker", "--plan", "plan.json", "--rank", "0", "--world", "2")
    assert again.rows[1][0] == data["id"]
    assert "already exists" in again.err
    assert cli("worker", "--plan", "plan.json", "--rank", "2", "-q").out == f"{data['id']}\n"


def test_a_rank_for_each_task(cli: Cli, plan: Path) -> None:
    assert work(cli, plan, "--rank", "2")["missing"] == [0, 1]  # type: ignore[index]
    assert work(cli, plan, "--rank", "0")["missing"] == [1]  # type: ignore[index]
    assert cli("worker", "--plan", "plan.json", "--rank", "0", "-q").out == ""
    assert work(cli, plan, "--rank", "1")["path"]  # type: ignore[index]


def test_finish_says_what_is_missing(cli: Cli, plan: Path) -> None:
    work(cli, plan, "--rank", "1")
    ran = cli("worker", "--plan", "plan.json", "--finish")
    assert (ran.code, ran.out) == (1, "")
    assert "2 of 3 tasks not finished: 0, 2" in ran.err
    assert f"offline-data worker --plan {plan} --rank 0 --world 1" in ran.err
    as_json = cli("worker", "--plan", "plan.json", "--finish", "--json")
    assert (as_json.code, as_json.json["missing"], as_json.json["path"]) == (1, [0, 2], None)
    assert cli("worker", "--plan", "plan.json", "--rank", "0", "--world", "1").code == 0
    assert cli("worker", "--plan", "plan.json", "--finish").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--rank", "0"), 2, "--plan"),
        (("--plan", "plan.json"), 2, "$SLURM_ARRAY_TASK_ID"),
        (("--plan", "plan.json", "--rank", "0", "--finish"), 2, "--finish"),
        (("--plan", "plan.json", "--world", "2", "--finish"), 2, "--finish"),
        (("--plan", "plan.json", "--rank", "2", "--world", "2"), 2, "--array=0-1"),
        (("--plan", "plan.json", "--rank", "3"), 2, "--world N"),
        (("--plan", "plan.json", "--rank", "0", "--world", "0"), 2, "--world"),
        (("--plan", "plan.jsn", "--rank", "0"), 3, "no plan"),
    ],
)
def test_what_cannot_be_meant(
    cli: Cli, plan: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    ran = cli("worker", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err


def test_a_plan_that_was_cut_off(cli: Cli, plan: Path) -> None:
    plan.write_text(plan.read_text()[:100])
    ran = cli("worker", "--plan", "plan.json", "--rank", "0")
    assert ran.code == 5
    assert "no plan of offline-data" in ran.err

"""`preprocess` and `worker`: options through to the library, results and failures back, plans on disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from offline_data.executors import ray as ray_executor
from offline_data.preprocess import engine
from offline_data.preprocess import plan as planning
from offline_data.preprocess.steps.registry import parse_step, step_names
from offline_data.store.reader import open_reader
from offline_data.store.verify import verify
from offline_data.testing.toy import toy_batch, write_toy
from offline_data_cli.main import main
from tests.cli.conftest import RUN

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tests.cli.conftest import Cli, Ran, Terminal

FUNCTIONS = """
import time
from pathlib import Path

import torch

HERE = Path(__file__).parent


def doubled(td):
    td["next", "reward"] = td["next", "reward"] * 2
    return td


def looking(td):
    if td["next", "reward"].item() > 150:
        td["next", "reward"] = td["next", "reward"] + 1000
    return td


def apart(td):
    td["next", "observation", "state"] = td["next", "observation", "state"] + 1
    return td


def alone(td):
    return {"next": {"reward": td["next", "reward"]}, "extra": td["action"] * 2}


def first_rows(td):
    return td[:2]


def noisy(td):
    td["noise"] = torch.rand(2)
    return td


def failing(td):
    if td["index"].item() == 3:
        raise ValueError("three is enough")
    return td


def slow(td):
    if td["index"].item() >= 0 and (HERE / "slow").exists():
        (HERE / "begun").touch()
        time.sleep(0.1)
    return td
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of functions in the folder that the command is started from."""
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    return path


def rewards(path: str | Path) -> NDArray[Any]:
    return np.asarray(open_reader(Path(path)).step(("next", "reward")))[:, 0]


TOY_REWARDS = np.array([100.2, 100.3, 100.4, 200.2, 200.3])


def made(ran: Ran) -> Path:
    assert ran.code == 0, ran.err
    return Path(ran.json["path"])


def test_a_function(cli: Cli, toy: Path, functions: Path) -> None:
    ran = cli("preprocess", "local:toy", "--fn", "functions.py:doubled", "--out", "twice", "--json")
    path = made(ran)
    np.testing.assert_array_equal(rewards(path), TOY_REWARDS * 2)
    assert not verify(path)
    data = ran.json
    assert data["id"] == f"local:twice@{path.name}"
    assert (data["transitions"], data["episodes"], data["layout"]) == (5, 2, "compact")
    assert (data["source"], data["existed"], data["parents"]) == ("local", False, ["local:toy@1"])
    assert data["bytes"] == cli("info", "local:twice", "--json").json["bytes"]
    assert data["schema"] == cli("info", "local:twice", "--json").json["schema"]
    assert data["seconds"] > 0
    (step,) = data["recipe"]
    assert (step["name"], step["run"]) == ("doubled", "vectorised")


def test_what_is_there_is_not_made_again(cli: Cli, toy: Path, functions: Path) -> None:
    line = ("preprocess", "local:toy", "--fn", f"{functions}:doubled", "--out", "twice")
    path = made(cli(*line, "--json"))
    created = (path / "manifest.json").stat().st_mtime_ns
    again = cli(*line)
    assert again.err == f"local:twice@{path.name} already exists: {path}\n"
    assert (path / "manifest.json").stat().st_mtime_ns == created
    assert cli(*line, "-q") == type(again)(0, f"local:twice@{path.name}\n", "")
    assert cli(*line, "--force").code == 0
    assert (path / "manifest.json").stat().st_mtime_ns > created


def test_stages_are_done_in_their_order(cli: Cli, toy: Path, functions: Path) -> None:
    clip, fn = "reward_clip:high=150", "fn:functions.py:doubled"
    line = ("preprocess", str(toy), "--json")
    before = made(cli(*line, "--step", clip, "--step", fn, "--out", "a"))
    after = made(cli(*line, "--step", fn, "--step", clip, "--out", "b"))
    option = made(cli(*line, "--step", clip, "--fn", "functions.py:doubled", "--out", "c"))
    np.testing.assert_array_equal(rewards(before), np.minimum(TOY_REWARDS, 150) * 2)
    np.testing.assert_array_equal(rewards(after), np.minimum(TOY_REWARDS * 2, 150))
    np.testing.assert_array_equal(rewards(option), rewards(after))


LOOKING = "looking: row by row, it looks at values to decide what to do; use --batched N to pass blocks of rows"


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("doubled", (), ["doubled: vectorised"]),
        ("looking", (), [LOOKING]),
        ("doubled", ("--no-vectorize",), ["doubled: row by row, as requested"]),
        ("doubled", ("--batched", "2"), ["doubled: blocks of 2 rows"]),
        ("first_rows", ("--by", "episode"), ["first_rows: episode by episode"]),
        (
            "apart",
            (),
            ["apart: vectorised", "apart: observation/state stored twice, with their own `next`"],
        ),
        (
            "alone",
            (),
            [
                "alone: vectorised",
                "alone: next/terminated, next/truncated, action kept as stored (not returned)",
            ],
        ),
    ],
)
def test_how_a_function_was_run_is_said(
    cli: Cli, toy: Path, functions: Path, name: str, options: tuple[str, ...], said: list[str]
) -> None:
    line = ("preprocess", "local:toy", "--fn", f"functions.py:{name}", "--out", "new", *options)
    rows = cli(*line, "--dry-run").rows
    foreseen = [row[1] for row in rows if row[0] == "functions"]
    assert ["transitions", "5 at most" if name == "first_rows" else "5"] in rows
    ran = cli(*line)
    assert ran.code == 0, ran.err
    assert ran.rows[0] == ["ID", "TRANSITIONS", "EPISODES", "SIZE", "SECONDS"]
    assert [row[1] for row in ran.rows if row[0] == "functions"] == said
    assert foreseen == said


def test_options_change_what_is_made(cli: Cli, toy: Path, functions: Path, tmp_path: Path) -> None:
    line = ("preprocess", "local:toy", "--fn", "functions.py:noisy", "--json")
    ran = cli(*line, "--dest", str(tmp_path / "here"), "--num-frames", "4", "--layout", "ted")
    assert (made(ran), ran.json["transitions"]) == (tmp_path / "here", 4)
    assert (tmp_path / "here" / "ted" / "noise.memmap").exists()
    noise = [
        np.array(
            open_reader(made(cli(*line, "--out", f"n{number}", "--seed", seed))).step(("noise",))
        )
        for number, seed in enumerate(["1", "1", "2"])
    ]
    np.testing.assert_array_equal(noise[0], noise[1])
    assert not (noise[0] == noise[2]).any()
    cut = cli("preprocess", "local:toy", "--fn", "functions.py:first_rows", "--by", "episode",
              "--out", "cut", "--json")  # fmt: skip
    assert (cut.json["transitions"], cut.json["episodes"]) == (4, 2)


def test_on_observations(cli: Cli, toy: Path, functions: Path) -> None:
    functions.write_text(
        "def halved(td):\n"
        "    td['observation', 'state'] = td['observation', 'state'] / 2\n    return td\n"
    )
    line = ("preprocess", "local:toy", "--fn", "functions.py:halved", "--on", "observations")
    path = made(cli(*line, "--out", "half", "--json"))
    wanted = np.asarray(toy_batch([3, 2]).observations["observation", "state"], np.float32) / 2
    found = open_reader(path).leaf("observations", ("observation", "state"))
    np.testing.assert_array_equal(found, wanted)


def snapshot(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_dry_run_writes_nothing(cli: Cli, toy: Path, functions: Path, tmp_path: Path) -> None:
    before = snapshot(tmp_path / "root")
    line = ("preprocess", "local:toy", "--fn", "functions.py:apart", "--out", "new", "--dry-run")
    data = cli(*line, "--step", "normalize:action", "--num-frames", "4", "--json").json
    assert snapshot(tmp_path / "root") == before
    assert data["parent"] == "local:toy@1"
    assert data["destination"] == str(tmp_path / "root/local/new" / data["id"].partition("@")[2])
    assert (data["transitions"], data["episodes"], data["tasks"]) == (4, 2, 1)
    assert (data["executor"], data["dry_run"], data["existed"]) == ("in process", True, False)
    assert data["recipe"][0]["two_copies"] == ["observation/state"]
    ran = cli(*line, "--step", "normalize:action", "--num-frames", "4")
    assert {"made from", "destination", "tasks", "size", "free disk space", "executor"} < {
        r[0] for r in ran.rows
    }
    assert cli(*line, "-q").out.startswith("local:new@")


def test_dry_run_foresees_the_bytes(cli: Cli, toy: Path) -> None:
    line = ("preprocess", "local:toy", "--step", "clip:action,low=-2001", "--out", "new")
    data = cli(*line, "--dry-run", "--json").json
    assert cli(*line).code == 0
    path = Path(data["destination"])
    wanted = sum(
        p.stat().st_size
        for name in ("steps", "observations")
        for p in path.glob(f"{name}/*.memmap")
    )
    assert data["bytes"] == wanted
    again = cli(*line, "--dry-run", "--json").json
    assert (again["existed"], "tasks" in again) == (True, False)
    assert ["already exists", "yes; nothing to do"] in cli(*line, "--dry-run").rows


def test_dry_run_says_what_would_be_replaced(cli: Cli, toy: Path) -> None:
    old = made(cli("preprocess", "local:toy", "--step", "reward_shift:1", "--out", "new", "--json"))
    line = ("preprocess", "local:toy", "--step", "reward_shift:2", "--out", "new")
    assert cli(*line, "--dry-run").code == cli(*line).code == 2
    data = cli(*line, "--dry-run", "--force", "--json").json
    assert data["replaces"] == [f"local:new@{old.name}"]
    assert old.exists()
    new = made(cli(*line, "--force", "--json"))
    assert not old.exists()
    np.testing.assert_array_equal(rewards(new), TOY_REWARDS + 2)


_STEP = ("--step", "clip:action,low=1")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--out", "x", *_STEP), 2, "Missing argument ID"),
        (("local:toy", "--out", "x"), 2, "give --fn or at least one --step"),
        (("local:toy", *_STEP), 2, "--out NAME or --dest DIR"),
        (("local:toy", *_STEP, "--out", "x", "--dest", "y"), 2, "--out NAME or --dest DIR"),
        (("local:toi", *_STEP, "--out", "x"), 3, "local:toy"),
        (("local:toy", "--step", "clp:action,low=1", "--out", "x"), 3, "did you mean 'clip'"),
        (("local:toy", "--step", "clip:acton,low=1", "--out", "x"), 1, "did you mean 'action'"),
        (("local:toy", "--step", "clip:action,lo=1", "--out", "x"), 2, "did you mean 'low'"),
        (("local:toy", "--fn", "functions.py:doubld", "--out", "x"), 2, "did you mean 'doubled'"),
        (("local:toy", "--fn", "nowhere.py:doubled", "--out", "x"), 2, "no file"),
        (("local:toy", "--fn", "doubled", "--out", "x"), 2, "FILE.py:NAME"),
        (("local:toy", *_STEP, "--out", "d4rl:x"), 2, "local:NAME"),
        (("local:toy", *_STEP, "--out", "../x"), 2, "is not a valid name"),
        (("local:toy", *_STEP, "--dest", "root/local/toy/1"), 2, "cannot be replaced"),
        (
            ("local:toy", *_STEP, "--out", "x", "--seed", "1"),
            2,
            "--seed cannot be used without a function",
        ),
        (
            ("local:toy", *_STEP, "--out", "x", "--by", "episode"),
            2,
            "--by cannot be used without a function",
        ),
        (("local:toy", *_STEP, "--out", "x", "--batched", "0"), 2, "--batched"),
        (("local:toy", *_STEP, "--out", "x", "--audit", "most"), 2, "Audit is 'most'"),
        (("local:toy", *_STEP, "--out", "x", "--address", "h:1"), 2, "--engine ray"),
        (("local:toy", *_STEP, "--out", "x", "--plan-only"), 2, "--plan FILE"),
        (("local:toy", *_STEP, "--out", "x", "--plan", "p.json"), 2, "--plan-only"),
        (
            ("local:toy", *_STEP, "--out", "x", "--plan-only", "--plan", "p", "--dry-run"),
            2,
            "--plan-only and --dry-run cannot",
        ),
        (
            ("local:toy", *_STEP, "--out", "x", "--plan-only", "--plan", "p", "--engine", "ray"),
            2,
            "--engine ray and --plan-only cannot",
        ),
    ],
)
def test_what_cannot_be_meant(
    cli: Cli, toy: Path, functions: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    before = sorted(functions.parent.rglob("*"))
    ran = cli("preprocess", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
    assert "Traceback" not in ran.err
    left = {path.suffix for path in set(functions.parent.rglob("*")) - set(before)}
    assert left <= {".lock", "", ".pyc"}
    assert [d["id"] for d in cli("list", "--json").json] == ["local:toy@1"]


def test_a_function_that_fails(cli: Cli, toy: Path, functions: Path) -> None:
    line = ("preprocess", "local:toy", "--fn", "functions.py:failing", "--out", "x")
    ran = cli(*line)
    assert (ran.code, ran.out) == (1, "")
    assert "row 3 (episode 1, step 0): ValueError: three is enough" in ran.err
    assert '\n      raise ValueError("three is enough")\n' in ran.err
    assert f'File "{functions}"' in ran.err
    assert "offline_data" not in ran.err.replace(str(functions), "")
    error = cli(*line, "--json").json["error"]
    assert error["code"] == "step"
    assert "three is enough" in error["message"]


def test_ctrl_c_and_resume(tmp_path: Path, functions: Path, cli: Cli) -> None:
    path = tmp_path / "root" / "local" / "long" / "1"
    path.mkdir(parents=True)
    write_toy(path, [toy_batch([4] * 6)], dataset="local:long@1")
    line = ("preprocess", "local:long", "--fn", "functions.py:slow", "--out", "x",
            "--chunk-rows", "4")  # fmt: skip
    work = tmp_path / "root" / ".staging"
    with subprocess.Popen(
        [sys.executable, "-c", _DELAYED + RUN, *line], stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 60
        while not any(work.glob("*.preprocess/finished/[0-9]*")):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    (last,) = [text for text in said.splitlines() if text.startswith("error")]
    records = {p: p.stat().st_mtime_ns for p in work.glob("*.preprocess/finished/[0-9]*")}
    count = len(records)
    kept = f"{count} finished tasks are kept" if count > 1 else "1 finished task is kept"
    assert last == f"error: interrupted; {kept}: add --resume to go on"
    (functions.parent / "slow").unlink()
    refused = cli(*line)
    assert refused.code == 2
    assert "--resume" in refused.err
    foreseen = cli(*line, "--resume", "--dry-run", "--json").json
    assert (foreseen["finished"], foreseen["tasks"]) == (count, 6)
    ran = cli(*line, "--resume", "--json")
    assert f"{count} of 6 tasks are finished; going on" in ran.err
    np.testing.assert_array_equal(rewards(made(ran)), rewards(path))


_DELAYED = """
from pathlib import Path
from offline_data.preprocess import engine
from offline_data.preprocess import plan as planning

def slowly(*run, before=engine.Run.run_tasks):
    Path("slow").touch()
    return before(*run)

engine.Run.run_tasks = slowly
"""
"""Rows take long from the moment that tasks are run: planning is not what is interrupted."""


def test_what_is_interrupted_before_a_task_is_finished(
    cli: Cli, toy: Path, functions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions.write_text("def stop(td):\n    raise KeyboardInterrupt\n")
    ran = cli("preprocess", "local:toy", "--fn", "functions.py:stop", "--out", "x")
    assert ran.code == 130
    assert ran.err == "error: interrupted; nothing is kept: run the same command again\n"

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.Run, "run_tasks", stop)
    ran = cli("preprocess", "local:toy", *_STEP, "--out", "x")
    assert ran.code == 130
    assert ran.err == "error: interrupted; the plan is kept: add --resume to go on\n"


def test_every_step_is_listed_with_an_example_that_can_be_given(cli: Cli) -> None:
    ran = cli("preprocess", "--list-steps", "--json")
    assert [one["name"] for one in ran.json] == step_names()
    for one in ran.json:
        assert parse_step(one["example"]).name == one["name"]
        assert one["does"].endswith(".")
    assert cli("preprocess", "--list-steps", "-q").out.split() == step_names()
    shown = cli("preprocess", "--list-steps")
    assert ["clip", "--step clip:action,low=-1,high=1"] in shown.rows
    assert "--step fn:FILE.py:FN" in shown.err


def test_ray_is_asked_with_its_address(
    cli: Cli, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Recorded:
        name, shards = "ray", True

        def __init__(self, address: str | None, *, workers: int | None) -> None:
            asked.append((address, workers))

        def run(self, job: Callable[[int], Any], tasks: Any, _: Any) -> Any:
            yield from enumerate(map(job, tasks))

    line = ("preprocess", "local:toy", *_STEP, "--engine", "ray", "--address", "h:1")
    with monkeypatch.context() as patched:
        patched.setattr(ray_executor, "RayExecutor", Recorded)
        assert cli(*line, "--workers", "3", "--out", "x").code == 0
        assert asked == [("h:1", 3)]
        assert cli(*line, "--out", "y", "--dry-run", "--json").json["executor"] == "ray"
    monkeypatch.setitem(sys.modules, "ray", None)
    ran = cli(*line, "--out", "z")
    assert ran.code == 1
    assert "pip install 'offline-data[ray]'" in ran.err


def test_a_terminal_of_80_columns(
    terminal: Callable[..., Terminal], toy: Path, functions: Path
) -> None:
    screen = terminal()
    line = ["preprocess", "local:toy", "--fn", "functions.py:looking", "--out", "new"]
    assert main([*line, "--dry-run"]) == main(line) == main(["preprocess", "--list-steps"]) == 0
    shown = screen.out.text
    assert "use --batched N to pass blocks of rows" in " ".join(shown.split())
    assert "--step clip:action,low=-1,high=1" in shown
    assert max(map(len, shown.splitlines())) <= 80


LENGTHS = [4, 3, 5, 2, 4]
_PLANNED = ("preprocess", "local:five", "--step", "clip:action,low=-3002", "--out", "new")


@pytest.fixture
def plan(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a plan of 3 tasks."""
    parent = tmp_path / "root" / "local" / "five" / "1"
    parent.mkdir(parents=True)
    write_toy(parent, [toy_batch(LENGTHS)], dataset="local:five@1")
    monkeypatch.setattr(planning, "GROUP_BYTES", 200)
    monkeypatch.chdir(tmp_path)
    ran = cli(*_PLANNED, "--chunk-rows", "8", "--plan-only", "--plan", "plan.json", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["tasks"] == 3
    return tmp_path / "plan.json"


def work(cli: Cli, plan: Path, *arguments: str) -> Any:
    ran = cli("worker", "--plan", str(plan), *arguments, "--json")
    assert ran.code == 0, ran.err
    return ran.json


def test_the_plan_is_told(cli: Cli, plan: Path) -> None:
    ran = cli(*_PLANNED, "--plan-only", "--plan", "plan.json", "--resume")
    value = json.loads(plan.read_text())
    assert dict(ran.rows) == {
        "id": value["id"],
        "plan": str(plan),
        "destination": value["destination"],
        "tasks": "3",
    }
    assert f"offline-data worker --plan {plan} --rank I --world N" in ran.err
    assert (
        cli(*_PLANNED, "--plan-only", "--plan", "plan.json", "--resume", "-q").out
        == f"{value['id']}\n"
    )
    refused = cli(*_PLANNED, "--plan-only", "--plan", "plan.json")
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
    local = cli(*_PLANNED, "--json").json
    assert (local["existed"], local["path"]) == (True, data["path"])
    again = cli("worker", "--plan", "plan.json", "--rank", "0", "--world", "2")
    assert again.rows[1][0] == data["id"]
    assert "already exists" in again.err
    assert cli("worker", "--plan", "plan.json", "--rank", "2", "-q").out == f"{data['id']}\n"


def test_a_rank_for_each_task(cli: Cli, plan: Path) -> None:
    assert work(cli, plan, "--rank", "2")["missing"] == [0, 1]
    assert work(cli, plan, "--rank", "0")["missing"] == [1]
    assert cli("worker", "--plan", "plan.json", "--rank", "0", "-q").out == ""
    assert work(cli, plan, "--rank", "1")["path"]


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
def test_invalid_arguments_of_a_worker(
    cli: Cli, plan: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    ran = cli("worker", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err


NO_PLANS: dict[str, bytes] = {
    "deep": b"[" * 100_000,
    "list": b"[]",
    "binary": b"\x00\xff",
    "of a text version": b'{"format_version": "x"}',
    "newer": b'{"format_version": 99}',
    "cut off": b'{"format_version": 1, "na',
}


@pytest.mark.parametrize("making", [False, True])
def test_a_file_that_is_no_plan(making: bool, cli: Cli, toy: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    command = ["worker", "--rank", "0", "--plan", str(file)]
    if making:
        command = ["preprocess", "local:toy", *_STEP, "--out", "x", "--plan-only", *command[3:]]
    os.mkfifo(file)
    for content in (None, *NO_PLANS.values()):
        if content is not None:
            file.unlink(missing_ok=True)
            file.write_bytes(content)
        ran = cli(*command)
        assert ran.code == 5, (content, ran.err)
        assert str(file) in ran.err
        assert "unexpected" not in ran.err


SPOILED = {
    "place": (3, None, "../elsewhere", "a/b"),
    "states": ([], [{}, {}], [3], {}),
    "stages": ([], {}, [{"text": 3, "sha256": None}], [{"text": "clip:action"}]),
    "tasks": ("3", -1, None),
    "recipe": (3, None),
    "calling": ([], {"batched": 3, "rows": 1}, {"seed": {}}, {"batched": "3"}, {"by": 3}),
    "options": (None, {"layout": "compact", "colour": 1}, {"audit": -1}, {"layout": "wide"}),
    "dest": (3, {}),
    "root": (None, 1),
    "destination": (None, []),
    "id": (None, 4),
    "parent": ({}, None),
    "generation": ("x", None),
    "published": ("no", None),
    "fingerprint": (3, None),
}


def test_a_damaged_plan_is_named(cli: Cli, plan: Path) -> None:
    whole = json.loads(plan.read_text())
    assert set(SPOILED) | {"format_version", "name"} == set(whole)
    for field, wrongs in SPOILED.items():
        for wrong in wrongs:
            plan.write_text(json.dumps(whole | {field: wrong}))
            ran = cli("worker", "--plan", "plan.json", "--rank", "0", "--world", "2")
            assert ran.code in {2, 5}, (field, wrong, ran.err)
            assert "plan.json" in ran.err or ran.code == 2, (field, wrong)
            assert "please report" not in ran.err, (field, wrong)
        without = {name: value for name, value in whole.items() if name != field}
        plan.write_text(json.dumps(without))
        assert cli("worker", "--plan", "plan.json", "--rank", "0").code == 5

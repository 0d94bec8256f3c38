"""`preprocess` and `worker`: options through to the library, results and failures back, plans on disk."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from offline_data.pipeline.jobs import ray as ray_executor
from offline_data.pipeline.preprocess import engine
from offline_data.pipeline.preprocess import plan as planning
from offline_data.pipeline.preprocess.steps.registry import parse_step, step_names
from offline_data.store.reader import open_reader
from offline_data.store.verify import verify
from offline_data.testing.toy import toy_batch
from offline_data_cli.commands import preprocess
from offline_data_cli.main import main
from tests.cli.conftest import Cli, Ran, Terminal
from tests.toys.stored import write_stored

FUNCTIONS = """
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


def halved(td):
    td["observation", "state"] = td["observation", "state"] / 2
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


def interrupted(td):
    if td["index"].item() == 9 and (HERE / "interrupt").exists():
        raise KeyboardInterrupt
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
_STEP = ("--step", "clip:action,low=1")


def made(ran: Ran) -> Path:
    assert ran.code == 0, ran.err
    return Path(ran.json["path"])


def test_a_function(cli: Cli, toy: Path, functions: Path) -> None:
    line = ("preprocess", "local:toy", "--fn", "functions.py:doubled", "--out", "twice")
    ran = cli(*line, "--json")
    path, data = made(ran), ran.json
    np.testing.assert_array_equal(rewards(path), TOY_REWARDS * 2)
    assert not verify(path)
    assert data["id"] == f"local:twice@{path.name}"
    assert (data["transitions"], data["episodes"], data["layout"]) == (5, 2, "compact")
    assert (data["source"], data["existed"], data["parents"]) == ("local", False, ["local:toy@1"])
    info = cli("info", "local:twice", "--json").json
    assert (data["bytes"], data["schema"]) == (info["bytes"], info["schema"])
    assert data["seconds"] > 0
    (step,) = data["recipe"]
    assert (step["name"], step["run"]) == ("doubled", "vectorised")
    created = (path / "manifest.json").stat().st_mtime_ns
    assert cli(*line).err == f"local:twice@{path.name} already exists: {path}\n"
    assert cli(*line, "-q").out == f"local:twice@{path.name}\n"
    assert (path / "manifest.json").stat().st_mtime_ns == created
    assert cli(*line, "--force").code == 0
    assert (path / "manifest.json").stat().st_mtime_ns > created


def test_stages_are_done_in_their_order(cli: Cli, toy: Path, functions: Path) -> None:
    clip, fn = "reward_clip:high=150", "fn:functions.py:doubled"
    line = ("preprocess", str(toy), "--json")
    before = made(cli(*line, "--step", clip, "--step", fn, "--out", "a"))
    after = made(cli(*line, "--step", clip, "--fn", "functions.py:doubled", "--out", "b"))
    np.testing.assert_array_equal(rewards(before), np.minimum(TOY_REWARDS, 150) * 2)
    np.testing.assert_array_equal(rewards(after), np.minimum(TOY_REWARDS * 2, 150))


BLOCKS = "use --batched N to pass blocks of rows"
ALONE = "alone: next/terminated, next/truncated, action kept as stored (not returned)"
APART = "apart: observation/state stored twice, with their own `next`"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("looking", f"looking: row by row, it looks at values to decide what to do; {BLOCKS}"),
        ("doubled --no-vectorize", "doubled: row by row, as requested"),
        ("doubled --batched 2", "doubled: blocks of 2 rows"),
        ("first_rows --by episode", "first_rows: episode by episode"),
        ("apart", f"apart: vectorised|{APART}"),
        ("alone", f"alone: vectorised|{ALONE}"),
    ],
)
def test_how_a_function_was_run_is_said(
    cli: Cli, toy: Path, functions: Path, line: str, said: str
) -> None:
    arguments = ("preprocess", "local:toy", "--out", "new", "--fn", f"functions.py:{line}")
    words = " ".join(arguments).split()
    planned, ran = cli(*words, "--dry-run"), cli(*words)
    assert ["steps", "5 at most" if "first_rows" in line else "5"] in planned.rows
    assert ran.rows[0] == ["ID", "STEPS", "EPISODES", "SIZE", "SECONDS"]
    for rows in (planned.rows, ran.rows):
        assert [row[1] for row in rows if row[0] == "functions"] == said.split("|")


def test_options_change_what_is_made(cli: Cli, toy: Path, functions: Path, tmp_path: Path) -> None:
    line = ("preprocess", "local:toy", "--fn", "functions.py:noisy", "--json")
    ran = cli(*line, "--dest", str(tmp_path / "here"), "--num-frames", "4", "--layout", "ted")
    assert (made(ran), ran.json["transitions"]) == (tmp_path / "here", 4)
    assert (tmp_path / "here" / "ted" / "noise.memmap").exists()
    noise = []
    for number, seed in enumerate(["1", "1", "2"]):
        path = made(cli(*line, "--out", f"n{number}", "--seed", seed))
        noise.append(np.array(open_reader(path).step(("noise",))))
    np.testing.assert_array_equal(noise[0], noise[1])
    assert not (noise[0] == noise[2]).any()
    halved = ("--fn", "functions.py:halved", "--on", "observations", "--out", "half")
    path = made(cli("preprocess", "local:toy", *halved, "--json"))
    wanted = np.asarray(toy_batch([3, 2]).observations["observation", "state"], np.float32) / 2
    found = open_reader(path).leaf("observations", ("observation", "state"))
    np.testing.assert_array_equal(found, wanted)


def test_dry_run_writes_nothing(cli: Cli, toy: Path, functions: Path, tmp_path: Path) -> None:
    def snapshot() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in (tmp_path / "root").rglob("*")}

    before = snapshot()
    line = ("preprocess", "local:toy", "--fn", "functions.py:apart", "--out", "new",
            "--step", "normalize:action", "--num-frames", "4", "--dry-run")  # fmt: skip
    data = cli(*line, "--json").json
    assert snapshot() == before
    assert data["parent"] == "local:toy@1"
    assert data["destination"] == str(tmp_path / "root/local/new" / data["id"].partition("@")[2])
    assert (data["transitions"], data["episodes"], data["tasks"]) == (4, 2, 1)
    assert (data["executor"], data["dry_run"], data["existed"]) == ("in process", True, False)
    assert data["recipe"][0]["two_copies"] == ["observation/state"]
    labels = {row[0] for row in cli(*line).rows}
    assert labels > {"made from", "destination", "tasks", "size", "free disk space", "executor"}
    assert cli(*line, "-q").out.startswith("local:new@")


def test_dry_run_foresees_bytes_and_what_is_replaced(cli: Cli, toy: Path) -> None:
    line = ("preprocess", "local:toy", "--step", "reward_shift:1", "--out", "new")
    data = cli(*line, "--dry-run", "--json").json
    old = made(cli(*line, "--json"))
    assert data["destination"] == str(old)
    files = [file for name in ("steps", "observations") for file in old.glob(f"{name}/*.memmap")]
    assert data["bytes"] == sum(file.stat().st_size for file in files)
    again = cli(*line, "--dry-run", "--json").json
    assert (again["existed"], "tasks" in again) == (True, False)
    assert ["already exists", "yes; nothing to do"] in cli(*line, "--dry-run").rows
    other = ("preprocess", "local:toy", "--step", "reward_shift:2", "--out", "new")
    assert cli(*other, "--dry-run").code == cli(*other).code == 2
    data = cli(*other, "--dry-run", "--force", "--json").json
    assert data["replaces"] == [f"local:new@{old.name}"]
    assert old.exists()
    np.testing.assert_array_equal(rewards(made(cli(*other, "--force", "--json"))), TOY_REWARDS + 2)
    assert not old.exists()


def test_the_time_of_a_run_is_in_a_fitting_unit() -> None:
    times = {
        0.9: "under a second", 1: "about 1 s", 99: "about 99 s", 100: "about 1.7 min",
        5994: "about 99.9 min", 6000: "about 1.7 h",
    }  # fmt: skip
    for seconds, told in times.items():
        assert preprocess._format_time(seconds) == f"{told} in one process"


def test_a_function_that_fails(cli: Cli, toy: Path, functions: Path) -> None:
    line = ("preprocess", "local:toy", "--fn", "functions.py:failing", "--out", "x")
    ran = cli(*line)
    assert (ran.code, ran.out) == (1, "")
    assert "row 3 (episode 1, step 0): ValueError: three is enough" in ran.err
    assert '\n      raise ValueError("three is enough")\n' in ran.err
    assert f'File "{functions}"' in ran.err
    assert "offline_data" not in ran.err.replace(str(functions), "")
    assert cli(*line, "--json").json["error"]["code"] == "step"


def test_ctrl_c_and_resume(
    tmp_path: Path, functions: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_stored(tmp_path / "root", "local:long@1", toy_batch([4] * 6))
    line = ("preprocess", "local:long", "--fn", "functions.py:interrupted", "--out", "x",
            "--chunk-rows", "4")  # fmt: skip
    run_tasks = engine.Run.run_tasks

    def interrupt(*run: Any) -> Any:
        (tmp_path / "interrupt").touch()  # not before: planning is not what is interrupted
        return run_tasks(*run)

    with monkeypatch.context() as patched:
        patched.setattr(engine.Run, "run_tasks", interrupt)
        ran = cli(*line)
    assert ran.code == 130
    assert ran.err == "error: interrupted; 2 finished tasks are kept: add --resume to continue\n"
    (tmp_path / "interrupt").unlink()
    refused = cli(*line)
    assert refused.code == 2
    assert "--resume" in refused.err
    foreseen = cli(*line, "--resume", "--dry-run", "--json").json
    assert (foreseen["finished"], foreseen["tasks"]) == (2, 6)
    ran = cli(*line, "--resume", "--json")
    assert "resuming: 2 of 6 tasks done" in ran.err
    np.testing.assert_array_equal(rewards(made(ran)), rewards(path))


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
    assert ran.err == "error: interrupted; the plan is kept: add --resume to continue\n"


@pytest.mark.slow
def test_every_step_is_listed_with_an_example_that_can_be_given(cli: Cli) -> None:
    ran = cli("preprocess", "--list-steps", "--json")
    assert [one["name"] for one in ran.json] == step_names()
    for one in ran.json:
        assert parse_step(one["example"]).name == one["name"]
        assert one["does"].endswith(".")
    assert cli("preprocess", "--list-steps", "-q").out.split() == step_names()
    shown = cli("preprocess", "--list-steps")
    assert ["clip", "--step clip:action,low=-1,high=1"] in shown.rows


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
    assert BLOCKS in " ".join(shown.split())
    assert "--step clip:action,low=-1,high=1" in shown
    assert max(map(len, shown.splitlines())) <= 80


LENGTHS = [4, 3, 5, 2, 4]
_PLANNED = ("preprocess", "local:five", "--step", "clip:action,low=-3002", "--out", "new")


@pytest.fixture
def plan(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a plan of 3 tasks."""
    write_stored(tmp_path / "root", "local:five@1", toy_batch(LENGTHS))
    monkeypatch.setattr(planning, "GROUP_BYTES", 200)
    monkeypatch.chdir(tmp_path)
    ran = cli(*_PLANNED, "--chunk-rows", "8", "--plan-only", "--plan", "plan.json", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["tasks"] == 3
    return tmp_path / "plan.json"


def test_ranks_make_the_dataset_of_a_plan(cli: Cli, plan: Path) -> None:
    value = json.loads(plan.read_text())
    planned = (*_PLANNED, "--plan-only", "--plan", "plan.json")
    ran = cli(*planned, "--resume")
    told = {"id": value["id"], "plan": str(plan), "destination": value["destination"], "tasks": "3"}
    assert dict(ran.rows) == told
    assert f"offline-data worker --plan {plan} --rank I --world N" in ran.err
    assert cli(*planned, "--resume", "-q").out == f"{value['id']}\n"
    refused = cli(*planned)
    assert refused.code == 2
    assert "--resume keeps it" in refused.err
    rank = ("worker", "--plan", "plan.json", "--world", "2", "--rank")
    first = cli(*rank, "0")
    assert (first.code, first.out) == (0, "rank 0 ran 2 tasks; 1 left for other ranks\n")
    assert "the last rank publishes local:new@" in first.err
    data = cli(*rank, "1", "--json").json
    assert (data["ran"], data["missing"], data["existed"]) == (1, [], False)
    assert {"id", "path", "layout", "transitions", "bytes", "schema", "recipe"} < set(data)
    action = np.asarray(open_reader(Path(data["path"])).step(("action",)))
    np.testing.assert_array_equal(action, np.maximum(toy_batch(LENGTHS).steps["action",], -3002))
    local = cli(*_PLANNED, "--json").json
    assert (local["existed"], local["path"]) == (True, data["path"])
    again = cli(*rank, "0")
    assert again.rows[1][0] == data["id"]
    assert "already exists" in again.err


def test_finish_says_what_is_missing(cli: Cli, plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = ("worker", "--plan", "plan.json")
    assert cli(*worker, "--rank", "1", "--json").json["missing"] == [0, 2]
    assert cli(*worker, "--rank", "1", "-q").out == ""
    for most, named in ((1, "0, …"), (2, "0, 2")):
        monkeypatch.setattr(preprocess, "_MOST_NAMED", most)
        ran = cli(*worker, "--finish")
        assert (ran.code, ran.out) == (1, "")
        assert f"2 of 3 tasks not finished: {named}\n" in ran.err
    assert f"offline-data worker --plan {plan} --rank 0 --world 1" in ran.err
    as_json = cli(*worker, "--finish", "--json")
    assert (as_json.code, as_json.json["missing"], as_json.json["path"]) == (1, [0, 2], None)
    assert cli(*worker, "--rank", "0", "--world", "1").code == 0
    assert cli(*worker, "--finish").code == 0


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


SPOILED: tuple[Any, ...] = (None, True, -1, 1.5, "", "../x", "a\0b", [], [None], {"x": 1})
"""Values of every type; each field of a plan is given all of them."""
OF_SEVERAL_TYPES = {
    *(
        "name",
        "dest",
        "sha256",
        "source",
        "batched",
        "vectorize",
        "num_frames",
        "layout",
        "chunksize",
    )
}


def spoiled(value: Any, news: tuple[Any, ...]) -> Iterator[tuple[str, Any, Any]]:
    """Yield, for every field and for all that is in it: its name, what replaces it, what was there.

    `value` is changed meanwhile.
    """
    for name, old in value.items() if isinstance(value, dict) else list(enumerate(value)):
        for value[name] in news:
            yield str(name), value[name], old
        value[name] = old
        if isinstance(old, dict | list):
            yield from spoiled(old, news)


@pytest.mark.slow
def test_every_field_of_a_plan_that_is_spoiled(
    cli: Cli, toy: Path, functions: Path, tmp_path: Path
) -> None:
    plan = tmp_path / "p.json"
    steps = ("--fn", "functions.py:doubled", "--step", "normalize", "--step", "reward_shift:1")
    making = ("preprocess", "local:toy", *steps, "--out", "x", "--plan-only", "--plan", str(plan))
    assert cli(*making).code == 0
    whole = json.loads(plan.read_text())
    recipe = whole.pop("recipe")
    count = 0
    for name, new, old in spoiled(whole, SPOILED):
        plan.write_text(json.dumps({**whole, "recipe": recipe}))
        ran = cli("worker", "--plan", str(plan), "--finish")
        assert ran.code in {1, 2, 3, 5}, (name, new, ran.err)
        assert "unexpected" not in ran.err, (name, new, ran.err)
        if type(new) is not type(old) and name not in OF_SEVERAL_TYPES:
            assert ran.code == 5, (name, new, ran.err)
            assert str(plan) in ran.err, (name, new, ran.err)
        count += 1
    assert count > 300
    for _ in spoiled(recipe, (None, "", {"x": 1})):
        plan.write_text(json.dumps({**whole, "recipe": recipe}))
        ran = cli(*making, "--resume")
        assert ran.code in {0, 5}, ran.err
        assert "unexpected" not in ran.err, ran.err
    whole["recipe"] = recipe
    others = [{n: v for n, v in whole.items() if n != name} for name in whole]
    for name in ("states", "stages"):
        others += [{**whole, name: new} for new in (whole[name][:-1], whole[name] * 2, list[Any]())]
    for other in others:
        plan.write_text(json.dumps(other))
        ran = cli("worker", "--plan", str(plan), "--rank", "0")
        assert ran.code == 5, ran.err
        assert str(plan) in ran.err

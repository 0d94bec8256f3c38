"""Shares of one plan, whoever runs them and whenever they die, make what one local run makes."""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import (
    NewerFormatError,
    NoSpaceError,
    NotFoundError,
    StepError,
    UsageError,
)
from offline_data.base.progress import SILENT
from offline_data.pipeline.jobs.plan_file import plan_lock
from offline_data.pipeline.preprocess import engine, worker
from offline_data.pipeline.preprocess.job import Job, RunOptions
from offline_data.pipeline.preprocess.plan import write_task
from offline_data.pipeline.preprocess.worker import (
    JobPlan,
    finish_job,
    plan_job,
    run_share,
)
from offline_data.store.library import list_datasets
from offline_data.store.verify import verify
from tests.pipeline.preprocess.oracle import Row, check, digests, episodes_of, mapped
from tests.pipeline.preprocess.runs import make, small_groups, write_plain, write_rich

CLIP = "clip:action,low=-4004,high=-1002"


FUNCTIONS = """
from pathlib import Path

HERE = Path(__file__).parent


def tripled(td):
    if td["action"].item() < -2000:
        td["next", "reward"] = td["next", "reward"] * 3
    return td


def late(td):
    if td["index"].item() > 15:
        td["next", "observation", "state"] = td["next", "observation", "state"] + 0.5
    return td


def failing(td):
    if td["index"].item() >= 0 and (HERE / "broken").exists() and begun():
        raise ValueError("broken")
    return td


def stopping(td):
    if td["index"].item() >= 0 and (HERE / "broken").exists() and begun():
        raise KeyboardInterrupt
    return td


def begun():
    return any(HERE.glob("plans/*.work/*/finished/*"))


def shorter(td):
    return td[:-1] if len(td) > 2 else None
"""


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """23 transitions in 7 episodes."""
    return write_rich(tmp_path / "parent")


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    return path


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where plans go; they have several tasks."""
    small_groups(monkeypatch, rows=4, width=5000)
    return tmp_path / "plans" / "plan.json"


def stop(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def order_of(parent: Path, *stages: str, dest: Path, **more: Any) -> Job:
    return Job(parent, stages, None, dest, RunOptions(**{"audit": "all", **more}))


def planned(order: Job, file: Path, settings: Settings) -> JobPlan:
    return plan_job(order, file, settings)


def shares(file: Path, world: int, settings: Settings) -> list[Any]:
    return [run_share(file, rank, world, settings) for rank in range(world)]


def plain_clipped(row: Row) -> Row:
    row["action",] = np.maximum(np.minimum(row["action",], np.float32(-1002)), np.float32(-4004))
    return row


def plain_tripled(row: Row) -> Row:
    if row["action",][0] < -2000:
        row["next", "reward"] = row["next", "reward"] * 3
    return row


@pytest.mark.parametrize("world", [1, 3, 7])
def test_shares_make_what_a_local_run_makes(
    parent: Path, functions: Path, file: Path, tmp_path: Path, settings: Settings, world: int
) -> None:
    stages = (CLIP, f"fn:{functions}:tripled")
    made = tmp_path / "shared" / "made"
    plan = planned(order_of(parent, *stages, dest=made, chunksize=4), file, settings)
    assert plan.tasks > 3
    done = shares(file, world, settings)
    assert sum(share.ran for share in done) == plan.tasks
    results = [share.result for share in done]
    last = min(world, plan.tasks) - 1
    assert [result is not None for result in results] == [rank >= last for rank in range(world)]
    assert [result.existed for result in results if result] == [r > 0 for r in range(world - last)]
    check(made, mapped(mapped(episodes_of(parent), plain_clipped), plain_tripled))
    assert not verify(made)
    local = make(parent, stages, tmp_path / "local" / "made", settings).path
    assert digests(made) == digests(local)
    assert sorted(path.name for path in file.parent.iterdir()) == [".plan.json.lock", "plan.json"]
    assert sorted(path.name for path in made.parent.iterdir()) == ["made"]


@pytest.mark.parametrize(
    ("stage", "calling"),
    [
        ("normalize:observation.state", {}),
        ("dedupe", {}),
        ("fn:{functions}:shorter", {"by": "episode"}),
    ],
)
def test_other_kinds_of_steps(
    parent: Path,
    functions: Path,
    file: Path,
    tmp_path: Path,
    settings: Settings,
    stage: str,
    calling: dict[str, Any],
) -> None:
    stages = (stage.format(functions=functions), "reward_shift:0.5")
    made = tmp_path / "shared" / "made"
    order = order_of(parent, *stages, dest=made, layout="ted", num_frames=21, **calling)
    planned(order, file, settings)
    shares(file, 2, settings)
    local = make(
        parent,
        stages,
        tmp_path / "local" / "made",
        settings,
        **calling,
        layout="ted",
        num_frames=21,
    ).path
    assert digests(made) == digests(local)


def test_the_plan_says_all_without_pickles(
    parent: Path, functions: Path, file: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(functions.parent)
    order = Job(
        Path("parent"),
        ("fn:functions.py:tripled", CLIP),
        "made",
        None,
        RunOptions(seed=5, num_frames=20, audit=0.5, chunksize=6),
    )
    plan_job(order, Path("plans/plan.json"), settings)
    value = json.loads(file.read_text())
    function, clip = value["stages"]
    assert function["text"] == f"fn:{functions}:tripled"
    assert len(bytes.fromhex(function["sha256"])) == 32
    assert len(bytes.fromhex(function["source"])) == 32
    assert clip == {"text": CLIP, "sha256": None, "source": None}
    assert value["parent"] == str(parent)
    assert value["id"] == f"local:made@{value['fingerprint'][:12]}"
    assert value["destination"].startswith(str(settings.root))
    assert value["calling"]["seed"] == 5
    assert value["options"]["num_frames"] == 20
    assert [step["step"] for step in value["recipe"]] == ["fn", "clip"]
    JobPlan.read(file).write()
    assert json.loads(file.read_text()) == value
    for path in file.parent.rglob("*"):
        assert not path.is_file() or not path.read_bytes().startswith(b"\x80")


def test_an_id_is_made_under_the_root_of_the_plan(
    parent: Path, file: Path, settings: Settings, tmp_path: Path
) -> None:
    order = Job(parent, (CLIP,), "made")
    planned(order, file, settings)
    elsewhere = replace(settings, root=tmp_path / "elsewhere")
    (share,) = shares(file, 1, elsewhere)
    assert [entry.id for entry in list_datasets(settings.root)] == [share.result.id]
    assert not (tmp_path / "elsewhere").exists()


def test_by_default_there_is_a_rank_for_each_task(
    parent: Path, file: Path, tmp_path: Path, settings: Settings
) -> None:
    plan = planned(order_of(parent, CLIP, dest=tmp_path / "made"), file, settings)
    first = run_share(file, 0, None, settings)
    assert (first.ran, first.missing) == (1, tuple(range(1, plan.tasks)))
    for rank in range(1, plan.tasks):
        last = run_share(file, rank, None, settings)
    assert last.result is not None


@pytest.mark.parametrize(("rank", "world"), [(-1, 2), (2, 2), (0, 0), (99, None)])
def test_ranks_that_are_none(
    parent: Path, file: Path, tmp_path: Path, settings: Settings, rank: int, world: int | None
) -> None:
    planned(order_of(parent, CLIP, dest=tmp_path / "made"), file, settings)
    with pytest.raises(UsageError, match=f"rank is {rank}"):
        run_share(file, rank, world, settings)


def test_finished_tasks_are_not_run_again(
    parent: Path, file: Path, tmp_path: Path, settings: Settings
) -> None:
    plan = planned(order_of(parent, CLIP, dest=tmp_path / "made"), file, settings)
    assert run_share(file, 1, 2, settings).ran == plan.tasks // 2
    before = {path: path.stat().st_mtime_ns for path in plan.folder.rglob("*") if path.is_file()}
    assert run_share(file, 1, 2, settings).ran == 0
    after = {path: path.stat().st_mtime_ns for path in plan.folder.rglob("*") if path.is_file()}
    assert after == before
    assert run_share(file, 0, 1, settings).ran == plan.tasks - plan.tasks // 2


def test_finish_names_what_is_missing_and_publishes_once(
    parent: Path, file: Path, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(order_of(parent, CLIP, dest=tmp_path / "made"), file, settings)
    assert finish_job(file, settings).missing == tuple(range(plan.tasks))
    run_share(file, 1, 3, settings)
    missing = tuple(task for task in range(plan.tasks) if task % 3 != 1)
    assert finish_job(file, settings).missing == missing
    monkeypatch.setattr(worker, "put_together", stop)
    with pytest.raises(KeyboardInterrupt):
        run_share(file, 0, 1, settings)
    monkeypatch.undo()
    assert not (tmp_path / "made").exists()
    first, second = finish_job(file, settings), finish_job(file, settings)
    assert first.result is not None
    assert second.result is not None
    assert (first.result.existed, second.result.existed) == (False, True)
    assert run_share(file, 2, 3, settings).result is not None


def test_a_function_that_has_changed_is_refused(
    parent: Path, functions: Path, file: Path, tmp_path: Path, settings: Settings
) -> None:
    order = order_of(parent, f"fn:{functions}:tripled", dest=tmp_path / "made", chunksize=4)
    planned(order, file, settings)
    run_share(file, 0, 2, settings)
    functions.write_text(FUNCTIONS.replace("* 3", "* 4"))
    with pytest.raises(UsageError, match="tripled has changed") as error:
        run_share(file, 1, 2, settings)
    assert "--force" in str(error.value.shell_hint)
    with pytest.raises(UsageError, match="tripled has changed"):
        finish_job(file, settings)
    functions.write_text(FUNCTIONS + "\n# a remark\n")
    assert run_share(file, 1, 2, settings).result is not None


@pytest.mark.parametrize("named", ["file", "module"])
def test_a_file_that_has_changed_is_not_imported(
    named: str,
    parent: Path,
    functions: Path,
    file: Path,
    tmp_path: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = tmp_path / "own_steps"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "scaling.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    source, name = functions, f"{functions}:tripled"
    if named == "module":
        source, name = package / "__init__.py", "own_steps.scaling:tripled"
        monkeypatch.syspath_prepend(str(tmp_path))
    planned(order_of(parent, f"fn:{name}", dest=tmp_path / "made", chunksize=4), file, settings)
    for module in [one for one in sys.modules if one.startswith("own_steps")]:
        monkeypatch.delitem(sys.modules, module)
    ran = tmp_path / "ran"
    source.write_text(f"{source.read_text()}\nopen({str(ran)!r}, 'w').close()\n")
    with pytest.raises(UsageError, match="tripled has changed"):
        run_share(file, 0, 2, settings)
    with pytest.raises(UsageError, match="tripled has changed"):
        finish_job(file, settings)
    plan = json.loads(file.read_text())
    plan["stages"][0]["source"] = None
    file.write_text(json.dumps(plan))
    with pytest.raises(UsageError, match="tripled has changed"):
        run_share(file, 0, 2, settings)
    assert not ran.exists()


def test_a_parent_that_has_changed_is_refused(
    file: Path, tmp_path: Path, settings: Settings
) -> None:
    parent = write_plain(tmp_path / "parent", [5, 4, 3])
    planned(order_of(parent, CLIP, dest=tmp_path / "made"), file, settings)
    write_plain(tmp_path / "other", [5, 4, 4])
    (tmp_path / "parent").rename(tmp_path / "old")
    (tmp_path / "other").rename(parent)
    with pytest.raises(UsageError, match="parent has changed"):
        run_share(file, 0, 1, settings)


def test_a_function_that_fails_keeps_what_is_finished(
    parent: Path, functions: Path, file: Path, tmp_path: Path, settings: Settings
) -> None:
    stage = f"fn:{functions}:failing"
    plan = planned(order_of(parent, stage, dest=tmp_path / "made", chunksize=4), file, settings)
    (tmp_path / "broken").touch()
    with pytest.raises(StepError, match=r"failed on row \d+ .*\n(?s:.*)broken"):
        run_share(file, 0, 1, settings)
    (tmp_path / "broken").unlink()
    ran = run_share(file, 0, 1, settings).ran
    assert ran == plan.tasks - 1
    check(tmp_path / "made", episodes_of(parent))


def test_ctrl_c_says_how_far_it_is(
    parent: Path, functions: Path, file: Path, tmp_path: Path, settings: Settings
) -> None:
    stage = f"fn:{functions}:stopping"
    plan = planned(order_of(parent, stage, dest=tmp_path / "made", chunksize=4), file, settings)
    (tmp_path / "broken").touch()
    with pytest.raises(KeyboardInterrupt, match=rf"1 of {plan.tasks} tasks are finished"):
        run_share(file, 0, 1, settings)


def late_rows(row: Row) -> Row:
    row["next", "observation", "state"] = row["next", "observation", "state"] + np.float32(0.5)
    return row


def plain_late(episodes: list[Any]) -> list[Any]:
    count, out = 0, []
    for episode in episodes:
        rows = []
        for row in episode.rows:
            rows.append(late_rows(row) if count > 15 else row)
            count += 1
        out.append(replace(episode, rows=rows))
    return out


def test_what_the_data_ask_for_late_makes_another_plan(
    parent: Path, functions: Path, file: Path, tmp_path: Path, settings: Settings
) -> None:
    stages = (f"fn:{functions}:late",)
    order = order_of(parent, *stages, dest=tmp_path / "shared" / "made", chunksize=4)
    plan = planned(order, file, settings)
    first = run_share(file, 0, 2, settings)
    done = [first]
    if first.plan.generation == 0:
        done += [run_share(file, 1, 2, settings), run_share(file, 0, 2, settings)]
    else:
        done += [run_share(file, 1, 2, settings)]
    assert JobPlan.read(file).generation == 1
    assert JobPlan.read(file).place != plan.place
    assert done[-1].result is not None
    check(tmp_path / "shared" / "made", plain_late(episodes_of(parent)))
    local = make(parent, stages, tmp_path / "local" / "made", settings, chunksize=4).path
    assert digests(tmp_path / "shared" / "made") == digests(local)


def test_a_rank_at_work_sees_another_plan_before_its_next_task(
    parent: Path,
    functions: Path,
    file: Path,
    tmp_path: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While one rank is in a task, another finds what changes the plan: its own work is moot."""
    order = order_of(parent, f"fn:{functions}:late", dest=tmp_path / "made", chunksize=4)
    plan = planned(order, file, settings)
    ran: list[str] = []

    def meanwhile(plan: Any, work: Any, *more: Any, **options: Any) -> Any:
        ran.append(work.path.name)
        if len(ran) == 1:
            assert run_share(file, 1, 2, settings).plan.generation == 1
        return write_task(plan, work, *more, **options)

    monkeypatch.setattr(engine, "write_task", meanwhile)
    share = run_share(file, 0, 2, settings)
    assert ran.count(plan.place) < plan.tasks
    assert share.plan.generation == 1
    assert share.result is not None
    assert ran[-1] == JobPlan.read(file).place
    check(tmp_path / "made", plain_late(episodes_of(parent)))


def test_finish_does_not_publish_damaged_rows(
    parent: Path, file: Path, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(order_of(parent, CLIP, dest=tmp_path / "made"), file, settings)
    monkeypatch.setattr(worker, "put_together", stop)
    with pytest.raises(KeyboardInterrupt):
        run_share(file, 0, 1, settings)
    monkeypatch.undo()
    shard = next((plan.folder / plan.place / "shards" / "00001").rglob("*.memmap"))
    shard.write_bytes(shard.read_bytes()[:-1])
    assert finish_job(file, settings).missing == (1,)
    assert not (tmp_path / "made").exists()


def test_a_plan_is_not_written_over(
    parent: Path, file: Path, tmp_path: Path, settings: Settings
) -> None:
    order = order_of(parent, CLIP, dest=tmp_path / "made")
    plan = planned(order, file, settings)
    with pytest.raises(UsageError, match="There is the same plan") as error:
        planned(order, file, settings)
    assert "--resume" in str(error.value.shell_hint)
    run_share(file, 0, 2, settings)
    resumed = replace(order, options=replace(order.options, resume=True))
    assert planned(resumed, file, settings) == plan
    other = order_of(parent, "reward_shift:1", dest=tmp_path / "made", resume=True)
    with pytest.raises(UsageError, match="There is another plan"):
        planned(other, file, settings)
    forced = replace(other, options=replace(other.options, force=True))
    assert planned(forced, file, settings).place != plan.place
    assert not (plan.folder / plan.place).exists()
    shares(file, 1, settings)

    def shifted(row: Row) -> Row:
        row["next", "reward"] = row["next", "reward"] + 1
        return row

    check(tmp_path / "made", mapped(episodes_of(parent), shifted))


def test_a_plan_of_a_newer_version(
    parent: Path, file: Path, tmp_path: Path, settings: Settings
) -> None:
    planned(order_of(parent, CLIP, dest=tmp_path / "made"), file, settings)
    file.write_text(json.dumps({**json.loads(file.read_text()), "format_version": 2}))
    with pytest.raises(NewerFormatError, match="format 2"):
        run_share(file, 0, 1, settings)


def test_the_dataset_is_there_before_it_is_planned(
    parent: Path, file: Path, tmp_path: Path, settings: Settings
) -> None:
    made = make(parent, (CLIP,), tmp_path / "made", settings).path
    created = (made / "manifest.json").stat().st_mtime_ns
    plan = planned(order_of(parent, CLIP, dest=made), file, settings)
    assert (plan.published, plan.folder.exists()) == (True, False)
    share = run_share(file, 3, 4, settings)
    assert share.result is not None
    assert share.result.existed
    forced = order_of(parent, CLIP, dest=made, force=True)
    assert not planned(forced, file, settings).published
    assert (made / "manifest.json").stat().st_mtime_ns == created
    shares(file, 1, settings)
    assert (made / "manifest.json").stat().st_mtime_ns > created
    with pytest.raises(UsageError, match="another dataset"):
        planned(order_of(parent, "reward_shift:1", dest=made), tmp_path / "p.json", settings)


def test_force_replaces_the_dataset_of_that_name_when_the_new_one_is_there(
    parent: Path, file: Path, settings: Settings
) -> None:
    def named(stage: str, **more: Any) -> Job:
        return Job(parent, (stage,), "made", None, RunOptions(**more))

    planned(named(CLIP), file, settings)
    shares(file, 1, settings)
    (old,) = list_datasets(settings.root)
    other = file.with_name("other.json")
    with pytest.raises(UsageError, match="was made by another recipe"):
        planned(named("reward_shift:1"), other, settings)
    planned(named("reward_shift:1", force=True), other, settings)
    run_share(other, 0, 2, settings)
    assert [entry.id for entry in list_datasets(settings.root)] == [old.id]
    run_share(other, 1, 2, settings)
    (new,) = list_datasets(settings.root)
    assert new.id != old.id
    assert not old.path.exists()


def test_a_dataset_that_was_deleted_afterwards(
    parent: Path, file: Path, tmp_path: Path, settings: Settings
) -> None:
    planned(order_of(parent, CLIP, dest=tmp_path / "made"), file, settings)
    shares(file, 1, settings)
    (tmp_path / "made").rename(tmp_path / "away")
    with pytest.raises(NotFoundError, match="not in") as error:
        run_share(file, 0, 1, settings)
    assert "--force" in str(error.value.shell_hint)


def test_a_disk_that_is_too_small(
    parent: Path, file: Path, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = order_of(parent, CLIP, dest=tmp_path / "made")
    monkeypatch.setattr("offline_data.base.files.free_bytes", lambda _: 1000)
    with pytest.raises(NoSpaceError):
        planned(order, file, settings)
    assert not file.exists()


@pytest.fixture(autouse=True)
def _clock_runs_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = itertools.count()
    for name in ("time", "perf_counter", "monotonic"):
        monkeypatch.setattr(time, name, lambda: 1e9 - 10.0 * next(steps))


def in_a_thread(act: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(act()), daemon=True)
    thread.start()
    return thread, found


def test_a_plan_that_is_being_changed_is_waited_for(tmp_path: Path) -> None:
    told: SimpleQueue[str] = SimpleQueue()
    progress: Any = SimpleNamespace(note=told.put)

    def change() -> str:
        with plan_lock(tmp_path / "plan.json", progress):
            return "changed"

    with plan_lock(tmp_path / "plan.json", SILENT):
        thread, found = in_a_thread(change)
        assert told.get(timeout=120) == "another process is changing plan.json; waiting for it"
    thread.join(120)
    assert found == ["changed"]

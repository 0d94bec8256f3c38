"""Shares of one plan, whoever runs them and whenever they die, make what one local run makes."""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import NoSpaceError, NotFoundError, StepError, UsageError
from offline_data.base.progress import SILENT
from offline_data.pipeline.jobs.plan_file import plan_lock
from offline_data.pipeline.preprocess import engine, worker
from offline_data.pipeline.preprocess.job import Job, RunOptions
from offline_data.pipeline.preprocess.tasks import WriteTasks
from offline_data.pipeline.preprocess.worker import JobPlan, finish_job, plan_job, run_share
from offline_data.store.library import list_datasets
from offline_data.store.verify import verify
from tests.pipeline.preprocess.oracle import Row, check, digests, episodes_of, mapped
from tests.pipeline.preprocess.pairs import CLIP, clipped
from tests.pipeline.preprocess.runs import make, small_groups, write_plain, write_rich

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


@dataclass(frozen=True)
class Scene:
    """A place for a plan of several tasks, beside functions, and the ranks that follow it."""

    parent: Path
    folder: Path
    settings: Settings

    @property
    def functions(self) -> Path:
        return self.folder / "functions.py"

    @property
    def file(self) -> Path:
        return self.folder / "plans" / "plan.json"

    @property
    def made(self) -> Path:
        return self.folder / "shared" / "made"

    def plan(self, *stages: str, name: str | None = None, **more: Any) -> JobPlan:
        """Plan `made`, or `local:NAME`; a stage `fn:NAME` is a function of the file."""
        dest = self.made if name is None else None
        job = Job(self.parent, self._texts(stages), name, dest, RunOptions(audit="all", **more))
        return plan_job(job, self.file, self.settings)

    def share(self, rank: int = 0, world: int | None = 1) -> Any:
        return run_share(self.file, rank, world, self.settings)

    def shares(self, world: int) -> list[Any]:
        return [self.share(rank, world) for rank in range(world)]

    def finish(self) -> Any:
        return finish_job(self.file, self.settings)

    def local(self, *stages: str, **more: Any) -> dict[str, str]:
        """Return the digests of what one local run makes."""
        dest = self.folder / "local" / "made"
        return digests(make(self.parent, self._texts(stages), dest, self.settings, **more).path)

    def _texts(self, stages: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(stage.replace("fn:", f"fn:{self.functions}:") for stage in stages)

    def stop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Run all tasks, and stop before they are put together."""

        def interrupt(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(worker, "put_together", interrupt)
            with pytest.raises(KeyboardInterrupt):
                self.share()


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """23 transitions in 7 episodes."""
    return write_rich(tmp_path_factory.mktemp("rich") / "parent")


@pytest.fixture
def scene(rich: Path, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Scene:
    small_groups(monkeypatch, rows=4, width=5000)
    found = Scene(rich, tmp_path, settings)
    found.functions.write_text(FUNCTIONS)
    return found


@pytest.fixture(autouse=True)
def _clock_runs_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = itertools.count()
    for name in ("time", "perf_counter", "monotonic"):
        monkeypatch.setattr(time, name, lambda: 1e9 - 10.0 * next(steps))


def plain_tripled(row: Row) -> Row:
    if row["action",][0] < -2000:
        row["next", "reward"] = row["next", "reward"] * 3
    return row


def plain_late(episodes: list[Any]) -> list[Any]:
    """Tell the state after an action apart, from the 17th row on."""
    numbers, state = itertools.count(), ("next", "observation", "state")

    def changed(row: Row) -> Row:
        return {**row, state: row[state] + np.float32(0.5 if next(numbers) > 15 else 0)}

    return mapped(episodes, changed)


@pytest.mark.parametrize("world", [1, 3, 7])
def test_shares_make_what_a_local_run_makes(scene: Scene, world: int) -> None:
    stages = CLIP, "fn:tripled"
    plan = scene.plan(*stages, chunksize=4)
    assert plan.tasks > 3
    done = scene.shares(world)
    assert sum(share.ran for share in done) == plan.tasks
    results = [share.result for share in done]
    last = min(world, plan.tasks) - 1
    assert [result is not None for result in results] == [rank >= last for rank in range(world)]
    assert [result.existed for result in results if result] == [r > 0 for r in range(world - last)]
    check(scene.made, mapped(mapped(episodes_of(scene.parent), clipped), plain_tripled))
    assert not verify(scene.made)
    assert digests(scene.made) == scene.local(*stages)
    files = sorted(path.name for path in scene.file.parent.iterdir())
    assert files == [".plan.json.lock", "plan.json"]
    assert [path.name for path in scene.made.parent.iterdir()] == ["made"]


@pytest.mark.parametrize(
    ("stage", "calling"),
    [
        ("normalize:observation.state", {}),
        ("dedupe", {}),
        ("fn:shorter", {"by": "episode"}),
    ],
)
def test_other_kinds_of_steps(scene: Scene, stage: str, calling: dict[str, Any]) -> None:
    stages, options = (stage, "reward_shift:0.5"), {"layout": "ted", "num_frames": 21, **calling}
    scene.plan(*stages, **options)
    scene.shares(2)
    assert digests(scene.made) == scene.local(*stages, **options)


def test_the_plan_says_all_without_pickles(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(scene.folder)
    Path("parent").symlink_to(scene.parent)
    options = RunOptions(seed=5, num_frames=20, audit=0.5, chunksize=6)
    job = Job(Path("parent"), ("fn:functions.py:tripled", CLIP), "made", None, options)
    plan_job(job, Path("plans/plan.json"), scene.settings)
    value = json.loads(scene.file.read_text())
    function, clip = value["stages"]
    assert function["text"] == f"fn:{scene.functions}:tripled"
    assert len(bytes.fromhex(function["sha256"])) == 32
    assert len(bytes.fromhex(function["source"])) == 32
    assert clip == {"text": CLIP, "sha256": None, "source": None}
    assert value["parent"] == str(scene.folder / "parent")
    assert value["id"] == f"local:made@{value['fingerprint'][:12]}"
    assert value["destination"].startswith(str(scene.settings.root))
    assert (value["calling"]["seed"], value["options"]["num_frames"]) == (5, 20)
    assert [step["step"] for step in value["recipe"]] == ["fn", "clip"]
    JobPlan.read(scene.file).write()
    assert json.loads(scene.file.read_text()) == value
    for path in scene.file.parent.rglob("*"):
        assert not path.is_file() or not path.read_bytes().startswith(b"\x80")


def test_an_id_is_made_under_the_root_of_the_plan(scene: Scene) -> None:
    scene.plan(CLIP, name="made")
    elsewhere = replace(scene.settings, root=scene.folder / "elsewhere")
    share = run_share(scene.file, 0, 1, elsewhere)
    assert share.result is not None
    assert [entry.id for entry in list_datasets(scene.settings.root)] == [share.result.id]
    assert not elsewhere.root.exists()


def test_by_default_there_is_a_rank_for_each_task(scene: Scene) -> None:
    plan = scene.plan(CLIP)
    first = scene.share(0, None)
    assert (first.ran, first.missing) == (1, tuple(range(1, plan.tasks)))
    done = [scene.share(rank, None) for rank in range(1, plan.tasks)]
    assert done[-1].result is not None


def test_finished_tasks_are_not_run_again(scene: Scene) -> None:
    plan = scene.plan(CLIP)
    files = [path for path in plan.folder.rglob("*") if path.is_file()]
    times = []
    for ran in (plan.tasks // 2, 0):
        assert scene.share(1, 2).ran == ran
        files = [path for path in plan.folder.rglob("*") if path.is_file()]
        times.append({path: path.stat().st_mtime_ns for path in files})
    assert times[0] == times[1]
    assert scene.share(0, 1).ran == plan.tasks - plan.tasks // 2


def test_finish_names_what_is_missing_and_publishes_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = scene.plan(CLIP)
    assert scene.finish().missing == tuple(range(plan.tasks))
    scene.share(1, 3)
    assert scene.finish().missing == tuple(task for task in range(plan.tasks) if task % 3 != 1)
    scene.stop(monkeypatch)
    assert not scene.made.exists()
    assert [scene.finish().result.existed for _ in range(2)] == [False, True]
    assert scene.share(2, 3).result is not None


def test_finish_does_not_publish_damaged_rows(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = scene.plan(CLIP)
    scene.stop(monkeypatch)
    shard = next((plan.folder / plan.place / "shards" / "00001").rglob("*.memmap"))
    shard.write_bytes(shard.read_bytes()[:-1])
    assert scene.finish().missing == (1,)
    assert not scene.made.exists()


def test_a_function_that_has_changed_is_refused(scene: Scene) -> None:
    scene.plan("fn:tripled", chunksize=4)
    scene.share(0, 2)
    scene.functions.write_text(FUNCTIONS.replace("* 3", "* 4"))
    for go_on in (scene.finish, lambda: scene.share(1, 2)):
        with pytest.raises(UsageError, match="tripled has changed") as error:
            go_on()
        assert "--force" in str(error.value.shell_hint)
    scene.functions.write_text(FUNCTIONS + "\n# a remark\n")
    assert scene.share(1, 2).result is not None


@pytest.fixture(params=["file", "module"])
def changing(
    request: pytest.FixtureRequest, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Plan a function of a file, or of a package; gives a file that importing it runs."""
    if request.param == "file":
        scene.plan("fn:tripled", chunksize=4)
        yield scene.functions
        return
    package = scene.folder / "own_steps"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "scaling.py").write_text(FUNCTIONS)
    monkeypatch.chdir(scene.folder)
    monkeypatch.syspath_prepend(str(scene.folder))
    job = Job(scene.parent, ("fn:own_steps.scaling:tripled",), None, scene.made)
    plan_job(job, scene.file, scene.settings)
    for module in [one for one in sys.modules if one.startswith("own_steps")]:
        monkeypatch.delitem(sys.modules, module)
    yield package / "__init__.py"


def test_a_file_that_has_changed_is_not_imported(changing: Path, scene: Scene) -> None:
    ran = scene.folder / "ran"
    changing.write_text(f"{changing.read_text()}\nopen({str(ran)!r}, 'w').close()\n")
    plan = json.loads(scene.file.read_text())
    for source in (plan["stages"][0]["source"], None):
        plan["stages"][0]["source"] = source
        scene.file.write_text(json.dumps(plan))
        for go_on in (scene.finish, scene.share):
            with pytest.raises(UsageError, match="tripled has changed"):
                go_on()
    assert not ran.exists()


def test_a_parent_that_has_changed_is_refused(scene: Scene) -> None:
    own = replace(scene, parent=write_plain(scene.folder / "parent", [5, 4, 3]))
    own.plan(CLIP)
    own.parent.rename(scene.folder / "old")
    write_plain(own.parent, [5, 4, 4])
    with pytest.raises(UsageError, match="parent has changed"):
        own.share()


def finished_tasks(scene: Scene) -> list[Path]:
    return list(scene.folder.glob("plans/*.work/*/finished/[0-9]*.record"))


def test_a_function_that_fails_or_is_interrupted_keeps_what_is_finished(scene: Scene) -> None:
    broken = scene.folder / "broken"
    plan = scene.plan("fn:stopping", chunksize=4)
    broken.touch()
    with pytest.raises(KeyboardInterrupt) as interrupt:
        scene.share()
    broken.unlink()
    kept = len(finished_tasks(scene))
    assert 1 <= kept < plan.tasks
    assert f"; {kept} of {plan.tasks} tasks are finished and kept" in str(interrupt.value)
    plan = scene.plan("fn:failing", chunksize=4, force=True)
    broken.touch()
    with pytest.raises(StepError, match=r"failed on row \d+ .*\n(?s:.*)broken"):
        scene.share()
    broken.unlink()
    kept = len(finished_tasks(scene))
    assert 1 <= kept < plan.tasks
    assert scene.share().ran == plan.tasks - kept
    check(scene.made, episodes_of(scene.parent))


def test_what_the_data_ask_for_late_makes_another_plan(scene: Scene) -> None:
    plan = scene.plan("fn:late", chunksize=4)
    done = [scene.share(0, 2), scene.share(1, 2)]
    if done[0].plan.generation == 0:
        done.append(scene.share(0, 2))
    assert JobPlan.read(scene.file).generation == 1
    assert JobPlan.read(scene.file).place != plan.place
    assert done[-1].result is not None
    check(scene.made, plain_late(episodes_of(scene.parent)))
    assert digests(scene.made) == scene.local("fn:late", chunksize=4)


def test_a_rank_at_work_sees_another_plan_before_its_next_task(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one rank is in a task, another finds what changes the plan: its own work is moot."""
    plan = scene.plan("fn:late", chunksize=4)
    ran: list[str] = []

    class Meanwhile(WriteTasks):
        def in_order(self, tasks: Sequence[int]) -> Iterator[int]:
            for task in tasks:
                ran.append(self.work.path.name)
                if len(ran) == 1:
                    assert scene.share(1, 2).plan.generation == 1
                yield from super().in_order([task])

    monkeypatch.setattr(engine, "WriteTasks", Meanwhile)
    share = scene.share(0, 2)
    assert ran.count(plan.place) < plan.tasks
    assert share.plan.generation == 1
    assert share.result is not None
    assert ran[-1] == JobPlan.read(scene.file).place
    check(scene.made, plain_late(episodes_of(scene.parent)))


def test_a_plan_that_is_there_is_resumed_or_replaced(scene: Scene) -> None:
    plan = scene.plan(CLIP)
    scene.share(0, 2)
    assert scene.plan(CLIP, resume=True) == plan
    assert scene.plan("reward_shift:1", force=True).place != plan.place
    assert not (plan.folder / plan.place).exists()
    scene.share()

    def shifted(row: Row) -> Row:
        return {**row, ("next", "reward"): row["next", "reward"] + 1}

    check(scene.made, mapped(episodes_of(scene.parent), shifted))


def test_the_dataset_is_there_before_it_is_planned(scene: Scene) -> None:
    make(scene.parent, (CLIP,), scene.made, scene.settings)
    manifest = scene.made / "manifest.json"
    created = manifest.stat().st_mtime_ns
    plan = scene.plan(CLIP)
    assert (plan.published, plan.folder.exists()) == (True, False)
    assert scene.share(3, 4).result.existed
    assert not scene.plan(CLIP, force=True).published
    assert manifest.stat().st_mtime_ns == created
    scene.share()
    assert manifest.stat().st_mtime_ns > created
    scene.file.unlink()
    with pytest.raises(UsageError, match="another dataset"):
        scene.plan("reward_shift:1")


def test_force_replaces_the_dataset_of_that_name_when_the_new_one_is_there(scene: Scene) -> None:
    scene.plan(CLIP, name="made")
    scene.share()
    (old,) = list_datasets(scene.settings.root)
    scene.file.unlink()
    with pytest.raises(UsageError, match="was made by another recipe"):
        scene.plan("reward_shift:1", name="made")
    scene.plan("reward_shift:1", name="made", force=True)
    scene.share(0, 2)
    assert [entry.id for entry in list_datasets(scene.settings.root)] == [old.id]
    scene.share(1, 2)
    (new,) = list_datasets(scene.settings.root)
    assert new.id != old.id
    assert not old.path.exists()


def test_a_dataset_that_was_deleted_afterwards(scene: Scene) -> None:
    scene.plan(CLIP)
    scene.share()
    scene.made.rename(scene.folder / "away")
    with pytest.raises(NotFoundError, match="not in") as error:
        scene.share()
    assert "--force" in str(error.value.shell_hint)


def test_a_disk_that_is_too_small(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offline_data.base.files.free_bytes", lambda _: 1000)
    with pytest.raises(NoSpaceError):
        scene.plan(CLIP)
    assert not scene.file.exists()


def test_a_plan_that_is_being_changed_is_waited_for(tmp_path: Path) -> None:
    told: SimpleQueue[str] = SimpleQueue()
    progress: Any = SimpleNamespace(note=told.put)
    found: list[str] = []

    def change() -> None:
        with plan_lock(tmp_path / "plan.json", progress):
            found.append("changed")

    with plan_lock(tmp_path / "plan.json", SILENT):
        thread = threading.Thread(target=change, daemon=True)
        thread.start()
        assert told.get(timeout=120) == "another process is changing plan.json; waiting for it"
        assert not found
    thread.join(120)
    assert found == ["changed"]

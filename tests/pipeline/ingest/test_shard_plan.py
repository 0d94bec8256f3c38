"""Plans of downloads and conversions: programs that share a file, and nothing else."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import IntegrityError, NotFoundError, UsageError
from offline_data.base.ids import parse_id
from offline_data.pipeline.ingest import (
    Options,
    download,
    plan_convert_for_workers,
    plan_for_workers,
)
from offline_data.pipeline.ingest.shard_plan import ShardPlan
from offline_data.pipeline.jobs.executors import InProcess
from offline_data.pipeline.preprocess.worker import finish_job, run_share
from offline_data.testing.toy import toy_batch, write_toy
from tests.pipeline.ingest.test_shards import Notes, check, left, plain, raw_files
from tests.toys.servers import FileServer
from tests.toys.sharded import served, write_toy_shards

NAME = "sharded-5x2"
ID = parse_id(f"shardtoy:{NAME}")


@pytest.fixture
def settings(sharded: Settings, server: FileServer) -> Settings:
    server.files.update(served(NAME))
    return sharded


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return tmp_path / "plan.json"


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [False, True])
def test_ranks_make_what_a_download_makes(settings: Settings, plan: Path, at_once: bool) -> None:
    expected = download(ID, settings, Options(), executor=InProcess()).manifest
    made = plan_for_workers(ID, plan, settings, Options(force=True))
    assert (made.tasks, made.published) == (5, False)
    assert raw_files(settings) != []  # what opening it needs

    def run(rank: int) -> Any:
        return run_share(plan, rank, 3, Settings(Path("elsewhere"), mirrors=settings.mirrors))

    with ThreadPoolExecutor(3 if at_once else 1) as pool:
        shares = list(pool.map(run, range(3)))
    assert sum(share.ran for share in shares) == 5
    (stored,) = [share.result for share in shares if share.result and not share.result.existed]
    check(stored, range(10))
    assert plain(stored.manifest) == plain(expected)
    late = run_share(plan, 0, 1, settings)
    assert late.result
    assert late.result.existed
    assert (left(settings), raw_files(settings)) == ([], [])


def test_a_download_goes_on_with_what_ranks_have_done(settings: Settings, plan: Path) -> None:
    plan_for_workers(ID, plan, settings, Options())
    share = run_share(plan, 1, 2, settings)
    assert (share.ran, share.missing, share.result) == (2, (0, 2, 4), None)
    assert finish_job(plan, settings).missing == (0, 2, 4)
    notes = Notes()
    check(download(ID, settings, Options(), notes, executor=InProcess()), range(10))
    assert "resuming: 2 of 5 shards done" in notes.told
    for share in (finish_job(plan, settings), run_share(plan, 0, 1, settings)):
        assert share.result is not None
        assert (share.ran, share.result.existed) == (0, True)


def test_what_a_kill_left_beside_a_plan_goes_when_it_is_written(
    settings: Settings, plan: Path
) -> None:
    left_over = plan.with_name(f".{plan.name}.1234abcd.tmp")
    left_over.write_text("half a plan")
    plan_for_workers(ID, plan, settings, Options())
    assert not left_over.exists()


def test_a_plan_of_a_folder(settings: Settings, plan: Path, tmp_path: Path) -> None:
    folder = write_toy_shards(tmp_path / "raw", NAME)
    plan_convert_for_workers(folder, "mine", plan, settings, Options())
    share = run_share(plan, 0, 1, settings)
    assert share.result is not None
    check(share.result, range(10))
    assert str(share.result.id).startswith("local:mine@local-")
    again = plan_convert_for_workers(folder, "mine", tmp_path / "b.json", settings, Options())
    assert again.published
    (folder / "extra").write_text("changed")
    with pytest.raises(UsageError, match="made from other files"):
        plan_convert_for_workers(folder, "mine", tmp_path / "c.json", settings, Options(force=True))


def test_a_range_of_episodes(settings: Settings, plan: Path) -> None:
    made = plan_for_workers(ID, plan, settings, Options(episodes=(3, 8)))
    assert made.tasks == 3
    share = run_share(plan, 0, 1, settings)
    assert share.result is not None
    check(share.result, range(3, 8))


def test_a_plan_of_one_file(settings: Settings, plan: Path, tmp_path: Path) -> None:
    """What can be read from anywhere is one task; it is converted as it would be here."""
    toy = write_toy(tmp_path / "toy", [toy_batch([3, 1, 2, 4])])
    for episodes, count in ((None, 4), ((1, 3), 2)):
        options = Options(episodes=episodes, layout="ted")
        made = plan_convert_for_workers(tmp_path / "toy", f"of{count}", plan, settings, options)
        assert made.tasks == 1
        share = run_share(plan, 0, 1, settings)
        assert share.result is not None
        assert share.result.manifest.counts["episodes"] == count
        assert share.result.manifest.parents == (toy.id,)
        plan.unlink()
    plan_convert_for_workers(tmp_path / "toy", "none", plan, settings, Options(episodes=(4, 9)))
    with pytest.raises(NotFoundError, match="4 episodes"):
        run_share(plan, 0, 1, settings)


def test_a_plan_is_replaced_by_force(settings: Settings, plan: Path) -> None:
    first = plan_for_workers(ID, plan, settings, Options())
    assert plan_for_workers(ID, plan, settings, Options()) == first
    plan_for_workers(ID, plan, settings, Options(layout="ted", force=True))
    assert json.loads(plan.read_text())["job"]["layout"] == "ted"


def test_a_plan_has_all_options(settings: Settings, plan: Path) -> None:
    options = Options(allow_changed=True, keep_episodes=True, episodes=(1, 8), audit=0.5)
    made = plan_for_workers(ID, plan, settings, options)
    assert ShardPlan.read(plan) == made
    value = json.loads(plan.read_text())
    given = value["job"]["options"]
    for name in ("allow_changed", "raw_only"):  # as plans were written before
        del given[name]
    for name in ("episodes", "checkpoints", "split", "text"):
        value["job"][name] = given.pop(name)
    plan.write_text(json.dumps(value))
    before = ShardPlan.read(plan)
    assert before.job is not None
    assert before.job.build.options == replace(options, allow_changed=False)


@pytest.mark.slow
def test_a_dataset_that_was_deleted_since(settings: Settings, plan: Path) -> None:
    plan_for_workers(ID, plan, settings, Options())
    share = run_share(plan, 0, 1, settings)
    assert share.result is not None
    shutil.rmtree(share.result.path)
    with pytest.raises(NotFoundError, match="is not in") as caught:
        run_share(plan, 0, 1, settings)
    assert "download … --plan-only" in str(caught.value.shell_hint)


def test_a_plan_whose_files_would_lead_out(settings: Settings, plan: Path) -> None:
    plan_for_workers(ID, plan, settings, Options())
    plan.write_text(plan.read_text().replace("data-00002", "../../data-00002"))
    with pytest.raises(IntegrityError, match=r"\.\./\.\./data"):
        run_share(plan, 0, 1, settings)

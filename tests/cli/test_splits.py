"""Folders with several splits: one is chosen, or all are asked for by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import NotFoundError, UsageError
from offline_data.pipeline.ingest import Options, plan_convert_for_workers
from offline_data.pipeline.ingest.shard_plan import ShardPlan
from offline_data_cli.main import main
from tests.cli.conftest import Cli, Terminal
from tests.pipeline.ingest.here import conversions_start_no_process
from tests.toys.rlds import toy_record, write_rlds, write_toy_rlds

__all__ = ["conversions_start_no_process"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`train` has episodes 0 to 4 and `val` 5 and 6."""
    return write_toy_rlds(tmp_path / "raw")


def splits_of(dataset: str, root: Path) -> list[str]:
    found: Any = offline_data.load_dataset(dataset, root=root, download=False).episodes["split"]
    return list(found)


def test_a_split_must_be_chosen(cli: Cli, folder: Path, tmp_path: Path) -> None:
    ran = cli("convert", str(folder), "mine")
    assert ran.code == 2
    assert f"{folder} has 2 splits: train, val" in ran.err.replace("\n", " ")
    assert "choose one: --split='train'; or all as one dataset: --split='all'" in ran.err
    assert cli("convert", str(folder), "mine", "--dry-run").code == 2
    assert cli("list", "--json").json == []
    ran = cli("convert", str(folder), "mine", "--split", "vall")
    assert (ran.code, "has no split 'vall'; it has train, val" in ran.err) == (3, True)
    root = tmp_path / "root"
    for split, expected in {"val": ["val"] * 2, "train": ["train"] * 5}.items():
        stored = cli("convert", str(folder), split, "--split", split, "--json").json[0]
        assert stored["id"].endswith(f"+split-{split}")
        assert splits_of(f"local:{split}", root) == expected
        recorded = json.loads((Path(stored["path"]) / "manifest.json").read_text())
        assert recorded["converter"]["options"]["split"] == split
    ran = cli("convert", str(folder), "both", "--split", "all")
    assert ran.code == 0
    assert splits_of("local:both", root) == ["train"] * 5 + ["val"] * 2
    notes = cli("info", "local:both", "--json").json["notes"]
    assert any("It has the splits train and val, in this order" in note for note in notes)


def test_on_a_terminal_it_is_asked_for(
    folder: Path, tmp_path: Path, terminal: Callable[..., Terminal], cli: Cli
) -> None:
    del cli  # sets the root
    screen = terminal("2\n")
    assert main(["convert", str(folder), "mine"]) == 0
    shown = screen.err.text
    assert [f"{n}  {name}" in shown for n, name in enumerate(("train", "val", "all"), 1)] == [
        True
    ] * 3
    assert splits_of("local:mine", tmp_path / "root") == ["val"] * 2


def test_in_python(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has 2 splits: train, val") as error:
        offline_data.convert(folder, "mine", root=tmp_path)
    assert error.value.hint is not None
    assert "split='train'" in error.value.hint
    with pytest.raises(UsageError, match="has 2 splits"):
        offline_data.StreamingDataset(folder, 4, root=tmp_path)
    stored = offline_data.convert(folder, "mine", root=tmp_path, split="val")
    streamed = offline_data.StreamingDataset(folder, 4, root=tmp_path, split="val", shuffle=False)
    assert sum(len(batch) for batch in streamed) == stored.manifest.counts["valid_transitions"]
    with pytest.raises(UsageError, match="split= and executor= are for a file or folder"):
        offline_data.convert({}, "none", root=tmp_path, split="val")


def test_one_split_needs_no_choice_and_others_have_none(tmp_path: Path, cli: Cli) -> None:
    one = write_rlds(tmp_path / "one", {"train": [[toy_record(0, 2)]]})
    assert cli("convert", str(one), "one").code == 0
    assert cli("convert", str(one), "same", "--split", "train").code == 0
    with pytest.raises(NotFoundError, match="has no split 'val'; it has train"):
        offline_data.convert(one, "x", root=tmp_path, split="val")
    from tests.toys.d4rl import write_d4rl_hdf5

    ran = cli("convert", str(write_d4rl_hdf5(tmp_path / "a.hdf5")), "a", "--split", "train")
    assert (ran.code, "has no separate splits" in ran.err) == (2, True)


def test_a_plan_keeps_the_split(folder: Path, tmp_path: Path) -> None:
    settings, file = Settings(tmp_path / "root"), tmp_path / "plan.json"
    plan_convert_for_workers(folder, "mine", file, settings, Options(split="val"))
    job = ShardPlan.read(file).job
    assert job is not None
    assert (job.release.options.split, job.build.options.split, len(job.shards)) == (
        "val",
        "val",
        1,
    )

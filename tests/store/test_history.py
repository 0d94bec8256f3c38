"""The steps from the source to a dataset are read from its manifest, also where no parent is on disk."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from offline_data.analysis.info import DatasetInfo, dataset_info
from offline_data.base.config import Settings
from offline_data.pipeline.preprocess.engine import preprocess
from offline_data.pipeline.preprocess.job import Job, RunOptions
from offline_data.store.copies import copy_dataset, rename_dataset
from offline_data.store.history import extend_history, history_of
from offline_data.store.layout import MANIFEST
from offline_data.store.library import entry_at
from offline_data.store.manifest import HistoryStep, Manifest, dump_manifest, read_manifest
from offline_data.testing.toy import toy_batch, write_toy
from tests.cli.conftest import (
    Cli,
    cli,  # noqa: F401 - a fixture
)


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """Return a dataset that is not under the root."""
    write_toy(tmp_path / "toy", [toy_batch([3, 1, 4])])
    return tmp_path / "toy"


@pytest.fixture
def chain(settings: Settings, toy: Path) -> list[Path]:
    """Return the source, a clipped and filtered dataset of it, and a cast one of that."""
    clipped = preprocess(Job(toy, ("clip:action,low=-1", "filter:length > 1"), "clipped"), settings)
    cast = preprocess(Job(clipped.path, ("cast:action=float64",), "cast"), settings)
    return [toy, clipped.path, cast.path]


def steps_of(folder: Path, root: Path | None = None) -> list[tuple[str, str]]:
    return [(step.action, step.id) for step in history_of(read_manifest(folder), root)]


def forget(folder: Path) -> None:
    """Remove what versions without a history did not write."""
    manifest = replace(read_manifest(folder), history=())
    (folder / MANIFEST).write_text(dump_manifest(manifest))


def test_each_step_without_the_parents(chain: list[Path], settings: Settings) -> None:
    source, clipped, cast = map(read_manifest, chain)
    digests = [manifest.sha256 for manifest in (source, clipped, cast)]
    for folder in chain[:2]:
        shutil.rmtree(folder)
    found = history_of(read_manifest(chain[2]))
    assert [(step.action, step.id, step.parents, step.sha256, step.created) for step in found] == [
        ("convert", source.id, (), digests[0], source.created),
        ("preprocess", clipped.id, (source.id,), digests[1], clipped.created),
        ("preprocess", cast.id, (clipped.id,), digests[2], cast.created),
    ]
    assert found[1].recipe == (
        {"step": "clip", "keys": ["action"], "low": -1, "high": None},
        {"step": "filter", "where": "length > 1"},
    )
    info = dataset_info(str(chain[2]), settings)
    assert isinstance(info, DatasetInfo)
    assert info.history == found


def test_copies_and_renamed_datasets(chain: list[Path], settings: Settings) -> None:
    source, clipped, cast = (read_manifest(folder).id for folder in chain)
    copy = copy_dataset(entry_at(chain[2]), "copy", settings)
    renamed = rename_dataset(copy, "other", settings)
    made = [("convert", source), ("preprocess", clipped), ("preprocess", cast)]
    assert steps_of(renamed.path) == [*made, ("copy", str(copy.id)), ("rename", str(renamed.id))]


def test_options(toy: Path, settings: Settings) -> None:
    job = Job(toy, ("filter:length > 1",), "cut", options=RunOptions(num_frames=4))
    made = preprocess(job, settings)
    assert history_of(made.manifest)[-1].options == {"num_frames": 4}


def test_parents_of_older_versions_are_looked_for(chain: list[Path], settings: Settings) -> None:
    source, clipped, cast = (read_manifest(folder).id for folder in chain)
    for folder in chain[1:]:
        forget(folder)
    assert steps_of(chain[2]) == [("unknown", clipped), ("preprocess", cast)]
    whole = [("unknown", source), ("preprocess", clipped), ("preprocess", cast)]
    assert steps_of(chain[2], settings.root) == whole  # the source is not under the root
    again = copy_dataset(entry_at(chain[2]), "copy", settings)
    assert steps_of(again.path, settings.root) == [*whole, ("copy", str(again.id))]
    shutil.rmtree(chain[1])
    assert steps_of(chain[2], settings.root) == [("unknown", clipped), ("preprocess", cast)]


def test_parents_in_a_loop_and_with_invalid_ids(chain: list[Path], settings: Settings) -> None:
    first, second = chain[1:]
    loop = replace(read_manifest(first), parents=(read_manifest(second).id, "../..:x"), history=())
    (first / MANIFEST).write_text(dump_manifest(loop))
    forget(second)
    assert steps_of(second, settings.root) == [
        ("unknown", "../..:x"), ("preprocess", loop.id), ("preprocess", read_manifest(second).id),
    ]  # fmt: skip


def test_shared_steps_are_listed_once() -> None:
    one = Manifest("local:x@1", "local", "x", "1", "compact", {}, {}, parents=("a:b@1",))
    parts = [one, replace(one, id="local:y@1")]
    found = extend_history(parts, HistoryStep("merge", "local:both@1"))
    assert [step.id for step in found] == ["a:b@1", "local:x@1", "local:y@1", "local:both@1"]


def test_info_history(chain: list[Path], cli: Cli) -> None:  # noqa: F811
    source, clipped, cast = (read_manifest(folder).id for folder in chain)
    ran = cli("info", str(chain[2]), "--history")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == f"1. convert {source}"
    at = lines.index(f"2. preprocess {clipped}")
    assert lines[at + 1 : at + 4] == [
        f"made from\t{source}", "steps\tclip: keys=[action], low=-1",
        "steps\tfilter: where=length > 1",
    ]  # fmt: skip
    assert f"3. preprocess {cast}" in lines
    shown = cli("info", str(chain[2]), "--history", "--json").json
    assert [step["id"] for step in shown["history"]] == [source, clipped, cast]
    assert shown["history"] == cli("info", str(chain[2]), "--json").json["history"]

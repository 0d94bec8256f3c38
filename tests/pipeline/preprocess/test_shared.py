"""Files that a dataset shares with its parent, since no feature in them changes."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import IntegrityError
from offline_data.pipeline.preprocess.engine import preprocess
from offline_data.pipeline.preprocess.job import Job, RunOptions, Stage
from offline_data.project.share.push import push_dataset
from offline_data.store.copies import copy_dataset, rename_dataset
from offline_data.store.library import entry_at, remove_datasets
from offline_data.store.reader import open_reader
from offline_data.store.verify import verify
from tests.pipeline.preprocess.oracle import check, digests, episodes_of
from tests.pipeline.preprocess.runs import (
    Shuffled,
    make,
    small_groups,
    write_plain,
    write_rich,
)

CLIP = "clip:action,low=-5000"
STEPS = "steps/rows.memmap"
OBSERVED = "observations/rows.memmap"
PIXELS = "observations/observation/image.memmap"


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    small_groups(monkeypatch, rows=4, width=45)
    return write_plain(tmp_path / "toy")


def same(td: Any) -> Any:
    return td


def shared(one: Path, other: Path) -> set[str]:
    names = {path.relative_to(one).as_posix() for path in one.rglob("*.memmap")}
    return {n for n in names if (other / n).exists() and (one / n).samefile(other / n)}


@pytest.mark.parametrize(
    ("write", "stages", "options", "expected"),
    [
        (write_plain, [CLIP], {}, {OBSERVED}),
        (write_plain, [CLIP, "reward_scale:2"], {"executor": Shuffled()}, {OBSERVED}),
        (write_plain, ["clip:observation.state,high=9"], {}, {STEPS}),
        (write_plain, ["clip:observation.state,low=-9"], {}, {STEPS}),  # changes none of few rows
        (write_plain, ["cast:observation.state=float64"], {}, {STEPS}),
        (write_plain, [same], {}, {STEPS, OBSERVED}),
        (write_rich, [CLIP], {}, {PIXELS}),  # the other observations have complex numbers
        (write_rich, ["clip:observation.image,low=9"], {}, {STEPS}),  # with text
        (write_plain, [CLIP], {"num_frames": 9}, set()),
        (write_plain, [CLIP], {"layout": "ted"}, set()),
        (write_plain, ["filter:length > 1", CLIP], {}, set()),
        (write_plain, ["subsample:every=2"], {}, set()),
        (write_plain, [CLIP], {"executor": Shuffled(shards=True)}, set()),
        (write_plain, [CLIP], {"shares_parent_files": False}, set()),
    ],
)
def test_files_of_features_that_do_not_change(
    tmp_path: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[Path], Path],
    stages: list[Stage],
    options: dict[str, Any],
    expected: set[str],
) -> None:
    small_groups(monkeypatch)
    parent = write(tmp_path / "parent")
    make(parent, stages, tmp_path / "out", settings, **options)
    make(
        parent,
        stages,
        tmp_path / "apart" / "out",
        settings,
        **options | {"shares_parent_files": False},
    )
    assert shared(parent, tmp_path / "out") == expected
    assert digests(tmp_path / "out") == digests(tmp_path / "apart" / "out")
    assert verify(tmp_path / "out") == ()
    for name in expected:
        assert (parent / name).stat().st_mode & 0o222 == 0


@pytest.mark.parametrize("executor", [None, pytest.param(Shuffled(), marks=pytest.mark.slow)])
def test_a_feature_that_changes_in_late_rows_only(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, executor: Any
) -> None:
    small_groups(monkeypatch, rows=100, width=45)
    parent = write_plain(tmp_path / "toy", [400] * 4)
    before = digests(parent)

    def fn(td: Any) -> Any:
        state = td["observation", "state"]
        td["observation", "state"] = state + (state == 2378)  # of row 777
        return td

    options = RunOptions(audit="none", executor=executor, on="observations", vectorize=False)
    preprocess(Job(parent, (fn,), None, tmp_path / "out", options), settings)
    changed = [
        row
        for one, other in zip(episodes_of(parent), episodes_of(tmp_path / "out"), strict=True)
        for row, (a, b) in enumerate(zip(one.rows, other.rows, strict=True), one.number * 400)
        if (a["observation", "state"] != b["observation", "state"]).any()
    ]
    assert changed == [777]  # and the observation after row 776
    assert digests(parent) == before
    assert shared(parent, tmp_path / "out") == set()


def test_numbers_of_episodes_that_are_wrong_in_the_parent(
    parent: Path, tmp_path: Path, settings: Settings
) -> None:
    place = open_reader(parent).step_leaves["episode",]
    with (parent / STEPS).open("r+b") as file:
        file.seek(place.offset + 5 * place.stride)
        file.write(b"\x63")
    make(parent, ["clip:observation.state,high=9"], tmp_path / "out", settings)
    assert shared(parent, tmp_path / "out") == set()
    made = open_reader(tmp_path / "out")
    np.testing.assert_array_equal(
        made.step(("episode",)), np.repeat(np.arange(len(made.lengths)), made.lengths)
    )


def overwrite(path: Path) -> None:
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.write(b"\xff" * 8)


def replace_by_another(parent: Path) -> None:
    shutil.rmtree(parent)
    write_plain(parent, [2, 2])


@pytest.mark.parametrize(
    ("change", "problems"),
    [
        (shutil.rmtree, 0),
        (lambda parent: remove_datasets([entry_at(parent)]), 0),
        (replace_by_another, 0),
        (lambda parent: (parent / OBSERVED).unlink(), 0),
        (lambda parent: overwrite(parent / OBSERVED), 1),
    ],
)
def test_a_parent_that_is_deleted_replaced_or_damaged(
    parent: Path,
    tmp_path: Path,
    settings: Settings,
    change: Callable[[Path], object],
    problems: int,
) -> None:
    wanted = make_and_read(parent, tmp_path / "apart" / "out", settings, shares_parent_files=False)
    make(parent, [CLIP], tmp_path / "out", settings)
    change(parent)
    assert len(verify(tmp_path / "out")) == problems
    if not problems:
        check(tmp_path / "out", wanted)


def make_and_read(parent: Path, out: Path, settings: Settings, **options: Any) -> Any:
    make(parent, [CLIP], out, settings, **options)
    return episodes_of(out)


def test_what_is_done_with_the_new_dataset_leaves_the_parent_as_it_is(
    parent: Path, tmp_path: Path, settings: Settings
) -> None:
    made, before = tmp_path / "out", digests(parent)
    wanted = make_and_read(parent, made, settings)
    entry = entry_at(made)
    check(copy_dataset(entry, "copied", settings).path, wanted)
    pushed = push_dataset(entry, str(tmp_path / "pushed"), settings)
    assert digests(made).items() <= digests(Path(pushed.to)).items()
    check(rename_dataset(entry, "renamed", settings).path, wanted)
    assert not made.exists()
    assert digests(parent) == before
    assert verify(parent) == ()


def test_deleting_frees_what_no_other_dataset_has(
    parent: Path, tmp_path: Path, settings: Settings
) -> None:
    make(parent, [CLIP], tmp_path / "out", settings)
    one, other = entry_at(parent), entry_at(tmp_path / "out")
    size = (parent / OBSERVED).stat().st_size
    assert remove_datasets([one], dry_run=True).bytes == one.bytes - size
    assert remove_datasets([one, other], dry_run=True).bytes == one.bytes + other.bytes - size
    remove_datasets([one])
    assert remove_datasets([other]).bytes == other.bytes


def cloned(target: Any, request: int, source: int) -> int:
    assert request == 0x40049409
    target.write(os.pread(source, os.fstat(source).st_size, 0))
    return 0


def refuse(*_: Any) -> None:
    raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [(fcntl, "ioctl", cloned), (os, "link", refuse), (os, "geteuid", lambda: 12345)],
    ids=["reflink", "another filesystem", "another user's file"],
)
def test_files_that_cannot_be_linked_or_need_not_be(
    parent: Path,
    tmp_path: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    where: Any,
    name: str,
    value: Any,
) -> None:
    wanted = make_and_read(parent, tmp_path / "apart" / "out", settings, shares_parent_files=False)
    mode = (parent / OBSERVED).stat().st_mode
    with monkeypatch.context() as patch:
        patch.setattr(where, name, value)
        make(parent, [CLIP], tmp_path / "out", settings)
    assert shared(parent, tmp_path / "out") == set()
    assert (parent / OBSERVED).stat().st_mode == mode
    check(tmp_path / "out", wanted)
    assert verify(tmp_path / "out") == ()


def test_a_damaged_file_is_not_copied(
    parent: Path, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    overwrite(parent / OBSERVED)
    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(IntegrityError, match="does not match its checksum"):
        make(parent, [CLIP], tmp_path / "out", settings)
    assert not (tmp_path / "out").exists()


def test_an_interrupted_run_shares_the_same_files(
    parent: Path, tmp_path: Path, settings: Settings
) -> None:
    class Stopping(Shuffled):
        def run(self, job: Any, tasks: Any, progress: Any) -> Any:
            yield next(super().run(job, tasks, progress))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(parent, [CLIP], tmp_path / "out", settings, executor=Stopping())
    wanted = make_and_read(parent, tmp_path / "apart" / "out", settings, shares_parent_files=False)
    make(parent, [CLIP], tmp_path / "out", settings, resume=True)
    assert shared(parent, tmp_path / "out") == {OBSERVED}
    check(tmp_path / "out", wanted)

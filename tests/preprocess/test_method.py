"""`ds.preprocess` takes what TorchRL's does, and gives a storage for a replay buffer."""

from __future__ import annotations

import inspect
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch

import offline_data
from offline_data.buffers.storage import DatasetStorage
from offline_data.errors import UsageError
from offline_data.preprocess.steps.columns import Clip
from offline_data.testing.toy import toy_batch, write_toy
from tests.preprocess.oracle import Plain, Row, check, cut, digests, episodes_of, mapped
from tests.preprocess.runs import LENGTHS, Notes, Shuffled, write_rich


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OFFLINE_DATA_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_rich(tmp_path / "rich")


@pytest.fixture
def ds(folder: Path) -> Any:
    return offline_data.open_dataset(folder)


def thirds(td: Any) -> Any:
    td["next", "reward"] = td["next", "reward"] / 3
    return td


def plain_thirds(row: Row) -> Row:
    row["next", "reward"] = row["next", "reward"] / 3
    return row


def rewards_of(folder: Path) -> Any:
    return Plain(folder).leaf("steps", "next", "reward")


def test_a_storage_for_a_replay_buffer(ds: Any, folder: Path, tmp_path: Path) -> None:
    storage = ds.preprocess(thirds, dest=tmp_path / "out")
    assert isinstance(storage, DatasetStorage)
    check(tmp_path / "out", mapped(episodes_of(folder), plain_thirds))
    torch.manual_seed(0)
    buffer = offline_data.ReplayBuffer(storage=storage, batch_size=40)
    batch = buffer.sample()
    rows = batch["index"]
    assert len(set(rows.tolist())) > 10
    rewards = rewards_of(folder)
    np.testing.assert_array_equal(batch["next", "reward"].numpy(), rewards[rows] / 3)
    again = offline_data.open_dataset(str(tmp_path / "out"))
    np.testing.assert_array_equal(again[5]["next", "reward"], rewards_of(folder)[5] / 3)
    assert again.manifest.parents == ("local:rich@7",)


def test_every_argument_of_torchrl(ds: Any, folder: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torchrl's own modules
        from torchrl.data.datasets.common import BaseDatasetExperienceReplay

    theirs = inspect.signature(BaseDatasetExperienceReplay.preprocess).parameters
    ours = inspect.signature(type(ds).preprocess).parameters
    assert [n for n in theirs if n not in ours] == []
    positional = [n for n, p in theirs.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [n for n, p in ours.items() if p.kind is p.POSITIONAL_OR_KEYWORD] == positional
    ds.preprocess(
        thirds,
        0,
        4,
        dest=str(tmp_path / "out"),
        chunksize=0,
        num_chunks=None,
        pool=None,
        generator=torch.Generator().manual_seed(5),
        max_tasks_per_child=3,
        worker_threads=1,
        index_with_generator=False,
        pbar=False,
        mp_start_method="spawn",
        num_frames=9,
    )
    check(tmp_path / "out", mapped(cut(episodes_of(folder), 9), plain_thirds))


@pytest.mark.parametrize(
    "wrong",
    [
        {"dim": 1},
        {"index_with_generator": True},
        {"mp_start_method": "thread"},
        {"seed": 3, "generator": torch.Generator()},
        {"engine": "dask"},
        {"pool": 5},
        {"chunksize": 3, "num_chunks": 2},
        {"num_frames": 0},
        {"by": "column"},
        {"name": "x"},
        {"dest": None},
    ],
)
def test_arguments_that_cannot_be_meant(ds: Any, tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ds.preprocess(thirds, **{"dest": tmp_path / "out", **wrong})
    assert not (tmp_path / "out").exists()


def test_the_example_of_torchrl(folder: Path) -> None:
    """As their documentation has it, the import changed, and keys of this dataset."""
    from torchrl.envs import CatTensors, Compose

    from offline_data import ReplayBuffer

    batch = toy_batch(LENGTHS)
    state: Any = batch.observations["observation", "state"]
    for number, name in enumerate(("observation", "achieved_goal", "desired_goal")):
        batch.observations["observation", name] = state + number / 4  # type: ignore[index]
    del batch.observations["observation", "state"]  # type: ignore[attr-defined]
    write_toy(folder.parent / "goals", [batch])
    data = offline_data.open_dataset(folder.parent / "goals")

    cat_tensors = CatTensors(
        in_keys=[
            ("observation", "observation"),
            ("observation", "achieved_goal"),
            ("observation", "desired_goal"),
        ],
        out_key="obs",
    )
    cat_next_tensors = CatTensors(
        in_keys=[
            ("next", "observation", "observation"),
            ("next", "observation", "achieved_goal"),
            ("next", "observation", "desired_goal"),
        ],
        out_key=("next", "obs"),
    )
    t = Compose(cat_tensors, cat_next_tensors)

    def func(td: Any) -> Any:
        td = td.select(
            "action",
            "episode",
            ("next", "done"),
            ("next", "observation"),
            ("next", "reward"),
            ("next", "terminated"),
            ("next", "truncated"),
            "observation",
        )
        return t(td)

    with TemporaryDirectory() as tmpdir:
        new_storage = data.preprocess(
            func, num_workers=4, pbar=True, mp_start_method="fork", dest=tmpdir
        )
        rb = ReplayBuffer(storage=new_storage)
        assert len(rb) == sum(LENGTHS)
        plain = Plain(Path(tmpdir)).transitions()
        parts = Plain(folder.parent / "goals").transitions()
        for above in ((), ("next",)):
            names = ("achieved_goal", "desired_goal", "observation")
            keys = [(*above, "observation", name) for name in names]
            wanted = np.concatenate([parts[key] for key in keys], axis=1)
            obs = (*above, "obs")
            np.testing.assert_array_equal(plain[obs], wanted)
        assert not [key for key in plain if "achieved_goal" in key]
    assert not Path(tmpdir).exists()


def test_a_pool_of_the_callers(ds: Any, folder: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        ds.preprocess(thirds, dest=tmp_path / "out", pool=pool, chunksize=4)
    check(tmp_path / "out", mapped(episodes_of(folder), plain_thirds))


def test_names_under_the_root(ds: Any, folder: Path, home: Path) -> None:
    ds.preprocess(thirds, name="thirds")
    found = offline_data.load_dataset("local:thirds")
    assert found.data_path.parent == home / "local" / "thirds"
    check(found.data_path, mapped(episodes_of(folder), plain_thirds))
    with pytest.raises(UsageError, match="was made by another recipe"):
        ds.preprocess([thirds, thirds], name="thirds")
    ds.preprocess([thirds, thirds], name="thirds", force=True)
    (path,) = [one for one in (home / "local" / "thirds").iterdir() if one.name[0] != "."]
    twice = mapped(mapped(episodes_of(folder), plain_thirds), plain_thirds)
    check(path, twice)


def test_stages_of_all_kinds(ds: Any, folder: Path, tmp_path: Path) -> None:
    stages = [Clip(("action",), high=-1002), thirds, "reward_scale:3", "filter:length > 2"]
    ds.preprocess(stages, dest=tmp_path / "list")
    ds.preprocess(tuple(stages), dest=tmp_path / "tuple")
    ds.preprocess(stages[0], dest=tmp_path / "step")
    ds.preprocess("clip:action,high=-1002", dest=tmp_path / "text")
    assert _files(tmp_path / "list") == _files(tmp_path / "tuple")
    assert _files(tmp_path / "step") == _files(tmp_path / "text")

    def clipped(row: Row) -> Row:
        row["action",] = np.minimum(row["action",], np.float32(-1002))
        return row

    def scaled(row: Row) -> Row:
        row["next", "reward"] = row["next", "reward"] / 3 * 3
        return row

    episodes = [one for one in episodes_of(folder) if len(one.rows) > 2]
    check(tmp_path / "list", mapped(mapped(episodes, clipped), scaled))


def _files(folder: Path) -> dict[str, str]:
    return {name: sha for name, sha in digests(folder).items() if name != "manifest.json"}


def test_a_seed_says_which_random_numbers(ds: Any, tmp_path: Path) -> None:
    def noisy(td: Any) -> Any:
        td["next", "reward"] = td["next", "reward"] + torch.rand(1, dtype=torch.float64)
        return td

    ways: dict[str, dict[str, Any]] = {
        "none": {},
        "zero": {"seed": 0, "chunksize": 3},
        "five": {"seed": 5},
        "generator": {"generator": torch.Generator().manual_seed(5), "chunksize": 4},
    }
    state = torch.get_rng_state()
    for name, way in ways.items():
        ds.preprocess(noisy, dest=tmp_path / name, engine=Shuffled(), **way)
    assert torch.equal(torch.get_rng_state(), state)
    found = {name: Plain(tmp_path / name).leaf("steps", "next", "reward") for name in ways}
    np.testing.assert_array_equal(found["none"], found["zero"])
    np.testing.assert_array_equal(found["five"], found["generator"])
    assert (found["zero"] != found["five"]).all()
    assert len(np.unique(found["five"] - found["zero"])) == sum(LENGTHS)


def test_a_progress_of_ones_own_and_a_bar(
    ds: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def root_only(td: Any) -> Any:
        td["info", "code"] = td["info", "code"] + 1
        return td

    notes = Notes()
    ds.preprocess(root_only, dest=tmp_path / "told", progress=notes)
    assert notes.notes[0].startswith("starting over: info/code")
    assert capsys.readouterr() == ("", "")
    ds.preprocess(root_only, dest=tmp_path / "bar", pbar=True)
    out, err = capsys.readouterr()
    assert (out, "starting over: info/code" in err, "preprocess bar" in err) == ("", True, True)


def test_a_dataset_keeps_on_working(ds: Any, folder: Path, tmp_path: Path) -> None:
    before = ds[:]["next", "reward"].clone()
    ds.preprocess(thirds, dest=tmp_path / "out")
    torch.testing.assert_close(ds[:]["next", "reward"], before)
    out = offline_data.open_dataset(tmp_path / "out")
    ds.delete()
    assert not folder.exists()
    torch.testing.assert_close(out[:]["next", "reward"], before / 3)


def test_preprocessing_the_result(ds: Any, folder: Path, tmp_path: Path) -> None:
    ds.preprocess(thirds, dest=tmp_path / "one", layout="ted")
    one = offline_data.open_dataset(tmp_path / "one")
    one.preprocess(thirds, dest=tmp_path / "two")
    two = offline_data.open_dataset(tmp_path / "two")
    two.preprocess("filter:length > 1", dest=tmp_path / "three", layout="compact")
    twice = mapped(mapped(episodes_of(folder), plain_thirds), plain_thirds)
    check(tmp_path / "two", twice)
    assert Plain(tmp_path / "two").manifest["layout"] == "ted"
    check(tmp_path / "three", [one for one in twice if len(one.rows) > 1])


def test_importing_brings_no_torch() -> None:
    code = (
        "import sys, offline_data, offline_data.preprocess.engine, offline_data.preprocess.tasks\n"
        "from offline_data.preprocess.method import Preprocesses\n"
        "print([name for name in ('torch', 'tensordict', 'ray', 'PIL') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

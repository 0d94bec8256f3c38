"""`ds.preprocess`: its arguments, its result, functions of every kind."""

from __future__ import annotations

import inspect
import os
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
from torchrl.envs.transforms import (
    CatTensors,
    Compose,
    DoubleToFloat,
    ObservationNorm,
    RewardScaling,
    ToTensorImage,
)

import offline_data
from offline_data.base.config import Settings
from offline_data.pipeline.preprocess.steps.columns import Clip
from offline_data.rows.storage import DatasetStorage
from offline_data.store.library import entry_at
from offline_data.testing.toy import toy_batch, write_toy
from tests.pipeline.preprocess.oracle import Plain, Row, check, cut, digests, episodes_of, mapped
from tests.pipeline.preprocess.runs import LENGTHS, Notes, Shuffled, make, write_plain, write_rich


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

    names = ("observation", "achieved_goal", "desired_goal")
    t = Compose(
        CatTensors(in_keys=[("observation", name) for name in names], out_key="obs"),
        CatTensors(
            in_keys=[("next", "observation", name) for name in names], out_key=("next", "obs")
        ),
    )

    def func(td: Any) -> Any:
        flags = [("next", name) for name in ("done", "reward", "terminated", "truncated")]
        return t(td.select("action", "episode", ("next", "observation"), *flags, "observation"))

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
    """Of every row and every function."""

    def first(td: Any) -> Any:
        return td.set("first", torch.rand(2))

    def second(td: Any) -> Any:
        return td.set("second", torch.rand(2))

    ways: dict[str, dict[str, Any]] = {
        "none": {},
        "zero": {"seed": 0, "chunksize": 3},
        "five": {"seed": 5},
        "generator": {"generator": torch.Generator().manual_seed(5), "chunksize": 4},
    }
    state, found = torch.get_rng_state(), {}
    for name, way in ways.items():
        ds.preprocess([first, second], dest=tmp_path / name, engine=Shuffled(), **way)
        plain = Plain(tmp_path / name)
        found[name] = np.stack([plain.leaf("steps", key) for key in ("first", "second")])
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(found["none"], found["zero"])
    np.testing.assert_array_equal(found["five"], found["generator"])
    assert len(np.unique([found["five"], found["zero"]])) == 2 * 2 * 2 * sum(LENGTHS)


def test_a_progress_of_ones_own_and_a_bar(
    ds: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
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
    assert (out, "preprocess bar" in err) == ("", True)
    assert any("starting over: info/code" in one.message for one in caplog.records)


def test_importing_brings_no_torch() -> None:
    code = (
        "import sys, offline_data, offline_data.pipeline.preprocess.engine, offline_data.pipeline.preprocess.plan\n"
        "from offline_data.pipeline.preprocess.api import Preprocesses\n"
        "print([name for name in ('torch', 'tensordict', 'ray', 'PIL') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_compose_of_torchrl(tmp_path: Path) -> None:
    """As TorchRL's documentation has it; the transforms see the roots they are told of."""
    write_toy(tmp_path / "toy", [toy_batch([20, 1, 15, 4], images=True, unknown_final=[2])])
    images = offline_data.open_dataset(tmp_path / "toy")
    fn = Compose(
        RewardScaling(loc=0.25, scale=0.5, in_keys=[("next", "reward")]),
        DoubleToFloat(in_keys=[("next", "reward")]),
        ObservationNorm(
            loc=1.5, scale=2.0, in_keys=[("observation", "state")], standard_normal=True
        ),
        ObservationNorm(
            loc=1.5, scale=2.0, in_keys=[("next", "observation", "state")], standard_normal=True
        ),
        CatTensors(in_keys=[("observation", "state"), "action"], out_key="seen", del_keys=False),
        ToTensorImage(in_keys=[("observation", "image"), ("next", "observation", "image")]),
    )
    images.preprocess(fn, dest=tmp_path / "out")
    found = offline_data.open_dataset(tmp_path / "out")
    (told,) = found.manifest.converter["options"]["recipe"]
    assert (told["name"], told["run"], told["unsteady"]) == ("Compose", "vectorised", "")
    assert told["two_copies"] == []
    rows = found[:]
    for i in range(len(images)):
        for key, value in fn(images[i].clone()).items(include_nested=True, leaves_only=True):
            if key not in {"index", "episode"}:
                assert rows[i][key].dtype == value.dtype
                assert torch.equal(rows[i][key], value), (i, key)


@pytest.fixture
def toy(tmp_path: Path) -> Any:
    write_toy(tmp_path / "toy", [toy_batch([4] * 4)])
    return offline_data.open_dataset(tmp_path / "toy")


def test_a_child_that_a_function_forks_may_end_so(toy: Any, tmp_path: Path) -> None:
    def fn(td: Any) -> Any:
        if td["index"].item() == 3:
            child = os.fork()
            if not child:
                os._exit(5)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        return td

    toy.preprocess(fn, dest=tmp_path / "out", num_frames=4)
    assert len(offline_data.open_dataset(tmp_path / "out")) == 4


@pytest.mark.parametrize(
    "fn",
    [
        lambda td: td.set("z", td["action"].as_subclass(type("Sub", (torch.Tensor,), {}))),
        lambda td: td.set("z", td["action"].clone().requires_grad_(True)),
        lambda td: td.set("z", torch.enable_grad()(lambda x: x.requires_grad_(True) * 1)(td["action"].clone())),
    ],
    ids=["subclass", "leaf", "graph"],
)  # fmt: skip
def test_odd_tensors_are_their_values(toy: Any, tmp_path: Path, fn: Any) -> None:
    toy.preprocess(fn, dest=tmp_path / "out")
    made = offline_data.open_dataset(tmp_path / "out")[:]
    assert torch.equal(made["z"], made["action"])


def test_a_destination_and_the_file_of_a_function(tmp_path: Path, settings: Settings) -> None:
    parent = write_plain(tmp_path / "toy")
    name = os.fsdecode(b"\xff\xfe")
    folder = tmp_path / name
    folder.mkdir()
    (folder / "scale.py").write_text("def scale(td):\n    return td\n")
    found = make(parent, [f"fn:{folder / 'scale.py'}:scale"], folder / name, settings)
    assert found.path == folder / name
    assert entry_at(found.path).manifest.counts["transitions"] > 0

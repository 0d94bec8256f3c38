"""TorchRL's dataset classes: their arguments and names, over datasets that lie here."""

from __future__ import annotations

import importlib
import inspect
import math
import pickle
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import offline_data
from offline_data import (
    AtariDQNExperienceReplay,
    D4RLExperienceReplay,
    GenDGRLExperienceReplay,
    LeRobotExperienceReplay,
    MinariExperienceReplay,
    OpenXExperienceReplay,
)
from offline_data.base.config import Settings
from offline_data.base.errors import UsageError
from offline_data.base.ids import parse_id
from offline_data.pipeline.ingest import Options, download
from offline_data.pipeline.jobs.executors import InProcess
from offline_data.testing.toy import toy_batch, write_toy
from tests.toys import lerobot as toys
from tests.toys.minari import box, toy_episode, write_minari
from tests.toys.servers import HubServer

with warnings.catch_warnings():  # torchrl deprecates classes of its own while it is imported
    warnings.simplefilter("ignore")
    import torchrl.data.datasets as theirs
    from torchrl.data.replay_buffers import storages


LENGTHS, OPENX = [3, 1, 4, 2], [3, 1, 4, 5]
UNKNOWN = 9


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a dataset of each source; row 9 has no known next observation."""
    root, batch = tmp_path_factory.mktemp("root"), toy_batch(LENGTHS, text=True, unknown_final=[3])
    for source, name in (("minari", "D4RL/toy/human-v0"), ("d4rl", "toy-medium-v2")):
        write_toy(root / source / name / "r1", [batch], dataset=f"{source}:{name}@r1")
    for name in ("toy", "toy/train[:2]"):
        batch = toy_batch(OPENX, text=True)
        write_toy(root / "openx" / name / "0.1.0", [batch], dataset=f"openx:{name}@0.1.0")
    return root


@pytest.fixture(scope="module")
def lerobot_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lerobot")
    toys.write_lerobot(folder / "toy", "v3.0")
    with HubServer({"me/toy": folder / "toy"}) as hub:
        settings = Settings(folder / "root", hub_endpoint=hub.url, minari_path=folder)
        download(parse_id("lerobot:me/toy"), settings, Options(), executor=InProcess())
    return folder / "root"


def minari(root: Path, **options: Any) -> MinariExperienceReplay:
    return MinariExperienceReplay("D4RL/toy/human-v0", 4, root=root, download=False, **options)


def d4rl(root: Path, **options: Any) -> D4RLExperienceReplay:
    return D4RLExperienceReplay("toy-medium-v2", 4, root=root, download=False, **options)


def lerobot(root: Path, **options: Any) -> Any:
    return LeRobotExperienceReplay("me/toy", root=root, download=False, **options)


def openx(root: Path, batch_size: int | None = None, **options: Any) -> Any:
    return OpenXExperienceReplay("toy", batch_size, root=root, streaming=False, **options)


ADDED = {"LeRobot": ["delta_timestamps"], "OpenX": ["split"]}


@pytest.mark.parametrize(
    "name",
    ["AtariDQN", "D4RL", "GenDGRL", "LeRobot", "Minari", "OpenML", "OpenX", "Roboset", "VD4RL"],
)
def test_torchrl_calls_work_here(name: str) -> None:
    mine, other = (
        dict(inspect.signature(getattr(of, f"{name}ExperienceReplay").__init__).parameters)
        for of in (offline_data, theirs)
    )
    other.pop("_data", None)
    added = ADDED.get(name, ["options"])
    assert [one for one in mine if one not in added] == list(other)
    for parameter in other.values():
        assert mine[parameter.name].kind == parameter.kind
        if parameter.default is not parameter.empty:
            assert mine[parameter.name].default == parameter.default


def test_minari_gives_text_as_strings(root: Path) -> None:
    ds = minari(root)
    assert ds.sample()["observation", "mission"][0].startswith("go to")
    assert (ds.dataset_id, ds.root) == ("D4RL/toy/human-v0", root)
    assert len(MinariExperienceReplay("minari:D4RL/toy/human-v0@r1", 2, root=root)) == 10


def test_d4rl_options_that_mean_something(root: Path) -> None:
    ds = d4rl(root, from_env=True, direct_download=True, terminate_on_end=False)
    assert UNKNOWN not in ds.sample(2000)["index"]
    assert ds[:]["next", "done"].sum() == 4
    ds = d4rl(root, terminate_on_end=True)
    assert UNKNOWN in ds.sample(2000)["index"]
    ds = d4rl(root, use_truncated_as_done=False)
    batch = ds[:]
    assert batch["next", "done"].equal(batch["next", "terminated"])
    batch["next", "done"].fill_(True)
    assert batch["next", "terminated"].sum() == 2
    assert d4rl(root, split_trajs=True)[:].batch_size == (4, 4)


def test_atari_options_that_choose_the_sampler(tmp_path: Path) -> None:
    """TorchRL's program: slices by number and length, with or without replacement, or rows once."""
    batch = toy_batch([3, 5, 4, 6])
    write_toy(tmp_path / "atari_dqn/Pong/5/r1", [batch], dataset="atari_dqn:Pong/5@r1")

    def atari(**options: Any) -> AtariDQNExperienceReplay:
        options = {"root": tmp_path, "download": False, **options}
        return AtariDQNExperienceReplay("Pong/5", 12, num_procs=2, **options)

    for replacement in (True, False):
        found = atari(num_slices=3, slice_len=None, replacement=replacement).sample()
        assert all(len(set(run.tolist())) == 1 for run in found["episode"].view(3, 4))
    assert atari(slice_len=5, strict_len=False).sample(10).batch_size[0] <= 10
    once = atari(replacement=False, prefetch=2)
    assert sorted(i for found in once for i in found["index"].tolist()) == list(range(18))
    write_toy(tmp_path / "gen_dgrl/maze-1M_E/r1", [batch], dataset="gen_dgrl:maze-1M_E@r1")
    dgrl = GenDGRLExperienceReplay("maze-1M_E", 4, root=tmp_path, download=False, split_trajs=True)
    assert dgrl[:].batch_size == (4, 6)


def test_available_datasets_without_a_network() -> None:
    assert "hopper-medium-v2" in D4RLExperienceReplay.available_datasets
    assert "D4RL/door/human-v2" in MinariExperienceReplay.available_datasets
    for name in ("AtariDQN", "GenDGRL", "OpenX", "Roboset"):
        known = getattr(offline_data, f"{name}ExperienceReplay").available_datasets
        assert set(getattr(theirs, f"{name}ExperienceReplay").available_datasets) <= set(known)


def test_leaves_that_torchrl_has_beside_are_computed(root: Path) -> None:
    whole = d4rl(root)[:]
    episode, reward = whole["episode"], whole["next", "reward"]
    before = torch.cat([torch.zeros_like(reward[:1]), reward[:-1]])
    before[1:][episode[1:] != episode[:-1]] = 0
    ds = d4rl(root, keys=["action", "reward"], in_memory=True, device="cpu")
    assert whole["reward"].equal(before)
    assert whole["next", "info", "code"].any()
    assert d4rl(root)["reward"].equal(before)
    assert d4rl(root)["next"].keys() == whole["next"].keys()
    assert "reward" not in d4rl(root, keys=["action"])[:].keys()  # noqa: SIM118
    batch = ds.sample(64)
    assert batch["reward"].equal(before[batch["index"]])
    assert {"action", "reward", "index"} == set(batch.keys())
    assert batch["reward"].any()


def test_rewards_that_are_not_finite_do_not_cross_episodes(tmp_path: Path) -> None:
    batch = toy_batch(LENGTHS)
    reward = batch.steps["next", "reward"]
    assert isinstance(reward, np.ndarray)
    reward[:3, 0] = np.array([math.nan, math.inf, 1])
    write_toy(tmp_path / "d4rl/toy-medium-v2/r1", [batch], dataset="d4rl:toy-medium-v2@r1")
    before = d4rl(tmp_path)[:]["reward"]
    np.testing.assert_array_equal(before[:4, 0], [0, math.nan, math.inf, 0])


def test_leaves_that_torchrl_has_beside_are_there_in_whole_episodes(root: Path) -> None:
    """As scripts of Decision Transformers ask for them, which exchange the storage afterwards."""
    keys = ["observation", "action", "info", "reward", "next", ("next", "info")]
    flat, ds = (d4rl(root, keys=keys, split_trajs=split) for split in (False, True))
    whole, mask = ds[:], ds[:]["mask"]
    assert not mask.all()
    for key in ("reward", ("next", "info", "code")):
        assert whole[key][mask].equal(flat[:][key])
        assert not whole[key][~mask].any()
    ds._storage = offline_data.TensorStorage(whole.exclude("index", "dataset_index"))
    assert ds[:]["reward"].equal(whole["reward"])


def test_a_storage_of_torchrl_replaces_the_rows_or_is_refused(root: Path) -> None:
    """As TorchRL's scripts of Decision Transformers do, with their own import of the storage."""
    for split, rows in ((True, 4), (False, 10)):
        ds = d4rl(root, split_trajs=split)
        whole = ds[:]
        ds._storage = storages.TensorStorage(whole.set("extra", torch.ones(whole.batch_size)))
        assert len(ds) == rows
        assert ds.sample(32)["extra"].all()
        assert ds[:]["next", "reward"].equal(whole["next", "reward"])
        for empty in (storages.LazyTensorStorage(5), storages.ListStorage(5)):
            with pytest.raises(UsageError, match="only full ones of tensors can be converted"):
                ds._storage = empty
        assert len(ds) == rows


def test_new_rows_need_not_have_the_computed_leaves(root: Path) -> None:
    ds = d4rl(root)
    both = offline_data.OfflineToOnlineReplayBuffer(ds, online_capacity=20, offline_fraction=0.5)
    rows = d4rl(root)[:].select("action", ("next", "reward"), ("next", "done"))
    both.extend(rows)
    batch = both.sample(8)
    assert batch["reward"].shape == (8, 1)
    assert ("next", "info", "code") not in batch.keys(include_nested=True)


def test_minari_takes_what_lies_here_and_gives_specs(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchrl.data import Bounded, Categorical, Composite, Unbounded

    to_spec = importlib.import_module("offline_data.buffers.bridges.torchrl").to_spec
    bounds: dict[str, Any] = {
        "type": "Box",
        "shape": [2],
        "dtype": "float32",
        "low": [-1, 0],
        "high": [1, 2],
    }
    free = {**bounds, "low": [-math.inf] * 2, "high": [math.inf] * 2}
    choice = {"type": "Discrete", "n": 3, "dtype": "int64", "shape": []}
    later = to_spec({**choice, "start": 2})
    assert later.is_in(torch.tensor([2, 3, 4]))
    assert not later.is_in(torch.tensor(1))
    assert not later.is_in(torch.tensor(5))
    spec = to_spec({"type": "Dict", "subspaces": {"a": bounds, "b": choice, "c": free}})
    assert isinstance(spec, Composite)
    assert (type(spec["b"]), spec["b"].n) == (Categorical, 3)
    assert isinstance(spec["a"], Bounded)
    assert spec["a"].high.tolist() == [1, 2]
    assert isinstance(spec["c"], Unbounded)
    assert to_spec({"type": "Text"}) is None
    episodes = [toy_episode(number, 3 + number, info={"speed": box(1)}) for number in range(3)]
    write_minari(tmp_path / "minari" / "mine-v0", episodes)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    ds = MinariExperienceReplay(
        "mine-v0",
        4,
        root=root,
        load_from_local_minari=True,
        download=False,
        keys=["observation", ("next", "info"), "info"],
    )
    expected = np.concatenate([episode.observations[:-1] for episode in episodes])
    np.testing.assert_array_equal(ds[:]["observation"].numpy(), expected)
    assert ds.metadata["action_space"].shape == (2,)
    assert ds.metadata["action_space"].rand().shape == (2,)
    rows = ds[:]
    speed, later = rows["info", "speed"], rows["next", "info", "speed"]
    ends = torch.tensor([len(episode.rewards) for episode in episodes]).cumsum(0) - 1
    inside = torch.ones(len(speed), dtype=torch.bool)
    inside[ends] = False
    assert later[inside].equal(speed[1:][inside[:-1]])
    assert not later[~inside].any()


def test_lerobots_names_and_values(lerobot_root: Path) -> None:
    rows = lerobot(lerobot_root, batch_size=4)[:]
    code = torch.tensor([1000.0 * e + t + 1 for e, n in enumerate(toys.LENGTHS) for t in range(n)])
    assert rows["action"][:, 0].equal(-code)
    assert rows["observation", "state"][:, 0].equal(code)
    assert rows["frame"].tolist() == [t for n in toys.LENGTHS for t in range(n)]
    assert rows["episode"].tolist() == [e for e, n in enumerate(toys.LENGTHS) for _ in range(n)]
    assert rows["language_instruction"][0] == toys.TASKS[0]
    image = rows["observation", "image", "cam"]
    assert image[5].equal(torch.from_numpy(toys.toy_image(1, 0)))
    later = rows["next", "observation", "image", "cam"]
    assert later[0].equal(torch.from_numpy(toys.toy_image(0, 1)))
    assert ("observation", "images") not in rows.keys(include_nested=True)


def test_lerobots_slices_and_names_of_ones_own(lerobot_root: Path) -> None:
    names = {
        "task": "said",
        "observation.state": ("observation", "proprio"),
        "episode_index": "trajectory",
    }
    buffer = lerobot(lerobot_root, batch_size=6, slice_len=3, key_map=names)
    for made in (buffer, pickle.loads(pickle.dumps(buffer))):  # noqa: S301 -- our own bytes
        batch = made.sample()
        episodes = batch["trajectory"].reshape(2, 3)
        assert (episodes == episodes[:, :1]).all()
        assert batch["said"][0] in toys.TASKS
        state = batch["observation", "proprio"][:, 0]
        assert batch["next", "observation", "proprio"].shape == (6, 3)
        assert state.equal(-batch["action"][:, 0])


def test_openx_slices(root: Path) -> None:
    batch = openx(root, 8, num_slices=2).sample()
    episodes = batch["episode"].reshape(2, 4)
    assert (episodes == episodes[:, :1]).all()
    assert batch["next", "truncated"].reshape(2, 4)[:, -1].all()
    assert isinstance(batch["observation", "mission"][0], str)
    assert len(openx(root, 12, slice_len=6, strict_length=False).sample()) < 12


def test_an_epoch_of_slices_in_order(root: Path) -> None:
    ds = openx(root, 3, slice_len=3, replacement=False, shuffle=False)
    assert [int(batch["episode"][0]) for batch in ds] == [0, 2, 3]


def test_without_a_batch_size_whole_episodes_come(root: Path) -> None:
    batches = list(openx(root, shuffle=False))
    assert [len(batch) for batch in batches] == OPENX
    assert torch.cat([batch["index"] for batch in batches]).tolist() == list(range(13))
    pairs = list(openx(root, num_slices=2))
    assert sorted(int(e) for batch in pairs for e in batch["episode"].unique()) == [0, 1, 2, 3]
    assert [batch["episode"].unique().numel() for batch in pairs] == [2, 2]
    slices = list(openx(root, slice_len=3))
    assert sorted(int(batch["episode"][0]) for batch in slices) == [0, 2, 3]
    assert all(len(batch) == 3 for batch in slices)


def test_openx_transitions(root: Path) -> None:
    assert len(openx(root, 5).sample()) == 5
    seen = [batch["index"] for batch in openx(root, 5, replacement=False)]
    assert sorted(torch.cat(seen).tolist()) == list(range(13))
    seen = [batch["index"] for batch in openx(root, 5, shuffle=False)]
    assert torch.cat(seen).tolist() == list(range(13))


def test_a_split_is_part_of_the_id(root: Path) -> None:
    ds = openx(root, 5, split="train[:2]")
    assert ds.manifest.id == "openx:toy/train[:2]@0.1.0"
    assert (ds.dataset_id, ds.root) == ("toy", root)


@pytest.mark.parametrize(
    ("options", "streams"),
    [
        ({}, True),
        ({"download": False}, True),
        ({"download": True}, False),
        ({"streaming": False}, False),
    ],
)
def test_it_streams_where_torchrl_does(
    root: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], streams: bool
) -> None:
    asked: list[Any] = []

    def stream(*positional: Any, **named: Any) -> str:
        asked.append((positional, named))
        return "stream"

    module = SimpleNamespace(StreamingDataset=stream)
    monkeypatch.setitem(sys.modules, "offline_data.buffers.streaming", module)
    found: Any = OpenXExperienceReplay("toy", 8, num_slices=2, root=root, **options)
    if streams:
        ((positional, named),) = asked
        assert (found, positional) == ("stream", ("openx:toy",))
        assert (named["batch_size"], named["num_slices"], named["root"]) == (8, 2, root)
    else:
        assert isinstance(found, OpenXExperienceReplay)
        copy = pickle.loads(pickle.dumps(found))  # noqa: S301 -- our own bytes
        assert len(copy.sample()) == 8

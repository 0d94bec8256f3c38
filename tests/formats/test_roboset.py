"""RoboSet: trials of RoboHive's logger, at the hub and here; good files and bad ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from offline_data.base.config import Settings
from offline_data.base.ids import parse_id
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED, next_of
from offline_data.fetch.files import RemoteFile
from offline_data.formats.base import Release
from offline_data.formats.roboset.source import RoboSet
from offline_data.formats.roboset.trials import OLD_LOG
from offline_data.pipeline.ingest import Options, convert, download
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.sources import Damage, Episode, SourceCase, assert_episodes
from offline_data.testing.toy import write_toy
from tests.formats.contract import Contract
from tests.refusals import Refusals
from tests.toys.roboset import toy_trial, write_roboset, write_trials
from tests.toys.servers import HubServer
from tests.toys.stored import read_shards

REFUSALS = Refusals.beside(__file__)
NAME = "FK1-v4(human)/human_demos_by_task/FK1_Knob1OnRandom_v2d-v4"
PLACEHOLDERS = {"env_infos/proprio_dict", "env_infos/state/act"}
ROOTS = {"observations": "observation", "env_infos": "info", "time": "time"}

read_all = partial(read_shards, RoboSet())


def written(path: Path, folder: Path) -> DatasetReader:
    """Write the trials of a file or folder to a dataset, in this process."""
    write_toy(folder / "written", read_all(RoboSet().release_of(path, "mine")))
    return open_reader(folder / "written")


def episodes_of(paths: list[Path], dropped: set[str]) -> list[Episode]:
    """Read trials by h5py; the state of row `t + 1` is what the action of row `t` led to."""
    found = []
    for path in paths:
        with h5py.File(path) as file:
            for name in sorted(file, key=lambda one: int(one.removeprefix("Trial"))):
                rows: dict[str, Any] = {}
                file[name].visititems(
                    lambda place, node, into=rows: into.update(
                        {place: node[()]} if isinstance(node, h5py.Dataset) else {}
                    )
                )
                ends = rows["done"][1:, None]
                episode: Episode = {
                    ("action",): rows["actions"][:-1],
                    REWARD: rows["rewards"][1:, None],
                    TERMINATED: ends,
                    TRUNCATED: (np.arange(len(ends))[:, None] == len(ends) - 1) & ~ends,
                    ("episode", "trial"): int(name.removeprefix("Trial")),
                    ("episode", "final_observation"): True,
                }
                if "_seed" in path.stem:
                    episode["episode", "seed"] = int(path.stem.rpartition("_seed")[2])
                for place in rows.keys() - dropped - {"actions", "rewards", "done"}:
                    first, *rest = place.split("/")
                    key = (ROOTS[first], *rest)
                    episode |= {key: rows[place][:-1], next_of(key): rows[place][1:]}
                found.append(episode)
    return found


def trials_of(folder: Path) -> list[Episode]:
    paths = sorted(folder.iterdir(), key=lambda path: int(path.stem.rpartition("_seed")[2]))
    return episodes_of(paths, PLACEHOLDERS)


# ---- damage ----------------------------------------------------------------------------------


def trial(change: Callable[[dict[str, Any]], object]) -> Damage:
    """Change the second trial, of four rows, of seed 2."""

    def apply(folder: Path) -> None:
        trials = {f"Trial{n}": toy_trial(2, n, 2 + n % 4) for n in (0, 1, 2, 10)}
        change(trials["Trial1"])
        write_trials(folder / "toy_seed2.h5", trials)

    return Damage(apply, skipped=(5,))


def with_(**new: Any) -> Damage:
    return trial(lambda trial: trial.update(new))


def linked(folder: Path) -> None:
    with h5py.File(folder / "toy_seed2.h5", "a") as file:
        del file["Trial1"]
        file["Trial1"] = h5py.ExternalLink("/etc/passwd", "x")


def linked_leaf(folder: Path) -> None:
    with h5py.File(folder / "toy_seed2.h5", "a") as file:
        file["Trial1/env_infos/link"] = h5py.SoftLink("/Trial0/time")


BAD = {
    "one row": trial(lambda trial: trial.update({k: v[:1] for k, v in trial.items()})),
    "no row": trial(lambda trial: trial.update({k: v[:0] for k, v in trial.items()})),
    "no rewards": trial(lambda trial: trial.pop("rewards")),
    "short actions": with_(actions=np.zeros((2, 2))),
    "wide rewards": with_(rewards=np.zeros((4, 2))),
    "other observations": with_(observations=np.zeros((4, 7))),
    "another leaf": with_(**{"env_infos/new": np.zeros(4)}),
    "text": with_(actions=np.array([b"x"] * 4)),
    "a link": Damage(linked, skipped=(5,)),
    "a link to a leaf": Damage(linked_leaf, skipped=(5,)),
    "no trials": Damage(lambda to: write_trials(to / "toy_seed2.h5", {"demo_0": toy_trial(0, 0, 3)})),
    "a pointer": Damage(lambda to: (to / "toy_seed2.h5").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")),
    "cut": Damage(lambda to: (file := to / "toy_seed2.h5").write_bytes(file.read_bytes()[:-300])),
}  # fmt: skip


class TestContract(Contract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        raw = write_roboset(tmp_path / "raw")
        files = tuple(RemoteFile(p.name, (f"hf://{p.name}",)) for p in sorted(raw.iterdir()))
        release = RoboSet().plan_shards(Release(NAME, "3f2a", files))
        return SourceCase(RoboSet(), release, raw, trials_of, BAD)


def test_what_is_no_dataset(tmp_path: Path, settings: Settings) -> None:
    real = {"data/ctrl_arm": np.zeros((4, 7)), "data/time": np.zeros(4)}
    path = write_trials(tmp_path / "raw.h5", {"Trial0": real | {"config/solved": np.ones(())}})
    for name, call in {
        "the hardware": lambda: convert(path, "mine", settings, Options()),
        "absent": lambda: RoboSet().release_of(tmp_path / "absent", "mine"),
    }.items():
        REFUSALS.check("none", name, call, {tmp_path: "FOLDER"})
    assert not list(settings.root.rglob("manifest.json"))


# ---- real files, quirks, the hub --------------------------------------------------------------


def test_real_and_faithful_files(realdata: Path, tmp_path: Path) -> None:
    (path,) = (realdata / "roboset_robohive").iterdir()
    none = {f"env_infos/{name}" for name in ("proprio_dict", "state/act", "state/mocap_pos")}
    reader = written(path.parent, tmp_path / "real")
    assert_episodes(reader, episodes_of([path], none | {"env_infos/state/mocap_quat"}))
    assert reader.transitions == 500
    assert not np.isnan(reader.step(("action",))).any()
    # What the environment says a reward is made of stands in the state that it was earned in.
    after = reader.transitions_at(np.arange(500))["next", "info", "rwd_dense"]
    np.testing.assert_array_equal(reader.step(("next", "reward"))[:, 0], after)
    (path,) = (realdata / "fixtures_generated/roboset/DKitchen_Sim_example-v3").iterdir()
    reader = written(path, tmp_path / "faithful")
    assert_episodes(reader, episodes_of([path], {"env_infos/state/act"}))


def test_logs_without_the_last_row(tmp_path: Path) -> None:
    old = toy_trial(0, 0, 5, old=True)
    path = write_trials(tmp_path / "raw.h5", {"Trial0": old, "Trial1": toy_trial(0, 1, 5)})
    (batch,) = read_all(RoboSet().release_of(path, "mine"))
    assert batch.lengths.tolist() == [4, 5]
    assert batch.notes == (OLD_LOG,)
    np.testing.assert_array_equal(batch.steps["action",][:4], old["actions"][:-1])
    np.testing.assert_array_equal(batch.observations["observation",][:5], old["observations"])
    np.testing.assert_array_equal(batch.steps["next", "reward"][:4, 0], old["rewards"][1:])


def test_done_and_what_has_no_row_per_state(tmp_path: Path) -> None:
    trial = toy_trial(0, 0, 3) | {"user_cmt": np.array([1.0], np.float16)}
    trial["done"][3] = True
    trial["env_infos/half"] = np.arange(4, dtype=np.float16)
    trial["env_infos/name"] = np.array([b"door"] * 4)
    path = write_trials(tmp_path / "raw.h5", {"Trial0": trial})
    assert RoboSet().accepts(path)
    (batch,) = read_all(RoboSet().release_of(path, "mine"))
    assert batch.steps["next", "terminated"][:, 0].tolist() == [False, False, True]
    assert not batch.steps["next", "truncated"].any()
    assert batch.observations["info", "half"].dtype == np.float16  # half, but no placeholder
    reasons = {one.key: one.reason for one in batch.dropped}
    assert reasons["user_cmt"] == "It has 1 row, and rewards have 4."
    assert reasons["env_infos/name"] == "It has HDF5 type |S4, which is not a number."
    assert batch.episodes["seed",].tolist() == [-1]


@pytest.fixture
def hub(tmp_path: Path, settings: Settings) -> Iterator[tuple[HubServer, Settings]]:
    write_roboset(tmp_path / "remote" / NAME, seeds=(0, 1), trials=(0, 1))
    write_roboset(tmp_path / "remote" / f"{NAME}0", seeds=(5,))  # whose name begins alike
    with HubServer({"jdvakil/RoboSet_Sim": tmp_path / "remote"}) as server:
        yield server, replace(settings, offline=False, hub_endpoint=server.url)


def test_downloads(hub: tuple[HubServer, Settings], tmp_path: Path) -> None:
    server, online = hub
    stored = download(parse_id(f"roboset:{NAME}"), online, Options(audit="all"))
    assert_episodes(open_reader(stored.path), trials_of(tmp_path / "remote" / NAME))
    assert {leaf["key"] for leaf in stored.manifest.dropped} == PLACEHOLDERS
    reasons = {leaf["reason"] for leaf in stored.manifest.dropped}
    assert all(reason.startswith("NaN (float16) in every row") for reason in reasons)
    targets = [one.target for one in server.requests if one.path.endswith(".h5")]
    assert targets
    assert all("%28human%29" in one and "v4/toy_seed" in one for one in targets)
    assert stored.manifest.licence == "CC-BY-4.0"
    assert stored.manifest.environment["id"] == "FK1_Knob1OnRandom_v2d-v4"
    assert {e.name for e in RoboSet().remote(online)} == {NAME, f"{NAME}0"}
    wrong = "DAPG(human)/dor_v2d-v1"
    REFUSALS.check("none", wrong, lambda: RoboSet().resolve(wrong, None, online))


@pytest.mark.filterwarnings("ignore")
def test_beside_torchrl(tmp_path: Path) -> None:
    with warnings.catch_warnings():  # torchrl deprecates classes of its own while it is imported
        warnings.simplefilter("ignore")
        from torchrl.data.datasets import RobosetExperienceReplay
    path = write_trials(tmp_path / "raw.h5", {f"Trial{n}": toy_trial(0, n, 4) for n in range(3)})
    other = RobosetExperienceReplay.__new__(RobosetExperienceReplay)
    other.root, other.dataset_id, other.split_trajs = tmp_path / "theirs", "x", False
    td = other._preproc_h5([str(path)]).reshape(3, 5)  # rows of each trial
    mine = written(path, tmp_path).transitions_at(np.arange(12))

    def rows(values: Any) -> Any:
        return values.reshape(3, 4, *values.shape[1:])

    for key in (("observation",), ("info", "state", "qpos"), ("time",)):
        np.testing.assert_array_equal(td[key][:, :-1].numpy(), rows(mine[key]))
    after = td["next", "observation"].numpy()
    np.testing.assert_array_equal(after[:, :-1], rows(mine["next", "observation"]))
    np.testing.assert_array_equal(td["action"][:, :-1].numpy(), rows(mine["action",]))
    # TorchRL's defects: rows without an action, after which all is zero, and rewards a step early.
    assert np.isnan(td["action"][:, -1].numpy()).all()
    assert not after[:, -1].any()
    rewards = td["next", "reward"].numpy()
    np.testing.assert_array_equal(rewards[:, 1:], rows(mine["next", "reward"]))
    assert not np.array_equal(rewards[:, :-1], rows(mine["next", "reward"]))
    assert not td["next", "truncated"].any()

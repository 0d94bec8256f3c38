"""RoboSet: trials of RoboHive's logger, at the hub and here; good files and bad ones."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, NotFoundError
from offline_data.base.ids import parse_id
from offline_data.episode.fields import next_of
from offline_data.fetch.files import RemoteFile
from offline_data.formats.base import Release
from offline_data.formats.registry import iter_sources
from offline_data.formats.roboset.source import RoboSet
from offline_data.formats.roboset.trials import OLD_LOG
from offline_data.pipeline.ingest import Options, convert, download
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.sources import SourceCase, SourceContract
from offline_data.testing.toy import write_toy
from tests.toys.roboset import toy_trial, write_roboset, write_trials
from tests.toys.servers import HubServer
from tests.toys.stored import read_shards

if TYPE_CHECKING:
    pass

NAME = "FK1-v4(human)/human_demos_by_task/FK1_Knob1OnRandom_v2d-v4"
PLACEHOLDERS = {"env_infos/proprio_dict", "env_infos/state/act"}


class TestContract(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        raw = write_roboset(tmp_path / "raw")
        files = tuple(RemoteFile(p.name, (f"hf://{p.name}",)) for p in sorted(raw.iterdir()))
        return SourceCase(RoboSet(), RoboSet().plan_shards(Release(NAME, "3f2a", files)), raw)


read_all = partial(read_shards, RoboSet())


def written(path: Path, folder: Path) -> DatasetReader:
    """Write the trials of a file or folder to a dataset, in this process."""
    write_toy(folder / "written", read_all(RoboSet().release_of(path, "mine")))
    return open_reader(folder / "written")


def assert_trials(reader: DatasetReader, paths: list[Path], dropped: set[str]) -> None:
    """Compare all leaves with h5py; the state of row `t + 1` is what the action of row `t` led to."""
    number = 0
    for path in paths:
        with h5py.File(path) as file:
            for name in sorted(file, key=lambda one: int(one.removeprefix("Trial"))):
                datasets: dict[str, Any] = {}
                file[name].visititems(
                    lambda place, node, into=datasets: into.update(
                        {place: node[()]} if isinstance(node, h5py.Dataset) else {}
                    )
                )
                assert_trial(reader, number, datasets, dropped)
                assert reader.episodes["trial",][number] == int(name.removeprefix("Trial"))
                number += 1
    assert number == reader.episode_count
    assert reader.episodes["final_observation",].all()


def assert_trial(reader: DatasetReader, number: int, rows: Any, dropped: set[str]) -> None:
    horizon = len(rows["rewards"]) - 1
    assert reader.lengths[number] == horizon
    steps = np.arange(horizon) + reader.starts[number]
    found = reader.transitions_at(steps)
    ends = rows["done"][1:, None]
    expected = {
        ("action",): rows["actions"][:-1],
        ("next", "reward"): rows["rewards"][1:, None],
        ("next", "terminated"): ends,
        ("next", "truncated"): ~ends & (np.arange(horizon) == horizon - 1)[:, None],
    }
    for place in rows.keys() - dropped - {"actions", "rewards", "done"}:
        root = {"observations": "observation", "env_infos": "info", "time": "time"}
        first, *rest = place.split("/")
        key = (root[first], *rest)
        expected[key], expected[next_of(key)] = rows[place][:-1], rows[place][1:]
    flags = {("next", "done"), ("done",), ("terminated",), ("truncated",), ("episode",)}
    assert found.keys() - flags == expected.keys()
    for key, values in expected.items():
        np.testing.assert_array_equal(found[key], values, err_msg=str(key))
        assert found[key].dtype == values.dtype


def test_trials_of_several_seeds(tmp_path: Path) -> None:
    folder = write_roboset(tmp_path / "raw", seeds=(0, 10, 2))
    reader = written(folder, tmp_path)
    paths = [folder / f"toy_seed{seed}.h5" for seed in (0, 2, 10)]
    assert_trials(reader, paths, PLACEHOLDERS)
    assert reader.episodes["trial",].tolist() == [0, 1, 2, 10] * 3
    assert reader.episodes["seed",].tolist() == [0] * 4 + [2] * 4 + [10] * 4


def test_real_and_faithful_files(realdata: Path, tmp_path: Path) -> None:
    (path,) = (realdata / "roboset_robohive").iterdir()
    none = {f"env_infos/{name}" for name in ("proprio_dict", "state/act", "state/mocap_pos")}
    reader = written(path.parent, tmp_path / "real")
    assert_trials(reader, [path], none | {"env_infos/state/mocap_quat"})
    assert reader.transitions == 500
    assert not np.isnan(reader.step(("action",))).any()
    # What the environment says a reward is made of stands in the state that it was earned in.
    rewards = reader.step(("next", "reward"))[:, 0]
    after = reader.transitions_at(np.arange(500))["next", "info", "rwd_dense"]
    np.testing.assert_array_equal(rewards, after)
    (path,) = (realdata / "fixtures_generated/roboset/DKitchen_Sim_example-v3").iterdir()
    assert_trials(written(path, tmp_path / "faithful"), [path], {"env_infos/state/act"})


# ---- quirks ----------------------------------------------------------------------------------


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
    (batch,) = read_all(RoboSet().release_of(path, "mine"))
    assert batch.steps["next", "terminated"][:, 0].tolist() == [False, False, True]
    assert not batch.steps["next", "truncated"].any()
    assert batch.observations["info", "half"].dtype == np.float16  # half, but no placeholder
    reasons = {one.key: one.reason for one in batch.dropped}
    assert reasons["user_cmt"] == "It has 1 row, and rewards have 4."
    assert reasons["env_infos/name"] == "It has HDF5 type |S4, which is not a number."
    assert batch.episodes["seed",].tolist() == [-1]


# ---- bad files -------------------------------------------------------------------------------


def without(name: str) -> Callable[[Any], None]:
    return lambda trial: trial.__delitem__(name)


def with_(**new: Any) -> Callable[[Any], None]:
    return lambda trial: trial.update(new)


BAD: dict[str, tuple[Callable[[Any], None], str]] = {
    "one row": (lambda t: t.update({k: v[:1] for k, v in t.items()}), "it has 1 row, too few"),
    "no row": (lambda t: t.update({k: v[:0] for k, v in t.items()}), "it has 0 rows"),
    "no rewards": (without("rewards"), "it has no 'rewards'"),
    "short actions": (with_(actions=np.zeros((2, 2))), "'actions' cannot be read. It has 2 rows"),
    "wide rewards": (with_(rewards=np.zeros((4, 2))), r"'rewards' has shape \[4, 2\]"),
    "other observations": (with_(observations=np.zeros((4, 7))), r"'observation' is float64 \[7\]"),
    "another leaf": (with_(**{"env_infos/new": np.zeros(4)}), "leaf 'info/new' is"),
    "text": (with_(actions=np.array([b"x"] * 4)), "'actions' cannot be read. It has HDF5 type"),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_trials(tmp_path: Path, bad: str) -> None:
    trials = {f"Trial{n}": toy_trial(0, n, 3) for n in range(3)}
    change, said = BAD[bad]
    change(trials["Trial1"])
    path = write_trials(tmp_path / "toy_seed0.h5", trials)
    release = RoboSet().release_of(path, "mine")
    with pytest.raises(FormatError, match=rf"^toy_seed0\.h5 Trial1: .*{said}") as caught:
        read_all(release)
    assert "--skip-bad-episodes" in (caught.value.shell_hint or "")
    (batch,) = read_all(replace(release, options=Options(skip_bad_episodes=True)))
    assert batch.episodes["trial",].tolist() == [0, 2]
    assert [one.where for one in batch.skipped] == ["toy_seed0.h5 Trial1"]


def test_the_hardware_is_refused_by_name(tmp_path: Path, settings: Settings) -> None:
    real = {"data/ctrl_arm": np.zeros((4, 7)), "data/time": np.zeros(4)}
    path = write_trials(tmp_path / "raw.h5", {"Trial0": real | {"config/solved": np.ones(())}})
    with pytest.raises(FormatError, match="recorded by a real robot: the hardware layout"):
        convert(path, "mine", settings, Options())
    assert not list(settings.root.rglob("manifest.json"))


def test_bad_files(tmp_path: Path) -> None:
    def error(path: Path) -> str:
        with pytest.raises(FormatError) as caught:
            read_all(RoboSet().release_of(path, "mine"))
        return caught.value.message

    path = write_trials(tmp_path / "raw.h5", {"Trial0": toy_trial(0, 0, 3)})
    cut = tmp_path / "cut.h5"
    cut.write_bytes(path.read_bytes()[:-300])
    assert "cut.h5 is damaged or cut short" in error(cut)
    cut.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0")
    assert "Git LFS pointer" in error(cut)
    other = write_trials(tmp_path / "none.h5", {"demo_0": toy_trial(0, 0, 3)})
    assert "none.h5 has no group Trial0, Trial1, …; it has demo_0" in error(other)
    with h5py.File(path, "a") as file:
        file["Trial1"] = h5py.ExternalLink("/etc/passwd", "x")
        file["Trial0/env_infos/link"] = h5py.SoftLink("/Trial0/time")
    release = replace(RoboSet().release_of(path, "mine"), options=Options(skip_bad_episodes=True))
    (batch,) = read_all(release)
    assert not len(batch.lengths)
    assert all("not followed" in one.reason for one in batch.skipped)
    with pytest.raises(FormatError, match="is not a roboset dataset"):
        RoboSet().release_of(tmp_path / "absent", "mine")


def test_other_sources_leave_them_alone(tmp_path: Path, realdata: Path) -> None:
    folder = write_roboset(tmp_path / "raw")
    for path in (folder, next(folder.iterdir())):
        assert [source.name for source in iter_sources() if source.accepts(path)] == ["roboset"]
    for name in ("d4rl", "gendgrl", "robomimic", "vd4rl"):
        for path in (realdata / "fixtures_generated" / name).rglob("*"):
            assert not RoboSet().accepts(path)


# ---- the hub ---------------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path: Path, settings: Settings) -> Iterator[tuple[HubServer, Settings]]:
    write_roboset(tmp_path / "remote" / NAME, seeds=(0, 1), trials=(0, 1))
    write_roboset(tmp_path / "remote" / f"{NAME}0", seeds=(5,))  # whose name begins alike
    with HubServer({"jdvakil/RoboSet_Sim": tmp_path / "remote"}) as server:
        yield server, replace(settings, offline=False, hub_endpoint=server.url)


def test_downloads(hub: tuple[HubServer, Settings], tmp_path: Path) -> None:
    server, online = hub
    stored = download(parse_id(f"roboset:{NAME}"), online, Options(audit="all"))
    reader = open_reader(stored.path)
    paths = [tmp_path / "remote" / NAME / f"toy_seed{n}.h5" for n in (0, 1)]
    assert_trials(reader, paths, PLACEHOLDERS)
    assert {leaf["key"] for leaf in stored.manifest.dropped} == PLACEHOLDERS
    reasons = {leaf["reason"] for leaf in stored.manifest.dropped}
    assert all(reason.startswith("It holds NaN of float16") for reason in reasons)
    targets = [one.target for one in server.requests if one.path.endswith(".h5")]
    assert targets
    assert all("%28human%29" in one and "v4/toy_seed" in one for one in targets)
    assert stored.manifest.licence == "CC-BY-4.0"
    assert stored.manifest.environment["id"] == "FK1_Knob1OnRandom_v2d-v4"
    assert {e.name for e in RoboSet().remote(online)} == {NAME, f"{NAME}0"}
    with pytest.raises(NotFoundError) as caught:
        RoboSet().resolve("DAPG(human)/dor_v2d-v1", None, online)
    assert "roboset:DAPG(human)/door_v2d-v1" in (caught.value.hint or "")


# ---- TorchRL ---------------------------------------------------------------------------------


with warnings.catch_warnings():  # torchrl deprecates classes of its own while it is imported
    warnings.simplefilter("ignore")
    import torchrl.data.datasets as theirs


@pytest.mark.filterwarnings("ignore")
def test_beside_torchrl(tmp_path: Path) -> None:
    path = write_trials(tmp_path / "raw.h5", {f"Trial{n}": toy_trial(0, n, 4) for n in range(3)})
    other = theirs.RobosetExperienceReplay.__new__(theirs.RobosetExperienceReplay)
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


def test_torchrl_calls_work_here() -> None:
    mine = inspect.signature(offline_data.RobosetExperienceReplay.__init__).parameters
    other = inspect.signature(theirs.RobosetExperienceReplay.__init__).parameters
    assert list(mine) == list(other)
    for parameter in other.values():
        assert mine[parameter.name].kind == parameter.kind
        if parameter.default is not parameter.empty:
            assert mine[parameter.name].default == parameter.default
    available = offline_data.RobosetExperienceReplay.available_datasets
    assert available == theirs.RobosetExperienceReplay.available_datasets

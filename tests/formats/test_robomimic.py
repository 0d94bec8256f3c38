"""robomimic's layout: every leaf of every row against h5py, quirks of its four writers, bad files, the hub."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, NotFoundError, UsageError
from offline_data.base.ids import parse_id
from offline_data.episode.fields import next_of
from offline_data.formats.base import Release, RemoteFile
from offline_data.formats.registry import FolderOfDatasetsError, iter_sources, source_accepting
from offline_data.formats.robomimic.alignment import find_alignment
from offline_data.formats.robomimic.demos import JUMPS
from offline_data.formats.robomimic.file import ENDS
from offline_data.formats.robomimic.source import Libero, MimicGen, Robomimic
from offline_data.pipeline.ingest import Options, convert, download
from offline_data.raw.hdf5 import MAGIC
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.sources import SourceCase, SourceContract
from tests.toys.robomimic import (
    LANGUAGE,
    isaac_demo,
    libero_demo,
    toy_demo,
    write_demos,
    write_libero,
)
from tests.toys.servers import FileServer, HubServer
from tests.toys.stored import convert_and_open, read_shards

NUMBERS = (0, 2, 10, 1)
STANFORD = "http://downloads.cs.stanford.edu/downloads/rt_benchmark"


class TestRobomimic(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        path = write_toy(tmp_path / "raw.hdf5")
        return SourceCase(Robomimic(), Release("x", "1", local=path), path)


class TestMimicGen(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        path = write_demos(tmp_path / "raw.hdf5", {n: mimicgen_demo(n, 3 + n) for n in range(3)})
        return SourceCase(MimicGen(), Release("x", "1", local=path), path)


class TestLibero(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        for name in ("a", "b"):
            write_libero(tmp_path / "raw" / f"{name}.hdf5")
        files = tuple(RemoteFile(f"{name}.hdf5", (f"hf://{name}",)) for name in ("a", "b"))
        release = Release("libero_goal", "3f2a", files)
        return SourceCase(Libero(), Libero().plan_shards(release), tmp_path / "raw")


def write_toy(path: Path, **more: Any) -> Path:
    demos = {n: toy_demo(n, 3 + n % 4, **more) for n in NUMBERS}
    return write_demos(path, demos, {"train": [0, 10], "20_percent/valid": [2]})


def mimicgen_demo(number: int, rows: int) -> dict[str, Any]:
    demo = toy_demo(number, rows)
    poses = np.full((rows, 4, 4), number, np.float64) + demo["states"][:, None]
    return demo | {"datagen_info/object_poses/cube": poses, "src_demo_inds": np.arange(2)}


read_all = partial(read_shards, Robomimic())
converted = partial(convert_and_open, force=True)


def texts(settings: Settings, column: str) -> Any:
    return offline_data.load_dataset("local:toy", root=settings.root).episodes[column]


def demos_of(path: Path) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    """Read a file by h5py alone: number, datasets and attributes of each demonstration."""
    with h5py.File(path) as file:
        for name in sorted(file["data"], key=lambda name: int(name[5:])):
            group = file["data"][name]
            rows: dict[str, Any] = {}
            group.visititems(
                lambda place, node, into=rows: into.update(
                    {place: node[()]} if isinstance(node, h5py.Dataset) else {}
                )
            )
            yield int(name[5:]), rows, dict(group.attrs)


def same(found: Any, expected: Any) -> None:
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


FLAGS = {("done",), ("terminated",), ("truncated",), ("episode",), ("next", "done")}
TED = FLAGS | {("next", "terminated"), ("next", "truncated")}
ROOTS = {"actions": ("action",), "rewards": ("next", "reward"), "states": ("state",)}


def assert_demos(
    reader: DatasetReader, path: Path, *, final: bool = True, keep: bool = False
) -> None:
    """Compare all leaves of all rows of a file of robomimic's own script with h5py."""
    episode = 0
    for number, rows, _ in demos_of(path):
        count = len(rows["actions"])
        assert reader.lengths[episode] == count
        assert reader.episodes["demo",][episode] == number
        assert reader.episodes["final_observation",][episode] == final
        found = reader.transitions_at(np.arange(count) + reader.starts[episode])
        expected: dict[Any, Any] = {}
        for place, column in rows.items():
            first, *rest = place.split("/")
            if first == "obs":
                after = rows.get(f"next_obs/{'/'.join(rest)}")
                if after is None or not keep:
                    last = column[-1:] if after is None else after[-1:]
                    after = np.concatenate([column[1:], last])
                key = ("observation", *rest)
                expected |= {key: column, ("next", *key): after}
            elif first != "next_obs":
                column = column[:, None] if place in {"rewards", "dones"} else column
                expected |= {(*ROOTS.get(first, ("extra", first)), *rest): column}
        assert found.keys() - TED == expected.keys()
        for key, values in expected.items():
            same(found[key], values)
        ends = found["next", "terminated"] | found["next", "truncated"]
        assert ends[:, 0].tolist() == [False] * (count - 1) + [True]
        episode += 1
    assert episode == reader.episode_count


# ---- robomimic -------------------------------------------------------------------------------


@pytest.mark.parametrize("next_obs", [True, False])
def test_every_leaf_of_every_row(tmp_path: Path, settings: Settings, next_obs: bool) -> None:
    path = write_toy(tmp_path / "x.hdf5", next_obs=next_obs)
    reader = converted(path, settings)
    assert_demos(reader, path, final=next_obs)
    assert reader.episodes["demo",].tolist() == [0, 1, 2, 10]


def test_real_files(realdata: Path, settings: Settings) -> None:
    folder = realdata / "fixtures_generated" / "robomimic"
    image = folder / "image_v15.hdf5"
    assert_demos(converted(image, settings), image, final=False)
    low_dim = folder / "low_dim_v15.hdf5"
    # In this file next_obs of two of the observations are other numbers than the rows after.
    reader = converted(low_dim, settings, keep_episodes=True)
    assert_demos(reader, low_dim, keep=True)
    assert reader.episodes["mask", "valid"].nonzero()[0].tolist() == [0, 4, 8]


def test_filter_keys_are_columns_of_the_episodes(tmp_path: Path, settings: Settings) -> None:
    converted(write_toy(tmp_path / "x.hdf5"), settings)
    dataset = offline_data.load_dataset("local:toy", 4, root=settings.root)
    train = dataset.filter("mask.train")
    assert train.episodes["demo"].tolist() == [0, 10]
    assert dataset.filter("not mask.train").episodes["demo"].tolist() == [1, 2]
    assert dataset.episodes["mask/20_percent/valid"].tolist() == [False, False, True, False]
    assert dataset.manifest.environment["env_name"] == "Lift"
    assert dataset.manifest.about["env_name"] == "Lift"


def test_filter_keys_are_views(tmp_path: Path, settings: Settings) -> None:
    converted(write_toy(tmp_path / "x.hdf5"), settings)
    load = partial(offline_data.load_dataset, "local:toy", 4, root=settings.root)
    train = load(view="train")
    assert train.episodes["demo"].tolist() == [0, 10]
    expected = load().filter("mask.train")[:]
    assert train[:]["action"].equal(expected["action"])
    assert load(split_trajs=True, view="train").episodes["demo"].tolist() == [0, 10]
    assert load().saved_view("20_percent/valid").episodes["demo"].tolist() == [2]
    with pytest.raises(NotFoundError) as caught:
        load(view="test")
    assert str(caught.value.hint).endswith(": 20_percent/valid, train")

    load().filter("demo == 2").save("train")  # the user's own view
    assert load(view="train").episodes["demo"].tolist() == [2]


@pytest.mark.parametrize(
    ("dones", "ends", "terminated"),
    [
        ([(1,), (1,)], "last", [False, False]),
        ([(1, 1, 1), (1,)], "some", [True, False]),
        ([(1, 1, 1), (0,)], "every", [True, False]),
        ([(1,), (0,)], "every", [True, False]),
        ([(1, 0, 1), (1, 1)], "some", [False, True]),
    ],
)
def test_what_dones_mean(
    tmp_path: Path,
    settings: Settings,
    dones: list[tuple[int, ...]],
    ends: str,
    terminated: list[bool],
) -> None:
    demos = {n: toy_demo(n, 4, dones=marks) for n, marks in enumerate(dones)}
    reader = converted(write_demos(tmp_path / "x.hdf5", demos), settings)
    assert reader.episodes["terminated",].tolist() == terminated
    assert reader.episodes["truncated",].tolist() == [not one for one in terminated]
    assert ENDS[ends] in reader.manifest.notes
    for number, (_, rows, _) in enumerate(demos_of(tmp_path / "x.hdf5")):
        places = np.arange(4) + reader.starts[number]
        assert (
            reader.transitions_at(places)["extra", "dones"][:, 0].tolist() == rows["dones"].tolist()
        )


def test_next_obs_that_are_not_the_rows_after(tmp_path: Path, settings: Settings) -> None:
    demos = {n: toy_demo(n, 5) for n in range(2)}
    demos[1]["next_obs/object"][2] = -1.0
    demos[0]["next_obs/object"][1] = -1.0
    demos[0]["obs/gripper"][1] = demos[0]["next_obs/gripper"][0] = np.nan  # not a difference
    path = write_demos(tmp_path / "x.hdf5", demos)
    reader = converted(path, settings)
    assert reader.lengths.tolist() == [2, 3, 3, 2]
    assert reader.episodes["demo",].tolist() == [0, 0, 1, 1]
    assert reader.episodes["truncated",].all()
    assert reader.transitions_at(np.array([7]))["next", "observation", "object"].tolist() == [
        [-1.0] * 3
    ]
    assert f"In 2 rows {JUMPS}" in reader.manifest.notes
    assert_demos(converted(path, settings, keep_episodes=True), path, keep=True)


def test_next_obs_of_other_keys_are_left_out(tmp_path: Path, settings: Settings) -> None:
    demos = {n: toy_demo(n, 5) for n in range(2)}
    for demo in demos.values():
        del demo["next_obs/image"]
    reader = converted(write_demos(tmp_path / "x.hdf5", demos), settings)
    assert not reader.episodes["final_observation",].any()
    (dropped,) = reader.manifest.dropped
    assert "image is absent in one of obs and next_obs" in dropped["reason"]


def test_datagen_info(tmp_path: Path, settings: Settings) -> None:
    path = write_demos(tmp_path / "x.hdf5", {n: mimicgen_demo(n, 4) for n in range(2)})
    assert source_accepting(path).name == "mimicgen"
    reader = converted(path, settings)
    found = reader.step(("info", "datagen_info", "object_poses", "cube"))
    rows = [rows["datagen_info/object_poses/cube"] for _, rows, _ in demos_of(path)]
    same(found, np.concatenate(rows))
    reasons = {one["key"]: one["reason"] for one in reader.manifest.dropped}
    assert reasons == {"src_demo_inds": "It has 2 rows, expected 4."}
    assert texts(settings, "model_file") == ["<mujoco/>"] * 2


def test_language_of_robocasa(tmp_path: Path, settings: Settings) -> None:
    demos = {n: toy_demo(n, 3) | {"@ep_meta": json.dumps({"lang": f"open {n}"})} for n in range(2)}
    converted(write_demos(tmp_path / "x.hdf5", demos), settings)
    assert texts(settings, "language_instruction") == ["open 0", "open 1"]
    assert texts(settings, "ep_meta") == ['{"lang": "open 0"}', '{"lang": "open 1"}']


def test_isaac_lab(tmp_path: Path, settings: Settings) -> None:
    demos = {n: isaac_demo(n, 3 + n, success=n != 1) for n in range(3)}
    path = write_demos(
        tmp_path / "x.hdf5", demos, env_args={"env_name": "Isaac-Lift-v0", "type": 2}
    )
    reader = converted(path, settings)
    assert ("next", "reward") not in reader.step_leaves
    assert reader.episodes["terminated",].tolist() == [True, False, True]
    assert reader.episodes["success",].tolist() == [True, False, True]
    assert reader.episodes["seed",].tolist() == [7, 8, 9]
    place = "articulation/robot/joint_position"
    key = tuple(place.split("/"))
    rows = [rows for _, rows, _ in demos_of(path)]
    same(reader.step(("next", "state", *key)), np.concatenate([r[f"states/{place}"] for r in rows]))
    initial = ("initial_state", *key)
    same(reader.episodes[initial], np.concatenate([r[f"initial_state/{place}"] for r in rows]))
    table = reader.transitions_at(np.arange(reader.transitions))
    expected = np.concatenate([r["obs/policy/joint_pos"] for r in rows])
    same(table["observation", "policy", "joint_pos"], expected)
    same(
        table["extra", "processed_actions"], np.concatenate([r["processed_actions"] for r in rows])
    )


def test_behaviour_cloning(tmp_path: Path, settings: Settings) -> None:
    converted(write_toy(tmp_path / "x.hdf5"), settings)
    dataset = offline_data.load_dataset("local:toy", 8, root=settings.root)
    torch.manual_seed(0)
    policy = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(policy.parameters(), 0.05)
    losses = []
    for _ in range(60):
        batch = dataset.filter("mask.train").sample()
        wanted = batch["action"].float() / 1000
        loss = (policy(batch["observation", "object"].float() / 1000) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 10


# ---- LIBERO ----------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [True, False])
def test_both_alignments_of_libero(tmp_path: Path, settings: Settings, raw: bool) -> None:
    path = write_libero(tmp_path / "x.hdf5", raw=raw)
    assert source_accepting(path).name == "libero"
    reader = converted(path, settings)
    assert reader.episodes["terminated",].all()
    assert reader.episodes["final_observation",].tolist() == [raw] * 3
    assert reader.manifest.about.get("env_name") == ("Lift" if raw else None)
    if raw:
        assert texts(settings, "language_instruction") == [LANGUAGE] * 3
    for episode, (_, rows, _) in enumerate(demos_of(path)):
        first = int(raw)
        count = len(rows["actions"]) - first
        assert reader.lengths[episode] == count
        found = reader.transitions_at(np.arange(count) + reader.starts[episode])
        same(found["action",], rows["actions"][first:])
        same(found["next", "reward"][:, 0], rows["rewards"][first:])
        same(found["extra", "dones"][:, 0], rows["dones"][first:])
        # The state before an action belongs to the observation before it: both have its code.
        same(found["state",], rows["states"][first:])
        codes = found["observation", "joint_states"][:, 0]
        assert codes.tolist() == found["state",][:, 0].tolist()
        places = [name for name in rows if name.startswith("obs/")] + ["robot_states"]
        for place in places:
            root = ("info",) if place == "robot_states" else ("observation",)
            column = rows[place]
            after = np.concatenate([column[1:], column[-1:]])[:count]
            key = (*root, place.split("/")[-1])
            same(found[key], column[:count])
            same(found[next_of(key)], after)


@pytest.mark.parametrize("smooth", [0.0, 0.5, 0.8, 0.9])
@pytest.mark.parametrize("raw", [True, False])
def test_alignment_is_told_by_the_movements(raw: bool, smooth: float) -> None:
    demos = [libero_demo(n, 60, raw=raw, smooth=smooth) for n in range(5)]
    found = find_alignment((demo["obs/ee_states"][:, :3], demo["actions"]) for demo in demos)
    assert found == ("raw" if raw else "regenerated")


@pytest.mark.parametrize("what", ["still", "few rows", "noise", "NaN"])
def test_movements_that_tell_nothing(what: str) -> None:
    demos = [libero_demo(n, 60, raw=True) for n in range(5)][: 1 if what == "few rows" else 5]
    rng = np.random.default_rng(0)
    pairs = []
    for demo in demos:
        places, actions = demo["obs/ee_states"][:, :3], demo["actions"]
        if what == "few rows":
            places, actions = places[:20], actions[:20]
        elif what != "NaN":
            places = rng.normal(size=places.shape) * (what == "noise")
        else:
            places = np.where(np.arange(60)[:, None] == 30, np.nan, places)
        pairs.append((places, actions))
    assert find_alignment(pairs) is None


def test_undecided_files_ask_for_the_alignment(tmp_path: Path, settings: Settings) -> None:
    demos = {n: libero_demo(n, 8, raw=True) for n in range(2)}
    path = write_demos(tmp_path / "x.hdf5", demos)
    with pytest.raises(UsageError, match=r"The movements in x\.hdf5 do not tell") as found:
        converted(path, settings)
    assert "--alignment raw, or --alignment regenerated" in str(found.value.shell_hint)
    assert not list(settings.root.rglob("manifest.json"))
    assert converted(path, settings, alignment="raw").lengths.tolist() == [7, 7]
    reader = converted(path, settings, alignment="regenerated")
    assert reader.lengths.tolist() == [8, 8]
    assert "as requested" in reader.manifest.notes[0]
    again = [convert(path, "toy", settings, Options(alignment=one)) for one in (None, "raw")]
    assert [(one.existed, one.transitions) for one in again] == [(True, 16), (False, 14)]
    other = write_toy(tmp_path / "y.hdf5")
    with pytest.raises(UsageError, match="--alignment is for LIBERO files"):
        converted(other, settings, alignment="raw")


def test_folders_of_tasks(tmp_path: Path, settings: Settings) -> None:
    for name in ("b", "a"):
        write_libero(tmp_path / "suite" / f"{name}.hdf5")
    converted(tmp_path / "suite", settings)
    assert texts(settings, "file") == ["a.hdf5"] * 3 + ["b.hdf5"] * 3
    write_toy(tmp_path / "ph" / "low_dim.hdf5")
    write_toy(tmp_path / "ph" / "image.hdf5")
    with pytest.raises(FolderOfDatasetsError, match="2 datasets"):
        converted(tmp_path / "ph", settings)


# ---- bad files -------------------------------------------------------------------------------


def without(name: str) -> Callable[[Any], None]:
    return lambda demo: demo.__delitem__(name)


def with_(name: str, value: Any) -> Callable[[Any], None]:
    return lambda demo: demo.update({name: value})


def as_libero(demo: dict[str, Any]) -> None:
    for name in [name for name in demo if name.startswith("next_obs")]:
        del demo[name]
    demo["obs/ee_states"] = demo["states"]


BAD: dict[str, tuple[Callable[[Any], None], str]] = {
    "no actions": (without("actions"), "it has no 'actions'; it has action_dict, dones"),
    "no rows": (
        lambda d: d.update(
            {k: v if k[0] == "@" else v[:0] for k, v in d.items()} | {"@num_samples": 0}
        ),
        "it has 0 rows, too few",
    ),
    "no rewards": (without("rewards"), "leaf 'next/reward' is absent"),
    "no key": (without("obs/object"), "leaf 'observation/object' is absent"),
    "short obs": (
        with_("obs/object", np.zeros((2, 3))),
        "'obs/object' cannot be read. It has 2 rows",
    ),
    "short dones": (with_("dones", np.zeros(2)), "'dones' cannot be read. It has 2 rows"),
    "wide rewards": (with_("rewards", np.zeros((4, 2))), r"reward have shape \[4, 2\]"),
    "num_samples": (with_("@num_samples", 9), "its num_samples is 9, and it has 4 actions"),
    "other type": (with_("actions", np.zeros((4, 2), np.float32)), "leaf 'action' is float32"),
    "text": (with_("actions", np.array([b"x"] * 4)), "'actions' cannot be read. It has HDF5 type"),
    "scalar": (with_("rewards", np.float64(1)), "'rewards' cannot be read. It has 0 rows"),
    "seed": (with_("@seed", np.zeros(3)), "its attribute 'seed' is float64"),
    "ep_meta": (with_("@ep_meta", "{"), "its attribute 'ep_meta'"),
    "another column": (with_("@success", True), "leaf 'episode success' is bool"),
    "of LIBERO": (as_libero, "has obs/ee_states without next_obs"),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_demonstrations(tmp_path: Path, bad: str) -> None:
    demos = {n: toy_demo(n, 4) for n in range(3)}
    change, said = BAD[bad]
    change(demos[1])
    path = write_file(tmp_path / "x.hdf5", demos)
    release = Robomimic().release_of(path, "mine")
    with pytest.raises(FormatError, match=rf"^x\.hdf5 demo_1: .*{said}") as caught:
        read_all(release)
    assert "--skip-bad-episodes" in (caught.value.shell_hint or "")
    (batch,) = read_all(replace(release, options=Options(skip_bad_episodes=True)))
    assert batch.episodes["demo",].tolist() == [0, 2]
    assert [one.where for one in batch.skipped] == ["x.hdf5 demo_1"]


def write_file(path: Path, demos: dict[int, Any]) -> Path:
    """Write demonstrations that need not have actions."""
    with h5py.File(path, "w") as file:
        for number, demo in demos.items():
            group = file.create_group(f"data/demo_{number}")
            for name, value in demo.items():
                if name.startswith("@"):
                    group.attrs[name[1:]] = value
                else:
                    group[name] = value
    return path


def test_files_without_observations(tmp_path: Path, settings: Settings) -> None:
    demos = {
        n: {k: toy_demo(n, 4)[k] for k in ("actions", "states", "@model_file")} for n in range(2)
    }
    path = write_demos(tmp_path / "demo_v15.hdf5", demos)
    with pytest.raises(FormatError, match="it has no 'obs', only actions, states") as found:
        converted(path, settings)
    assert "dataset_states_to_obs.py" in str(found.value.shell_hint)
    assert not list(settings.root.rglob("manifest.json"))
    with pytest.raises(NotFoundError, match="has the states of the simulator") as missing:
        Robomimic().resolve("lift/ph/demo_v15", None, settings)
    assert "robomimic:lift/ph/low_dim_v15" in str(missing.value.shell_hint)
    assert Robomimic().resolve("lift_real/ph/demo", None, settings).files


def test_hostile_files(tmp_path: Path) -> None:
    secret = tmp_path / "secret.bin"
    secret.write_bytes(b"\7" * 1024)
    path = write_file(tmp_path / "x.hdf5", {n: toy_demo(n, 4) for n in range(4)})
    with h5py.File(path, "a") as file:
        file["data/demo_4"] = h5py.ExternalLink(str(secret), "x")
        file["data/demo_5"] = h5py.SoftLink("/data/demo_0")
        file["data/demo_1/obs/link"] = h5py.ExternalLink(str(secret), "x")
        del file["data/demo_2/rewards"]
        file["data/demo_2"].create_dataset("rewards", (4,), "f8", external=[(str(secret), 0, 32)])
        del file["data/demo_3"]
        file["data/demo_3"] = np.zeros(3)
    (batch,) = read_all(
        replace(Robomimic().release_of(path, "x"), options=Options(skip_bad_episodes=True))
    )
    assert batch.episodes["demo",].tolist() == [0]
    said = [one.reason for one in batch.skipped]
    assert [re.search("not followed|in another file|not a group", text) for text in said]
    assert [one.where for one in batch.skipped] == [f"x.hdf5 demo_{n}" for n in range(1, 6)]


def test_files_that_are_damaged_or_others(tmp_path: Path) -> None:
    def error(path: Path) -> str:
        with pytest.raises(FormatError) as caught:
            read_all(Robomimic().release_of(path, "mine"))
        return caught.value.message

    path = write_toy(tmp_path / "x.hdf5")
    cut = tmp_path / "cut.hdf5"
    cut.write_bytes(path.read_bytes()[:-3000])
    assert "cut.hdf5 is damaged or cut short" in error(cut)
    assert not Robomimic().accepts(cut)
    empty = write_file(tmp_path / "empty.hdf5", {})
    assert "empty.hdf5 has no demonstrations data/demo_0" in error(empty)
    with h5py.File(path, "a") as file:
        file["data"].attrs["env_args"] = "{'env_name': 1}"
    assert "x.hdf5, attribute 'env_args'" in error(path)
    with h5py.File(path, "a") as file:
        file["data"].attrs["env_args"] = "{}"
        file["mask/bad"] = h5py.SoftLink("/data")
    assert "'bad'" in error(path)


@pytest.mark.slow
def test_many_names(tmp_path: Path) -> None:
    path = write_toy(tmp_path / "x.hdf5")
    with h5py.File(path, "a") as file:
        for number in range(20_000):  # links to one group are as long a list as groups
            file[f"data/demo_{100 + number}"] = h5py.SoftLink("/nowhere")
    (batch,) = read_all(
        replace(Robomimic().release_of(path, "x"), options=Options(skip_bad_episodes=True))
    )
    assert len(batch.lengths) == 4
    assert len(batch.skipped) == 20_000


def test_other_sources_leave_them_alone(tmp_path: Path, realdata: Path) -> None:
    paths = [write_toy(tmp_path / "x.hdf5"), *(realdata / "fixtures_generated/robomimic").iterdir()]
    for path in paths:
        assert [source.name for source in iter_sources() if source.accepts(path)] == ["robomimic"]
    for name in ("d4rl", "gendgrl", "vd4rl", "roboset"):
        for path in (realdata / "fixtures_generated" / name).rglob("*"):
            assert not any(source().accepts(path) for source in (Robomimic, MimicGen, Libero))


# ---- published files -------------------------------------------------------------------------


def test_names_and_digests(settings: Settings, published: dict[str, tuple[int, str]]) -> None:
    names = [entry.name for entry in Robomimic().catalog()]
    found = {}
    for name in names:
        if not name.endswith("_v15"):
            (file,) = Robomimic().resolve(name, None, settings).files
            assert file.urls[0].startswith(f"{STANFORD}/{name.rpartition('/')[0]}/")
            assert file.magic == MAGIC
            if file.digest:
                found[file.urls[0]] = (file.size, file.digest.removeprefix("sha256:"))
    assert found == published


@pytest.fixture
def published() -> dict[str, tuple[int, str]]:
    path = Path(__file__).resolve().parents[3] / "shared/design/ids/published_sha256.tsv"
    if not path.is_file():
        pytest.skip("the published table is not here")
    rows = [line.split() for line in path.read_text().splitlines() if line.startswith("http")]
    return {url: (int(size), digest) for url, size, digest in rows}


def test_downloads_from_stanford(tmp_path: Path) -> None:
    path = write_toy(tmp_path / "x.hdf5")
    with FileServer({"/can/ph/low_dim_v141.hdf5": path.read_bytes()}) as server:
        settings = Settings(tmp_path / "root", mirrors=((STANFORD, server.url),))
        stored = download(parse_id("robomimic:can/ph/low_dim_v141"), settings, Options())
        assert_demos(open_reader(stored.path), path)
        assert (stored.manifest.licence, stored.manifest.environment["env_name"]) == ("MIT", "Lift")
        assert "What Matters" in str(stored.manifest.citation)


@pytest.fixture
def hub(tmp_path: Path, settings: Settings) -> Iterator[Settings]:
    remote = tmp_path / "remote"
    write_toy(remote / "r" / "v1.5/lift/ph/low_dim_v15.hdf5")
    demos = {n: mimicgen_demo(n, 3) for n in range(2)}
    write_demos(remote / "m" / "core/stack_d0.hdf5", demos)
    write_demos(remote / "m" / "core/stack_d1.hdf5", demos)
    (remote / "m" / "README.md").write_text("---\nlicense: cc-by-nc-sa-4.0\n---\n")
    for name in ("b", "a"):
        write_libero(remote / "l" / f"libero_10/{name}_demo.hdf5", rows=8)
    repos = {
        "robomimic/robomimic_datasets": remote / "r",
        "amandlek/mimicgen_datasets": remote / "m",
        "yifengzhu-hf/LIBERO-datasets": remote / "l",
    }
    with HubServer(repos) as server:
        yield replace(settings, offline=False, hub_endpoint=server.url)


def test_downloads_from_the_hub(hub: Settings, tmp_path: Path) -> None:
    stored = download(parse_id("robomimic:lift/ph/low_dim_v15"), hub, Options(audit="all"))
    assert_demos(open_reader(stored.path), tmp_path / "remote/r/v1.5/lift/ph/low_dim_v15.hdf5")
    stored = download(parse_id("mimicgen:core/stack_d0"), hub, Options(audit="all"))
    assert stored.manifest.licence == "cc-by-nc-sa-4.0"  # of the card, before the one that we know
    stored = download(parse_id("libero:libero_10"), hub, Options(audit="all"))
    assert (stored.episodes, stored.transitions) == (6, 2 * (7 + 8 + 9))
    assert "after the action of their row by LIBERO's script" in stored.manifest.notes[0]
    assert stored.manifest.licence == "CC-BY-4.0"
    listed = {entry.name: entry.bytes for entry in MimicGen().remote(hub)}
    size = (tmp_path / "remote/m/core/stack_d0.hdf5").stat().st_size
    assert listed == {"core/stack_d0": size, "core/stack_d1": size}
    with pytest.raises(NotFoundError, match=r"has no core/square_d0\.hdf5"):
        MimicGen().resolve("core/square_d0", None, hub)
    with pytest.raises(NotFoundError) as found:
        MimicGen().resolve("core/stak_d0", None, hub)
    assert "mimicgen:core/stack_d0" in str(found.value.shell_hint)

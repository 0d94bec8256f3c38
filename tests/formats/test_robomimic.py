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

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import NotFoundError
from offline_data.base.ids import parse_id
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED, next_of
from offline_data.formats.base import Release, RemoteFile
from offline_data.formats.registry import FolderOfDatasetsError
from offline_data.formats.robomimic.alignment import find_alignment
from offline_data.formats.robomimic.demos import JUMPS
from offline_data.formats.robomimic.file import ENDS
from offline_data.formats.robomimic.source import Libero, MimicGen, Robomimic
from offline_data.pipeline.ingest import Options, convert, download
from offline_data.raw.hdf5 import MAGIC
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.sources import Damage, Episode, SourceCase, assert_episodes
from tests.formats.contract import Contract
from tests.refusals import Refusals
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

REFUSALS = Refusals.beside(__file__)
NUMBERS = (0, 2, 10, 1)
STANFORD = "http://downloads.cs.stanford.edu/downloads/rt_benchmark"

read_all = partial(read_shards, Robomimic())
converted = partial(convert_and_open, force=True)


def write_toy(path: Path, **more: Any) -> Path:
    demos = {n: toy_demo(n, 3 + n % 4, **more) for n in NUMBERS}
    return write_demos(path, demos, {"train": [0, 10], "20_percent/valid": [2]})


def mimicgen_demo(number: int, rows: int) -> dict[str, Any]:
    demo = toy_demo(number, rows)
    poses = np.full((rows, 4, 4), number, np.float64) + demo["states"][:, None]
    return demo | {"datagen_info/object_poses/cube": poses, "src_demo_inds": np.arange(2)}


def texts(settings: Settings, column: str) -> Any:
    return offline_data.load_dataset("local:toy", root=settings.root).episodes[column]


# ---- every value, by h5py --------------------------------------------------------------------


def demos_of(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read a file by h5py alone: number and datasets of each demonstration."""
    with h5py.File(path) as file:
        for name in sorted(file["data"], key=lambda name: int(name[5:])):
            rows: dict[str, Any] = {}
            file["data"][name].visititems(
                lambda place, node, into=rows: into.update(
                    {place: node[()]} if isinstance(node, h5py.Dataset) else {}
                )
            )
            yield int(name[5:]), rows


ROOTS = {
    "actions": ("action",),
    "rewards": REWARD,
    "states": ("state",),
    "datagen_info": ("info", "datagen_info"),
}


def flags(count: int, *, terminated: bool) -> Episode:
    last = np.arange(count)[:, None] == count - 1
    return {TERMINATED: last & terminated, TRUNCATED: last & (not terminated)}


def episodes_of(path: Path, *, final: bool = True, keep: bool = False) -> list[Episode]:
    """Return the episodes of a file of robomimic's own script; `keep`: next_obs as they are."""
    found = []
    for number, rows in demos_of(path):
        count = len(rows["actions"])
        episode = flags(count, terminated=bool(rows["dones"][-2:].all()))
        for place, column in rows.items():
            first, *rest = place.split("/")
            if first == "obs":
                after = rows.get(f"next_obs/{'/'.join(rest)}")
                if after is None or not keep:
                    last = column[-1:] if after is None else after[-1:]
                    after = np.concatenate([column[1:], last])
                episode |= {("observation", *rest): column, ("next", "observation", *rest): after}
            elif first != "next_obs" and len(column) == count:
                column = column[:, None] if place in {"rewards", "dones"} else column
                episode |= {(*ROOTS.get(first, ("extra", first)), *rest): column}
        known = {("episode", "demo"): number, ("episode", "final_observation"): final}
        found.append(episode | known)
    return found


def libero_episodes(path: Path, *, raw: bool = True) -> list[Episode]:
    """Return the episodes of LIBERO files: of a raw one, row `t` was seen after action `t`."""
    found = []
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        for _, rows in demos_of(file):
            steps = slice(int(raw), None)
            count = len(rows["actions"][steps])
            episode = flags(count, terminated=True) | {
                ("action",): rows["actions"][steps],
                REWARD: rows["rewards"][steps, None],
                ("extra", "dones"): rows["dones"][steps, None],
                ("state",): rows["states"][steps],
                ("episode", "file"): file.name,
                ("episode", "final_observation"): raw,
            }
            for place in [name for name in rows if name.startswith("obs/")] + ["robot_states"]:
                key = ("info" if place == "robot_states" else "observation", place.split("/")[-1])
                column = rows[place]
                episode[key] = column[:count]
                episode[next_of(key)] = np.concatenate([column[1:], column[-1:]])[:count]
            found.append(episode)
    return found


# ---- damage ----------------------------------------------------------------------------------


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


def demo(change: Callable[[dict[str, Any]], object], *numbers: int) -> Damage:
    """Change demonstration 1, of four rows, or others."""

    def apply(path: Path) -> None:
        demos = {n: toy_demo(n, 3 + n % 4) for n in NUMBERS}
        for number in numbers or (1,):
            change(demos[number])
        write_file(path, demos)

    return Damage(apply, skipped=None if numbers else (1,))


def without(*names: str) -> Damage:
    return demo(lambda demo: [demo.pop(name) for name in names])


def with_(name: str, value: Any) -> Damage:
    return demo(lambda demo: demo.update({name: value}))


def no_rows(demo: dict[str, Any]) -> None:
    demo |= {k: v if k[0] == "@" else v[:0] for k, v in demo.items()} | {"@num_samples": 0}


def as_libero(demo: dict[str, Any]) -> None:
    for name in [name for name in demo if name.startswith("next_obs")]:
        del demo[name]
    demo["obs/ee_states"] = demo["states"]


def states_only(demo: dict[str, Any]) -> None:
    for name in demo.keys() - {"actions", "states", "@model_file"}:
        del demo[name]


def edit(change: Callable[[Any], object]) -> Damage:
    def apply(path: Path) -> None:
        with h5py.File(path, "a") as file:
            change(file)

    return Damage(apply)


BAD = {
    "no actions": without("actions"),
    "no rows": demo(no_rows),
    "no rewards": without("rewards"),
    "no key": without("obs/object"),
    "short obs": with_("obs/object", np.zeros((2, 3))),
    "short dones": with_("dones", np.array([0.0, 1])),
    "wide rewards": with_("rewards", np.zeros((4, 2))),
    "num_samples": with_("@num_samples", 9),
    "other type": with_("actions", np.zeros((4, 2), np.float32)),
    "text": with_("actions", np.array([b"x"] * 4)),
    "scalar": with_("rewards", np.float64(1)),
    "seed": with_("@seed", np.zeros(3)),
    "ep_meta": with_("@ep_meta", "{"),
    "another column": with_("@success", True),
    "of LIBERO": demo(as_libero),
    "no observations": demo(states_only, *NUMBERS),
    "no demonstrations": Damage(lambda path: write_file(path, {})),
    "env_args": edit(lambda file: file["data"].attrs.update(env_args="{'env_name': 1}")),
    "a mask": edit(lambda file: file["mask"].update(bad=h5py.SoftLink("/data"))),
}


class TestRobomimic(Contract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        path = write_toy(tmp_path / "raw.hdf5")
        return SourceCase(Robomimic(), Release("x", "1", local=path), path, episodes_of, BAD)


class TestMimicGen(Contract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        path = write_demos(tmp_path / "raw.hdf5", {n: mimicgen_demo(n, 3 + n) for n in range(3)})
        return SourceCase(MimicGen(), Release("x", "1", local=path), path, episodes_of)


class TestLibero(Contract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        for name in ("a", "b"):
            write_libero(tmp_path / "raw" / f"{name}.hdf5")
        files = tuple(RemoteFile(f"{name}.hdf5", (f"hf://{name}",)) for name in ("a", "b"))
        release = Libero().plan_shards(Release("libero_goal", "3f2a", files))
        return SourceCase(Libero(), release, tmp_path / "raw", libero_episodes)


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


@pytest.mark.slow
def test_many_names(tmp_path: Path) -> None:
    path = write_toy(tmp_path / "x.hdf5")
    with h5py.File(path, "a") as file:
        for number in range(20_000):  # links to one group are as long a list as groups
            file[f"data/demo_{100 + number}"] = h5py.SoftLink("/nowhere")
    (batch,) = read_all(
        replace(Robomimic().release_of(path, "x"), options=Options(skip_bad_episodes=True))
    )
    assert (len(batch.lengths), len(batch.skipped)) == (4, 20_000)


# ---- robomimic -------------------------------------------------------------------------------


def test_without_next_obs(tmp_path: Path, settings: Settings) -> None:
    path = write_toy(tmp_path / "x.hdf5", next_obs=False)
    assert_episodes(converted(path, settings), episodes_of(path, final=False))


def test_real_files(realdata: Path, settings: Settings) -> None:
    folder = realdata / "fixtures_generated" / "robomimic"
    image = folder / "image_v15.hdf5"
    assert_episodes(converted(image, settings), episodes_of(image, final=False))
    low_dim = folder / "low_dim_v15.hdf5"
    # In this file next_obs of two of the observations are other numbers than the rows after.
    reader = converted(low_dim, settings, keep_episodes=True)
    assert_episodes(reader, episodes_of(low_dim, keep=True))
    assert reader.episodes["mask", "valid"].nonzero()[0].tolist() == [0, 4, 8]


def test_filter_keys_are_columns_of_the_episodes_and_views(
    tmp_path: Path, settings: Settings
) -> None:
    converted(write_toy(tmp_path / "x.hdf5"), settings)
    load = partial(offline_data.load_dataset, "local:toy", 4, root=settings.root)
    dataset = load()
    train = dataset.filter("mask.train")
    assert train.episodes["demo"].tolist() == [0, 10]
    assert dataset.filter("not mask.train").episodes["demo"].tolist() == [1, 2]
    assert dataset.episodes["mask/20_percent/valid"].tolist() == [False, False, True, False]
    assert dataset.manifest.environment["env_name"] == dataset.manifest.about["env_name"] == "Lift"
    assert load(view="train")[:]["action"].equal(train[:]["action"])
    assert load(split_trajs=True, view="train").episodes["demo"].tolist() == [0, 10]
    assert dataset.saved_view("20_percent/valid").episodes["demo"].tolist() == [2]
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
    tmp_path: Path, settings: Settings, dones: Any, ends: str, terminated: list[bool]
) -> None:
    demos = {n: toy_demo(n, 4, dones=marks) for n, marks in enumerate(dones)}
    path = write_demos(tmp_path / "x.hdf5", demos)
    reader = converted(path, settings)
    expected = zip(episodes_of(path), terminated, strict=True)
    assert_episodes(reader, [one | flags(4, terminated=end) for one, end in expected])
    assert reader.episodes["terminated",].tolist() == terminated
    assert ENDS[ends] in reader.manifest.notes


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
    table = reader.transitions_at(np.array([7]))
    assert table["next", "observation", "object"].tolist() == [[-1.0] * 3]
    assert f"In 2 rows {JUMPS}" in reader.manifest.notes
    assert_episodes(converted(path, settings, keep_episodes=True), episodes_of(path, keep=True))


def test_what_the_four_writers_have_besides(tmp_path: Path, settings: Settings) -> None:
    def reader_of(demos: dict[int, Any], **more: Any) -> DatasetReader:
        return converted(write_demos(tmp_path / "x.hdf5", demos, **more), settings)

    demos = {n: toy_demo(n, 5) for n in range(2)}
    for one in demos.values():
        del one["next_obs/image"]
    reader = reader_of(demos)
    assert not reader.episodes["final_observation",].any()
    (dropped,) = reader.manifest.dropped
    assert "image is absent in one of obs and next_obs" in dropped["reason"]
    reader = reader_of({n: mimicgen_demo(n, 4) for n in range(2)})
    reasons = {one["key"]: one["reason"] for one in reader.manifest.dropped}
    assert reasons == {"src_demo_inds": "It has 2 rows, expected 4."}
    assert texts(settings, "model_file") == ["<mujoco/>"] * 2
    # RoboCasa
    reader_of({n: toy_demo(n, 3) | {"@ep_meta": json.dumps({"lang": f"open {n}"})} for n in (0, 1)})
    assert texts(settings, "language_instruction") == ["open 0", "open 1"]
    assert texts(settings, "ep_meta") == ['{"lang": "open 0"}', '{"lang": "open 1"}']


def test_isaac_lab(tmp_path: Path, settings: Settings) -> None:
    demos = {n: isaac_demo(n, 3 + n, success=n != 1) for n in range(3)}
    path = write_demos(tmp_path / "x.hdf5", demos, env_args={"env_name": "Isaac-Lift-v0"})
    place = ("articulation", "robot", "joint_position")
    expected = []
    for number, rows in demos_of(path):
        obs = {("observation", *name.split("/")[1:]): rows[name] for name in rows if "obs" in name}
        expected.append({
            ("action",): rows["actions"],
            ("extra", "processed_actions"): rows["processed_actions"],
            ("next", "state", *place): rows["/".join(("states", *place))],
            ("episode", "initial_state", *place): rows["/".join(("initial_state", *place))][0],
            ("episode", "success"): number != 1,
            ("episode", "seed"): 7 + number,
            **obs,
            **{next_of(key): np.concatenate([rows_[1:], rows_[-1:]]) for key, rows_ in obs.items()},
            **flags(len(rows["actions"]), terminated=number != 1),
        })  # fmt: skip
    assert_episodes(converted(path, settings), expected)


# ---- LIBERO ----------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [True, False])
def test_both_alignments_of_libero(tmp_path: Path, settings: Settings, raw: bool) -> None:
    reader = converted(path := write_libero(tmp_path / "x.hdf5", raw=raw), settings)
    assert_episodes(reader, libero_episodes(path, raw=raw))
    assert reader.manifest.about.get("env_name") == ("Lift" if raw else None)
    if raw:
        assert texts(settings, "language_instruction") == [LANGUAGE] * 3
    # The state before an action belongs to the observation before it: both have its code.
    table = reader.transitions_at(np.arange(reader.transitions))
    codes = table["observation", "joint_states"][:, 0]
    np.testing.assert_array_equal(codes, table["state",][:, 0])


@pytest.mark.parametrize("smooth", [0.0, 0.5, 0.8, 0.9])
@pytest.mark.parametrize("raw", [True, False])
def test_alignment_is_told_by_the_movements(raw: bool, smooth: float) -> None:
    demos = [libero_demo(n, 60, raw=raw, smooth=smooth) for n in range(5)]
    found = find_alignment((demo["obs/ee_states"][:, :3], demo["actions"]) for demo in demos)
    assert found == ("raw" if raw else "regenerated")


@pytest.mark.parametrize("what", ["still", "few rows", "noise", "NaN"])
def test_movements_that_tell_nothing(what: str) -> None:
    rng = np.random.default_rng(0)
    change: dict[str, Callable[[Any], Any]] = {
        "still": lambda places: places * 0,
        "few rows": lambda places: places[:20],
        "noise": lambda places: rng.normal(size=places.shape),
        "NaN": lambda places: np.where(np.arange(60)[:, None] == 30, np.nan, places),
    }
    demos = [libero_demo(n, 60, raw=True) for n in range(1 if what == "few rows" else 5)]
    places = [change[what](demo["obs/ee_states"][:, :3]) for demo in demos]
    pairs = [(some, demo["actions"][: len(some)]) for some, demo in zip(places, demos, strict=True)]
    assert find_alignment(pairs) is None


def test_undecided_files_ask_for_the_alignment(tmp_path: Path, settings: Settings) -> None:
    path = write_demos(tmp_path / "x.hdf5", {n: libero_demo(n, 8, raw=True) for n in range(2)})
    names: dict[object, str] = {tmp_path: "FOLDER"}
    REFUSALS.check("alignment", "undecided", lambda: converted(path, settings), names)
    assert not list(settings.root.rglob("manifest.json"))
    assert converted(path, settings, alignment="raw").lengths.tolist() == [7, 7]
    reader = converted(path, settings, alignment="regenerated")
    assert reader.lengths.tolist() == [8, 8]
    assert "as requested" in reader.manifest.notes[0]
    again = [convert(path, "toy", settings, Options(alignment=one)) for one in (None, "raw")]
    assert [(one.existed, one.transitions) for one in again] == [(True, 16), (False, 14)]
    other = write_toy(tmp_path / "y.hdf5")
    REFUSALS.check("alignment", "of another file", lambda: converted(other, settings, alignment="raw"))  # fmt: skip


def test_folders_of_tasks(tmp_path: Path, settings: Settings) -> None:
    for name in ("b", "a"):
        write_libero(tmp_path / "suite" / f"{name}.hdf5")
    assert_episodes(converted(tmp_path / "suite", settings), libero_episodes(tmp_path / "suite"))
    write_toy(tmp_path / "ph" / "low_dim.hdf5")
    write_toy(tmp_path / "ph" / "image.hdf5")
    with pytest.raises(FolderOfDatasetsError, match="2 datasets"):
        converted(tmp_path / "ph", settings)


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
    assert Robomimic().resolve("lift_real/ph/demo", None, settings).files


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
        assert_episodes(open_reader(stored.path), episodes_of(path))
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
    remote = tmp_path / "remote"
    stored = download(parse_id("robomimic:lift/ph/low_dim_v15"), hub, Options(audit="all"))
    expected = episodes_of(remote / "r/v1.5/lift/ph/low_dim_v15.hdf5")
    assert_episodes(open_reader(stored.path), expected)
    stored = download(parse_id("mimicgen:core/stack_d0"), hub, Options(audit="all"))
    assert stored.manifest.licence == "cc-by-nc-sa-4.0"  # of the card, before the one that we know
    stored = download(parse_id("libero:libero_10"), hub, Options(audit="all"))
    assert (stored.episodes, stored.transitions) == (6, 2 * (7 + 8 + 9))
    assert "after the action of their row by LIBERO's script" in stored.manifest.notes[0]
    assert stored.manifest.licence == "CC-BY-4.0"
    listed = {entry.name: entry.bytes for entry in MimicGen().remote(hub)}
    size = (remote / "m/core/stack_d0.hdf5").stat().st_size
    assert listed == {"core/stack_d0": size, "core/stack_d1": size}


NAMES = {
    "core/square_d0": MimicGen(),
    "core/stak_d0": MimicGen(),
    "lift/ph/demo_v15": Robomimic(),  # has the states of the simulator only
}


@REFUSALS.of("names", NAMES)
def test_what_is_not_published(name: str, hub: Settings) -> None:
    REFUSALS.check("names", name, lambda: NAMES[name].resolve(name, None, hub))

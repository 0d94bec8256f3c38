"""V-D4RL: episodes in npz and HDF5 files, at the hub and here; good files and bad ones."""

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
import torch

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, NotFoundError, OfflineDataError, UsageError
from offline_data.base.ids import parse_id
from offline_data.episode.fields import next_of
from offline_data.episode.notes import count_episodes
from offline_data.fetch.files import RemoteFile
from offline_data.formats.base import Release
from offline_data.formats.registry import iter_sources
from offline_data.formats.vd4rl.hdf5 import UNFINISHED, series_of
from offline_data.formats.vd4rl.rows import ODD_FIRST_ROW
from offline_data.formats.vd4rl.source import VD4RL
from offline_data.pipeline.ingest import Options, download
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.sources import SourceCase, SourceContract
from offline_data.testing.toy import write_toy
from tests.toys.servers import HubServer
from tests.toys.stored import convert_and_open, read_shards
from tests.toys.vd4rl import toy_rows, write_vd4rl_hdf5, write_vd4rl_npz

if TYPE_CHECKING:
    Rows = dict[str, np.ndarray[Any, Any]]

NAME = "main/walker_walk/random/64px"


def release_of(folder: Path, **options: Any) -> Release:
    files = tuple(RemoteFile(p.name, (f"hf://{p.name}",)) for p in sorted(folder.iterdir()))
    return VD4RL().plan_shards(Release(NAME, "3f2a", files, options=Options(**options)))


class TestNpz(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        raw = write_vd4rl_npz(tmp_path / "raw", terminal=[1], old=[1, 2])
        return SourceCase(VD4RL(), release_of(raw), raw)


class TestHdf5(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        raw = write_vd4rl_hdf5(tmp_path / "raw", (5, 3, 4, 2), cuts=[9, 11])
        return SourceCase(VD4RL(), release_of(raw), raw)


# ---- every value, after the disk -------------------------------------------------------------


read_all = partial(read_shards, VD4RL())


def written(path: Path, folder: Path) -> DatasetReader:
    """Write the episodes of a file or folder to a dataset, in this process."""
    batches = read_all(VD4RL().release_of(path, "mine"))
    write_toy(folder / "written", batches)
    return open_reader(folder / "written")


def assert_episodes(reader: DatasetReader, episodes: list[Rows]) -> None:
    """Compare all leaves with rows of the files: row `t` is what the action of step `t - 1` led to."""
    assert reader.lengths.tolist() == [len(rows["image"]) - 1 for rows in episodes]
    leaves = {"image": ("pixels",), "height": ("state", "height")}
    leaves["orientations"] = ("state", "orientations")
    for number, rows in enumerate(episodes):
        steps = np.arange(reader.lengths[number]) + reader.starts[number]
        found = reader.transitions_at(steps)
        expected = {
            ("action",): rows["action"][1:],
            ("next", "reward"): rows["reward"][1:].reshape(-1, 1),
            ("next", "discount"): rows["discount"][1:].reshape(-1, 1),
        }
        for name in leaves.keys() & rows.keys():
            expected[leaves[name]] = rows[name][:-1]
            expected[next_of(leaves[name])] = rows[name][1:]
        ends = rows.get("is_terminal", rows["discount"] == 0)[1:, None]
        expected["next", "terminated"] = ends
        last = np.arange(len(ends))[:, None] == len(ends) - 1
        expected["next", "truncated"] = last & ~ends
        flags = {("next", "done"), ("done",), ("terminated",), ("truncated",), ("episode",)}
        assert found.keys() - flags == expected.keys()
        for key, values in expected.items():
            np.testing.assert_array_equal(found[key], values, err_msg=str(key))
            assert found[key].dtype == values.dtype
    assert reader.episodes["final_observation",].all()


def load(path: Path) -> Rows:
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays}


def load_hdf5(paths: list[Path]) -> list[Rows]:
    files = []
    for path in paths:
        with h5py.File(path) as file:
            files.append({name: file[name][()] for name in file})
    rows = {name: np.concatenate([file[name] for file in files]) for name in files[0]}
    rows["image"] = rows.pop("observation")
    starts = np.flatnonzero(rows.pop("step_type") == 0)[1:]
    pieces = {name: np.split(column, starts) for name, column in rows.items()}
    return [{name: pieces[name][e] for name in pieces} for e in range(len(starts) + 1)]


def test_npz_episodes(tmp_path: Path) -> None:
    folder = write_vd4rl_npz(tmp_path / "raw", (5, 1, 300), terminal=[1, 2], old=[0, 1])
    reader = written(folder, tmp_path)
    files = sorted(folder.iterdir())
    assert_episodes(reader, [load(path) for path in files])
    assert reader.step(("next", "terminated"))[:, 0].nonzero()[0].tolist() == [5, 305]


def test_hdf5_episodes_across_files(tmp_path: Path) -> None:
    folder = write_vd4rl_hdf5(tmp_path / "raw", (5, 30, 4, 6), cuts=[7, 20, 37])
    with pytest.raises(FormatError, match="which would be in three files"):
        written(folder, tmp_path)
    folder = write_vd4rl_hdf5(tmp_path / "some", (5, 30, 4, 6), cuts=[7, 37, 39, 42])
    reader = written(folder, tmp_path)
    assert_episodes(reader, load_hdf5(sorted(folder.iterdir())))


def test_blocks_do_not_change_what_is_read(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_vd4rl_hdf5(tmp_path / "raw", (50, 301, 40, 60, 7), cuts=[200, 390])
    for name, size in (("BLOCK", 5000), ("LARGEST", 40_000)):  # some 46 and 370 rows
        monkeypatch.setattr(f"offline_data.formats.vd4rl.hdf5.{name}", size)
    source = VD4RL()
    dataset = source.open(source.release_of(folder, "mine"), folder)
    batches = [batch for shard in dataset.shards() for batch in dataset.read(shard)]
    episodes = load_hdf5(sorted(folder.iterdir()))
    pixels = np.concatenate([batch.observations["pixels",] for batch in batches])
    np.testing.assert_array_equal(pixels, np.concatenate([rows["image"] for rows in episodes]))
    actions = np.concatenate([batch.steps["action",] for batch in batches])
    np.testing.assert_array_equal(actions, np.concatenate([r["action"][1:] for r in episodes]))


@pytest.mark.slow
def test_faithful_files(realdata: Path, settings: Settings, tmp_path: Path) -> None:
    folder = realdata / "fixtures_generated/vd4rl/main/walker_walk/random"
    kept = {"image", "action", "reward", "discount", "is_terminal"}
    rows = [load(path) for path in sorted((folder / "64px").iterdir())]
    reader = convert_and_open(folder / "64px", settings)
    assert_episodes(reader, [{k: v for k, v in one.items() if k in kept} for one in rows])
    assert [leaf["key"] for leaf in reader.manifest.dropped] == [
        "orientations", "height", "velocity"
    ]  # fmt: skip
    reader = written(folder / "84px", tmp_path)
    assert_episodes(reader, load_hdf5(sorted((folder / "84px").iterdir())))


# ---- quirks ----------------------------------------------------------------------------------


def test_files_of_one_set_with_other_arrays(tmp_path: Path) -> None:
    folder = write_vd4rl_npz(tmp_path / "raw", stateless=[1])
    path = sorted(folder.iterdir())[2]
    rows = load(path) | {"seed": np.array(3), "names": np.array(["a"] * 5)}
    np.savez(path, **rows | {"reward": rows["reward"].astype(np.float64)})
    release = VD4RL().release_of(folder, "mine")
    info = VD4RL().open(release, folder).info
    (batch,) = read_all(release)
    reasons = {leaf.key: leaf.reason for leaf in info.dropped}
    assert reasons["height"] == "It is in 2 of the 3 files; what all have is kept."
    assert reasons["seed"] == "It has shape [], and 'image' has 5 rows."
    assert "which is not a number" in reasons["names"]
    assert batch.observations.keys() == {("pixels",)}
    assert "Values of reward are float32 or float64, and all stored as float64." in (info.notes)
    rewards = batch.steps["next", "reward"]
    assert rewards.dtype == np.float64
    np.testing.assert_array_equal(rewards[:5, 0], toy_rows(0, 5)["reward"][1:].astype(np.float64))


def test_numbers_of_files_are_numbers() -> None:
    names = [f"{n}_cheetah_run_{kind}.hdf5" for n in range(12) for kind in ("medium", "expert")]
    assert series_of(sorted(names)) == [names[1::2], names[::2]]
    assert series_of(["data.hdf5"]) == [["data.hdf5"]]


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_another_convention_of_rows_is_said(tmp_path: Path, kind: str) -> None:
    rows = toy_rows(0, 4)
    rows["action"][0] = 1
    (tmp_path / "raw").mkdir()
    path = tmp_path / "raw" / f"0.{kind}"
    if kind == "npz":
        np.savez(path, **rows)  # type: ignore[arg-type]
    else:
        write_hdf5(path, rows, [0, 1, 1, 1, 1])
    (batch,) = read_all(VD4RL().release_of(path, "mine"))
    notes = batch.notes
    assert count_episodes(1, ODD_FIRST_ROW) in notes
    assert (count_episodes(1, UNFINISHED) in notes) == (kind == "hdf5")


def write_hdf5(path: Path, rows: Rows, types: list[int]) -> None:
    with h5py.File(path, "w") as file:
        file["observation"] = rows["image"].transpose(0, 3, 1, 2)
        for name in ("action", "reward", "discount"):
            file[name] = rows[name]
        file["step_type"] = np.array(types, float)


# ---- bad files -------------------------------------------------------------------------------


def one_flag_more(path: Path) -> None:
    """Write the file of `humanoid_walk/medium_replay` that has 500 images and flags of 501 rows."""
    rows = load(path)
    flags = {"is_first", "is_last", "is_terminal"}
    short = {k: v if k in flags else v[:-1] for k, v in rows.items()}
    np.savez_compressed(path, **short)  # type: ignore[arg-type]


def changed(**new: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        rows = {k: v for k, v in (load(path) | new).items() if v is not None}
        np.savez_compressed(path, **rows)

    return change


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def damaged(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[100] ^= 0xFF  # of the images
    path.write_bytes(content)


def holds(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


BAD_NPZ: dict[str, tuple[Callable[[Path], object], str]] = {
    "flags of 501 rows": (one_flag_more, r"'is_first' has shape \[4\], and 'image' has 3 rows"),
    "one row": (changed(**{k: v[:1] for k, v in toy_rows(1, 3).items()}), "too few for a step"),
    "no row": (changed(**{k: v[:0] for k, v in toy_rows(1, 3).items()}), "too few for a step"),
    "two episodes": (changed(is_first=np.array([1, 0, 1, 0])), "'is_first' is set in row 2"),
    "early last": (changed(is_last=np.array([0, 1, 0, 1])), "'is_last' is set in row 1 of 4"),
    "no action": (changed(action=None), "no array 'action'"),
    "objects": (changed(action=np.array([{}] * 4)), "dtype object"),
    "other images": (changed(image=np.zeros((4, 9, 9, 3), np.uint8)), r"uint8 \[9, 9, 3\]"),
    "other dtype": (changed(action=np.zeros((4, 4), np.int32)), "rows of 'action' are int32"),
    "wide reward": (changed(reward=np.zeros((4, 2))), "'reward'"),
    "cut": (cut, "damaged"),
    "damaged": (damaged, "damaged"),
    "pointer": (holds(b"version https://git-lfs.github.com/spec/v1\noid sha256:0"), "Git LFS"),
    "page": (holds(b"<!DOCTYPE html><title>429"), "web page"),
}


@pytest.mark.parametrize("bad", BAD_NPZ)
def test_bad_npz_files(tmp_path: Path, bad: str) -> None:
    folder = write_vd4rl_npz(tmp_path / "raw", (5, 3, 4))
    victim = sorted(folder.iterdir())[1]
    change, said = BAD_NPZ[bad]
    change(victim)
    release = VD4RL().release_of(folder, "mine")
    with pytest.raises(FormatError, match=said) as caught:
        read_all(release)
    assert victim.name in caught.value.message
    hint = "git lfs pull" if bad == "pointer" else "--skip-bad-episodes"
    assert hint in (caught.value.shell_hint or "")
    skipping = replace(release, options=Options(skip_bad_episodes=True))
    info = VD4RL().open(skipping, folder).info
    (batch,) = read_all(skipping)
    assert batch.lengths.tolist() == [5, 4]
    np.testing.assert_array_equal(batch.steps["action",][5:], toy_rows(2, 4)["action"][1:])
    (skipped,) = (*info.skipped, *batch.skipped)
    assert victim.name in skipped.where


def test_bad_files_are_left_out_or_nothing_is_written(tmp_path: Path, settings: Settings) -> None:
    folder = write_vd4rl_npz(tmp_path / "raw", (5, 3, 4, 2))
    files = sorted(folder.iterdir())
    one_flag_more(files[0])
    damaged(files[2])
    with pytest.raises(FormatError, match="'is_first' has"):
        convert_and_open(folder, settings)
    assert not list(settings.root.rglob("manifest.json"))
    reader = convert_and_open(folder, settings, skip_bad_episodes=True)
    assert_episodes(reader, [toy_rows(1, 3), toy_rows(3, 2)])
    assert [Path(one["where"]).name for one in reader.manifest.skipped] == [
        files[0].name, files[2].name
    ]  # fmt: skip


def test_bad_hdf5_files(tmp_path: Path) -> None:
    def error(folder: Path) -> str:
        with pytest.raises(FormatError) as caught:
            read_all(VD4RL().release_of(folder, "mine"))
        return f"{caught.value.message}; {caught.value.hint}"

    folder = write_vd4rl_hdf5(tmp_path / "gap", (3, 3, 3, 3), cuts=[4, 8])
    (folder / "1_walker_walk_random.hdf5").unlink()
    assert error(folder).startswith("1_walker_walk_random.hdf5: there is no such file")
    folder = write_vd4rl_hdf5(tmp_path / "headless", (3, 3), cuts=[5], name="{}.hdf5")
    (folder / "0.hdf5").unlink()
    assert "begins inside an episode that is in no file before it" in error(folder)
    other = write_vd4rl_hdf5(tmp_path / "other", (3, 3), cuts=[4], name="{}.hdf5")
    (folder / "0.hdf5").write_bytes((other / "0.hdf5").read_bytes())  # it ends with an episode
    assert "1.hdf5 rows 0 to 2: 1.hdf5 begins inside an episode" in error(folder)
    release = replace(VD4RL().release_of(folder, "mine"), options=Options(skip_bad_episodes=True))
    (batch,) = read_all(release)
    assert batch.lengths.tolist() == [3]
    assert [one.where for one in batch.skipped] == ["1.hdf5 rows 0 to 2"]
    edits: list[tuple[str, Any, str]] = [
        ("step_type", np.array([0, 1, 2, 1, 2.0]), "rows 0 to 4: the step after the last one"),
        ("step_type", np.array([0, 1, 7, 1, 2.0]), "is not 0, 1 or 2"),
        ("step_type", np.zeros(5), "rows 0 to 0: it has 1 row, too few for a step"),
        ("reward", np.zeros(4), "'reward' has shape [4], expected 5 rows"),
        ("action", np.array([b"x"] * 5), "'action' has dtype |S1"),
        ("discount", h5py.SoftLink("/reward"), "no dataset 'discount' of its own"),
        ("observation", None, "no dataset 'observation'"),
    ]
    for number, (name, value, said) in enumerate(edits):
        path = tmp_path / f"bad{number}.hdf5"
        write_hdf5(path, toy_rows(0, 4), [0, 1, 1, 1, 2])
        with h5py.File(path, "a") as file:
            del file[name]
            if value is not None:
                file[name] = value
        assert said in error(path)
    path = tmp_path / "cut.hdf5"
    path.write_bytes((tmp_path / "bad0.hdf5").read_bytes()[:-400])
    assert "cut.hdf5 is damaged or cut short" in error(path)
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0")
    assert "Git LFS pointer" in error(path)


def test_a_damaged_chunk_leaves_out_its_episodes_only(tmp_path: Path) -> None:
    folder = write_vd4rl_hdf5(tmp_path / "raw", (9,) * 40, cuts=[], name="{}.hdf5")
    path = folder / "0.hdf5"
    with h5py.File(path, "a") as file:
        rows = file["observation"][()]
        del file["observation"]
        file.create_dataset("observation", data=rows, chunks=(20, 3, 6, 6), compression="gzip")
        chunk = file["observation"].id.get_chunk_info(5)
    with path.open("r+b") as raw:
        raw.seek(chunk.byte_offset + 20)
        raw.write(b"\xff" * 20)
    release = VD4RL().release_of(path, "mine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("offline_data.formats.vd4rl.hdf5.BLOCK", 1)
        (batch,) = read_all(replace(release, options=Options(skip_bad_episodes=True)))
    assert len(batch.lengths) == 38
    where = ["0.hdf5 rows 100 to 109", "0.hdf5 rows 110 to 119"]
    assert [one.where for one in batch.skipped] == where
    with pytest.raises(FormatError, match=r"0\.hdf5 rows .* at rows 100 to 119"):
        read_all(release)


def test_both_kinds_of_files_and_none(tmp_path: Path) -> None:
    folder = write_vd4rl_npz(tmp_path / "raw")
    write_vd4rl_hdf5(folder)
    with pytest.raises(FormatError, match=r"has \.hdf5 and \.npz files") as caught:
        read_all(VD4RL().release_of(folder, "mine"))
    assert "one resolution" in (caught.value.hint or "")
    with pytest.raises(FormatError, match="is not a vd4rl dataset"):
        VD4RL().release_of(tmp_path, "mine")


def test_other_sources_leave_them_alone(tmp_path: Path, realdata: Path) -> None:
    mine = [write_vd4rl_npz(tmp_path / "npz"), write_vd4rl_hdf5(tmp_path / "hdf5")]
    for path in [*mine, next(mine[0].iterdir()), next(mine[1].iterdir())]:
        assert [source.name for source in iter_sources() if source.accepts(path)] == ["vd4rl"]
    for folder in ("d4rl", "gendgrl", "robomimic", "roboset"):
        for path in (realdata / "fixtures_generated" / folder).rglob("*"):
            assert not VD4RL().accepts(path)


# ---- the hub ---------------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path: Path, settings: Settings) -> Iterator[tuple[HubServer, Settings]]:
    remote = tmp_path / "remote" / "vd4rl"
    write_vd4rl_npz(remote / NAME, (5, 3, 4))
    write_vd4rl_npz(remote / f"{NAME}-old", (9,))
    write_vd4rl_hdf5(remote / "main/walker_walk/random/84px", (5, 3, 4), cuts=[9])
    (remote / NAME / "README.md").write_text("none of the data")
    with HubServer({"conglu/vd4rl": tmp_path / "remote"}) as server:
        yield server, replace(settings, offline=False, hub_endpoint=server.url)


def test_downloads(hub: tuple[HubServer, Settings], tmp_path: Path) -> None:
    server, online = hub
    stored = download(parse_id(f"vd4rl:{NAME}"), online, Options(audit="all"))
    assert_episodes(open_reader(stored.path), [toy_rows(e, n) for e, n in enumerate((5, 3, 4))])
    manifest = stored.manifest
    assert manifest.environment == {"id": "walker_walk"}
    assert "TMLR" in (manifest.citation or "")
    assert len(manifest.files) == 3
    stored = download(parse_id("vd4rl:main/walker_walk/random/84px"), online, Options(audit="all"))
    raw = tmp_path / "remote/vd4rl/main/walker_walk/random/84px"
    assert_episodes(open_reader(stored.path), load_hdf5(sorted(raw.iterdir())))
    assert "Images are [channel, height, width], as in the HDF5 files." in stored.manifest.notes
    fetched = [one.path for one in server.requests if one.path.endswith(".hdf5")]
    assert len(fetched) == len(set(fetched)) == 2  # also those that two shards need
    assert not list(online.downloads.rglob("*.hdf5"))


def test_resolves_at_a_commit(hub: tuple[HubServer, Settings], tmp_path: Path) -> None:
    server, online = hub
    release = VD4RL().resolve(NAME, None, online)
    assert len(release.files) == 3
    assert release.opening is None
    assert all(f.path.endswith(".npz") and f.magic == b"PK\x03\x04" for f in release.files)
    next((tmp_path / "remote/vd4rl" / NAME).glob("*.npz")).unlink()
    assert server.commit("conglu/vd4rl", tmp_path / "remote") != release.revision
    assert len(VD4RL().resolve(NAME, None, online).files) == 2
    assert VD4RL().resolve(NAME, release.revision, online) == release
    assert VD4RL().resolve(f"{NAME}-old", None, online).name == f"{NAME}-old"
    pixels = VD4RL().resolve("main/walker_walk/random/84px", None, online)
    assert (pixels.opening, pixels.shards) == ((), 2)
    with pytest.raises(NotFoundError) as caught:
        VD4RL().resolve("main/walker_walk/randm/64px", None, online)
    assert "vd4rl:main/walker_walk/random/64px" in (caught.value.hint or "")
    with pytest.raises(
        NotFoundError, match="conglu/vd4rl on the hub has no folder vd4rl/main/cheetah_run"
    ):
        VD4RL().resolve("main/cheetah_run/expert/64px", None, online)
    listed = {entry.name: entry for entry in VD4RL().remote(online)}
    assert listed.keys() == {NAME, f"{NAME}-old", "main/walker_walk/random/84px"}
    assert listed[NAME].summary
    assert (listed[NAME].bytes or 0) > 1000


def test_the_catalogue() -> None:
    names = {entry.name: entry for entry in VD4RL().catalog()}
    assert len(names) == 40
    assert {n.replace("84px", "64px") for n in names} == {n for n in names if "64px" in n}
    assert any("1833" in n for n in names["main/humanoid_walk/medium_replay/64px"].notes)


# ---- TorchRL ---------------------------------------------------------------------------------


with warnings.catch_warnings():  # torchrl deprecates classes of its own while it is imported
    warnings.simplefilter("ignore")
    import torchrl.data.datasets as theirs
    from torchrl.data.datasets import vd4rl as their_vd4rl


def test_beside_torchrl(tmp_path: Path) -> None:
    folder = write_vd4rl_npz(tmp_path / "raw", (5,), stateless=[0])
    reader = written(folder, tmp_path)
    td = their_vd4rl._from_npz(next(folder.iterdir()))
    td = their_vd4rl.VD4RLExperienceReplay._process_data(td)
    mine = reader.transitions_at(np.arange(5))
    # TorchRL's row t has the action and reward that led to its pixels: ours are its next row's.
    np.testing.assert_array_equal(td["pixels"][:-1].numpy(), mine["pixels",])
    np.testing.assert_array_equal(td["next", "pixels"][:-1].numpy(), mine["next", "pixels"])
    for theirs_key, key in (("action", ("action",)), (("next", "reward"), ("next", "reward"))):
        found = td[theirs_key].numpy()
        np.testing.assert_array_equal(found[1:], mine[key])
        assert not found[0].any()
        assert not np.array_equal(found[:-1], mine[key])
    np.testing.assert_array_equal(td["next", "truncated"][1:].numpy(), mine["next", "truncated"])
    assert len(td) == 6  # the last image of an episode, too, is a transition there


def test_torchrl_calls_work_here() -> None:
    mine = inspect.signature(offline_data.VD4RLExperienceReplay.__init__).parameters
    other = inspect.signature(theirs.VD4RLExperienceReplay.__init__).parameters
    assert list(mine) == list(other)
    for parameter in other.values():
        assert mine[parameter.name].kind == parameter.kind
        if parameter.default is not parameter.empty:
            assert mine[parameter.name].default == parameter.default
    assert NAME in offline_data.VD4RLExperienceReplay.available_datasets


def test_pixels_as_tensors(tmp_path: Path) -> None:
    wide = NAME.replace("64", "84")
    write_vd4rl_npz(tmp_path / NAME)
    write_vd4rl_hdf5(tmp_path / wide)
    for name in (NAME, wide):
        batches = read_all(VD4RL().release_of(tmp_path / name, "mine"))
        write_toy(tmp_path / "vd4rl" / name / "r1", batches, dataset=f"vd4rl:{name}@r1")

    def make(name: str, **options: Any) -> offline_data.VD4RLExperienceReplay:
        return offline_data.VD4RLExperienceReplay(name, 4, root=tmp_path, download=False, **options)

    batch, raw = make(NAME)[:], make(NAME, totensor=False)[:]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchrl.envs.transforms import ToTensorImage

        theirs_too = ToTensorImage(in_keys=["pixels", ("next", "pixels")], shape_tolerant=True)
    assert raw["pixels"].shape == (12, 6, 6, 3)
    assert torch.equal(batch["pixels"], raw["pixels"].permute(0, 3, 1, 2) / 255)
    expected = theirs_too(raw.clone())
    for key in ("pixels", ("next", "pixels")):
        assert torch.equal(batch[key], expected[key])
    assert torch.equal(make(NAME, transform=theirs_too)[:]["pixels"], batch["pixels"])
    small = make(NAME, image_size=[3, 4], split_trajs=True)[:]
    assert small["pixels"].shape == (3, 5, 3, 3, 4)
    assert make(wide, image_size=12).sample()["next", "pixels"].shape == (4, 3, 12, 12)
    for options in ({"image_size": 3, "totensor": False}, {"from_pixels": True}):
        with pytest.raises(UsageError):
            make(NAME, **options)


def test_a_wrong_name_of_a_dataset(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFLINE_DATA_OFFLINE", "1")
    with pytest.raises(OfflineDataError) as caught:
        offline_data.VD4RLExperienceReplay("main/walker_wlk/random/64px", root=settings.root)
    assert "walker_walk" in str(caught.value.hint)

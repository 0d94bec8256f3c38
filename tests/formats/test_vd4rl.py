"""V-D4RL: episodes in npz and HDF5 files, at the hub and here; good files and bad ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
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
from offline_data.base.errors import FormatError, UsageError
from offline_data.base.ids import parse_id
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED, next_of
from offline_data.episode.notes import count_episodes
from offline_data.fetch.files import RemoteFile
from offline_data.formats.base import Release
from offline_data.formats.vd4rl.hdf5 import UNFINISHED, series_of
from offline_data.formats.vd4rl.rows import ODD_FIRST_ROW
from offline_data.formats.vd4rl.source import VD4RL
from offline_data.pipeline.ingest import Options, download
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.sources import Damage, Episode, SourceCase, assert_episodes
from offline_data.testing.toy import write_toy
from tests.formats.contract import Contract
from tests.refusals import Refusals
from tests.toys.servers import HubServer
from tests.toys.stored import convert_and_open, read_shards
from tests.toys.vd4rl import toy_rows, write_vd4rl_hdf5, write_vd4rl_npz

REFUSALS = Refusals.beside(__file__)
Rows = dict[str, Any]
NAME = "main/walker_walk/random/64px"
WIDE = "main/walker_walk/random/84px"
LEAVES = {"image": ("pixels",), "height": ("state", "height"), "orientations": ("state", "orientations")}  # fmt: skip


# ---- every value, by numpy and h5py ----------------------------------------------------------


def episodes_of(files: Sequence[Rows]) -> list[Episode]:
    """Row `t` of a file is what the action of step `t - 1` led to."""
    found = []
    for rows in files:
        ends = rows.get("is_terminal", rows["discount"] == 0)[1:, None]
        episode: Episode = {
            ("action",): rows["action"][1:],
            REWARD: rows["reward"][1:].reshape(-1, 1),
            ("next", "discount"): rows["discount"][1:].reshape(-1, 1),
            TERMINATED: ends,
            TRUNCATED: (np.arange(len(ends))[:, None] == len(ends) - 1) & ~ends,
            ("episode", "final_observation"): True,
        }
        for name in LEAVES.keys() & rows.keys():
            key = LEAVES[name]
            episode |= {key: rows[name][:-1], next_of(key): rows[name][1:]}
        found.append(episode)
    return found


def load(path: Path) -> Rows:
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays}


def load_npz(folder: Path) -> list[Episode]:
    return episodes_of([load(path) for path in sorted(folder.iterdir())])


def load_hdf5(folder: Path) -> list[Episode]:
    """Lay the files end to end and cut the rows at first steps."""
    files = []
    for path in sorted(folder.iterdir()):
        with h5py.File(path) as file:
            files.append({name: file[name][()] for name in file})
    rows = {name: np.concatenate([file[name] for file in files]) for name in files[0]}
    rows["image"] = rows.pop("observation")
    starts = np.flatnonzero(rows.pop("step_type") == 0)[1:]
    pieces = {name: np.split(column, starts) for name, column in rows.items()}
    return episodes_of([{name: pieces[name][e] for name in pieces} for e in range(len(starts) + 1)])


read_all = partial(read_shards, VD4RL())


def written(path: Path, folder: Path) -> DatasetReader:
    """Write the episodes of a file or folder to a dataset, in this process."""
    write_toy(folder / "written", read_all(VD4RL().release_of(path, "mine")))
    return open_reader(folder / "written")


def released(folder: Path) -> Release:
    files = tuple(RemoteFile(p.name, (f"hf://{p.name}",)) for p in sorted(folder.iterdir()))
    return VD4RL().plan_shards(Release(NAME, "3f2a", files))


# ---- damage ----------------------------------------------------------------------------------


def second(change: Callable[[Path], object]) -> Damage:
    return Damage(lambda folder: change(sorted(folder.iterdir())[1]), skipped=(1,))


def one_flag_more(path: Path) -> None:
    """Write the file of `humanoid_walk/medium_replay` that has 500 images and flags of 501 rows."""
    flags = {"is_first", "is_last", "is_terminal"}
    np.savez_compressed(path, **{k: v if k in flags else v[:-1] for k, v in load(path).items()})


def changed(**new: Any) -> Damage:
    """Change arrays of an episode of four rows."""

    def change(path: Path) -> None:
        rows = {k: v for k, v in (load(path) | new).items() if v is not None}
        np.savez_compressed(path, **rows)

    return second(change)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[100] ^= 0xFF  # of the images
    path.write_bytes(content)


def two_files(folder: Path) -> None:
    files = sorted(folder.iterdir())
    one_flag_more(files[0])
    flip(files[2])


BAD_NPZ = {
    "flags of 501 rows": second(one_flag_more),
    "one row": changed(**{k: v[:1] for k, v in toy_rows(1, 3).items()}),
    "no row": changed(**{k: v[:0] for k, v in toy_rows(1, 3).items()}),
    "two episodes": changed(is_first=np.array([1, 0, 1, 0])),
    "early last": changed(is_last=np.array([0, 1, 0, 1])),
    "no action": changed(action=None),
    "objects": changed(action=np.array([{}] * 4)),
    "other images": changed(image=np.zeros((4, 9, 9, 3), np.uint8)),
    "other dtype": changed(action=np.zeros((4, 4), np.int32)),
    "wide reward": changed(reward=np.zeros((4, 2))),
    "cut": second(lambda path: path.write_bytes(path.read_bytes()[:-200])),
    "damaged": second(flip),
    "pointer": second(lambda path: path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")),
    "page": second(lambda path: path.write_bytes(b"<!DOCTYPE html><title>429")),
    "two files": Damage(two_files, skipped=(0, 2)),
}  # fmt: skip


def edited(name: str, value: Any) -> Damage:
    """Replace a dataset of the last file, with the whole episodes 2 and 3, or their rows in it."""

    def edit(folder: Path) -> None:
        with h5py.File(max(folder.iterdir()), "a") as file:
            rows = value(file[name][()]) if callable(value) else value
            del file[name]
            if rows is not None:
                file[name] = rows

    return Damage(edit)


def headless(folder: Path) -> None:
    """The first file ends with its first episode."""
    with h5py.File(min(folder.iterdir()), "a") as file:
        for name in list(file):
            rows = file[name][:6]
            del file[name]
            file[name] = rows


BAD_HDF5 = {
    "a step after the last": edited("step_type", lambda rows: np.where(np.arange(7) == 2, 2, rows)),
    "unknown step types": edited("step_type", np.full(7, 7.0)),
    "short episodes": edited("step_type", np.zeros(7)),
    "fewer rewards": edited("reward", np.zeros(4)),
    "text": edited("action", np.array([b"x"] * 7)),
    "a link": edited("discount", h5py.SoftLink("/reward")),
    "no images": edited("observation", None),
    "another dtype": edited("reward", np.zeros(7, np.float64)),
    "another shape": edited("action", np.zeros((7, 2), np.float32)),
    "headless": Damage(headless, skipped=(1,)),
    "cut": Damage(lambda to: (f := to / "0_walker_walk_random.hdf5").write_bytes(f.read_bytes()[:-400])),
}  # fmt: skip


class TestNpz(Contract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        raw = write_vd4rl_npz(tmp_path / "raw", (5, 3, 300, 1), terminal=[1], old=[1, 2])
        return SourceCase(VD4RL(), released(raw), raw, load_npz, BAD_NPZ)


class TestHdf5(Contract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        raw = write_vd4rl_hdf5(tmp_path / "raw", (5, 3, 4, 2), cuts=[9, 11])
        return SourceCase(VD4RL(), released(raw), raw, load_hdf5, BAD_HDF5)


def gap(folder: Path) -> None:
    write_vd4rl_hdf5(folder, (3, 3, 3, 3), cuts=[4, 8])
    (folder / "1_walker_walk_random.hdf5").unlink()


def no_first_file(folder: Path) -> None:
    write_vd4rl_hdf5(folder, (3, 3), cuts=[5], name="{}.hdf5")
    (folder / "0.hdf5").unlink()


FOLDERS: dict[str, Callable[[Path], object]] = {
    "a gap in the numbers": gap,
    "no first file": no_first_file,
    "an episode in three files": lambda to: write_vd4rl_hdf5(to, (5, 30, 4, 6), cuts=[7, 20, 37]),
    "both kinds": lambda to: write_vd4rl_hdf5(write_vd4rl_npz(to)),
    "neither": lambda to: (to / "sub").mkdir(parents=True),
}


@REFUSALS.of("folders", FOLDERS)
def test_folders_that_are_not_read(name: str, tmp_path: Path) -> None:
    FOLDERS[name](tmp_path / "raw")

    def read() -> None:
        read_all(VD4RL().release_of(tmp_path / "raw", "mine"))

    REFUSALS.check("folders", name, read, {tmp_path: "FOLDER"})


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


# ---- quirks ----------------------------------------------------------------------------------


def test_blocks_do_not_change_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_vd4rl_hdf5(tmp_path / "raw", (50, 301, 40, 60, 7), cuts=[200, 390, 440])
    for name, size in (("BLOCK", 5000), ("LARGEST", 40_000)):  # some 46 and 370 rows
        monkeypatch.setattr(f"offline_data.formats.vd4rl.hdf5.{name}", size)
    assert_episodes(written(folder, tmp_path), load_hdf5(folder))


@pytest.mark.slow
def test_faithful_files(realdata: Path, settings: Settings, tmp_path: Path) -> None:
    folder = realdata / "fixtures_generated/vd4rl/main/walker_walk/random"
    kept = {"image", "action", "reward", "discount", "is_terminal"}
    rows = [load(path) for path in sorted((folder / "64px").iterdir())]
    reader = convert_and_open(folder / "64px", settings)
    assert_episodes(reader, episodes_of([{k: one[k] for k in kept & one.keys()} for one in rows]))
    dropped = [leaf["key"] for leaf in reader.manifest.dropped]
    assert dropped == ["orientations", "height", "velocity"]
    assert_episodes(written(folder / "84px", tmp_path), load_hdf5(folder / "84px"))


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
    assert "Values of reward are float32 or float64, and all stored as float64." in info.notes
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
    path = tmp_path / f"0.{kind}"
    if kind == "npz":
        np.savez(path, **rows)  # type: ignore[arg-type]
    else:
        write_vd4rl_hdf5(tmp_path, (4,), cuts=[], name="{}.hdf5")
        with h5py.File(path, "a") as file:
            file["action"][0], file["step_type"][4] = 1, 1
    assert VD4RL().accepts(path)
    (batch,) = read_all(VD4RL().release_of(path, "mine"))
    assert count_episodes(1, ODD_FIRST_ROW) in batch.notes
    assert (count_episodes(1, UNFINISHED) in batch.notes) == (kind == "hdf5")


# ---- the hub ---------------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path: Path, settings: Settings) -> Iterator[tuple[HubServer, Settings]]:
    remote = tmp_path / "remote" / "vd4rl"
    write_vd4rl_npz(remote / NAME, (5, 3, 4))
    write_vd4rl_npz(remote / f"{NAME}-old", (9,))
    write_vd4rl_hdf5(remote / WIDE, (5, 3, 4), cuts=[9])
    (remote / NAME / "README.md").write_text("none of the data")
    with HubServer({"conglu/vd4rl": tmp_path / "remote"}) as server:
        yield server, replace(settings, offline=False, hub_endpoint=server.url)


def test_downloads(hub: tuple[HubServer, Settings], tmp_path: Path) -> None:
    server, online = hub
    stored = download(parse_id(f"vd4rl:{NAME}"), online, Options(audit="all"))
    rows = [toy_rows(e, n) for e, n in enumerate((5, 3, 4))]
    assert_episodes(open_reader(stored.path), episodes_of(rows))
    manifest = stored.manifest
    assert manifest.environment == {"id": "walker_walk"}
    assert "TMLR" in (manifest.citation or "")
    assert len(manifest.files) == 3
    stored = download(parse_id(f"vd4rl:{WIDE}"), online, Options(audit="all"))
    assert_episodes(open_reader(stored.path), load_hdf5(tmp_path / "remote/vd4rl" / WIDE))
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
    pixels = VD4RL().resolve(WIDE, None, online)
    assert (pixels.opening, pixels.shards) == ((), 2)
    listed = {entry.name: entry for entry in VD4RL().remote(online)}
    assert listed.keys() == {NAME, f"{NAME}-old", WIDE}
    assert listed[NAME].summary
    assert (listed[NAME].bytes or 0) > 1000


NAMES = {
    "main/walker_walk/randm/64px": "a typo",
    "main/cheetah_run/expert/64px": "a folder that the hub lacks",
}


@REFUSALS.of("names", NAMES)
def test_names_that_the_hub_lacks(name: str, hub: tuple[HubServer, Settings]) -> None:
    REFUSALS.check("names", name, lambda: VD4RL().resolve(name, None, hub[1]), {hub[0].url: "HUB"})


def test_the_catalogue() -> None:
    names = {entry.name: entry for entry in VD4RL().catalog()}
    assert len(names) == 40
    assert {n.replace("84px", "64px") for n in names} == {n for n in names if "64px" in n}
    assert any("1833" in n for n in names["main/humanoid_walk/medium_replay/64px"].notes)


# ---- TorchRL ---------------------------------------------------------------------------------


def test_beside_torchrl(tmp_path: Path) -> None:
    with warnings.catch_warnings():  # torchrl deprecates classes of its own while it is imported
        warnings.simplefilter("ignore")
        from torchrl.data.datasets import vd4rl as theirs

    folder = write_vd4rl_npz(tmp_path / "raw", (5,), stateless=[0])
    reader = written(folder, tmp_path)
    td = theirs._from_npz(next(folder.iterdir()))
    td = theirs.VD4RLExperienceReplay._process_data(td)
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


def test_pixels_as_tensors(tmp_path: Path) -> None:
    write_vd4rl_npz(tmp_path / NAME)
    write_vd4rl_hdf5(tmp_path / WIDE)
    for name in (NAME, WIDE):
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
    assert make(WIDE, image_size=12).sample()["next", "pixels"].shape == (4, 3, 12, 12)
    for options in ({"image_size": 3, "totensor": False}, {"from_pixels": True}):
        with pytest.raises(UsageError):
            make(NAME, **options)

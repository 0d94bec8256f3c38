"""Gen-DGRL: every leaf of every row against numpy's reading of the same bytes, ids, and damage."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import AuthError, FormatError, IntegrityError
from offline_data.base.ids import parse_id
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED
from offline_data.formats import gen_dgrl
from offline_data.formats.base import Release
from offline_data.formats.catalogues.games import KINDS
from offline_data.formats.gen_dgrl import HOST, GenDGRL, games, read_table
from offline_data.formats.registry import source_accepting
from offline_data.pipeline.ingest import Options, convert, download
from offline_data.store.layout import EPISODES
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.sources import Damage, Episode, SourceCase, assert_episodes, read_all
from tests.formats.contract import Contract
from tests.refusals import Refusals
from tests.toys.gen_dgrl import (
    FIRST_SEED,
    packed,
    toy_arrays,
    toy_files,
    toy_name,
    write_archive,
)
from tests.toys.servers import Answer, Fault, FileServer

REFUSALS = Refusals.beside(__file__)
LENGTHS = (5, 1, 12, 3)


def episodes_of(files: dict[str, bytes]) -> list[Episode]:
    """Read episodes by numpy, pickles too: they are our own. Frames after the last action are of the next level."""
    found = []
    for content in files.values():
        value = np.load(io.BytesIO(content), allow_pickle=True)
        rows = value.item() if isinstance(value, np.ndarray) else dict(value)
        frames = rows["observations"].astype(np.uint8)
        ends = rows["dones"][:, None] != 0
        found.append({
            ("observation",): frames[:-1],
            ("next", "observation"): np.concatenate([frames[1:-1], frames[-2:-1]]),
            ("action",): rows["actions"],
            REWARD: rows["rewards"],
            TERMINATED: ends,
            TRUNCATED: ends & False,
            ("episode", "final_observation"): False,
        })  # fmt: skip
    return found


# ---- damage ----------------------------------------------------------------------------------


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("this must not run",)


RIGHT = toy_arrays(1, 6)
DONE = np.array([0, 0, 1, 0, 0, 1], np.float32)
NAME = toy_name(1, 6, float(RIGHT["rewards"].sum()))


def changed(**arrays: Any) -> bytes:
    return packed({**RIGHT, **arrays})


def without(key: str) -> bytes:
    return packed({k: v for k, v in RIGHT.items() if k != key})


def _npy(value: Any) -> bytes:
    content = io.BytesIO()
    np.save(content, np.array(value, object), allow_pickle=True)
    return content.getvalue()


def between(name: str, content: Callable[[], bytes]) -> Damage:
    """Put an episode between the second and the third; it is number 2 of those that are read."""

    def apply(path: Path) -> None:
        good = list(toy_files(LENGTHS).items())
        write_archive(path, dict([*good[:2], (f"bigfish/{name}", content()), *good[2:]]))

    return Damage(apply, skipped=(len(LENGTHS),))


BAD = {
    "no name": between("episode.npz", lambda: packed(RIGHT)),
    "another kind of file": between("policy.pt", lambda: b"PK"),
    "an archive within": between("maze.tar.xz", lambda: b"\xfd7zXZ"),
    "another length": between(NAME.replace("_6_", "_7_"), lambda: packed(RIGHT)),
    "another return": between(NAME.replace(".25", ".24"), lambda: packed(RIGHT)),
    "no step": between(toy_name(1, 0, 0), lambda: packed(toy_arrays(1, 0))),
    "no dones": between(NAME, lambda: without("dones")),
    "frames of T": between(NAME, lambda: changed(observations=RIGHT["observations"][1:])),
    "halves": between(NAME, lambda: changed(observations=RIGHT["observations"] + 0.5)),
    "too bright": between(NAME, lambda: changed(observations=RIGHT["observations"] * 99)),
    "text": between(NAME, lambda: changed(observations=np.full((7, 3), "a"))),
    "done twice": between(NAME, lambda: changed(dones=DONE)),
    "NaN": between(NAME, lambda: changed(rewards=RIGHT["rewards"] * np.nan)),
    "wide rewards": between(NAME, lambda: changed(rewards=np.zeros((6, 2)))),
    "float actions": between(NAME, lambda: changed(actions=np.zeros(6))),
    "other frames": between(NAME, lambda: changed(observations=np.zeros((7, 3, 5, 5)))),
    "a list": between(NAME, lambda: _npy([1])),
    "hostile": between(NAME, lambda: _npy({"observations": Hostile()})),
    "cut": between(NAME, lambda: packed(RIGHT)[:-30]),
    "a web page": between(NAME, lambda: b"<!DOCTYPE html><title>x</title>"),
}  # fmt: skip


class TestContract(Contract):
    @pytest.fixture(params=["npz", "pickle"])
    def case(self, tmp_path: Path, request: Any) -> SourceCase:
        source = GenDGRL()
        release = source.resolve("bigfish-1M_E", None, Settings(tmp_path, offline=True))
        files = toy_files(LENGTHS, kind=request.param)
        path = write_archive(tmp_path / "raw" / release.files[0].path, files)
        bad = BAD if request.param == "npz" else {}
        return SourceCase(source, release, path, lambda _: episodes_of(files), bad)

    def test_nothing_is_run(self, case: SourceCase, capsys: pytest.CaptureFixture[str]) -> None:
        if case.bad:
            case.bad["hostile"].apply(case.raw)
            with pytest.raises(FormatError, match=r"builtins\.print"):
                read_all(case)
            assert "must not run" not in capsys.readouterr().out


def assert_is(reader: DatasetReader, files: dict[str, bytes]) -> None:
    assert_episodes(reader, episodes_of(files))


@pytest.mark.parametrize("suffix", [".tar", ".tar.xz"])
@pytest.mark.parametrize("kind", ["npz", "pickle"])
def test_on_the_disk(settings: Settings, tmp_path: Path, suffix: str, kind: Any) -> None:
    files = toy_files(LENGTHS, kind=kind)
    path = write_archive(tmp_path / f"x{suffix}", files)
    reader = open_reader(convert(path, "mine", settings, Options(audit="all")).path)
    assert_is(reader, files)
    np.testing.assert_array_equal(reader.episodes["seed",], FIRST_SEED + np.arange(len(LENGTHS)))
    np.testing.assert_array_equal(reader.episodes["id",], np.arange(len(LENGTHS)))


def test_a_folder_of_episodes(settings: Settings, tmp_path: Path) -> None:
    """As it lies where an archive was unpacked; in the order of names."""
    files = toy_files(LENGTHS)
    for name, content in files.items():
        (tmp_path / "x" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "x" / name).write_bytes(content)
    (tmp_path / "x" / "bigfish" / "._a.npz").write_bytes(b"what macOS writes")
    (tmp_path / "x" / "README.md").write_bytes(b"what people write")
    assert source_accepting(tmp_path / "x").name == "gen_dgrl"
    assert_is(open_reader(convert(tmp_path / "x", "mine", settings, Options()).path), files)


def test_the_generated_archives_of_others(realdata: Path, settings: Settings) -> None:
    for path in sorted((realdata / "fixtures_generated" / "gendgrl").iterdir()):
        assert source_accepting(path).name == "gen_dgrl"
        with tarfile.open(path) as archive:
            members = [(m.name, archive.extractfile(m)) for m in archive if m.isreg()]
            files = {name: file.read() for name, file in members if file}
        reader = open_reader(convert(path, path.name, settings, Options()).path)
        assert_is(reader, files)
        told = [name.rpartition("/")[2].split("_") for name in files]
        np.testing.assert_array_equal(reader.lengths, [int(parts[2]) for parts in told])
        np.testing.assert_array_equal(reader.episodes["seed",], [int(parts[3]) for parts in told])
        returns = np.array([float(parts[4][:-4]) for parts in told])
        np.testing.assert_array_equal(reader.episodes["return",], returns)


def test_ids(settings: Settings) -> None:
    assert len(read_table()) == 128
    assert len(games()) == 16
    assert {name.partition("-")[2] for name in read_table()} == set(KINDS)
    sizes = {entry.name: entry.transitions for entry in GenDGRL().catalog()}
    assert len(sizes) == 128
    assert sizes["bigfish-25M"] == 250 * (sizes["maze-level_1_S"] or 0) == 25_000_000
    (file,) = GenDGRL().resolve("coinrun-1M_S", None, settings).files
    assert file.urls == (
        f"{HOST}1M/suboptimal/coinrun.tar.xz",
        f"{HOST}Procgen/Datasets/Compressed/1M/level_200/suboptimal/coinrun.tar.xz",
    )
    (file,) = GenDGRL().resolve("maze-level_40_E", None, settings).files
    assert file.urls[0].endswith("100k/level_40/expert/maze.tar.xz")
    assert file.urls[1] == f"{HOST}100k_procgen_dataset_40.tar"
    assert not file.magic


def test_either_place_is_taken(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an archive of all games, those of the game; the first place answers 404."""
    mine, others = toy_files(LENGTHS, "maze"), toy_files((4, 4), "ninja")
    files = write_archive(tmp_path / "x.tar", {**others, **mine}).read_bytes()
    one = write_archive(tmp_path / "y.tar.xz", toy_files(LENGTHS)).read_bytes()
    places = {
        "/100k_procgen_dataset_1.tar": files,
        "/Procgen/Datasets/Compressed/10M/level_200/expert/bigfish.tar.xz": one,
    }
    with FileServer(places) as server:
        here_too = {
            name: (one.replace(HOST, f"{server.url}/"), other.replace(HOST, f"{server.url}/"))
            for name, (one, other) in read_table().items()
        }
        monkeypatch.setattr(gen_dgrl, "read_table", lambda: here_too)
        online = replace(settings, offline=False)
        result = download(parse_id("gen_dgrl:maze-level_1_E"), online, Options())
        reader = open_reader(result.path)
        assert_is(reader, mine)
        assert reader.manifest.licence == "CC-BY-NC-4.0"
        assert reader.manifest.environment["id"] == "procgen-maze-v0"
        assert reader.manifest.files[0]["url"].endswith("100k_procgen_dataset_1.tar")
        result = download(parse_id("gen_dgrl:bigfish-10M"), online, Options())
        assert_is(open_reader(result.path), toy_files(LENGTHS))
        for place in ("/10M/bigfish.tar.xz", *places):
            server.always(place, Fault(Answer(b"", 403)))
        with pytest.raises(AuthError, match="from any of 2 places") as refused:
            download(parse_id("gen_dgrl:bigfish-10M"), online, Options(force=True))
        assert "offline-data convert PATH NAME --from" in str(refused.value.shell_hint)


def test_an_archive_of_all_games_says_which(settings: Settings, tmp_path: Path) -> None:
    files = {**toy_files((4, 2), "ninja"), **toy_files(LENGTHS, "maze")}
    path = write_archive(tmp_path / "x.tar", files)
    reader = open_reader(convert(path, "mine", settings, Options()).path)
    assert_is(reader, files)
    words = reader.words(("game",), EPISODES)
    assert words is not None
    told = [words[code] for code in reader.episodes["game",]]
    assert told == ["ninja"] * 2 + ["maze"] * 4


# ---- what is odd or damaged -------------------------------------------------------------------


def read(path: Path, *, skip: bool = False) -> Iterator[Any]:
    options = Options(skip_bad_episodes=skip)
    dataset = GenDGRL().open(Release("mine", "local-0", local=path, options=options), path)
    return dataset.read(dataset.shards()[0])


def test_an_episode_that_stops_without_an_end(tmp_path: Path) -> None:
    """Nothing was reset after it: its last frame is its own."""
    arrays = {**RIGHT, "dones": np.zeros(6, bool)}
    path = write_archive(tmp_path / "x.tar", {NAME: packed(arrays)})
    (batch,) = read(path)
    np.testing.assert_array_equal(batch.observations["observation",], RIGHT["observations"])
    assert batch.final_observation.tolist() == [True]
    assert batch.steps[TRUNCATED][:, 0].tolist() == [False] * 5 + [True]
    assert not batch.steps[TERMINATED].any()


def test_leaves_of_other_names_are_told(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "x.tar", {NAME: changed(values=np.zeros(6))})
    (batch,) = read(path)
    assert [leaf.key for leaf in batch.dropped] == ["values"]


def test_archives_that_are_damaged(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "x.tar.xz", toy_files([9] * 12))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(FormatError, match=r"x\.tar\.xz"):
        list(read(path))
    assert list(read(path, skip=True))[-1].skipped
    up = write_archive(tmp_path / "up.tar", {f"../{NAME}": packed(RIGHT)})
    with pytest.raises(IntegrityError, match=r"up\.tar"):
        list(read(up))


NONE: dict[str, Callable[[Path], object]] = {
    "page": lambda path: path.write_text("<!DOCTYPE html><title>x</title>"),
    "pointer": lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
    "no episodes": lambda path: write_archive(path, {"README.md": b"hello"}),
}  # fmt: skip


@REFUSALS.of("none", NONE)
def test_what_is_no_archive_of_episodes(tmp_path: Path, name: str) -> None:
    NONE[name](path := tmp_path / "x.tar")
    assert not GenDGRL().accepts(path)
    REFUSALS.check("none", name, lambda: GenDGRL().release_of(path, "mine"), {tmp_path: "FOLDER"})

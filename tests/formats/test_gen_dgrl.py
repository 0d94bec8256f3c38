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
from offline_data.base.errors import (
    AuthError,
    FormatError,
    IntegrityError,
    NotFoundError,
    OfflineDataError,
)
from offline_data.base.ids import parse_id
from offline_data.episode.fields import TERMINATED, TRUNCATED
from offline_data.episode.joining import concatenate
from offline_data.formats import gen_dgrl
from offline_data.formats.base import Release
from offline_data.formats.catalogues.games import KINDS
from offline_data.formats.gen_dgrl import HOST, GenDGRL, games, read_table
from offline_data.formats.registry import source_accepting
from offline_data.pipeline.ingest import Options, convert, download
from offline_data.store.layout import EPISODES
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.sources import SourceCase, SourceContract
from tests.toys.gen_dgrl import (
    FIRST_SEED,
    packed,
    toy_arrays,
    toy_files,
    toy_name,
    write_archive,
)
from tests.toys.servers import Answer, Fault, FileServer

LENGTHS = (5, 1, 12, 3)


class TestContract(SourceContract):
    @pytest.fixture(params=["npz", "pickle"])
    def case(self, tmp_path: Path, request: Any) -> SourceCase:
        source = GenDGRL()
        release = source.resolve("bigfish-1M_E", None, Settings(tmp_path, offline=True))
        files = toy_files(LENGTHS, kind=request.param)
        path = write_archive(tmp_path / "raw" / release.files[0].path, files)
        return SourceCase(source, release, path)


def as_numpy_has_it(files: dict[str, bytes]) -> list[dict[str, Any]]:
    """Read episodes by numpy, pickles too: they are our own."""
    episodes = []
    for content in files.values():
        value = np.load(io.BytesIO(content), allow_pickle=True)
        episodes.append(value.item() if isinstance(value, np.ndarray) else dict(value))
    return episodes


def assert_is(reader: DatasetReader, files: dict[str, bytes]) -> None:
    episodes = as_numpy_has_it(files)
    assert reader.episode_count == len(episodes)
    for e, (episode, start) in enumerate(zip(episodes, reader.starts, strict=True)):
        length = len(episode["actions"])
        assert reader.lengths[e] == length
        rows = reader.transitions_at(np.arange(start, start + length))
        frames = episode["observations"].astype(np.uint8)
        np.testing.assert_array_equal(rows["observation",], frames[:-1], strict=True)
        np.testing.assert_array_equal(rows["next", "observation"][:-1], frames[1:-1])
        np.testing.assert_array_equal(rows["next", "observation"][-1], frames[-2])
        np.testing.assert_array_equal(rows["action",], episode["actions"], strict=True)
        np.testing.assert_array_equal(rows["next", "reward"], episode["rewards"], strict=True)
        np.testing.assert_array_equal(rows[TERMINATED][:, 0], episode["dones"] != 0)
        assert not rows[TRUNCATED].any()
    assert not reader.episodes["final_observation",].any()


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
    with pytest.raises(NotFoundError) as caught:
        GenDGRL().resolve("bigfsh-1M_E", None, settings)
    assert "gen_dgrl:bigfish-1M_E" in str(caught.value.hint)
    with pytest.raises(NotFoundError, match="no revisions"):
        GenDGRL().resolve("bigfish-1M_E", "3f2a", settings)


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


# ---- damage ----------------------------------------------------------------------------------


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("this must not run",)


def changed(**arrays: Any) -> bytes:
    return packed({**toy_arrays(1, 6), **arrays})


def without(key: str) -> bytes:
    return packed({k: v for k, v in toy_arrays(1, 6).items() if k != key})


RIGHT = toy_arrays(1, 6)
DONE = np.array([0, 0, 1, 0, 0, 1], np.float32)
NAME = toy_name(1, 6, float(RIGHT["rewards"].sum()))

BAD: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "no name": ("episode.npz", lambda: packed(RIGHT), "its name is not"),
    "another kind of file": ("policy.pt", lambda: b"PK", "its name is not"),
    "an archive within": ("maze.tar.xz", lambda: b"\xfd7zXZ", "its name is not"),
    "another length": (NAME.replace("_6_", "_7_"), lambda: packed(RIGHT), "its name says 7 steps"),
    "another return": (NAME.replace(".25", ".24"), lambda: packed(RIGHT), "add up to"),
    "no step": (toy_name(1, 0, 0), lambda: packed(toy_arrays(1, 0)), "at least 1"),
    "no dones": (NAME, lambda: without("dones"), "it has no dones"),
    "frames of T": (
        NAME,
        lambda: changed(observations=RIGHT["observations"][1:]),
        "6 observations",
    ),
    "halves": (
        NAME,
        lambda: changed(observations=RIGHT["observations"] + 0.5),
        "not whole numbers",
    ),
    "too bright": (NAME, lambda: changed(observations=RIGHT["observations"] * 99), "from 0 to 255"),
    "text": (NAME, lambda: changed(observations=np.full((7, 3), "a")), "observations are <U1"),
    "done twice": (NAME, lambda: changed(dones=DONE), "done after step 2"),
    "NaN": (NAME, lambda: changed(rewards=RIGHT["rewards"] * np.nan), "add up to nan"),
    "wide rewards": (NAME, lambda: changed(rewards=np.zeros((6, 2))), r"\[6, 2\]"),
    "float actions": (NAME, lambda: changed(actions=np.zeros(6)), "actions are float64"),
    "other frames": (NAME, lambda: changed(observations=np.zeros((7, 3, 5, 5))), r"\[3, 5, 5\]"),
    "a list": (NAME, lambda: _npy([1]), "no dict of arrays"),
    "hostile": (NAME, lambda: _npy({"observations": Hostile()}), "builtins.print"),
    "cut": (NAME, lambda: packed(RIGHT)[:-30], "damaged"),
    "a web page": (NAME, lambda: b"<!DOCTYPE html><title>x</title>", "damaged"),
}


def _npy(value: Any) -> bytes:
    content = io.BytesIO()
    np.save(content, np.array(value, object), allow_pickle=True)
    return content.getvalue()


def read(path: Path, *, skip: bool = False) -> Iterator[Any]:
    dataset = GenDGRL().open(
        Release("mine", "local-0", local=path, options=Options(skip_bad_episodes=skip)), path
    )
    return dataset.read(dataset.shards()[0])


@pytest.mark.parametrize("case", BAD)
def test_a_bad_episode_is_named_or_left_out(
    tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, content, said = BAD[case]
    good = list(toy_files(LENGTHS).items())
    files = dict([*good[:2], (f"bigfish/{name}", content()), *good[2:]])
    path = write_archive(tmp_path / "x.tar.xz", files)
    with pytest.raises(FormatError, match=said) as caught:
        list(read(path))
    assert f"x.tar.xz, bigfish/{name}" in str(caught.value)
    assert "--skip-bad-episodes" in str(caught.value.shell_hint)
    batch = concatenate(list(read(path, skip=True)))
    assert batch.lengths.tolist() == list(LENGTHS)
    assert [one.where.endswith(name) for one in batch.skipped] == [True]
    assert "must not run" not in capsys.readouterr().out


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
    (tmp_path / "page.tar").write_text("<!DOCTYPE html><title>x</title>")
    (tmp_path / "pointer.tar").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
    )
    write_archive(tmp_path / "none.tar", {"README.md": b"hello"})
    for name, said in [
        ("page", "web page"),
        ("pointer", "Git LFS"),
        ("none", "no Gen-DGRL episodes"),
    ]:
        path = tmp_path / f"{name}.tar"
        assert not GenDGRL().accepts(path)
        with pytest.raises(OfflineDataError, match=said):
            GenDGRL().release_of(path, "mine")

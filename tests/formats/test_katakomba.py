"""Katakomba: every leaf of every row against h5py, what is known of games, bad files, the hub."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, NotFoundError
from offline_data.base.ids import parse_id
from offline_data.formats.katakomba import Katakomba
from offline_data.formats.registry import source_accepting
from offline_data.pipeline.ingest import Options, convert, download
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.sources import SourceCase, SourceContract
from tests.toys.katakomba import toy_game, write_katakomba
from tests.toys.servers import HubServer

ROWS = {12: 5, 7: 3, 103: 1}


def write(path: Path, **changed: Any) -> Path:
    games = {number: toy_game(number, rows) for number, rows in ROWS.items()}
    games[12] = {name: one for name, one in {**games[12], **changed}.items() if one is not None}
    return write_katakomba(path, games)


class TestKatakomba(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        path = write(tmp_path / "data-mon-hum-neu-any.hdf5")
        return SourceCase(Katakomba(), Katakomba().release_of(path, "x"), path)


def stored(path: Path, settings: Settings, **options: Any) -> DatasetReader:
    assert source_accepting(path).name == "katakomba"
    return open_reader(convert(path, "toy", settings, Options(audit="all", **options)).path)


def check(path: Path, reader: DatasetReader) -> None:
    """Compare every leaf of every row with the file, which h5py reads."""
    table = reader.transitions_at(np.arange(reader.transitions))
    row = 0
    with h5py.File(path) as file:
        games = [file[name] for name in sorted(file, key=int)]
        for game in games:
            rows = slice(row, row + len(game["actions"]))
            for name in ("tty_chars", "tty_colors", "tty_cursor"):
                found, values = table["observation", name][rows], game[name][()]
                assert found.dtype == values.dtype
                np.testing.assert_array_equal(found, values, err_msg=name)
                after = table["next", "observation", name][rows]
                np.testing.assert_array_equal(after[:-1], values[1:], err_msg=name)
            np.testing.assert_array_equal(table["action",][rows], game["actions"][()])
            np.testing.assert_array_equal(table["next", "reward"][rows, 0], game["rewards"][()])
            np.testing.assert_array_equal(table["next", "terminated"][rows, 0], game["dones"][()])
            row = rows.stop
        assert row == reader.transitions
        episodes = reader.episode_batch(0, len(games)).episodes
        assert np.asarray(episodes["game",]).tolist() == sorted(ROWS)
        assert np.asarray(episodes["points",]).tolist() == [game.attrs["points"] for game in games]
        assert list(episodes["death",]) == [game.attrs["death"] for game in games]
    assert not np.asarray(reader.episodes["final_observation",]).any()
    assert not table["next", "truncated"].any()


def test_every_leaf_of_every_row(tmp_path: Path, settings: Settings) -> None:
    path = write(tmp_path / "x.hdf5")
    reader = stored(path, settings)
    check(path, reader)
    assert any("a copy of the one before" in note for note in reader.manifest.notes)


def test_a_game_that_is_not_done_and_more_columns(tmp_path: Path, settings: Settings) -> None:
    path = write(tmp_path / "x.hdf5", dones=np.zeros(5, bool))
    reader = stored(path, settings)
    assert np.flatnonzero(reader.step(("next", "truncated"))[:, 0]).tolist() == [7]
    games = {n: {**toy_game(n, 2), "scores": np.array([n, n + 1])} for n in (1, 2, 3)}
    reader = stored(write_katakomba(tmp_path / "y.hdf5", games), settings, force=True)
    assert reader.step(("extra", "scores")).tolist() == [1, 2, 2, 3, 3, 4]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no rewards": ({"rewards": None}, "it has no rewards; it has actions"),
    "no rows": ({"actions": np.zeros(0, np.int16)}, "it has no actions"),
    "fewer screens": ({"tty_chars": np.zeros((4, 24, 80), "u1")}, r"'tty_chars' is uint8 \[4, 24, 80\], expected 5 rows"),
    "rewards of two": ({"rewards": np.zeros((5, 2))}, "its rewards or dones have another shape"),
    "done before the end": ({"dones": np.array([0, 1, 0, 0, 1])}, "its dones are set in 1 of the rows before the last"),
    "an attribute of two": ({"@points": np.array([1, 2])}, r"its attribute 'points' is int64 \[2\]"),
    "an attribute of another use": ({"@start": 3}, "cannot be named 'start'"),
    "no attribute": ({"@points": None}, "leaf 'episode points' is absent"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_games_are_named_or_skipped(tmp_path: Path, case: str, settings: Settings) -> None:
    changed, message = BAD[case]
    path = write(tmp_path / "x.hdf5", **changed)
    dataset = Katakomba().open(Katakomba().release_of(path, "x"), path)
    with pytest.raises(FormatError, match=rf"x\.hdf5 game 12: .*{message}"):
        list(dataset.read(dataset.shards()[0]))
    assert stored(path, settings, skip_bad_episodes=True).lengths.tolist() == [3, 1]


@pytest.fixture
def hub(tmp_path: Path, settings: Settings) -> Iterator[Settings]:
    remote = tmp_path / "remote"
    write(remote / "data/data-mon-hum-neu-any.hdf5")
    (remote / "README.md").write_text("---\nlicense: other\n---\n")
    with HubServer({"Howuhh/katakomba": remote}) as server:
        yield replace(settings, offline=False, hub_endpoint=server.url)


def test_downloads_from_the_hub(hub: Settings, tmp_path: Path) -> None:
    dataset = parse_id("katakomba:mon-hum-neu")
    with pytest.raises(FormatError, match="33,741,542 transitions according to its metadata"):
        download(dataset, hub, Options())
    made = download(dataset, hub, Options(audit="all", skip_bad_episodes=True))
    reader = open_reader(made.path)
    check(tmp_path / "remote/data/data-mon-hum-neu-any.hdf5", reader)
    about = reader.manifest.about
    assert (about["ref_min_score"], about["ref_max_score"]) == (0.0, 17456.05)
    assert reader.manifest.environment["character"] == "mon-hum-neu"
    assert reader.manifest.licence == "other"
    with pytest.raises(NotFoundError, match=r"has no data/data-arc-hum-law-any\.hdf5"):
        Katakomba().resolve("arc-hum-law", None, hub)

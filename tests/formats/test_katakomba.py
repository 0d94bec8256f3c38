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
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED
from offline_data.formats.katakomba import Katakomba
from offline_data.pipeline.ingest import Options, download
from offline_data.store.reader import open_reader
from offline_data.testing.sources import Damage, Episode, SourceCase, assert_episodes
from tests.formats.contract import Contract
from tests.refusals import Refusals
from tests.toys.katakomba import toy_game, write_katakomba
from tests.toys.servers import HubServer
from tests.toys.stored import convert_and_open

REFUSALS = Refusals.beside(__file__)
ROWS = {12: 5, 7: 3, 103: 1}


def write(path: Path, **changed: Any) -> Path:
    games = {number: toy_game(number, rows) for number, rows in ROWS.items()}
    games[12] = {name: one for name, one in {**games[12], **changed}.items() if one is not None}
    return write_katakomba(path, games)


def games_of(path: Path) -> list[Episode]:
    """Read games by h5py; the last observation is given twice."""
    found = []
    with h5py.File(path) as file:
        for name in sorted(file, key=int):
            game = {key: column[()] for key, column in file[name].items()}
            ends, last = game["dones"][:, None], np.arange(len(game["dones"]))[:, None]
            episode: Episode = {
                ("action",): game["actions"],
                REWARD: game["rewards"][:, None],
                TERMINATED: ends,
                TRUNCATED: (last == len(ends) - 1) & ~ends,
                ("episode", "game"): int(name),
                ("episode", "points"): file[name].attrs["points"],
                ("episode", "death"): file[name].attrs["death"],
                ("episode", "final_observation"): False,
            }
            for screen in ("tty_chars", "tty_colors", "tty_cursor"):
                rows = game[screen]
                episode["observation", screen] = rows
                episode["next", "observation", screen] = np.concatenate([rows[1:], rows[-1:]])
            found.append(episode)
    return found


def game(**changed: Any) -> Damage:
    """Change the game 12, of five rows, which comes second."""
    return Damage(lambda path: write(path, **changed), skipped=(1,))


BAD = {
    "no rewards": game(rewards=None),
    "no rows": game(actions=np.zeros(0, np.int16)),
    "fewer screens": game(tty_chars=np.zeros((4, 24, 80), "u1")),
    "rewards of two": game(rewards=np.zeros((5, 2))),
    "done before the end": game(dones=np.array([0, 1, 0, 0, 1])),
    "an attribute of two": game(**{"@points": np.array([1, 2])}),
    "an attribute of another use": game(**{"@start": 3}),
    "no attribute": game(**{"@points": None}),
}


class TestKatakomba(Contract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        path = write(tmp_path / "data-mon-hum-neu-any.hdf5")
        return SourceCase(Katakomba(), Katakomba().release_of(path, "x"), path, games_of, BAD)


def test_a_game_that_is_not_done_and_more_columns(tmp_path: Path, settings: Settings) -> None:
    path = write(tmp_path / "x.hdf5", dones=np.zeros(5, bool))
    reader = convert_and_open(path, settings)
    assert_episodes(reader, games_of(path))
    assert any("a copy of the one before" in note for note in reader.manifest.notes)
    games = {n: {**toy_game(n, 2), "scores": np.array([n, n + 1])} for n in (1, 2, 3)}
    path = write_katakomba(tmp_path / "y.hdf5", games)
    reader = convert_and_open(path, settings, force=True)
    assert reader.step(("extra", "scores")).tolist() == [1, 2, 2, 3, 3, 4]


@pytest.fixture
def hub(tmp_path: Path, settings: Settings) -> Iterator[Settings]:
    remote = tmp_path / "remote"
    write(remote / "data/data-mon-hum-neu-any.hdf5")
    (remote / "README.md").write_text("---\nlicense: other\n---\n")
    with HubServer({"Howuhh/katakomba": remote}) as server:
        yield replace(settings, offline=False, hub_endpoint=server.url)


def test_downloads_from_the_hub(hub: Settings, tmp_path: Path) -> None:
    dataset = parse_id("katakomba:mon-hum-neu")
    with pytest.raises(FormatError, match="33,741,542 steps according to its metadata"):
        download(dataset, hub, Options())
    made = download(dataset, hub, Options(audit="all", skip_bad_episodes=True))
    reader = open_reader(made.path)
    assert_episodes(reader, games_of(tmp_path / "remote/data/data-mon-hum-neu-any.hdf5"))
    about = reader.manifest.about
    assert (about["ref_min_score"], about["ref_max_score"]) == (0.0, 17456.05)
    assert reader.manifest.environment["character"] == "mon-hum-neu"
    assert reader.manifest.licence == "other"
    with pytest.raises(NotFoundError, match=r"has no data/data-arc-hum-law-any\.hdf5"):
        Katakomba().resolve("arc-hum-law", None, hub)

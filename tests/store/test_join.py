"""Dataset directories joined into one: the bytes are those of one writer that got all batches."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from offline_data.base.files import write_durably
from offline_data.episode import EpisodeBatch
from offline_data.episode.joining import concatenate
from offline_data.store import join as joining
from offline_data.store.join import DamagedPartError, join, joined_parts
from offline_data.store.layout import LayoutName
from offline_data.store.manifest import Manifest, read_manifest
from offline_data.store.reader import open_reader
from offline_data.store.verify import verify
from offline_data.testing.toy import assert_same_batch, toy_batch, write_toy
from tests.pictures import encoded_batch
from tests.syncs import Syncs, files_in

LENGTHS = ([3, 1], [2], [4, 1, 5], [1])


def batches(*, images: bool = False) -> list[EpisodeBatch]:
    """Text in each table, with words that parts share, and notes."""
    made: list[EpisodeBatch] = []
    for number, lengths in enumerate(LENGTHS):
        first = sum(map(len, LENGTHS[:number]))
        batch = toy_batch(lengths, first_episode=first, text=True, images=images, unknown_final=[3])
        words = [f"w{-a % 5}" for a in batch.steps["action",][:, 0]]
        tasks = [f"task {(first + n) % 3}" for n in range(len(lengths))]
        steps = {**batch.steps, ("extra", "word"): np.array(words, object)}
        episodes = {**batch.episodes, ("task",): np.array(tasks, object)}
        made.append(replace(batch, steps=steps, episodes=episodes, notes=(f"Note {number % 2}.",)))
    return made


def write_parts(folder: Path, made: list[EpisodeBatch], layout: LayoutName) -> list[Path]:
    parts = [folder / f"{number:05d}" for number in range(len(made))]
    for part, batch in zip(parts, made, strict=True):
        write_toy(part, [batch], layout=layout)
    return parts


def header(part: Path) -> Manifest:
    return replace(read_manifest(part), tables={}, counts={}, digests={}, notes=(), audit={})


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    return write_parts(tmp_path / "parts", batches(), "compact")


def join_and_die(parts: list[Path], place: Path, *, consume: bool = False) -> None:
    """Join parts until all rows are there."""

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joining, "finalize", die)
        with pytest.raises(KeyboardInterrupt):
            join(parts, place, header(parts[0]), consume=consume)


def test_rows_are_on_the_disk_before_those_of_the_parts_are_deleted(
    parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = tmp_path / "both"
    syncs, deleted, unlink = Syncs(monkeypatch), list[Path](), Path.unlink

    def checked(self: Path, missing_ok: bool = False) -> None:
        if self.parent.parent in parts:
            deleted.append(self)
            assert syncs.lacks([*files_in(both), both / "steps"]) == []
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", checked)
    join(parts, both, header(parts[0]), consume=True)
    assert len(deleted) >= 2 * len(parts)


@pytest.mark.parametrize("consume", [False, True])
@pytest.mark.parametrize("kind", ["compact", "ted", "images", "encoded"])
def test_the_bytes_are_those_of_one_writer(
    tmp_path: Path, kind: str, consume: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "_DURABLE", 300 if consume else 1 << 20)  # two parts, one, all
    made = batches(images=kind == "images")
    if kind == "encoded":
        made = [encoded_batch([2, 3], first_episode=2 * n, first=9 * n) for n in range(3)]
    layout: LayoutName = "ted" if kind == "ted" else "compact"
    parts = write_parts(tmp_path / "parts", made, layout)
    expected = write_toy(tmp_path / "whole", made, layout=layout)
    found = join(parts, tmp_path / "joined", header(parts[0]), consume=consume)
    assert found.digests == expected.digests
    plain = replace(found, created=expected.created, sha256=expected.sha256)
    assert plain.to_json() == expected.to_json()
    assert verify(tmp_path / "joined") == ()
    assert list(tmp_path.glob("joined.*")) == []
    left = {path.parent.name for part in parts for path in part.rglob("*.memmap")}
    assert (left == {"episodes"}) == consume


@pytest.mark.parametrize("killed", range(1, 9))
def test_it_goes_on_after_a_kill(
    parts: list[Path], tmp_path: Path, killed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, first = tmp_path / "joined", header(parts[0])
    count = 0

    def dying(path: Path, content: bytes) -> None:
        nonlocal count
        count += 1
        if count == (killed + 1) // 2 and killed % 2:
            raise KeyboardInterrupt  # before it is known that the rows are durable
        write_durably(path, content)
        if count == killed // 2:
            raise KeyboardInterrupt  # before the part is deleted

    monkeypatch.setattr(joining, "_DURABLE", 0)
    with monkeypatch.context() as patch:
        patch.setattr(joining, "write_durably", dying)
        with pytest.raises(KeyboardInterrupt):
            join(parts, place, first, consume=True)
    assert joined_parts(parts, place) == killed // 2
    found = join(parts, place, first, consume=True)
    expected = write_toy(tmp_path / "whole", batches())
    assert found.digests == expected.digests
    assert_same_batch(open_reader(place).episode_batch(0, 7), concatenate(batches()))


def test_a_kill_in_the_last_steps(parts: list[Path], tmp_path: Path) -> None:
    place, first = tmp_path / "joined", header(parts[0])
    join_and_die(parts, place, consume=True)
    (place / "left").write_text("of something")
    assert join(parts, place, first, consume=True).counts["episodes"] == 7
    open_reader(place).check_files()
    assert not (place / "left").exists()


def test_rows_that_were_lost_or_of_other_parts_count_for_nothing(
    parts: list[Path], tmp_path: Path
) -> None:
    place = tmp_path / "joined"
    for journal in (b'{"parts": 2, "of": "0"}', b'{"parts": "2"}'):
        write_durably(tmp_path / "joined.joined", journal)
        assert joined_parts(parts, place) == 0
    join_and_die(parts, place)
    assert joined_parts(parts, place) == len(parts)
    assert joined_parts([parts[1], parts[0], *parts[2:]], place) == 0
    rows = place / "steps" / "rows.memmap"
    os.truncate(rows, rows.stat().st_size - 1)
    assert joined_parts(parts, place) == 0
    expected = write_toy(tmp_path / "whole", batches())
    assert join(parts, place, header(parts[0])).digests == expected.digests


@pytest.mark.parametrize("how", ["changed", "cut", "missing"])
def test_a_damaged_part_is_named(parts: list[Path], tmp_path: Path, how: str) -> None:
    victim = parts[2] / "steps" / "rows.memmap"
    content = victim.read_bytes()
    if how == "missing":
        victim.unlink()
    else:
        victim.write_bytes(content[:-1] + (b"" if how == "cut" else b"\x01"))
    with pytest.raises(DamagedPartError) as caught:
        join(parts, tmp_path / "joined", header(parts[0]), consume=True)
    assert caught.value.part == 2
    assert "00002" in caught.value.message
    victim.write_bytes(content)
    assert join(parts, tmp_path / "joined", header(parts[0]), consume=True).counts["episodes"] == 7

"""The content digest depends on values and schema, and on nothing else."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import ManifestError
from offline_data.base.ids import parse_id
from offline_data.episode import EpisodeBatch
from offline_data.episode.joining import concatenate
from offline_data.pipeline.ingest import Options, download
from offline_data.store import content as module
from offline_data.store.content import Content, content_digest, digest_of, episode_digests
from offline_data.store.library import entry_at
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.toy import toy_batch, write_toy
from tests.toys.servers import FileServer
from tests.toys.sharded import PUBLISHED, served

LENGTHS = [3, 1, 4]
TOY: dict[str, Any] = {"text": True, "images": True, "unknown_final": [1]}


def digests(path: Path) -> tuple[str, np.ndarray[Any, Any]]:
    content = Content(open_reader(path))
    found = episode_digests(content)
    return content_digest(content, found), found


def written(folder: Path, batch: EpisodeBatch, **layout: Any) -> Path:
    write_toy(folder, [batch], audit="none", **layout)
    return folder


def item_bytes(values: Any) -> bytes:
    """Items as the definition has them, computed one by one."""
    if values.dtype != object:
        return bytes(values.astype(values.dtype.newbyteorder("<")).tobytes())
    texts = values.ravel().tolist()
    return b"".join(bytes(32) if t is None else hashlib.sha256(t.encode()).digest() for t in texts)


def by_definition(batch: EpisodeBatch) -> list[bytes]:
    """Digests of the episodes of a batch in memory, as the docstring of the module has it."""
    out, row, seen = [], 0, 0
    for number, length in enumerate(batch.lengths.tolist()):
        final = bool(batch.final_observation[number])
        hashed = hashlib.sha256(length.to_bytes(8, "little") + bytes([final]))
        for key in sorted(batch.episodes):
            hashed.update(item_bytes(batch.episodes[key][number : number + 1]))
        for key in sorted(batch.observations):
            hashed.update(item_bytes(batch.observations[key][seen : seen + length + final]))
        for key in sorted(batch.steps):
            hashed.update(item_bytes(batch.steps[key][row : row + length]))
        out.append(hashed.digest())
        row, seen = row + length, seen + length + 1
    return out


@pytest.mark.parametrize("layout", ["compact", "ted"])
def test_the_definition(layout: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = toy_batch(LENGTHS, **TOY)
    path = written(tmp_path / "a", batch, layout=layout)
    whole, found = digests(path)
    assert [one.tobytes() for one in found] == by_definition(batch)
    kinds = [
        ["episodes", ["id"], "int64"],
        ["episodes", ["seed"], "int64"],
        ["observations", ["info", "code"], "int64"],
        ["observations", ["observation", "image"], "uint8[48, 48, 3]"],
        ["observations", ["observation", "mission"], "text"],
        ["observations", ["observation", "state"], "float32[3]"],
        ["steps", ["action"], "float32[1]"],
        ["steps", ["next", "reward"], "float64[1]"],
        ["steps", ["next", "terminated"], "bool[1]"],
        ["steps", ["next", "truncated"], "bool[1]"],
    ]
    text = "offline-data content 1\n" + json.dumps(kinds).replace(", ", ",") + "\n"
    text = text.replace("48,48,3", "48, 48, 3")
    expected = hashlib.sha256(text.encode() + b"".join(by_definition(batch))).hexdigest()
    assert whole == f"sha256:{expected}"
    for block, group in ((1, 1), (10_000, 5), (1, 1 << 20)):  # however it is divided
        monkeypatch.setattr(module, "_BLOCK", block)
        monkeypatch.setattr(module, "_GROUP_ROWS", group)
        assert digests(path)[0] == whole


def test_what_does_not_matter(tmp_path: Path) -> None:
    batch = toy_batch(LENGTHS, **TOY)
    whole, found = digests(written(tmp_path / "a", batch))
    parts = [toy_batch([length], first_episode=n, **TOY) for n, length in enumerate(LENGTHS)]
    path = tmp_path / "b"
    write_toy(path, parts, layout="ted", dataset="local:other@2")
    os.utime(path / "manifest.json", (1, 1))
    assert digests(path)[0] == whole
    # another order of episodes: another vocabulary, the same digest of each
    backwards = digests(written(tmp_path / "c", concatenate(parts[::-1])))
    assert backwards[0] != whole
    assert (backwards[1] == found[::-1]).all()


def changed(batch: EpisodeBatch, table: str, key: tuple[str, ...], value: Any) -> EpisodeBatch:
    column = getattr(batch, table)[key].copy()
    column[4] = value
    columns: Any = {table: {**getattr(batch, table), key: column}}
    return replace(batch, **columns)


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("steps", ("action",), 7.0),
        ("steps", ("next", "reward"), np.nextafter(200.2, 0)),
        ("observations", ("observation", "mission"), "go home"),
        ("observations", ("observation", "mission"), ""),
        ("observations", ("observation", "image"), 9),
    ],
)
def test_one_value_matters(table: str, key: Any, value: Any, tmp_path: Path) -> None:
    batch = toy_batch([3, 2, 4], text=True, images=True)
    one, two = (
        digests(written(tmp_path / name, each))
        for name, each in (("a", batch), ("b", changed(batch, table, key, value)))
    )
    assert one[0] != two[0]
    assert (one[1] != two[1]).any(axis=1).tolist() == [False, True, False]


def test_values_are_their_bytes(tmp_path: Path) -> None:
    batch, key = toy_batch([3, 2, 4]), ("next", "reward")
    values = [0.0, -0.0, np.nan, np.nan]
    found = [
        digests(written(tmp_path / str(n), changed(batch, "steps", key, value)))[0]
        for n, value in enumerate(values)
    ]
    assert [found.index(one) for one in found] == [0, 1, 2, 2]
    narrow = replace(batch, steps={**batch.steps, key: batch.steps[key].astype(np.float32)})
    assert digests(written(tmp_path / "narrow", narrow))[0] not in found


def test_the_last_observation_where_it_is_unknown(tmp_path: Path) -> None:
    known, unknown = (
        digests(written(tmp_path / str(len(lost)), toy_batch([3], unknown_final=lost)))[0]
        for lost in ([], [0])
    )
    assert known != unknown


def test_codes_without_words(tmp_path: Path) -> None:
    path = written(tmp_path / "a", toy_batch([3], text=True))
    words = json.loads((path / "text.json").read_text())
    words[0]["words"] = words[0]["words"][:1]
    (path / "text.json").write_text(json.dumps(words))
    with pytest.raises(ManifestError, match="mission"):
        episode_digests(Content(DatasetReader(path)))


def test_encoded_images_are_their_files(online: Settings) -> None:
    name = parse_id("shardtoy:sharded-2x2-images1")
    with FileServer(served(name.name)) as server:
        settings = replace(online, mirrors=((PUBLISHED, server.url),))
        png, again = (
            download(name, replace(settings, root=settings.root / str(n)), Options())
            for n in range(2)
        )
        raw = download(name, replace(settings, root=settings.root / "raw"), Options(images="raw"))
    content = Content(open_reader(png.path))
    assert content.kinds["observations", ("observation", "image")] == "png uint8[8, 9]"
    reader = content.reader
    images: Any = reader.leaf("observations", ("observation", "image"))
    files = images.images()[: int(reader.lengths[0]) + 1]
    hashed = hashlib.sha256(int(reader.lengths[0]).to_bytes(8, "little") + b"\1")
    for run in (files[:-1], files[-1:]):
        hashed.update(b"".join(len(one).to_bytes(8, "little") for one in run) + b"".join(run))
    image = ("observations", ("observation", "image"))
    assert episode_digests(content, [image])[0].tobytes() == hashed.digest()
    assert len({digests(one.path)[0] for one in (png, again)}) == 1
    assert digests(raw.path)[0] != digests(png.path)[0]


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_workers_and_roots_do_not_matter(online: Settings) -> None:
    name, found = parse_id("shardtoy:sharded-3x2"), set()
    for workers, layout in ((1, "compact"), (2, "ted")):
        settings = replace(online, root=online.root / str(workers), workers=workers)
        options = Options(layout="ted" if layout == "ted" else None)
        found.add(digests(download(name, settings, options).path)[0])
    assert len(found) == 1


def test_it_is_kept_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "root" / "local" / "toy" / "1", toy_batch(LENGTHS, **TOY))
    entry, root = entry_at(path), tmp_path / "root"
    first = digest_of(entry, root)
    assert first == digests(path)[0]
    with monkeypatch.context() as patch:
        patch.setattr(module, "episode_digests", None)  # it is not called
        assert digest_of(entry, root) == first
    rows = path / "steps" / "rows.memmap"
    data = bytearray(rows.read_bytes())
    data[8] ^= 1
    rows.write_bytes(data)
    os.utime(rows, (2, 2))
    assert digest_of(entry, root) not in {first, ""}
    for kept in (root / ".content").iterdir():
        kept.write_text("nonsense")
    assert digest_of(entry, root) == digests(path)[0]


@pytest.mark.parametrize("place", [7, 40, 70, -1])
def test_a_changed_byte_of_what_is_kept_is_noticed(place: int, tmp_path: Path) -> None:
    path = written(tmp_path / "root" / "local" / "toy" / "1", toy_batch(LENGTHS, **TOY))
    entry, root = entry_at(path), tmp_path / "root"
    first = digest_of(entry, root)
    (kept,) = (root / ".content").iterdir()
    text = bytearray(kept.read_bytes())
    text[place] = ord("1" if text[place] == ord("0") else "0")
    kept.write_bytes(text)
    assert digest_of(entry, root) == first
    assert bytes(text) != kept.read_bytes()

"""A source of JSON-lines shards whose name sets their number, size and faults.

The content is computed from the name, so that a server, a source in another process and a test's
oracle agree without sharing a file. `install` registers it like adapters of other packages.

| name | dataset |
|---|---|
| `sharded-40x3` | 40 shards of 3 episodes each |
| `…-unknown` | shards do not state their number of episodes |
| `…-pad9000` | every episode has that many bytes of padding in the raw file |
| `…-images` | observations have a PNG of 8 × 9 pixels, too |
| `…-lost3` | the final observation of every third episode is not known |
| `…-slow20` | reading a batch takes that many milliseconds |
| `…-empty4` | shard 4 has no episodes |
| `…-crash4` | the process that reads shard 4 is ended by SIGSEGV |
| `…-bad4` | the second line of shard 4 is no JSON |
| `…-allbad4` | no line of shard 4 is JSON |
| `…-torn4` | shard 4 is cut off in the middle of a line |
| `…-short4` | shard 4 has an episode less than it states |
| `…-wider4` | shard 4 has wider observations |
| `…-hostile` | shards have names that would lead out of a folder |
| `…-foreign4` | shard 4 needs a file that the release does not list |
| `…-overlap` | every shard needs the file of the next one, too |
| `…-says7` | the source states that many transitions, with a warning |
| `…-outside4` | shard 4 needs a file outside its folder |
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, NotFoundError
from offline_data.base.ids import nearest
from offline_data.base.json import parse_json, read_json
from offline_data.episode import EpisodeBatch
from offline_data.episode.joining import join_episodes
from offline_data.formats.base import (
    CatalogEntry,
    RawDataset,
    Release,
    RemoteFile,
    Shard,
    Source,
    SourceInfo,
)
from offline_data.formats.fingerprint import fingerprint
from offline_data.raw.images import encode_image
from offline_data.store.encoded import EncodedColumn

NAME = "shardtoy"
PUBLISHED = "http://toy.invalid/shards"
"""URL of its files; a mirror in `Settings` redirects it to a test server."""
FEATURES = "features.json"
"""The file that `open` needs."""
_BUDGET = 200
"""Bytes of a batch: one to three episodes."""
_GRAMMAR = re.compile(r"sharded-(\d+)x(\d+)((?:-[a-z]+\d*)*)")


@dataclass(frozen=True)
class ToyShards:
    """The parsed parts of a name."""

    shards: int
    episodes: int
    """Episodes of a shard."""
    words: Mapping[str, int]
    """Other parts with their numbers, -1 without one."""

    @classmethod
    def named(cls, name: str) -> ToyShards | None:
        """Read a name; None for any other."""
        found = _GRAMMAR.fullmatch(name)
        if found is None:
            return None
        words = re.findall(r"-([a-z]+)(\d*)", found[3])
        return cls(int(found[1]), int(found[2]), {word: int(n or -1) for word, n in words})

    def episodes_of(self, shard: int) -> range:
        """Return the numbers of the episodes in a shard."""
        missing = {self.words.get("empty"): self.episodes, self.words.get("short"): 1}
        first = shard * self.episodes
        return range(first, first + self.episodes - missing.get(shard, 0))

    def lines(self, shard: int) -> bytes:
        """Return the content of a shard."""
        width = 4 if self.words.get("wider") == shard else 3
        pad = "x" * self.words.get("pad", 0)
        rows = [toy_episode(number, width) | {"pad": pad} for number in self.episodes_of(shard)]
        content = "".join(json.dumps(row) + "\n" for row in rows).encode() or b"\n"
        lines = content.splitlines(keepends=True)
        if self.words.get("bad") == shard:
            lines[1] = b"{" + lines[1]
        if self.words.get("allbad") == shard:
            lines = [b"{" + line for line in lines]
        content = b"".join(lines)
        return content[: len(content) * 2 // 3] if self.words.get("torn") == shard else content


def toy_length(episode: int) -> int:
    """Return the transitions of an episode, 1 to 4."""
    return 1 + episode % 4


def toy_episode(episode: int, width: int = 3) -> dict[str, Any]:
    """Return an episode as its line has it; see `toy_batch` for the values."""
    codes = [1000.0 * (episode + 1) + t + 1 for t in range(toy_length(episode) + 1)]
    return {
        "id": episode,
        "task": f"task {episode % 5}",
        "observation": [[code] * width for code in codes],
        "mission": [f"go to {int(code) % 7}" for code in codes],
        "action": [[-code] for code in codes[:-1]],
        "reward": [code / 10 for code in codes[1:]],
        "terminated": episode % 2 == 0,
    }


def shard_file(shard: int, shards: int) -> str:
    """Return the name of the file of a shard."""
    return f"data-{shard:05d}-of-{shards:05d}.jsonl"


@lru_cache(maxsize=8)
def toy_files(name: str) -> dict[str, bytes]:
    """Return the files of a dataset by their paths.

    Example:
        >>> list(toy_files("sharded-2x3"))
        ['features.json', 'data-00000-of-00002.jsonl', 'data-00001-of-00002.jsonl']
    """
    toy = ToyShards.named(name)
    if toy is None:
        raise NotFoundError(f"{name} says nothing")
    listed = []
    for shard in range(toy.shards):
        one: dict[str, Any] = {"name": f"part {shard}", "file": shard_file(shard, toy.shards)}
        if "unknown" not in toy.words:
            one["episodes"] = 0 if toy.words.get("empty") == shard else toy.episodes
            one["transitions"] = sum(map(toy_length, toy.episodes_of(shard)))
        if "hostile" in toy.words:
            one["name"] = f"../../../{shard}\x1b[31m\n"
        if shard in {toy.words.get("foreign"), toy.words.get("outside")}:
            one["file"] = "outside.jsonl" if "foreign" in toy.words else "../outside.jsonl"
        listed.append(one)
    features = {"format": NAME, "name": name, "shards": listed}
    contents = {shard_file(n, toy.shards): toy.lines(n) for n in range(toy.shards)}
    return {FEATURES: json.dumps(features).encode(), **contents}


def served(name: str) -> dict[str, bytes]:
    """Return the files of a dataset by the paths that a `FileServer` has them under."""
    return {f"/{name}/{path}": content for path, content in toy_files(name).items()}


def write_toy_shards(folder: Path, name: str) -> Path:
    """Write the files of a dataset, and return their folder."""
    folder.mkdir(parents=True)
    for path, content in toy_files(name).items():
        (folder / path).write_bytes(content)
    return folder


def install(folder: Path) -> Path:
    """Register the source for programs that have `folder` on their path; returns `folder`."""
    info = folder / "offline_data_shardtoy-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: offline-data-shardtoy\nVersion: 1\n"
    )
    point = f"[offline_data.sources]\n{NAME} = {__name__}:ShardToy\n"
    (info / "entry_points.txt").write_text(point)
    return folder


class ShardToy(Source):
    """The source; see the module for its names."""

    name = NAME
    title = "shards of JSON lines, for tests"

    def catalog(self) -> Sequence[CatalogEntry]:
        """List two of its names."""
        return [CatalogEntry("sharded-6x3"), CatalogEntry("sharded-40x3")]

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:  # noqa: ARG002
        """Make the files of a name up."""
        toy = ToyShards.named(name)
        if toy is None:
            known = [entry.name for entry in self.catalog()]
            near = " or ".join(nearest(name, known) or known)
            raise NotFoundError(f"There is no {NAME}:{name}", hint=f"did you mean {near}?")
        files = tuple(
            RemoteFile(
                path,
                (f"{PUBLISHED}/{name}/{path}",),
                len(content),
                f"sha256:{sha256(content).hexdigest()}",
            )
            for path, content in toy_files(name).items()
        )
        return Release(name, "v1", files, opening=(FEATURES,), shards=toy.shards)

    def accepts(self, path: Path) -> bool:
        """Return True if `path` has such a dataset."""
        return (path / FEATURES).is_file()

    def release_of(self, path: Path, name: str) -> Release:
        """Describe a folder."""
        return Release(name, fingerprint(path, path.iterdir()), local=path)

    def open(self, release: Release, raw: Path) -> ShardedRaw:
        """Read the metadata."""
        features = read_json(raw / FEATURES)
        if not isinstance(features, dict) or features.get("format") != NAME:
            raise FormatError(f"{raw / FEATURES} is not that of {NAME}")
        toy, listed = ToyShards.named(features["name"]), features["shards"]
        needed = 2 if toy and "overlap" in toy.words else 1
        shards = tuple(
            Shard(
                one["name"],
                tuple(each["file"] for each in listed[number : number + needed]),
                episodes=one.get("episodes"),
                transitions=one.get("transitions"),
            )
            for number, one in enumerate(listed)
        )
        return ShardedRaw(
            raw, str(features["name"]), shards, skip_bad=release.options.skip_bad_episodes
        )


class ShardedRaw(RawDataset):
    """The shards of a dataset, read line by line."""

    def __init__(
        self, raw: Path, name: str, shards: tuple[Shard, ...], *, skip_bad: bool = False
    ) -> None:
        counts = [shard.episodes for shard in shards]
        total = None if None in counts else sum(filter(None, counts))
        self._toy = ToyShards.named(name)
        says = self._toy.words.get("says") if self._toy else None
        self.info = SourceInfo(
            says,
            total,
            warnings=() if says is None else ("Counts are not to be trusted.",),
            about={"made": "up"},
            licence="CC0-1.0",
            notes=("Every value tells its episode and step.",),
        )
        self._raw, self._shards, self._skip_bad = raw, shards, skip_bad

    def shards(self) -> Sequence[Shard]:
        """Return the shards."""
        return self._shards

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:
        """Read the lines of a shard, two per batch."""
        path, words = self._raw / shard.files[0], self._toy.words if self._toy else {}
        number = self._shards.index(shard)
        if words.get("crash") == number:
            os.kill(os.getpid(), signal.SIGSEGV)
        with path.open("rb") as file:
            readings = (
                (f"{path.name}, line {n}", partial(_episode, line, words))
                for n, line in enumerate(filter(bytes.strip, file), 1)
            )
            for batch in join_episodes(readings, skip_bad=self._skip_bad, budget=_BUDGET):
                time.sleep(max(0, words.get("slow", 0)) / 1000)
                yield batch


def _episode(line: bytes, words: Mapping[str, int]) -> EpisodeBatch:
    episode = _batch([parse_json(line, "it")])
    states: Any = episode.observations["observation", "state"]
    if "lost" in words and episode.episodes["id",][0] % words["lost"] == 0:
        episode = replace(episode, final_observation=np.zeros(1, bool))
        states[-1] = states[-2]
    if "images" not in words:
        return episode
    pixels = (states[:, :1] % 251 + np.arange(72)).astype(np.uint8).reshape(-1, 8, 9)
    images = [encode_image(one, "png") for one in pixels]
    column: Any = EncodedColumn.of(images, ("png", "uint8", (8, 9)))
    seen = {**episode.observations, ("observation", "image"): column}
    return replace(episode, observations=seen)


def _batch(rows: Sequence[Mapping[str, Any]]) -> EpisodeBatch:
    lengths = np.array([len(row["action"]) for row in rows], np.int64)
    last = np.cumsum(lengths) - 1
    ended = np.array([row["terminated"] for row in rows])
    terminated, truncated = np.zeros((2, int(lengths.sum()), 1), bool)
    terminated[last[ended]] = truncated[last[~ended]] = True

    def column(name: str, dtype: type) -> Any:
        return np.array([value for row in rows for value in row[name]], dtype)

    return EpisodeBatch(
        lengths,
        {
            ("action",): column("action", np.float32),
            ("next", "reward"): column("reward", np.float64).reshape(-1, 1),
            ("next", "terminated"): terminated,
            ("next", "truncated"): truncated,
        },
        {
            ("observation", "state"): column("observation", np.float32),
            ("observation", "mission"): column("mission", object),
        },
        np.ones(len(rows), bool),
        {
            ("id",): np.array([row["id"] for row in rows]),
            ("task",): np.array([row["task"] for row in rows], object),
        },
    )

"""What a preprocessed dataset must hold, worked out row by row in plain Python, and how it is read.

The parent is taken apart with `DatasetReader.transitions_at`, one row at a time; the result is read
with nothing but `json` and `np.memmap`, as `cache_layout.md` says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.episode import Key
from offline_data.store.reader import DatasetReader, open_reader

Row = dict[Key, NDArray[Any]]

REWARD, DONE = ("next", "reward"), ("next", "done")
TERMINATED, TRUNCATED = ("next", "terminated"), ("next", "truncated")
ROOT_FLAGS: tuple[Key, ...] = (("done",), ("terminated",), ("truncated",))
OWN = ("start", "length", "return", "terminated", "truncated", "final_observation")


@dataclass(frozen=True)
class Episode:
    """One episode, as rows of TED."""

    number: int
    """In the parent."""
    rows: list[Row]
    final: bool
    """Whether the last next observation is known."""
    extras: dict[Key, Any]
    """Its columns of the episode table that the source gave; text as `str`."""


def episodes_of(folder: Path) -> list[Episode]:
    """Take a dataset apart."""
    reader = open_reader(folder)
    return [_episode(reader, number) for number in range(reader.episode_count)]


def cut(episodes: Sequence[Episode], frames: int) -> list[Episode]:
    """Keep the first transitions; an episode that is cut ends truncated, unless it is terminated."""
    out: list[Episode] = []
    for episode in episodes:
        if frames > 0:
            rows = deepcopy(episode.rows[:frames])
            shorter = len(rows) < len(episode.rows)
            if shorter and not rows[-1][TERMINATED].any():
                rows[-1][TRUNCATED] = rows[-1][DONE] = np.array([True])
            out.append(replace(episode, rows=rows, final=episode.final or shorter))
        frames -= len(episode.rows)
    return out


def mapped(episodes: Sequence[Episode], fn: Callable[[Row], Row]) -> list[Episode]:
    """Call a function with a copy of every row."""
    return [replace(one, rows=[fn(deepcopy(row)) for row in one.rows]) for one in episodes]


def numbered(episodes: Sequence[Episode]) -> list[Episode]:
    """Give every row `index` and `episode`, those of the parent, as functions see them."""
    out, index = [], 0
    for episode in episodes:
        rows = []
        for row in episode.rows:
            place: Row = {("index",): np.array(index), ("episode",): np.array(episode.number)}
            rows.append({**row, **place})
            index += 1
        out.append(replace(episode, rows=rows))
    return out


def columns_of(episodes: Sequence[Episode]) -> Row:
    """Return `[N, …]` columns of the result, `episode` counted in it."""
    rows = [row for episode in episodes for row in episode.rows]
    table = {key: np.stack([row[key] for row in rows]) for key in rows[0] if key != ("index",)}
    lengths = [len(episode.rows) for episode in episodes]
    return {**table, ("episode",): np.repeat(np.arange(len(lengths)), lengths)}


def table_of(episodes: Sequence[Episode]) -> dict[Key, list[Any]]:
    """Return the columns of the result's episode table."""
    lengths = [len(episode.rows) for episode in episodes]
    ends = [episode.rows[-1] for episode in episodes]
    own: dict[str, list[Any]] = {
        "start": [sum(lengths[:number]) for number in range(len(lengths))],
        "length": lengths,
        "return": [_sum(episode.rows) for episode in episodes],
        "terminated": [bool(row[TERMINATED][0]) for row in ends],
        "truncated": [bool(row[TRUNCATED][0]) for row in ends],
        "final_observation": [episode.final for episode in episodes],
    }
    extras = {key: [episode.extras[key] for episode in episodes] for key in episodes[0].extras}
    table: dict[Key, list[Any]] = {(name,): values for name, values in own.items()}
    return {**table, **extras}


def check(folder: Path, episodes: Sequence[Episode]) -> None:
    """Assert that the dataset in `folder` is these episodes, to the bit, and says so."""
    plain = Plain(folder)
    found, wanted = plain.transitions(), columns_of(episodes)
    assert sorted(found) == sorted(wanted)
    for key, values in wanted.items():
        assert (found[key].dtype, found[key].shape) == (values.dtype, values.shape), key
        different = np.flatnonzero(_rows(found[key]) != _rows(values))
        assert not len(different), (key, different, found[key][different], values[different])
    columns, expected = plain.table(), table_of(episodes)
    assert sorted(columns) == sorted(expected)
    for key, listed in expected.items():
        np.testing.assert_array_equal(columns[key], np.array(listed, columns[key].dtype), str(key))
    assert plain.manifest["counts"] == _counts(episodes)


class Plain:
    """A dataset directory read as `cache_layout.md` tells people to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())

    def leaf(self, table: str, *key: str) -> NDArray[Any]:
        spec = self.manifest["schema"][table]
        at = next(one for one in spec["leaves"] if one["key"] == list(key))
        if at["stride"] == 0:
            return np.zeros((spec["rows"], *at["shape"]), at["dtype"])
        place = {"names": ["x"], "offsets": [at["offset"]], "itemsize": at["stride"]}
        fields: Any = {**place, "formats": [(at["dtype"], tuple(at["shape"]))]}
        record = np.dtype(fields)
        path = self.folder / at["file"]
        assert path.stat().st_size == spec["rows"] * at["stride"]
        return np.array(np.memmap(path, record, mode="r", shape=(spec["rows"],))["x"])

    def keys(self, table: str) -> list[Key]:
        return [tuple(leaf["key"]) for leaf in self.manifest["schema"][table]["leaves"]]

    def transitions(self) -> dict[Key, NDArray[Any]]:
        """All transitions in TED, text as codes, whatever the layout."""
        if "ted" in self.manifest["schema"]:
            return {key: self.leaf("ted", *key) for key in self.keys("ted")}
        out = {key: self.leaf("steps", *key) for key in self.keys("steps")}
        before = np.arange(len(out["episode",])) + out["episode",]
        for key in self.keys("observations"):
            values = self.leaf("observations", *key)
            after = ("next", *key)
            out[key], out[after] = values[before], values[before + 1]
        out[DONE] = out[TERMINATED] | out[TRUNCATED]
        return {**out, **{flag: np.zeros_like(out[DONE]) for flag in ROOT_FLAGS}}

    def table(self) -> dict[Key, NDArray[Any]]:
        """The episode table, text as `str`."""
        out = {}
        for key in self.keys("episodes"):
            values, words = self.leaf("episodes", *key), self.words("episodes", *key)
            out[key] = values if words is None else np.array([*words, None], object)[values]
        return out

    def words(self, table: str, *key: str) -> list[str] | None:
        path = self.folder / "text.json"
        listed = json.loads(path.read_text()) if path.exists() else []
        found = [one for one in listed if (one["table"], one["key"]) == (table, list(key))]
        at = next(o for o in self.manifest["schema"][table]["leaves"] if o["key"] == list(key))
        assert len(found) == at["text"], (table, key)
        return found[0]["words"] if found else None


def digests(folder: Path) -> dict[str, str]:
    """Hash all files; of the manifest, all but the times of the dataset and of its parents."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    manifest = json.loads(found.pop("manifest.json"))
    for step in (manifest, *manifest.get("history", ())):
        step.pop("created", None)
        step.pop("sha256", None)
    found["manifest.json"] = json.dumps(manifest).encode()
    return {name: hashlib.sha256(content).hexdigest() for name, content in sorted(found.items())}


def _episode(reader: DatasetReader, number: int) -> Episode:
    start, length = int(reader.starts[number]), int(reader.lengths[number])
    rows = []
    for at in range(start, start + length):
        row = reader.transitions_at(np.array([at]))
        rows.append({key: values[0] for key, values in row.items() if key != ("episode",)})
    words = reader.vocabularies.get("episodes", {})
    extras = {}
    for key, column in reader.episodes.items():
        if key[0] not in OWN:
            value = column[number]
            extras[key] = [*words[key], None][int(value)] if key in words else value
    final = bool(reader.episodes["final_observation",][number])
    return Episode(number, rows, final, extras)


def _sum(rows: Sequence[Row]) -> float:
    rewards = np.array([row[REWARD][0] for row in rows], np.float64)
    return float(np.add.reduceat(rewards, [0])[0])  # added up in the order that numpy takes


def _rows(values: NDArray[Any]) -> NDArray[Any]:
    """Bytes of every row, so that NaN equals NaN and -0.0 is not 0.0."""
    flat = np.ascontiguousarray(values).reshape(len(values), -1)
    return np.array([row.tobytes() for row in flat], object)


def _counts(episodes: Sequence[Episode]) -> dict[str, int]:
    rows = [row for episode in episodes for row in episode.rows]
    unknown = [one for one in episodes if not one.final]
    invalid = [one for one in unknown if not one.rows[-1][TERMINATED][0]]
    return {
        "transitions": len(rows),
        "episodes": len(episodes),
        "valid_transitions": len(rows) - len(invalid),
        "terminated": sum(bool(row[TERMINATED][0]) for row in rows),
        "truncated": sum(bool(row[TRUNCATED][0]) for row in rows),
        "without_final_observation": len(unknown),
    }

"""`offline_data.json`, which `export --to rlds` writes next to the records: the leaf of each feature.

```
{"leaves": {"steps/info/x": {"key": ["info", "x"], "table": "observations"}, …}}
```

Names alone do not say it: a feature `steps/next/info/x` of others is a leaf below `steps`, one below
`info` has no row after the last action, and rewards that are not there are 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from offline_data.base.decode import decode
from offline_data.base.errors import FormatError
from offline_data.base.files import is_file
from offline_data.base.json import read_json
from offline_data.episode import EpisodeBatch, Key
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED, check_key, join_key
from offline_data.formats.rlds.episodes import NOTE_REWARD, key_of
from offline_data.formats.rlds.features import STEPS, Feature

LEAVES = "offline_data.json"
_REWARD: Key = (STEPS, "reward")


@dataclass(frozen=True)
class StoredLeaf:
    """A leaf of `EpisodeBatch`."""

    key: tuple[str, ...]
    table: Literal["steps", "observations", "episodes"]


@dataclass(frozen=True)
class _LeavesFile:
    leaves: Mapping[str, StoredLeaf]


@dataclass(frozen=True)
class StoredLeaves:
    """The leaves of a folder, by the keys that its features have without the file."""

    leaves: Mapping[tuple[bool, Key], StoredLeaf]
    """By whether it is a feature of steps, and `key_of`."""

    @property
    def observation_keys(self) -> frozenset[Key]:
        """Keys of the features that have a row for each observation."""
        found = self.leaves.items()
        return frozenset(key for (_, key), leaf in found if leaf.table == "observations")

    def restore(self, batch: EpisodeBatch) -> EpisodeBatch:
        """Return an episode of `read_episode` with the leaves of the file alone; raises `FormatError`."""
        columns: dict[str, dict[Key, Any]] = {"steps": {}, "observations": {}, "episodes": {}}
        for table, found in columns.items():
            for key, column in getattr(batch, table).items():
                leaf = self.leaves.get((table != "episodes", key))
                if leaf is not None and leaf.table != table:
                    raise FormatError(
                        f"{LEAVES} has {join_key(key)} among {leaf.table}; it is in {table}"
                    )
                if leaf is not None:
                    found[check_key(leaf.key)] = column
        flags = {key: batch.steps[key] for key in (TERMINATED, TRUNCATED)}
        return replace(
            batch,
            steps={**columns["steps"], **flags},
            observations=columns["observations"],
            episodes=columns["episodes"],
            notes=tuple(note for note in batch.notes if note != NOTE_REWARD),
        )


def read_leaves(folder: Path, features: Sequence[Feature]) -> StoredLeaves | None:
    """Read the file of a folder; None if it has none. Raises `FormatError`."""
    path = folder / LEAVES
    if not is_file(path):
        return None
    stated = decode(_LeavesFile, read_json(path), str(path)).leaves
    known = {feature.name: feature for feature in features}
    if missing := stated.keys() - known.keys():
        raise FormatError(f"{path} names {min(missing)!r}, which is not among the features")
    if len({(leaf.table, leaf.key) for leaf in stated.values()}) < len(stated):
        raise FormatError(f"{path} names a feature twice")
    keys = {
        name: REWARD if one.path == _REWARD else key_of(one.path, in_steps=one.in_steps)
        for name, one in known.items()
    }
    return StoredLeaves({(known[n].in_steps, keys[n]): leaf for n, leaf in stated.items()})

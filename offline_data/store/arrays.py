"""A dataset, or rows of it, as the arrays that CORL, IQL, D4RL and OGBench scripts train from.

Without torch; `Dataset.to_numpy` has the table of styles, names and shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from math import prod
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import UsageError
from offline_data.base.files import free_memory, human_bytes
from offline_data.base.plurals import plural
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED, Key, join_key, next_of
from offline_data.store.layout import DTYPES, EPISODE, OBSERVATIONS, TED
from offline_data.store.reader import DatasetReader

Style: TypeAlias = Literal["transitions", "episodes", "qlearning", "dataset", "ogbench"]
"""Number of rows and names of arrays."""

STYLES: tuple[Style, ...] = get_args(Style)

_NAMES: dict[Style, tuple[str, ...]] = {
    "transitions": ("observations", "actions", "rewards", "next_observations", "terminals"),
    "episodes": ("observations", "actions", "rewards", "terminals", "timeouts"),
    "qlearning": ("observations", "actions", "next_observations", "rewards", "terminals"),
    "ogbench": ("observations", "actions", "terminals", "next_observations"),
}
"""Those that consumers take: CORL's and OfflineRL-Kit's `ReplayBuffer`, the arguments of d3rlpy's
`MDPDataset`, and what D4RL's `qlearning_dataset` and OGBench's `load_dataset` return. `"dataset"` has
those of the file."""

BOOTSTRAPPED: tuple[Style, ...] = ("transitions", "ogbench")
"""Styles without rows that cannot be bootstrapped from: their next observation is not known."""

_FLAT = {"rewards": REWARD, "terminals": TERMINATED, "timeouts": TRUNCATED}
"""Arrays without the dimension that flags and rewards have in TED."""

COLUMNS = "columns"
"""Entry of `about` of datasets made from flat files: dtype of each column, by its name."""
TIMEOUT: Key = ("file_timeout",)
"""Feature of episodes, if unlike `truncated`: whether the file's `timeouts` mark the last row."""
MASK: Key = ("next", "mask")
"""Feature of datasets with the rewards of one of OGBench's tasks: 0 where the task is solved."""
_ORACLE: Key = ("oracle_reps",)


class DatasetArrays(Mapping[str, "NDArray[Any]"]):
    """Arrays by name; each is read when it is first requested, and kept.

    Args:
        reader: The dataset.
        style: See `Dataset.to_numpy`.
        key: Feature that is the observation.
        rows: `[n]` step rows.
        last: Which of these are the last of an episode, ascending.
        view: Maps a feature of a table, or returns None to have a copy; None: only copies.

    Raises `UsageError` for `"episodes"` of a dataset with end flags inside of episodes.
    """

    def __init__(
        self,
        reader: DatasetReader,
        style: Style,
        key: Key,
        rows: NDArray[np.int64],
        last: NDArray[np.int64],
        view: Callable[[str, Key], NDArray[Any] | None] | None = None,
    ) -> None:
        self._reader, self._style, self._key = reader, style, key
        self._rows, self._last, self._view = rows, last, view
        self._read: dict[str, NDArray[Any]] = {}
        self._others = _others(reader, key) if style == "dataset" else {}
        names = _names_of_file(reader, self._others) if style == "dataset" else _NAMES[style]
        lacks_rewards = REWARD not in reader.step_leaves
        self._names = tuple(name for name in names if not (lacks_rewards and name == "rewards"))
        if style == "ogbench":
            self._names += () if lacks_rewards else ("rewards", "masks")
            self._names += _ORACLE if _ORACLE in reader.observation_leaves else ()
            self._read["terminals"] = np.zeros(len(rows), np.float32)
            self._read["terminals"][last] = 1
        if style in {"transitions", "dataset", "ogbench"}:
            return
        ends, truncated = (np.array(self._scalars(flag), bool) for flag in (TERMINATED, TRUNCATED))
        inside = ends | truncated
        inside[last] = False
        if style == "episodes" and inside.any():
            raise UsageError(
                f"{plural(inside.sum(), 'row is', 'rows are')} terminated or truncated before the end "
                f"of an episode, first row {int(inside.argmax())}: code that cuts at terminals | "
                "timeouts would cut these episodes",
                hint="ds.episodes.start and .length are the episodes' rows; style='transitions' has "
                "no episodes",
            )
        truncated[last] |= ~ends[last]
        if style == "episodes":
            self._read["timeouts"] = truncated
        self._kept = np.flatnonzero(~truncated[:-1])

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._read:
            made = {"qlearning": self._of_d4rl, "ogbench": self._of_ogbench}
            self._read[name] = made.get(self._style, self._plain)(name)
        return self._read[name]

    def __repr__(self) -> str:
        return f"DatasetArrays({self._reader.manifest.id}: {', '.join(self._names)})"

    def copied_bytes(self, name: str) -> int:
        """Return the bytes of memory that reading an array takes; 0 for a map of a file."""
        if name in self._read:
            return 0
        table, key, rows = self._place(name)
        leaf = self._reader.manifest.tables[table][key]
        if self._style == "qlearning":
            row = leaf.nbytes if name == "terminals" else 4 * prod(leaf.shape)  # float32
            return row * len(self._kept)
        stored = np.dtype(leaf.dtype)
        kind = _ogbench_dtype(name, stored) if self._style == "ogbench" else stored
        if kind == stored and self._view_rows(table, key, rows) is not None:
            return 0
        return kind.itemsize * prod(leaf.shape) * len(rows)

    def _plain(self, name: str) -> NDArray[Any]:
        if name in self._others or name not in _FLAT:
            return self._leaf(*self._place(name))
        found = self._marked_timeouts() if name == "timeouts" else self._scalars(_FLAT[name])
        if self._style != "dataset" or name == "rewards":
            return found
        return found.astype(_columns(self._reader).get(name, "bool"), copy=False)

    def _marked_timeouts(self) -> NDArray[Any]:
        """Return the time-outs that the file marks: those of the last rows may not be `truncated`."""
        reader, flags = self._reader, self._scalars(TRUNCATED)
        marked = reader.episodes.get(TIMEOUT)
        if marked is None:
            return flags
        episodes = reader.episode_of(self._rows)
        last = self._rows == reader.last_rows[episodes]
        return np.where(last, np.asarray(marked, bool)[episodes], flags)

    def _of_d4rl(self, name: str) -> NDArray[Any]:
        # https://github.com/Farama-Foundation/D4RL/blob/master/d4rl/__init__.py, qlearning_dataset
        if name == "next_observations":
            before = self._plain("observations")
            return before[self._kept + 1].astype(np.float32, copy=False)
        found = self._plain(name)[self._kept]
        return found if name == "terminals" else found.astype(np.float32, copy=False)

    def _of_ogbench(self, name: str) -> NDArray[Any]:
        # https://github.com/seohongpark/ogbench/blob/master/ogbench/utils.py, load_dataset
        if name == "masks":
            _, key, _ = self._place(name)
            found = self._scalars(key).astype(np.float32, copy=False)
            return found if key == MASK else 1 - found
        found = self._plain(name)
        return found.astype(_ogbench_dtype(name, found.dtype), copy=False)

    def _place(self, name: str) -> tuple[str, Key, NDArray[np.int64]]:
        reader = self._reader
        observed = {"observations": self._key, "next_observations": self._key}
        masks = MASK if MASK in reader.step_leaves else TERMINATED
        others = {"masks": masks, _ORACLE[0]: _ORACLE, **self._others}
        keys = {**_FLAT, **others, "actions": ("action",), **observed}
        key, after = keys[name], name == "next_observations"
        if key not in reader.observation_leaves or TED in reader.manifest.tables:
            return reader.steps_table, next_of(key) if after else key, self._rows
        episodes = reader.episode_of(self._rows)
        return OBSERVATIONS, key, self._rows + episodes + int(after)

    def _scalars(self, key: Key) -> NDArray[Any]:
        """Return a feature without TED's last dimension of flags and rewards: `[n, 1]` is `[n]`."""
        column = self._leaf(self._reader.steps_table, key, self._rows)
        column = column[:, 0] if column.shape[1:] == (1,) else column
        return np.array(column) if self._view is None else column

    def _leaf(self, table: str, key: Key, rows: NDArray[np.int64]) -> NDArray[Any]:
        mapped = self._view_rows(table, key, rows)
        if mapped is not None:
            return mapped
        leaf, run = self._reader.leaf(table, key), run_of(rows)
        return np.array(leaf[rows if run is None else run], order="C")

    def _view_rows(self, table: str, key: Key, rows: NDArray[np.int64]) -> NDArray[Any] | None:
        spec, run = self._reader.manifest.tables[table][key], run_of(rows)
        if self._view is None or run is None or spec.encoding or not spec.nbytes:
            return None
        found = self._view(table, key)
        return None if found is None else found[run]


def _ogbench_dtype(name: str, stored: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that OGBench gives an array: of images and discrete actions its own."""
    if name.endswith("observations") and stored == np.uint8:
        return stored
    return np.dtype(np.int32 if name == "actions" and stored.kind in "iu" else np.float32)


def run_of(rows: NDArray[np.int64]) -> slice | None:
    """Return the slice of rows that follow each other; None for other rows, and for none."""
    follow = len(rows) and (np.diff(rows) == 1).all()
    return slice(int(rows[0]), int(rows[-1]) + 1) if follow else None


def _columns(reader: DatasetReader) -> dict[str, str]:
    found = reader.manifest.about.get(COLUMNS)
    columns = found.items() if isinstance(found, Mapping) else ()
    return {str(k): dtype for k, dtype in columns if isinstance(dtype, str) and dtype in DTYPES}


def _others(reader: DatasetReader, observation: Key) -> dict[str, Key]:
    """Return the features without a name of their own in D4RL, by the name that files give them."""
    own = {observation, next_of(observation), ("action",), REWARD, TERMINATED, TRUNCATED, EPISODE}
    keys = [key for key in (*reader.observation_leaves, *reader.step_leaves) if key not in own]
    roots = {"info": ("infos",), "extra": ()}
    others = {"/".join((*roots.get(key[0], key[:1]), *key[1:])): key for key in keys}
    if "next/cost" in others:  # as DSRL calls it
        others["costs"] = others.pop("next/cost")
    if "infos" in _columns(reader) and "infos/demo" in others:  # kitchen: a column, not a group
        others["infos"] = others.pop("infos/demo")
    return others


def _names_of_file(reader: DatasetReader, others: Mapping[str, Key]) -> tuple[str, ...]:
    names = {"observations", "actions", "rewards", "terminals", *others}
    if reader.final.all():
        names.add("next_observations")
    columns = _columns(reader)
    if not columns or "timeouts" in columns:
        names.add("timeouts")
    return tuple(sorted(names))


def whole_arrays(
    reader: DatasetReader, style: Style, key: Key, names: Collection[str] | None
) -> dict[str, NDArray[Any]]:
    """Return all rows of a dataset: features with a file of their own as private maps, else copies.

    Raises `UsageError` like `DatasetArrays`, for unknown names, and copies above the free memory.
    """
    rows, lengths = np.arange(reader.transitions), reader.lengths
    if style in BOOTSTRAPPED:
        last = reader.last_rows
        ended = np.array(reader.step(TERMINATED)[last], bool).reshape(-1)
        left_out = ~reader.final & ~ended
        rows, lengths = np.delete(rows, last[left_out]), lengths - left_out
    last = np.cumsum(lengths)[lengths > 0] - 1

    def own_file(table: str, key: Key) -> NDArray[Any] | None:
        leaf = reader.manifest.tables[table][key]
        return reader.writable_leaf(table, key) if leaf.stride == leaf.nbytes else None

    arrays = DatasetArrays(reader, style, key, rows, last, own_file)
    chosen = _check_names(arrays, names)
    sizes = {name: arrays.copied_bytes(name) for name in chosen}
    needed, free = sum(sizes.values()), free_memory()
    if free is not None and needed > free:
        largest = max(sizes, key=sizes.__getitem__)
        raise UsageError(
            f"The arrays of {reader.manifest.id} need {human_bytes(needed)} of memory "
            f"({largest}: {human_bytes(sizes[largest])}), and {human_bytes(free)} are free",
            hint="names=[…] reads only some arrays; `load_dataset` reads batches from the disk",
        )
    return {name: arrays[name] for name in chosen}


def _check_names(arrays: DatasetArrays, names: Collection[str] | None) -> list[str]:
    if names is None:
        return list(arrays)
    chosen = [names] if isinstance(names, str) else list(dict.fromkeys(names))
    if unknown := [name for name in chosen if name not in arrays]:
        raise UsageError(
            f"names has {', '.join(map(repr, unknown))}; the arrays are {', '.join(arrays)}"
        )
    return chosen


def check_style(style: Style) -> None:
    """Raise `UsageError` for a style that there is not."""
    if style not in STYLES:
        raise UsageError(f"style is {style!r}; expected one of {', '.join(STYLES)}")


def observation_leaf(reader: DatasetReader, name: Key) -> Key:
    """Return the feature that is the observation, by its key or a parent's; raises `UsageError`."""
    leaves = [*reader.observation_leaves, *reader.manifest.two_copies]
    found = [leaf for leaf in leaves if leaf[: len(name)] == name]
    if len(found) == 1:
        return found[0]
    if not leaves:
        raise UsageError(
            f"{reader.manifest.id} has no observations, which arrays of transitions need",
            hint="read its features from `load_dataset(…)[:]`; text, by `offline_data.Documents`",
        )
    known = ", ".join(map(join_key, found or leaves))
    raise UsageError(
        f"{join_key(name)} is {len(found)} features; observations must be one array",
        hint=f"set observation_key=… to one of {known}",
    )

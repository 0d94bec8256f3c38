"""Hostile files of users with a mapping, and hostile mappings: each format, each way to end episodes."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.formats.files.mapping import dump_toml, read_mapping
from tests.formats.test_files import LEAVES, OF_EPISODES, WAYS, as_rows, mapping_of, with_way
from tests.fuzz.mutations import spoil_bytes, spoil_json
from tests.fuzz.project_kinds import formed
from tests.fuzz.source_kinds import Leaves, Truth, after_hdf5, source_kind
from tests.toys.files import TABLES, WRITERS, toy_episodes
from tests.toys.imitation import toy_arrays

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random


def _make_files(random: Random, folder: Path) -> Truth:
    suffix = random.choice([*WRITERS, "h5", "pt"])
    final = random.choice(("missing", "next_array", "last_row", "extra_row"))
    way = random.choice(list(WAYS))
    if suffix in TABLES and (way in OF_EPISODES or final == "extra_row"):
        final, way = "missing", "episode"
    rows = as_rows(toy_episodes((3, 1, 4)), final)
    each = suffix not in TABLES and random.random() < 0.3
    mapping = mapping_of(
        suffix, final, WAYS["flags" if each else way], **({"each": "ep_*"} if each else {})
    )
    arrays: Any
    path, file = folder / f"in.{suffix}", folder / "map.toml"
    if suffix == "pt" and each:
        mapping, arrays = read_mapping({**mapping.to_json(), "each": "*"}), rows
    elif each:
        arrays = {
            f"ep_{n}/{name}": values for n, one in enumerate(rows) for name, values in one.items()
        }
    else:
        arrays = with_way(rows, way)
    write: Any = WRITERS[suffix]
    write(path, arrays)
    file.write_text(dump_toml(mapping))
    what = random.choice(("none", "bytes", "bytes", "objects", "toml", "values", "values"))
    if what == "toml":
        file.write_bytes(spoil_bytes(random, file.read_bytes()))
    elif what == "values":
        value = spoil_json(random, mapping.to_json())
        text = formed(random, value if isinstance(value, dict) else {"leaves": value}, plain=False)
        file.write_bytes(text.encode(errors="replace"))
    elif what == "objects" and suffix == "h5":
        after_hdf5(random, folder, [path], json)  # which cannot be called: no reading is known
    elif what != "none":
        files = sorted(one for one in [path, *path.rglob("*")] if one.is_file())
        victim = random.choice(files)
        victim.write_bytes(spoil_bytes(random, victim.read_bytes(), head=512))
    if what != "none":
        return Truth(known=False)
    return Truth([(_leaves(one), False) for one in toy_episodes((3, 1, 4))], changed=False)


def _leaves(episode: dict[str, Any]) -> Leaves:
    named = {leaf: episode[array] for leaf, array in LEAVES.items()}
    flags = {"next/terminated": "term", "next/truncated": "trunc"}
    named |= {leaf: episode[array] for leaf, array in flags.items()}
    return {
        tuple(leaf.split("/")): values for leaf, values in named.items() if leaf != "observation"
    }


_NAMES = {
    "d4rl": ("observations", "actions", "rewards", "terminals"),
    "neorl": ("obs", "action", "reward", "done"),
    "ogbench": ("observations", "actions", "terminals"),
}
_FOREIGN = (
    "timeouts", "next_observations", "masks", "costs", "qpos", "image", "obs", "action", "rewards",
    "discount", "reward", "valids", "infos", "mine",
)  # fmt: skip


def _make_foreign(random: Random, folder: Path) -> Truth:
    """Write a flat file with arrays of other formats, which is recognised as what it is, or by nobody."""
    lengths = [random.randint(2, 6) for _ in range(random.randint(1, 4))]
    rows, last = sum(lengths), np.cumsum(lengths) - 1
    names = {*_NAMES[random.choice([*_NAMES])], *random.sample(_FOREIGN, random.randint(0, 4))}
    code = np.arange(rows, dtype=np.float32)
    ends = np.isin(np.arange(rows), last)
    columns: dict[str, Any] = dict.fromkeys(_FOREIGN, code) | {
        "observations": code[:, None] + [[0, 100]], "obs": code[:, None] + [[0, 200]],
        "next_observations": code[:, None] + [[1, 101]], "image": np.zeros((rows, 4, 4, 3), np.uint8),
        "actions": code[:, None] / 2, "action": code[:, None] / 4, "rewards": code * 3,
        "reward": code * 5, "terminals": ends, "done": ends, "timeouts": ends & False,
    }  # fmt: skip
    suffix = random.choice(("npz", "hdf5"))
    write: Any = WRITERS["npz" if suffix == "npz" else "h5"]
    write(folder / f"in.{suffix}", {name: columns[name] for name in sorted(names)})
    # NeoRL's and OGBench's files are npz; a file with all arrays of two formats is the one's with most.
    found = [kind for kind, needed in _NAMES.items() if {*needed} <= names]
    found = [kind for kind in found if suffix == "npz" or kind == "d4rl"]
    excluded = {"rewards", "timeouts", "next_observations", "masks", "valids"} & names
    found = [kind for kind in found if kind != "ogbench" or not excluded]
    if {"d4rl", "neorl"} <= {*found}:
        return Truth([], changed=True) if "costs" not in names else Truth(known=False)
    if not found:
        return Truth([], changed=True)
    kind, steps = found[0], np.ones(rows, bool)
    if kind == "ogbench":
        steps[last] = False
    action = columns["action" if kind == "neorl" else "actions"]
    reward = {"d4rl": "rewards", "neorl": "reward"}.get(kind)
    episodes: list[tuple[Leaves | None, bool]] = []
    for first, length in zip(last + 1 - lengths, lengths, strict=True):
        of = np.arange(first, first + length)[steps[first : first + length]]
        leaves: Leaves = {("action",): action[of]}
        if reward is not None:
            leaves["next", "reward"] = columns[reward][of]
        episodes.append((leaves, False))
    return Truth(episodes, changed=False)


def _make_shards(random: Random, folder: Path) -> Truth:
    """Write a folder of tables whose episodes end inside files, or continue in the next one."""
    lengths = [random.randint(1, 5) for _ in range(random.randint(2, 6))]
    rows, numbers = sum(lengths), np.repeat(np.arange(len(lengths)), lengths)
    cuts = sorted(random.sample(range(1, rows), min(rows - 1, random.randint(0, 3))))
    if random.random() < 0.4:  # between episodes
        cuts = sorted({int(np.cumsum(lengths)[numbers[cut]]) for cut in cuts} - {rows})
    code = np.arange(rows, dtype=np.float64) + 1
    ends = np.isin(np.arange(rows), np.cumsum(lengths) - 1)
    arrays = {"obs": code * 10, "act": code / 4, "rew": code * 2, "done": ends, "episode": numbers}
    suffix = random.choice(("csv", "parquet", "npz", "h5"))
    (path := folder / "in").mkdir()
    bounds = [0, *cuts, rows]
    for number, (a, b) in enumerate(pairwise(bounds)):
        WRITERS[suffix](path / f"{number}.{suffix}", {n: v[a:b] for n, v in arrays.items()})
    way, parts = random.choice(("done", "episode")), random.choice((None, "episodes", "table"))
    mapping = {
        "leaves": {"observation": "obs", "action": "act", "next/reward": "rew"},
        "each": f"*.{suffix}", "final_observation": "missing",
        "ends": {way: way, "otherwise": "truncated"}, **({"parts": parts} if parts else {}),
    }  # fmt: skip
    (folder / "map.toml").write_text(dump_toml(read_mapping(mapping)))
    at_cut = np.isin(np.arange(rows), np.array(bounds[1:]) - 1)
    last = ends | at_cut if parts != "table" else ends
    if parts is None and (ends & ~at_cut).any():
        return Truth([], changed=True)
    stops = np.flatnonzero(last) + 1
    pieces = zip(np.r_[0, stops[:-1]], stops, strict=True)
    return Truth(
        [
            ({("action",): code[a:b] / 4, ("next", "reward"): code[a:b] * 2}, False)
            for a, b in pieces
        ],
        changed=False,
    )


def _make_imitation(random: Random, folder: Path) -> Truth:
    lengths = tuple(random.randint(1, 5) for _ in range(random.randint(1, 4)))
    arrays = toy_arrays(rewards=random.random() < 0.7, lengths=lengths)
    what = random.choice(("none", "indices", "indices", "terminal", "rows", "bytes"))
    indices: Any = arrays["indices"].copy()
    if what == "indices" and random.random() < 0.3:
        indices = indices[:-1] if random.random() < 0.5 else np.append(indices, sum(lengths))
    elif what == "indices" and len(indices):
        odd = (0, -1, 1, 3, sum(lengths), 2**62, -(2**63), 2**63 - 1, float("nan"))
        value = random.choice(odd)
        indices = indices.astype(float) if value != value else indices  # noqa: PLR0124
        indices[random.randrange(len(indices))] = value
    elif what == "terminal":
        arrays["terminal"] = np.resize(arrays["terminal"], random.randint(0, 5))
    elif what == "rows":
        name = random.choice([name for name in arrays if name not in {"infos", "indices"}])
        arrays[name] = np.resize(arrays[name], (random.randint(0, 9), *arrays[name].shape[1:]))
    arrays["indices"] = indices
    path = folder / "in.npz"
    (np.savez_compressed if random.random() < 0.5 else np.savez)(path, **arrays)
    if what == "bytes":
        path.write_bytes(spoil_bytes(random, path.read_bytes(), head=512))
        return Truth(known=False)
    rows, count = len(arrays["acts"]), len(indices) + 1
    whole = not len(indices) or indices.dtype.kind == "i"
    bounds = np.array([0, *(indices if whole else []), rows], object)
    sizes = {"rews": rows, "terminal": count, "obs": rows + count}
    fits = all(len(arrays[name]) == size for name, size in sizes.items() if name in arrays)
    if not (whole and fits and all(np.diff(bounds) > 0)):
        return Truth([], changed=True)
    episodes: list[tuple[Leaves | None, bool]] = []
    for e, (a, b) in enumerate(pairwise(bounds.tolist())):
        last = np.arange(b - a) == b - a - 1
        leaves: Leaves = {("action",): arrays["acts"][a:b]}
        leaves["observation",] = arrays["obs"][a + e : b + e + 1]
        leaves["next", "terminated"] = last & arrays["terminal"][e]
        if "rews" in arrays:
            leaves["next", "reward"] = arrays["rews"][a:b]
        episodes.append((leaves, False))
    return Truth(episodes, changed=False)


FILE_KINDS = (
    source_kind("imitation", "imitation", _make_imitation),
    source_kind("files", "files", _make_files, more=("--mapping", "case/map.toml")),
    source_kind("foreign", "", _make_foreign),
    source_kind("tables", "files", _make_shards, more=("--mapping", "case/map.toml")),
)

"""Digests of every value that is converted: refactoring changes none of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from gymnasium import spaces

import offline_data as od
from offline_data.store.reader import DatasetReader
from tests.formats.test_d3rlpy import write_dump, write_flat
from tests.formats.test_flat_sources import flat_arrays, write_dsrl, write_neorl
from tests.frozen.values import Digests, digest, of_batch
from tests.toys.agilerl import write_agilerl
from tests.toys.aloha import write_aloha
from tests.toys.atari import write_replay_log
from tests.toys.buffers import BOX, play
from tests.toys.buffers import write_dump as write_buffer
from tests.toys.calvin import write_calvin
from tests.toys.d4rl import ToyD4RL, write_published
from tests.toys.diffusion_policy import toy_arrays as toy_zarr
from tests.toys.diffusion_policy import write_zarr
from tests.toys.gen_dgrl import toy_files, write_archive
from tests.toys.imitation import write_imitation
from tests.toys.katakomba import toy_game, write_katakomba
from tests.toys.lerobot import write_lerobot
from tests.toys.maniskill import toy_trajectory, write_maniskill
from tests.toys.minari import toy_episode, write_minari
from tests.toys.ogbench import toy_arrays, write_ogbench
from tests.toys.openml import toy_of_torchrl, toy_table
from tests.toys.rlds import write_toy_rlds
from tests.toys.robomimic import isaac_demo, toy_demo, write_demos, write_libero
from tests.toys.roboset import write_roboset
from tests.toys.text import write_tokenizer
from tests.toys.vd4rl import write_vd4rl_hdf5, write_vd4rl_npz
from tests.toys.webdataset import write_webdataset


def _gen_dgrl(folder: Path) -> Path:
    return write_archive(folder / "bigfish.tar.xz", toy_files((5, 1, 12, 3), kind="npz"))


def _atari(folder: Path) -> Path:
    write_replay_log(folder, (5, 30, 1, 20))
    return folder


def _d4rl(name: str, **more: Any) -> Callable[[Path], Path]:
    episodes = ((4, "timeout"), (3, "terminal"), (1, "timeout"), (5, "none"))
    return lambda folder: write_published(folder, ToyD4RL(name, episodes, **more))


def _text(rows: list[dict[str, Any]]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        folder.mkdir()
        pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet", row_group_size=2)
        return folder / "rows.parquet"

    return write


CONVERSIONS: dict[str, tuple[str, Callable[[Path], Path], dict[str, Any]]] = {
    "minari hdf5": (
        "minari",
        lambda to: write_minari(to, [toy_episode(e, 3 + e) for e in range(4)]),
        {},
    ),
    "minari arrow": (
        "minari",
        lambda to: write_minari(to, [toy_episode(e, 3 + e) for e in range(4)], "arrow"),
        {},
    ),
    "minari in TED": (
        "minari",
        lambda to: write_minari(to, [toy_episode(e, 3 + e) for e in range(4)]),
        {"layout": "ted"},
    ),
    "d3rlpy 1": ("d3rlpy", lambda to: write_flat(to / "x.h5"), {}),
    "d3rlpy 2": ("d3rlpy", lambda to: write_dump(to / "x.h5", parts=2), {}),
    "d4rl": ("d4rl", _d4rl("hopper-medium-v2", metadata=True), {}),
    "d4rl with next observations": (
        "d4rl",
        _d4rl("hopper-medium-v2", next_observations=True),
        {"keep_episodes": True},
    ),
    "agilerl": ("agilerl", write_agilerl, {}),
    "aloha": ("aloha", partial(write_aloha, images="padded", mobile=True), {}),
    "atari_dqn": ("atari_dqn", _atari, {}),
    "calvin": ("calvin", write_calvin, {}),
    "diffusion_policy": (
        "diffusion_policy",
        lambda to: write_zarr(to / "x.zarr", toy_zarr()),
        {},
    ),
    "dsrl": ("dsrl", lambda to: write_dsrl(to / "x.hdf5", flat_arrays()), {}),
    "gen_dgrl": ("gen_dgrl", _gen_dgrl, {}),
    "imitation": ("imitation", lambda to: write_imitation(to / "x.npz"), {}),
    "katakomba": (
        "katakomba",
        lambda to: write_katakomba(to / "x.hdf5", {n: toy_game(n, 2 + n) for n in (1, 2, 12)}),
        {},
    ),
    "neorl": ("neorl", lambda to: write_neorl(to / "x.npz", flat_arrays()), {}),
    "ogbench": (
        "ogbench",
        lambda to: write_ogbench(to / "x-v0.npz", toy_arrays("scene", (4, 2, 6, 3))),
        {},
    ),
    "lerobot 2.1": ("lerobot", write_lerobot, {}),
    "lerobot 3.0": ("lerobot", lambda to: write_lerobot(to, "v3.0"), {}),
    "openml": ("openml", lambda to: toy_table().write(to), {}),
    "openml as TorchRL's": ("openml", lambda to: toy_of_torchrl("adult_onehot").write(to), {}),
    "openx": ("openx", write_toy_rlds, {"images": "raw", "split": "all"}),
    "openx encoded": ("openx", write_toy_rlds, {"images": "encoded", "split": "all"}),
    "openx webdataset": (
        "openx",
        lambda to: write_webdataset(to, "toy", "file", [[4, 1], [6]]),
        {},
    ),
    "maniskill": (
        "maniskill",
        lambda to: write_maniskill(to / "x.h5", {n: toy_trajectory(n, 2 + n) for n in range(3)}),
        {},
    ),
    "robomimic": (
        "robomimic",
        lambda to: write_demos(
            to / "x.hdf5", {n: toy_demo(n, 3 + n) for n in (0, 2, 10)}, {"train": [2]}
        ),
        {},
    ),
    "isaac lab": (
        "robomimic",
        lambda to: write_demos(
            to / "x.hdf5", {n: isaac_demo(n, 3 + n, success=n == 1) for n in range(3)}
        ),
        {},
    ),
    "libero": ("libero", lambda to: write_libero(to / "x.hdf5"), {}),
    "libero, regenerated": ("libero", lambda to: write_libero(to / "x.hdf5", raw=False), {}),
    "roboset": ("roboset", write_roboset, {}),
    "torchrl": (
        "torchrl",
        lambda to: write_buffer(to, play(BOX, spaces.Discrete(3), 30, 1), 11),
        {},
    ),
    "vd4rl npz": ("vd4rl", lambda to: write_vd4rl_npz(to, terminal=[1], old=[2]), {}),
    "vd4rl hdf5": ("vd4rl", lambda to: write_vd4rl_hdf5(to, (5, 3, 4)), {}),
    "text": (
        "text",
        _text([{"text": t} for t in ("the cat sat", "", "why? because", "x" * 40)]),
        {},
    ),
    "text padded": (
        "text",
        _text([{"text": t} for t in ("the cat sat", "why? because", "x" * 40)]),
        {"text": {"max_length": 8, "pad": True}},
    ),
    "prompts": (
        "text",
        _text(
            [{"prompt": "why did", "completion": " the cat"}, {"prompt": "a", "completion": " b"}]
        ),
        {},
    ),
    "pairs": (
        "text",
        _text([{"prompt": "why", "chosen": " a cat", "rejected": " road"} for _ in range(3)]),
        {},
    ),
}
"""Source, what writes its raw files to a folder that does not exist, and options of `convert`."""


def converted(name: str, folder: Path) -> Digests:
    """Convert one of `CONVERSIONS` and return the digests of what is stored and what is loaded."""
    source, write, options = CONVERSIONS[name]
    options = dict(options)
    if source == "text":
        (folder / "tokenizer").mkdir()
        tokenizer = write_tokenizer(folder / "tokenizer")
        options["text"] = od.TextOptions(str(tokenizer), **options.pop("text", {}))
    raw = write(folder / "hopper-raw-v0")
    stored = od.convert(
        raw, "frozen", source=source, root=folder / "root", progress=False, **options
    )
    manifest = json.loads((stored.path / "manifest.json").read_text())
    dataset = od.load_dataset("local:frozen", 8, root=folder / "root", download=False)
    reader = DatasetReader(stored.path)
    files = sorted((name, file["sha256"]) for name, file in manifest["digests"].items())
    found = {
        "counts": json.dumps(manifest["counts"], sort_keys=True),
        "files": digest(files),
        "lengths": digest(np.asarray(reader.lengths)),
    }
    return found | of_batch(dataset[:])


CASES: dict[str, Callable[[Path], Any]] = {name: partial(converted, name) for name in CONVERSIONS}
"""What converts each of them in a folder of its own."""

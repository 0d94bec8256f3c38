"""The diagrams of rows on the pages of sources: each cell is what a toy file and its adapter say."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import h5py
import numpy as np
import pytest

from docs.generate.sources import FACTS, cells_of, files_of
from offline_data.base.config import Settings
from offline_data.episode.joining import concatenate
from offline_data.formats.atari_dqn.log import file_of
from offline_data.formats.atari_dqn.source import AtariDQN
from offline_data.formats.base import Release, Source
from offline_data.formats.options import Options
from offline_data.formats.registry import get_source, source_names
from tests.formats.test_d3rlpy import write_dump, write_flat
from tests.formats.test_files import WAYS, as_rows, mapping_of
from tests.formats.test_flat_sources import ENDS, LENGTHS, flat_arrays, write_dsrl, write_neorl
from tests.formats.test_torchrl import ACTIONS, write
from tests.remedy import assert_none
from tests.toys import (
    agilerl,
    aloha,
    atari,
    calvin,
    d4rl,
    diffusion_policy,
    files,
    gen_dgrl,
    imitation,
    katakomba,
    lerobot,
    maniskill,
    minari,
    ogbench,
    rlds,
    robomimic,
    roboset,
    vd4rl,
)
from tests.toys.buffers import BOX, play, ted
from tests.toys.stored import read_shards

if TYPE_CHECKING:
    from offline_data.episode import EpisodeBatch, Key

Columns = Mapping[str, Any]
OBS, ACTION, REWARD = ("observation",), ("action",), ("next", "reward")
TERMINATED, TRUNCATED = ("next", "terminated"), ("next", "truncated")


@dataclass(frozen=True)
class Example:
    """An episode of a toy: the rows that its file has, and the batch that the adapter makes of it."""

    columns: Columns
    """Rows of the file by the name of a column, read without the adapter."""
    leaves: Mapping[str, Key]
    """The leaf that each column becomes."""
    batch: EpisodeBatch
    episode: int = 0

    def rows(self, key: Key) -> Any:
        """Return the rows of a leaf in this episode."""
        start = int(self.batch.lengths[: self.episode].sum())
        length = int(self.batch.lengths[self.episode])
        if key in self.batch.observations:
            start, length = start + self.episode, length + 1
        table = self.batch.observations if key in self.batch.observations else self.batch.steps
        return np.asarray(table[key])[start : start + length]


def read(source: str, path: Path, release: Release | None = None) -> EpisodeBatch:
    adapter: Source = get_source(source)
    return concatenate(read_shards(adapter, release or adapter.release_of(path, "x")))


def h5(path: Path, *, rows: slice = slice(None), below: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    with h5py.File(path) as file:
        group = file[below] if below else file

        def add(name: str, node: Any) -> None:
            if isinstance(node, h5py.Dataset) and node.shape:
                found[name] = node[rows]

        group.visititems(add)
    return found


FLAT: dict[str, Key] = {
    "observations": OBS,
    "next_observations": OBS,
    "actions": ACTION,
    "rewards": REWARD,
    "terminals": TERMINATED,
    "timeouts": TRUNCATED,
}
IMITATION: dict[str, Key] = {"obs": OBS, "acts": ACTION, "rews": REWARD}


def make_agilerl(folder: Path) -> list[Example]:
    path = agilerl.write_agilerl(folder / "x") / "data" / "main_data.hdf5"
    return [Example(h5(path, rows=slice(11, 14)), FLAT, read("agilerl", folder / "x"), 3)]


def make_aloha(folder: Path) -> list[Example]:
    path = aloha.write_aloha(folder / "x")
    leaves: dict[str, Key] = {"observations/qpos": ("observation", "qpos"), "action": ACTION}
    return [Example(h5(path / "episode_0.hdf5"), leaves, read("aloha", path))]


def make_atari_dqn(folder: Path) -> list[Example]:
    atari.write_replay_log(folder, [4, 60])
    columns = {}
    for name in ("observation", "action", "reward", "terminal"):
        with gzip.open(folder / file_of(name, 0)) as file:
            columns[name] = np.load(file)[: 3 + 4]
    source = AtariDQN()
    release = source.resolve("Pong/1", None, Settings(folder, offline=True))
    opened = source.open(source.with_options(release, Options(checkpoints=(0, 1))), folder)
    batch = concatenate([one for shard in opened.shards() for one in opened.read(shard)])
    leaves = {"observation": OBS, "action": ACTION, "reward": REWARD, "terminal": TERMINATED}
    return [Example(columns, leaves, batch)]


def make_calvin(folder: Path) -> list[Example]:
    path = calvin.write_calvin(folder / "training", ((0, 20),), None, None)
    with patch("offline_data.formats.calvin._CUT", 4):
        batch = read("calvin", path)
    steps = [dict(np.load(path / f"episode_{n:07d}.npz")) for n in range(int(batch.lengths[0]) + 1)]
    columns = {name: np.array([step[name] for step in steps]) for name in steps[0]}
    leaves: dict[str, Key] = {
        "rgb_static": ("observation", "rgb_static"),
        "robot_obs": ("observation", "robot_obs"),
        "actions": ACTION,
    }
    return [Example(columns, leaves, batch)]


def make_d3rlpy(folder: Path) -> list[Example]:
    flat, dump = write_flat(folder / "flat.h5"), write_dump(folder / "dump.h5")
    leaves: dict[str, Key] = {"observations_0": OBS, "actions_0": ACTION, "rewards_0": REWARD}
    columns = h5(flat, rows=slice(5, 11))
    return [
        Example(columns, FLAT, read("d3rlpy", flat), 2),
        Example(h5(dump), leaves, read("d3rlpy", dump)),
    ]


def make_d4rl(folder: Path) -> list[Example]:
    adroit = d4rl.write_d4rl_hdf5(folder / "a.hdf5", d4rl.TOYS["adroit"])
    mujoco = d4rl.write_d4rl_hdf5(folder / "b.hdf5", d4rl.TOYS["mujoco-v2"])
    return [
        Example(h5(adroit, rows=slice(4)), FLAT, read("d4rl", adroit)),
        Example(h5(mujoco, rows=slice(5, 12)), FLAT, read("d4rl", mujoco), 1),
    ]


def make_diffusion_policy(folder: Path) -> list[Example]:
    arrays = diffusion_policy.toy_arrays()
    path = diffusion_policy.write_zarr(folder / "x.zarr", arrays)
    leaves: dict[str, Key] = {"data/state": ("observation", "state"), "data/action": ACTION}
    return [Example({k: v[:4] for k, v in arrays.items()}, leaves, read("diffusion_policy", path))]


def make_dsrl(folder: Path) -> list[Example]:
    path = write_dsrl(folder / "x.hdf5", flat_arrays())
    assert ENDS[0] == "terminals"
    leaves: dict[str, Key] = {**FLAT, "costs": ("next", "cost")}
    return [Example(h5(path, rows=slice(LENGTHS[0])), leaves, read("dsrl", path))]


def make_files(folder: Path) -> list[Example]:
    made = []
    (toy,) = files.toy_episodes((4,))
    for final in ("missing", "next_array", "last_row", "extra_row"):
        arrays = as_rows([toy], final)[0]
        path = files.write_npz(folder / f"{final}.npz", arrays)
        mapping = mapping_of("npz", final, WAYS["flags"])
        release = replace(
            get_source("files").release_of(path, "x"), options=Options(mapping=mapping)
        )
        leaves: dict[str, Key] = {"obs": OBS, "next_obs": OBS, "act": ACTION, "rew": REWARD}
        made.append(Example(arrays, leaves, read("files", path, release)))
    return made


def make_gen_dgrl(folder: Path) -> list[Example]:
    archive = gen_dgrl.write_archive(folder / "x.tar", gen_dgrl.toy_files([4, 5, 3]))
    leaves: dict[str, Key] = {
        "observations": OBS, "actions": ACTION, "rewards": REWARD, "dones": TERMINATED,
    }  # fmt: skip
    return [Example(gen_dgrl.toy_arrays(0, 4), leaves, read("gen_dgrl", archive))]


def make_imitation(folder: Path) -> list[Example]:
    path = imitation.write_imitation(folder / "x.npz")
    count = imitation.LENGTHS[0]
    columns = {name: np.load(path)[name][: count + (name == "obs")] for name in IMITATION}
    return [Example(columns, IMITATION, read("imitation", path))]


def make_katakomba(folder: Path) -> list[Example]:
    path = katakomba.write_katakomba(folder / "x.hdf5", {1: katakomba.toy_game(1, 5)})
    screens = ("tty_chars", "tty_colors", "tty_cursor")
    leaves: dict[str, Key] = {
        **{name: ("observation", name) for name in screens},
        "actions": ACTION, "rewards": REWARD, "dones": TERMINATED,
    }  # fmt: skip
    return [Example(h5(path, below="1"), leaves, read("katakomba", path))]


def make_lerobot(folder: Path) -> list[Example]:
    path = lerobot.write_lerobot(folder / "x", lengths=(4, 3))
    table = lerobot.toy_table(0, 4, 0)
    columns = {name: np.array(table[name].to_pylist()) for name in table.column_names[:7]}
    columns["observation.*"] = columns["observation.state"]
    leaves: dict[str, Key] = {
        "observation.*": ("observation", "state"), "action": ACTION, "next.reward": REWARD,
        "next.done": TERMINATED,
    }  # fmt: skip
    return [Example(columns, leaves, read("lerobot", path))]


def make_libero(folder: Path) -> list[Example]:
    made = []
    for raw in (True, False):
        path = robomimic.write_libero(folder / f"{raw}.hdf5", raw=raw)
        columns = h5(path, below="data/demo_0")
        columns["obs/*"] = columns["obs/joint_states"]
        leaves: dict[str, Key] = {
            "obs/*": ("observation", "joint_states"), "actions": ACTION, "rewards": REWARD,
            "dones": TERMINATED,
        }  # fmt: skip
        made.append(Example(columns, leaves, read("libero", path)))
    return made


def make_maniskill(folder: Path) -> list[Example]:
    path = maniskill.write_maniskill(folder / "x.h5", {0: maniskill.toy_trajectory(0, 4)})
    columns = h5(path, below="traj_0")
    columns["obs/*"] = columns["obs/agent/qpos"]
    leaves: dict[str, Key] = {
        "obs/*": ("observation", "agent", "qpos"), "actions": ACTION, "rewards": REWARD,
        "terminated": TERMINATED, "truncated": TRUNCATED, "success": ("next", "success"),
    }  # fmt: skip
    return [Example(columns, leaves, read("maniskill", path))]


def make_minari(folder: Path) -> list[Example]:
    made = []
    toy = minari.toy_episode(0, 4)
    for storage in ("hdf5", "arrow"):
        path = minari.write_minari(folder / storage, [toy], storage)
        names = ("observations", "actions", "rewards", "terminations", "truncations")
        columns = {name: np.asarray(getattr(toy, name)) for name in names}
        if storage == "arrow":  # a table has as many rows of each column
            padded = {name: np.concatenate([c, 0 * c[:1]]) for name, c in columns.items()}
            columns = {**padded, "observations": columns["observations"]}
        leaves: dict[str, Key] = {
            "observations": OBS, "actions": ACTION, "rewards": REWARD,
            "terminations": TERMINATED, "truncations": TRUNCATED,
        }  # fmt: skip
        made.append(Example(columns, leaves, read("minari", path)))
    return made


def make_neorl(folder: Path) -> list[Example]:
    path = write_neorl(folder / "x.npz", flat_arrays())
    leaves: dict[str, Key] = {
        "obs": OBS, "next_obs": OBS, "action": ACTION, "reward": REWARD, "done": TERMINATED,
        "truncated": TRUNCATED,
    }  # fmt: skip
    columns = {name: values[: LENGTHS[0]] for name, values in np.load(path).items()}
    return [Example(columns, leaves, read("neorl", path))]


def make_ogbench(folder: Path) -> list[Example]:
    arrays = ogbench.toy_arrays("antmaze", [5, 3])
    path = ogbench.write_ogbench(folder / "x.npz", arrays)
    columns = {name: values[:5] for name, values in arrays.items()}
    leaves: dict[str, Key] = {"observations": OBS, "actions": ACTION}
    return [Example(columns, leaves, read("ogbench", path))]


def make_openx(folder: Path) -> list[Example]:
    made = []
    for final in (False, True):
        record = rlds.toy_record(0, 4, final_step=final)
        path = rlds.write_rlds(folder / str(final), {"train": [[record]]})
        columns = {
            "steps/observation": record["steps/observation/state"].reshape(4, 3),
            "steps/action": np.asarray(record["steps/action/move"]).reshape(4, 2),
            "steps/reward": record["steps/reward"],
        }
        leaves: dict[str, Key] = {
            "steps/observation": ("observation", "state"), "steps/action": ("action", "move"),
            "steps/reward": REWARD,
        }  # fmt: skip
        made.append(Example(columns, leaves, read("openx", path)))
    return made


def make_robomimic(folder: Path, source: str = "robomimic") -> list[Example]:
    made = []
    for after in (True, False):
        demo = robomimic.toy_demo(0, 4, next_obs=after)
        path = robomimic.write_demos(folder / f"{after}.hdf5", {0: demo})
        columns = h5(path, below="data/demo_0")
        columns["obs/*"] = columns["obs/object"]
        if after:
            columns["next_obs/*"] = columns["next_obs/object"]
        object_ = ("observation", "object")
        leaves: dict[str, Key] = {
            "obs/*": object_, "next_obs/*": object_, "actions": ACTION, "rewards": REWARD,
        }  # fmt: skip
        made.append(Example(columns, leaves, read(source, path)))
    return made


def make_mimicgen(folder: Path) -> list[Example]:
    return make_robomimic(folder, "mimicgen")


def make_roboset(folder: Path) -> list[Example]:
    path = roboset.write_trials(folder / "x.h5", {"Trial0": roboset.toy_trial(0, 0, 4)})
    leaves: dict[str, Key] = {"observations": OBS, "actions": ACTION, "rewards": REWARD}
    return [Example(h5(path, below="Trial0"), leaves, read("roboset", path))]


def make_vd4rl(folder: Path) -> list[Example]:
    path = vd4rl.write_vd4rl_npz(folder / "x", (4,))
    rows = vd4rl.toy_rows(0, 4)
    columns = {**rows, "states": rows["height"]}
    leaves: dict[str, Key] = {
        "image": ("pixels",), "states": ("state", "height"), "action": ACTION, "reward": REWARD,
        "discount": ("next", "discount"),
    }  # fmt: skip
    return [Example(columns, leaves, read("vd4rl", path))]


def make_torchrl(folder: Path) -> list[Example]:
    played = play(BOX, ACTIONS, 4, 1)
    chain = [(*one[:3], n == 3, False, one[5]) for n, one in enumerate(played)]
    for n in range(1, 4):
        chain[n] = (chain[n - 1][5], *chain[n][1:])
    path = write(folder / "x", ted(chain[:1] + chain), size=3, batch=1)
    rows = ted([chain[2], chain[3], chain[1]])  # five rows in a ring of three: row 2 is the oldest
    columns = {
        "observation": rows["observation"],
        "next.observation": rows["next", "observation"],
        "action": rows["action"],
        "next.reward": rows["next", "reward"],
    }
    leaves: dict[str, Key] = {
        "observation": OBS, "next.observation": OBS, "action": ACTION, "next.reward": REWARD,
    }  # fmt: skip
    return [Example(columns, leaves, read("torchrl", path))]


MAKERS: dict[str, Callable[[Path], list[Example]]] = {
    name.removeprefix("make_"): function
    for name, function in globals().items()
    if name.startswith("make_")
}


def expected_rows(cells: list[str], example: Example, key: Key) -> list[Any]:
    """Return what each row of a column should equal; None: it is not used.

    The cells are of an episode of three steps, and rows are added before the last one used.
    """
    values, length = example.rows(key), int(example.batch.lengths[example.episode])
    used = [cell for cell in cells if re.fullmatch(r"[sar]\d", cell)]
    if used != sorted(used):  # a ring: as many rows as the diagram has
        assert length == 3
        return [values[int(cell[1:]) - (cell[0] == "r")] for cell in cells]
    first, count = int(used[0][1:]) - (used[0][0] == "r"), len(used) - 3 + length
    before = next(n for n, cell in enumerate(cells) if cell == used[0])
    after = len([cell for cell in cells if cell != "·"]) - before - len(used)
    return [None] * before + list(values[first : first + count]) + [None] * after


@pytest.mark.parametrize("name", [name for name in FACTS if files_of(name)])
def test_cells_are_rows_of_the_file_and_of_the_dataset(name: str, tmp_path: Path) -> None:
    declared, examples = files_of(name), MAKERS[name](tmp_path)
    assert len(declared) == len(examples)
    for file, example in zip(declared, examples, strict=True):
        assert bool(example.batch.final_observation[example.episode]) == file["final"]
        assert int(example.batch.lengths[example.episode]) >= 3
        for names, text in file["rows"].items():
            compared = 0
            for column in names.split(", "):
                if column not in example.leaves:
                    continue
                rows = np.asarray(example.columns[column])
                wanted = expected_rows(cells_of(text), example, example.leaves[column])
                assert len(rows) == len(wanted), column
                for row, value in zip(rows, wanted, strict=True):
                    if value is not None:
                        np.testing.assert_array_equal(np.ravel(row), np.ravel(value), column)
                compared += 1
            assert compared, f"no column of {names!r} was compared"


def test_every_source_has_facts_and_a_diagram_or_a_sentence() -> None:
    assert_none(
        set(FACTS) ^ set(source_names()),
        "docs/generate/sources.yml describes each source (ids, files, quirks), and nothing else",
    )
    first = ["d4rl", "minari", "lerobot"]
    others = sorted(set(FACTS) - {*first})
    assert list(FACTS) == [*first, *others], (
        "sort docs/generate/sources.yml by the names of sources"
    )
    drawn = {name for name in FACTS if files_of(name)}
    assert_none(
        drawn ^ {name for name, facts in FACTS.items() if "instead" not in facts},
        "each source of docs/generate/sources.yml has `files`, a diagram of rows, or a sentence `instead`",
    )
    assert_none(
        drawn ^ set(MAKERS),
        "each source with `files` in docs/generate/sources.yml has a function make_NAME in "
        "tests/docs/test_alignment.py, which returns an Example for each file",
    )

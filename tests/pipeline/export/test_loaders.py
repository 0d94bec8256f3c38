"""Files of each format as the format's own loader, or its rules by hand, reads them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import UsageError
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED
from offline_data.formats.registry import source_accepting
from offline_data.testing.toy import write_toy
from tests.pipeline.export.conftest import BATCHES, LENGTHS, discrete_batch, flat_batch
from tests.toys.ogbench import LOADERS as OGBENCH_LOADERS

Store = Callable[[str], Path]
ENDS = np.cumsum(LENGTHS)
SPLIT = np.cumsum(np.array(LENGTHS) + 1)[:-1]

LOADERS = os.environ.get("OFFLINE_DATA_LOADERS")
"""Python of an environment with datasets and d3rlpy, whose loaders are then run."""


@pytest.fixture
def exported(stored: Store, settings: Settings, tmp_path: Path) -> Callable[..., Path]:
    """Export one of the datasets, and return the file or folder."""

    def write(name: str, to: str, place: str, **options: Any) -> Path:
        dest = tmp_path / "out" / place
        offline_data.export(stored(name), dest, to=to, settings=settings, progress=False, **options)
        return dest

    return write


def observations(batch: Any, key: tuple[str, ...] = ("observation",)) -> list[Any]:
    """Return the observations of each episode, `T + 1` rows."""
    return list(np.split(batch.observations[key], SPLIT))


def test_minari_loads_its_dataset(
    exported: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    minari = pytest.importorskip("minari")
    path, batch = exported("nested", "minari", "toy/nested-v0"), None
    from offline_data.testing.toy import toy_batch

    batch = toy_batch(LENGTHS, text=True, images=True)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(path.parent))
    loaded = minari.load_dataset("nested-v0")
    assert loaded.total_steps == sum(LENGTHS)
    for number, episode in enumerate(loaded.iterate_episodes()):
        for name in ("state", "image", "mission"):
            expected = observations(batch, ("observation", name))[number]
            np.testing.assert_array_equal(np.asarray(episode.observations[name]), expected)
        expected = observations(batch, ("info", "code"))[number]
        np.testing.assert_array_equal(episode.infos["code"], expected)
        rows = slice(ENDS[number] - LENGTHS[number], ENDS[number])
        for found, key in (
            (episode.rewards, REWARD),
            (episode.terminations, TERMINATED),
            (episode.truncations, TRUNCATED),
        ):
            np.testing.assert_array_equal(found, batch.steps[key][rows, 0])
        np.testing.assert_array_equal(episode.actions, batch.steps["action",][rows])
    seeds = [found["seed"] for found in loaded.storage.get_episode_metadata(range(len(LENGTHS)))]
    assert seeds == batch.episodes["seed",].tolist()


def test_a_dataset_of_minari_that_reads_when_asked(stored: Store) -> None:
    pytest.importorskip("minari")
    ds, batch = offline_data.open_dataset(stored("flat")), flat_batch()
    loaded = ds.to_minari()
    assert (loaded.total_episodes, loaded.total_steps) == (len(LENGTHS), sum(LENGTHS))
    for number, episode in enumerate(loaded.iterate_episodes()):
        np.testing.assert_array_equal(episode.observations, observations(batch)[number])
        rows = slice(ENDS[number] - LENGTHS[number], ENDS[number])
        np.testing.assert_array_equal(episode.rewards, batch.steps[REWARD][rows, 0])
        np.testing.assert_array_equal(episode.truncations, batch.steps[TRUNCATED][rows, 0])
    assert [len(one) for one in loaded.sample_episodes(3)]
    view = ds.episodes_at([2]).to_minari()
    assert [len(one) for one in view.iterate_episodes()] == [LENGTHS[2]]
    with pytest.raises(UsageError, match="read-only"):
        loaded.storage.update_episodes([])


def test_seeds_of_minari(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeds of 2**63 and more are stored as negative numbers; -1 is none."""
    minari = pytest.importorskip("minari")
    batch = replace(flat_batch(), episodes={("seed",): np.array([5, -1, -3, 0])})
    write_toy(tmp_path / "toy", [batch])
    options: dict[str, Any] = {"settings": settings, "progress": False}
    offline_data.export(tmp_path / "toy", tmp_path / "out/seeds-v0", to="minari", **options)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "out"))
    loaded = minari.load_dataset("seeds-v0")
    found = [one.get("seed") for one in loaded.storage.get_episode_metadata(range(4))]
    assert found == [5, None, 2**64 - 3, 0]


def test_minari_samples_of_discrete_actions(
    exported: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    minari = pytest.importorskip("minari")
    path = exported("discrete", "minari", "toy/discrete-v3")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(path.parent))
    loaded = minari.load_dataset("discrete-v3")
    assert repr(loaded.action_space) == "Discrete(4)"
    assert loaded.observation_space.dtype == np.float64
    assert len(loaded.sample_episodes(2)) == 2


def test_robomimics_demonstrations_by_its_rules(exported: Callable[..., Path]) -> None:
    path, batch = exported("nested", "robomimic", "toy.hdf5"), None
    from offline_data.testing.toy import toy_batch

    batch = toy_batch(LENGTHS, text=True, images=True)
    with h5py.File(path) as file:
        data = file["data"]
        assert data.attrs["total"] == sum(LENGTHS)
        assert {"env_name", "type", "env_kwargs"} == set(json.loads(data.attrs["env_args"]))
        for number, length in enumerate(LENGTHS):
            demo = data[f"demo_{number}"]
            assert demo.attrs["num_samples"] == length == len(demo["actions"])
            for name in ("state", "image"):
                expected = observations(batch, ("observation", name))[number]
                np.testing.assert_array_equal(demo[f"obs/{name}"][:], expected[:-1])
                np.testing.assert_array_equal(demo[f"next_obs/{name}"][:], expected[1:])
            assert demo["dones"][:].tolist() == [0] * (length - 1) + [1 - number % 2]
            assert demo["rewards"].shape == (length,)
    assert source_accepting(path).name == "robomimic"


def test_npz_arrays_and_their_mapping(exported: Callable[..., Path], settings: Settings) -> None:
    path, batch = exported("discrete", "npz", "toy.npz"), discrete_batch()
    with np.load(path) as arrays:
        assert arrays["episode_lengths"].tolist() == list(LENGTHS)
        for key, column in {**batch.steps, **batch.observations}.items():
            found = arrays["/".join(key)]
            assert found.dtype == column.dtype
            np.testing.assert_array_equal(found, column)
    stored = offline_data.convert(
        path, "back", mapping=f"{path}.toml", settings=settings, progress=False
    )
    ds = offline_data.load_dataset(str(stored.id), root=settings.root)
    np.testing.assert_array_equal(ds[:]["action"].numpy(), batch.steps["action",])


@pytest.mark.parametrize("loader", OGBENCH_LOADERS)
@pytest.mark.parametrize("name", ["flat", "without rewards", "discrete"])
def test_ogbenchs_transitions(exported: Callable[..., Path], loader: str, name: str) -> None:
    path, batch = exported(name, "ogbench", "toy.npz"), BATCHES[name]()
    load, number = OGBENCH_LOADERS[loader], np.int32 if name == "discrete" else np.float32
    found, compact = (load(path, np.float32, number, compact=one) for one in (False, True))
    seen, actions = observations(batch), batch.steps["action",].astype(number)
    before, after = (
        np.concatenate([one[rows] for one in seen]) for rows in (np.s_[:-1], np.s_[1:])
    )
    np.testing.assert_array_equal(found["observations"], before.astype(np.float32))
    np.testing.assert_array_equal(found["next_observations"], after.astype(np.float32))
    np.testing.assert_array_equal(found["actions"], actions)
    np.testing.assert_array_equal(np.flatnonzero(found["terminals"]), ENDS - 1)
    valid = np.flatnonzero(compact["valids"])
    np.testing.assert_array_equal(compact["observations"], np.concatenate(seen).astype(np.float32))
    np.testing.assert_array_equal(compact["observations"][valid + 1], found["next_observations"])
    np.testing.assert_array_equal(compact["actions"][valid], actions)
    assert source_accepting(path).name == "ogbench"


@pytest.mark.parametrize(("to", "suffix"), [("parquet", "parquet"), ("hf", "arrow")])
def test_tables_by_pyarrow(exported: Callable[..., Path], to: str, suffix: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    from offline_data.testing.toy import toy_batch

    path, batch = exported("some final", to, "toy"), toy_batch(LENGTHS, unknown_final=[1, 2])

    def read(folder: str) -> Any:
        tables = []
        for file in sorted((path / folder).glob(f"*.{suffix}")):
            if suffix == "parquet":
                tables.append(pa.parquet.read_table(file))
            else:
                tables.append(pa.ipc.open_stream(file).read_all())
        return pa.concat_tables(tables)

    steps, episodes = read("data" if to == "parquet" else "steps"), read("episodes")
    numbers = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    assert steps["episode_index"].to_pylist() == numbers.tolist()
    assert steps["step_index"].to_pylist() == [i for n in LENGTHS for i in range(n)]
    np.testing.assert_array_equal(np.array(steps["action"].to_pylist()), batch.steps["action",])
    np.testing.assert_array_equal(steps["next.reward"].to_numpy(), batch.steps[REWARD][:, 0])
    states = observations(batch, ("observation", "state"))
    found = np.array(steps["observation.state"].to_pylist())
    np.testing.assert_array_equal(found, np.concatenate([one[:-1] for one in states]))
    final = episodes["final.observation.state"].to_pylist()
    known = [one is not None for one in final]
    assert known == [True, False, False, True]
    assert final[0] == states[0][-1].tolist()
    assert episodes["seed"].to_pylist() == batch.episodes["seed",].tolist()


_OTHERS = """
import json, sys
import numpy as np
to, path = sys.argv[1:]
if to == "hf":
    import datasets
    found = datasets.load_from_disk(path)
    steps, episodes = found["steps"], found["episodes"]
elif to == "parquet":
    import datasets
    steps = datasets.load_dataset(path, "steps", split="train")
    episodes = datasets.load_dataset(path, "episodes", split="train")
elif to == "ds.to_hf":
    import offline_data
    rows = offline_data.open_dataset(path).to_hf()
    assert rows[1:3]["next.observation"].shape == (2, 3)
    print(json.dumps({"lengths": [3, 1, 5, 2], "actions": rows[:]["action"].ravel().tolist()}))
    sys.exit()
else:
    from d3rlpy.dataset import ReplayBuffer, InfiniteBuffer
    if to == "ds.to_d3rlpy":
        import offline_data
        buffer = offline_data.open_dataset(path).to_d3rlpy()
    else:
        with open(path, "rb") as file:
            buffer = ReplayBuffer.load(file, InfiniteBuffer())
    ends = [bool(one.terminated) for one in buffer.episodes]
    actions = np.concatenate([one.actions for one in buffer.episodes]).ravel().tolist()
    print(json.dumps({"lengths": [len(one) for one in buffer.episodes], "actions": actions, "ends": ends}))
    sys.exit()
print(json.dumps({
    "lengths": episodes["length"][:], "actions": np.array(steps["action"][:]).ravel().tolist(),
    "features": sorted(steps.features),
}))
"""


@pytest.mark.skipif(LOADERS is None, reason="OFFLINE_DATA_LOADERS names no Python")
@pytest.mark.parametrize(
    ("to", "place"),
    [
        ("hf", "toy"),
        ("parquet", "toy"),
        ("d3rlpy", "toy.h5"),
        ("ds.to_hf", ""),
        ("ds.to_d3rlpy", ""),
    ],
)
def test_loaders_of_other_environments(
    exported: Callable[..., Path], stored: Store, tmp_path: Path, to: str, place: str
) -> None:
    path, batch = exported("flat", to, place) if place else stored("flat"), flat_batch()
    environment = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = str(Path(offline_data.__file__).parents[1])
    done = subprocess.run(
        [str(LOADERS), "-c", _OTHERS, to, str(path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    if "d3rlpy" in to:  # which passes over a truncated episode of one step, as it has no transition
        lengths = [length for length in LENGTHS if length > 1]
        assert (found["lengths"], found["ends"]) == (lengths, [True, True, False])
        return
    assert found["lengths"] == list(LENGTHS)
    assert found["actions"] == batch.steps["action",].ravel().tolist()


def test_importing_a_format_imports_no_other_package() -> None:
    code = (
        "import sys, offline_data.formats.writing.base as base\n"
        "for name in base.TARGETS: base.get_target(name)\n"
        "print(sorted({'torch', 'minari', 'pyarrow', 'av', 'h5py', 'gymnasium'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

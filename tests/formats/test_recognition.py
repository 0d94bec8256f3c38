"""Formats are recognised by names of arrays: each smallest file with one array of each other format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, UsageError
from offline_data.formats.base import Release
from offline_data.formats.registry import get_source, iter_sources, source_accepting
from offline_data.pipeline.ingest import Options, convert
from offline_data.store.reader import DatasetReader, open_reader
from tests.toys import aloha, katakomba, maniskill, robomimic, roboset
from tests.toys.files import write_h5, write_npz

D4RL = ("observations", "actions", "rewards", "terminals")
SMALLEST: dict[str, dict[str, tuple[str, ...]]] = {
    "npz": {
        "d4rl": D4RL,
        "dsrl": (*D4RL, "costs"),
        "imitation": ("obs", "acts", "terminal", "indices"),
        "neorl": ("obs", "action", "reward", "done"),
        "ogbench": ("observations", "actions", "terminals"),
        "vd4rl": ("image", "action", "reward", "discount", "is_first"),
    },
    "hdf5": {
        "agilerl": (*D4RL, "next_observations"),
        "d3rlpy": (*D4RL, "episode_terminals"),
        "d4rl": D4RL,
        "dsrl": (*D4RL, "costs"),
        "vd4rl": ("observation", "action", "reward", "discount", "step_type"),
    },
}
"""The arrays of the smallest file of each flat format, by container."""
LENGTHS = [5, 4, 6]
ROWS = sum(LENGTHS)


def column(name: str) -> Any:
    """Return 15 rows of an array in three episodes."""
    if name in {"image", "observation"}:
        return np.zeros((ROWS, 8, 8, 3), np.uint8)
    if name in {"observations", "obs", "next_observations"}:
        code = np.array([[100 * e + t, t] for e, n in enumerate(LENGTHS) for t in range(n)], "f4")
        return code + (name == "next_observations") * np.array([1, 1], "f4")
    if name in {"actions", "action"}:
        return np.arange(2.0 * ROWS, dtype="f4").reshape(ROWS, 2)
    if name == "is_first":
        return np.arange(ROWS) == 0
    if name in {"terminals", "done", "episode_terminals"}:
        return np.isin(np.arange(ROWS), np.cumsum(LENGTHS) - 1)
    return np.arange(ROWS, dtype="f4")


def write(path: Path, names: tuple[str, ...]) -> Path:
    arrays = {name: column(name) for name in names}
    return (write_npz if path.suffix == ".npz" else write_h5)(path, arrays)


PAIRS = [
    (kind, source, foreign)
    for kind, formats in SMALLEST.items()
    for source, names in formats.items()
    for foreign in sorted({name for other in formats.values() for name in other} - {*names})
]


@pytest.mark.parametrize(("kind", "source", "foreign"), PAIRS)
def test_a_foreign_array(tmp_path: Path, kind: str, source: str, foreign: str) -> None:
    names = (*SMALLEST[kind][source], foreign)
    path = write(tmp_path / f"x.{kind}", names)
    complete = {other: len(n) for other, n in SMALLEST[kind].items() if {*n} <= {*names}}
    found = source_accepting(path).name
    assert found in complete
    # AgileRL's files have no other arrays; with one they are D4RL's.
    assert complete[found] >= complete[source] or source == "agilerl"


@pytest.mark.parametrize(
    ("kind", "names", "source"),
    [
        ("npz", D4RL, "d4rl"),
        ("npz", (*D4RL, "timeouts"), "d4rl"),
        ("npz", (*D4RL, "next_observations"), "d4rl"),
        ("npz", (*D4RL, "timeouts", "next_observations", "logprobs"), "d4rl"),
        ("npz", (*D4RL, "costs", "mine"), "dsrl"),
        ("npz", (*D4RL, "episode_terminals"), None),
        ("npz", ("observations", "actions", "terminals"), "ogbench"),
        ("npz", ("observations", "actions", "terminals", "qpos"), "ogbench"),
        ("npz", ("observations", "actions", "terminals", "timeouts"), None),
        ("npz", ("observations", "actions", "terminals", "valids"), None),
        ("npz", ("image", "action", "reward", "done"), None),
        ("npz", ("image", "action"), None),
        ("hdf5", (*D4RL, "next_observations"), "agilerl"),
        ("hdf5", (*D4RL, "next_observations", "mine"), "d4rl"),
        ("hdf5", (*D4RL, "episode_terminals", "mine"), "d3rlpy"),
    ],
)
def test_recognised(tmp_path: Path, kind: str, names: tuple[str, ...], source: str | None) -> None:
    path = write(tmp_path / f"x.{kind}", names)
    if source is None:
        with pytest.raises(FormatError, match="Cannot tell what"):
            source_accepting(path)
    else:
        assert source_accepting(path).name == source


@pytest.mark.parametrize("foreign", ["observations", "data_table", "mine"])
@pytest.mark.parametrize("source", ["aloha", "katakomba", "maniskill", "robomimic", "roboset"])
def test_groups_with_a_foreign_array(tmp_path: Path, source: str, foreign: str) -> None:
    path = tmp_path / "x.hdf5"
    if source == "aloha":
        aloha.write_episode(path, aloha.toy_episode(0, 3))
        foreign = foreign.replace("observations", "observation")
    elif source == "katakomba":
        katakomba.write_katakomba(path, {0: katakomba.toy_game(0, 4)})
    elif source == "maniskill":
        maniskill.write_maniskill(path, {0: maniskill.toy_trajectory(0, 3)})
    elif source == "robomimic":
        robomimic.write_demos(path, {0: robomimic.toy_demo(0, 3)})
    else:
        roboset.write_trials(path, {"Trial0": roboset.toy_trial(0, 0, 3)})
    with h5py.File(path, "a") as file:
        file[foreign] = np.zeros(3)
    assert source_accepting(path).name == source


REAL = {
    "agilerl_d3rlpy_v1": "d3rlpy",
    "d3rlpy_v2_generated": "d3rlpy",
    "fixtures_generated/d4rl": "d4rl",
    "fixtures_generated/gendgrl": "gen_dgrl",
    "fixtures_generated/oxe_jxu124": "openx",
    "fixtures_generated/robomimic": "robomimic",
    "fixtures_generated/roboset": "roboset",
    "fixtures_generated/vd4rl": "vd4rl",
    "lerobot_generated_v30": None,
    "minari_v043": "minari",
    "ogbench_generated": "ogbench",
    "openml_sklearn/id_561": "openml",
    "rlds_tfds_generated": None,
    "roboset_robohive": "roboset",
}
"""The only source that reads single files of a folder, where there is one."""


@pytest.mark.parametrize("folder", REAL)
def test_real_files_have_one_source(realdata: Path, folder: str) -> None:
    files = [path for path in (realdata / folder).rglob("*") if path.is_file()]
    read = {source.name for path in files for source in iter_sources() if source.accepts(path)}
    assert read == ({REAL[folder]} if REAL[folder] else set())


def test_formats_that_fit_alike_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "x.npz", D4RL)
    monkeypatch.setattr(type(get_source("neorl")), "accepts", lambda *_: 4)
    with pytest.raises(UsageError, match="looks like d4rl and neorl data") as caught:
        source_accepting(path)
    assert caught.value.shell_hint == "add --from d4rl or --from neorl"


# ---- values ----------------------------------------------------------------------------------------


def opened(stored: Any) -> DatasetReader:
    return open_reader(stored.path)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("more", [(), ("timeouts",), ("next_observations",), ("costs", "mine")])
def test_npz_with_the_arrays_of_d4rl_is_read_as_they_are_in_memory(
    tmp_path: Path, settings: Settings, more: tuple[str, ...], compressed: bool
) -> None:
    arrays = {name: column(name) for name in (*D4RL, *more) if name != "timeouts"}
    if "timeouts" in more:  # the second episode ends by a limit
        arrays["timeouts"] = np.arange(ROWS) == 8
        arrays["terminals"] = arrays["terminals"] & ~arrays["timeouts"]
    path = tmp_path / "x.npz"
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    from_file = opened(convert(path, "file", settings, Options(strict=True, audit="all")))
    table = from_file.transitions_at(np.arange(ROWS))
    assert from_file.manifest.converter["adapter"] == ("dsrl" if "costs" in more else "d4rl")
    assert from_file.lengths.tolist() == LENGTHS
    np.testing.assert_array_equal(table["next", "reward"][:, 0], arrays["rewards"])
    np.testing.assert_array_equal(table["next", "terminated"][:, 0], arrays["terminals"])
    np.testing.assert_array_equal(table["observation",], arrays["observations"])
    np.testing.assert_array_equal(table["action",], arrays["actions"])
    if "next_observations" in more:
        np.testing.assert_array_equal(table["next", "observation"], arrays["next_observations"])
    in_memory = opened(offline_data.convert(arrays, "memory", root=settings.root, progress=False))
    for key, values in in_memory.transitions_at(np.arange(ROWS)).items():
        if key != ("extra", "costs"):
            np.testing.assert_array_equal(table[key], values, err_msg=str(key))
    if "costs" in more:
        np.testing.assert_array_equal(table["next", "cost"][:, 0], arrays["costs"])
        np.testing.assert_array_equal(table["extra", "mine"], arrays["mine"])


def test_a_dataset_of_another_reading_is_not_the_same(tmp_path: Path, settings: Settings) -> None:
    """As an earlier version made it: the file's rewards are information, not rewards."""
    path = write(tmp_path / "x.npz", D4RL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("offline_data.formats.corrections.CORRECTIONS", {})
        old = convert(path, "x", settings, Options(), source="ogbench")
    assert "reading" not in old.manifest.converter
    (finding,) = offline_data.check(old.path, select=["RL009"], progress=False)
    assert "read a file with D4RL's arrays as OGBench's" in finding.message
    assert "`offline-data convert PATH x --force`" in finding.message
    with pytest.raises(UsageError, match="already exists, made by an earlier version") as caught:
        convert(path, "x", settings, Options())
    assert caught.value.shell_hint == "replace it with --force"
    again = convert(path, "x", settings, Options(force=True))
    assert (again.manifest.converter["adapter"], again.episodes) == ("d4rl", 3)
    assert offline_data.check(again.path, select=["RL009"], progress=False) == []


def test_an_explicit_format_reads_what_it_does_not_recognise(tmp_path: Path) -> None:
    """`--from vd4rl` of an npz without `is_first`, as old programs wrote them."""
    path = write(tmp_path / "x.npz", ("image", "action", "reward"))
    release = Release("x", "1", local=path)
    dataset = get_source("vd4rl").open(release, path)
    (batch,) = dataset.read(dataset.shards()[0])
    assert batch.transitions == ROWS - 1

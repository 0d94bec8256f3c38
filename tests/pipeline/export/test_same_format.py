"""What a reader takes from a place of a format, the writer of that format puts back there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest

import offline_data
from offline_data.formats.writing.base import TARGETS
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.toy import toy_batch, write_toy
from tests.formats.test_d3rlpy import write_dump
from tests.pipeline.export.conftest import flat_batch
from tests.slow import every_second, slow_but
from tests.toys.d4rl import TOYS, ToyD4RL, write_d4rl_hdf5
from tests.toys.diffusion_policy import toy_arrays, umi_arrays, write_zarr
from tests.toys.lerobot import write_lerobot
from tests.toys.minari import box, discrete, toy_episode, write_minari
from tests.toys.ogbench import toy_arrays as toy_arrays_of_ogbench
from tests.toys.ogbench import write_ogbench
from tests.toys.rlds import write_toy_rlds
from tests.toys.robomimic import isaac_demo, libero_demo, toy_demo, write_demos


def there_and_back(
    path: Path,
    folder: Path,
    to: str,
    name: str,
    view: Any = None,
    written: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[Path, list[str], list[DatasetReader]]:
    """Convert, export, and convert the export; return its path, the losses, and both datasets."""
    shared: dict[str, Any] = {"root": folder / "root", "progress": False}
    stored = offline_data.convert(path, "first", **options, **shared)
    out = folder / "out" / name
    data = (
        stored.path if view is None else view(offline_data.load_dataset(stored.path, root=folder))
    )
    done = offline_data.export(data, out, to=to, **shared, **(written or {}))
    back = offline_data.convert(out, "back", **options, **shared)
    losses = [f"{loss.leaf}: {loss.reason}" for loss in done.losses]
    return out, losses, [open_reader(stored.path), open_reader(back.path)]


def same_rows(both: list[DatasetReader], *without: str) -> None:
    """Compare all rows and columns of episodes, apart from those of names."""
    rows = np.arange(both[0].transitions)
    first, second = (
        {key: np.asarray(column) for key, column in reader.transitions_at(rows).items()}
        for reader in both
    )
    np.testing.assert_equal(second, first)
    columns = [
        {
            key: reader.as_text(key, np.asarray(values), "episodes")
            for key, values in reader.episodes.items()
            if key[0] not in without
        }
        for reader in both
    ]
    np.testing.assert_equal(columns[1], columns[0])


def tree(path: Path) -> dict[str, Any]:
    """Return all datasets and attributes of an HDF5 file by place."""
    found: dict[str, Any] = {}

    def add(name: str, node: Any) -> None:
        found.update({f"{name}@{key}": value for key, value in node.attrs.items()})
        if isinstance(node, h5py.Dataset):
            found[name] = node[()]

    with h5py.File(path) as file:
        add("", file)
        file.visititems(add)
    for name, value in found.items():
        if isinstance(value, str) and value[:1] == "{":
            found[name] = json.loads(value)
    return found


def demos(*numbers: int, **changes: Any) -> dict[int, dict[str, Any]]:
    return {n: {**toy_demo(n, 3 + n % 3, **changes), "@model_file": f"<m{n}/>"} for n in numbers}


def with_all(made: Mapping[int, Any], values: Callable[[int], Mapping[str, Any]]) -> dict[int, Any]:
    return {number: {**demo, **values(number)} for number, demo in made.items()}


def jumping() -> dict[int, Any]:
    made = demos(0, 1)
    made[1]["obs/object"][2] = -1
    return made


MASKS = {"train": [0, 2], "deep/valid": [5], "none": []}
ROBOMIMIC: dict[str, tuple[Any, dict[str, Any]]] = {
    "filter keys and numbers": (demos(0, 2, 5), {"masks": MASKS}),
    "dones in some last rows": (demos(0, 1) | demos(2, dones=(0,)), {}),
    "dones in two last rows": (demos(0, dones=(1, 1)) | demos(1), {}),
    "no dones in last rows": (demos(0, 1, dones=(0,)), {}),
    "without next_obs": (demos(0, 1, next_obs=False), {}),
    "a seed": (with_all(demos(0, 1), lambda n: {"@seed": 7 + n}), {}),
    "success": (with_all(demos(0, 1), lambda n: {"@success": bool(n)}), {}),
    "words of each": (
        with_all(demos(0, 1), lambda n: {"@ep_meta": json.dumps({"lang": f"open {n}"})}),
        {},
    ),
    "words of all": (demos(0, 1), {"problem_info": json.dumps({"language_instruction": "open"})}),
    "words of all and meta": (
        with_all(demos(0, 1), lambda n: {"@ep_meta": json.dumps({"scene": n})}),
        {"problem_info": json.dumps({"language_instruction": "open"})},
    ),
    "mimicgen": (
        with_all(demos(0, 1), lambda n: {"datagen_info/poses/cube": np.ones((3 + n, 4)) * n}),
        {},
    ),
    "isaac": ({n: isaac_demo(n, 3 + n, success=n != 1) for n in range(3)}, {}),
}
WRITTEN: dict[str, set[str]] = {
    "isaac": {f"data/demo_{n}/{name}" for n in range(3) for name in ("dones", "next_obs")},
}
"""What a file has in addition: robomimic's loader reads `dones` by default."""
OTHERS = {"a seed", "success", "no dones in last rows", "words of all", "words of all and meta"}
"""Files like another one, which are read and written in the slow run."""
SPLITS = ("all", "train", "val")


@pytest.mark.parametrize("name", slow_but(lambda name: name not in OTHERS, ROBOMIMIC))
def test_robomimic(name: str, tmp_path: Path) -> None:
    made, parts = ROBOMIMIC[name]
    path = write_demos(tmp_path / "in.hdf5", made, **parts)
    out, losses, both = there_and_back(path, tmp_path, "robomimic", "out.hdf5")
    assert losses == ["episodes/file: there is no place for it"]
    before, after = tree(path), tree(out)
    added = {key for key in after if key not in before}
    assert added == {key for key in added if key.startswith(tuple(WRITTEN.get(name, ())) or "-")}
    np.testing.assert_equal({k: v for k, v in after.items() if k not in added}, before)
    if name != "isaac":
        same_rows(both, "file")
    assert both[1].manifest.environment == both[0].manifest.environment


def test_both_observations_of_robomimic(tmp_path: Path) -> None:
    path = write_demos(tmp_path / "in.hdf5", jumping())
    out, _, both = there_and_back(path, tmp_path, "robomimic", "out.hdf5", keep_episodes=True)
    np.testing.assert_equal(tree(out), tree(path))
    same_rows(both, "file")


@pytest.mark.parametrize("dones", [(1, 1), (1,), (0,)])
def test_some_demonstrations_of_robomimic(tmp_path: Path, dones: tuple[int, ...]) -> None:
    """Of those that are left, `dones` may no longer say how they end."""
    path = write_demos(
        tmp_path / "in.hdf5", demos(0, 1, dones=(1, 1)) | demos(2, 3, dones=dones), MASKS
    )

    def some(dataset: Any) -> Any:
        return dataset.filter(lambda _: [3, 1])

    out, losses, both = there_and_back(path, tmp_path, "robomimic", "out.hdf5", some)
    assert [one.partition(":")[0] for one in losses] == ["episodes/demo", "episodes/file"]
    found = tree(out)
    assert found["mask/train"].tolist() == []
    assert found["data/demo_0@model_file"] == "<m3/>"
    ends = [reader.episodes["terminated",].tolist() for reader in both]
    assert ends[1] == [ends[0][3], ends[0][1]]


def test_libero_stays_readable(tmp_path: Path) -> None:
    made = {n: libero_demo(n, 80, raw=False) for n in range(2)}
    path = write_demos(tmp_path / "in.hdf5", made)
    out, losses, _ = there_and_back(path, tmp_path, "robomimic", "out.hdf5")
    assert "data/demo_0/next_obs/ee_states" in tree(out)
    assert any("observation after the last action" in one for one in losses)


OPTIONS = {"level": 3, "goal": [0.5, 1.0], "maze": {"rows": ["#.#", "..."], "open": True}}
NOTES = {"note/author": "me", "score": 0.25, "nothing": h5py.Empty("f4")}
NESTED = {
    "type": "Dict",
    "subspaces": {"pair": {"type": "Tuple", "subspaces": [box(2), discrete()]}, "text": box()},
}
ABOUT = {
    "algorithm_name": "PPO",
    "author": ["a", "b"],
    "eval_env_spec": gymnasium.spec("Acrobot-v1").to_json(),
    "env_spec": gymnasium.spec("CartPole-v1").to_json(),
    "num_episodes_average_score": 100,
    "mine": {"x": 1},
    "dataset_id": "lab/deep/toy-v0",
}


def test_minari(tmp_path: Path) -> None:
    minari = pytest.importorskip("minari")
    made = [
        toy_episode(
            n,
            3 + n,
            observation=NESTED,
            info={"pos": box(2)},
            seed=None if n == 1 else 2**63 + n,
            options=None if n == 2 else OPTIONS,
            attributes={} if n == 0 else NOTES,
        )
        for n in range(3)
    ]
    path = write_minari(tmp_path / "in-v0", made, observation=NESTED, metadata=ABOUT)
    name = "lab/deep/toy-v0"
    out, losses, both = there_and_back(path, tmp_path, "minari", name)
    assert losses == []
    same_rows(both)
    parts = [tree(one / "data/main_data.hdf5") for one in (path, out)]
    np.testing.assert_equal(parts[1], parts[0])
    first, second = (one.manifest for one in both)
    made_anew = {"dataset_size", "jpeg_encoding", "minari_version"}
    abouts = [{k: v for k, v in m.about.items() if k not in made_anew} for m in (first, second)]
    assert abouts[0] == abouts[1]
    assert (first.environment, first.spaces) == (second.environment, second.spaces)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(out.parents[2]))
        loaded = minari.load_dataset(name)
        assert loaded.spec.dataset_id == name
        assert (
            loaded[0].observations["pair"][1].tolist() == made[0].observations["pair"][1].tolist()
        )


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (OPTIONS, True),
        ({"a": None}, True),
        ({"a": {}}, False),
        ({"a": [1, "b"]}, False),
        ({"a/b": 1}, False),
        ({"a": 2**70}, False),
        ({"a": [0] * 10_000}, False),
        ({"a": "\0"}, False),
    ],
    ids=str,
)
def test_options_that_minari_cannot_have(options: Any, kept: bool, tmp_path: Path) -> None:
    pytest.importorskip("minari")
    batch = replace(
        flat_batch(),
        episodes={("options",): np.array([json.dumps(options, sort_keys=True)] * 4, object)},
    )
    write_toy(tmp_path / "toy", [batch], dataset="local:toy@1")
    done = offline_data.export(
        tmp_path / "toy", tmp_path / "x-v0", to="minari", root=tmp_path / "r"
    )
    assert [loss.leaf for loss in done.losses] == [] if kept else ["episodes/options"]


@pytest.mark.parametrize(
    ("folder", "marked", "name"),
    [
        ("plain", (), "x-v0"),
        ("ns/deep", ("ns", "ns/deep"), "ns/deep/x-v0"),
        ("ns/b", ("ns",), "x-v0"),
    ],
)
def test_namespaces_that_minari_has_marked(
    folder: str, marked: tuple[str, ...], name: str, tmp_path: Path
) -> None:
    pytest.importorskip("minari")
    write_toy(tmp_path / "toy", [flat_batch()], dataset="local:toy@1")
    for one in marked:
        (tmp_path / one).mkdir(parents=True)
        (tmp_path / one / "namespace_metadata.json").write_text("{}")
    out = tmp_path / folder / "x-v0"
    offline_data.export(tmp_path / "toy", out, to="minari", root=tmp_path / "r", progress=False)
    assert json.loads((out / "data/metadata.json").read_text())["dataset_id"] == name


D4RL = {name: toy for name, toy in TOYS.items() if name != "flow"}  # it marks no ends


@pytest.mark.parametrize("name", every_second(D4RL))
def test_d4rl(name: str, tmp_path: Path) -> None:
    toy: ToyD4RL = D4RL[name]
    path = write_d4rl_hdf5(tmp_path / "in.hdf5", toy)
    out, losses, both = there_and_back(path, tmp_path, "d4rl", "out.hdf5")
    assert losses == []
    same_rows(both)
    before, after = tree(path), tree(out)
    before.pop("metadata/policy/fc0/weight", None)  # the weights of a policy are not read
    assert after.keys() - before.keys() <= {"timeouts"}  # D4RL's scripts ask for it
    np.testing.assert_equal(
        {key: np.reshape(after[key], np.shape(values)) for key, values in before.items()}, before
    )
    kinds = {"terminals", "timeouts"} & before.keys()
    assert {key: after[key].dtype for key in kinds} == {key: before[key].dtype for key in kinds}
    assert both[1].manifest.about.get("metadata") == both[0].manifest.about.get("metadata")


@pytest.mark.parametrize("chosen", [[0, 1], [2, 0]])
def test_some_episodes_of_d4rl(chosen: list[int], tmp_path: Path) -> None:
    """`timeouts` of an episode that the end of the file had ended now end it, unless it is last."""
    path = write_d4rl_hdf5(tmp_path / "in.hdf5", TOYS["carla"])
    out, losses, both = there_and_back(
        path, tmp_path, "d4rl", "out.hdf5", lambda data: data.filter(lambda _: chosen)
    )
    assert losses == ["episodes/file_timeout: timeouts are where episodes are truncated"]
    assert both[1].lengths.tolist() == [both[0].lengths[number] for number in chosen]
    assert tree(out)["timeouts"].sum() == both[1].episodes["truncated",].sum()


@pytest.mark.parametrize("parts", slow_but(lambda parts: parts in {0, 11}, [0, 1, 2, 11]))
def test_d3rlpy(parts: int, tmp_path: Path) -> None:
    columns = {f"costs_{e}": np.full((n, 1), e + 0.5) for e, n in enumerate((4, 1, 6))}
    names = [b"observations", b"actions", b"rewards", b"terminated", b"costs"]
    path = write_dump(tmp_path / "in.h5", parts=parts, columns=names, **columns)
    out, losses, both = there_and_back(path, tmp_path, "d3rlpy", "out.h5")
    assert losses == []
    same_rows(both)
    np.testing.assert_equal(tree(out), tree(path))


@pytest.mark.parametrize("arrays", [toy_arrays(), umi_arrays()], ids=["pusht", "umi"])
def test_zarr(arrays: dict[str, Any], tmp_path: Path) -> None:
    lengths = np.diff(arrays["meta/episode_ends"], prepend=0)
    facts = {"meta/score": np.arange(len(lengths)) / 8, "meta/place": np.ones((len(lengths), 2))}
    path = write_zarr(tmp_path / "in.zarr", arrays | facts)
    _, losses, both = there_and_back(path, tmp_path, "zarr", "out.zarr")
    assert losses == []
    same_rows(both)


@pytest.mark.parametrize(
    ("split", "final_step"),
    slow_but(lambda *case: case in {("all", True), ("val", False)}, SPLITS, [False, True]),
)
def test_rlds(split: str, final_step: bool, tmp_path: Path) -> None:
    path = write_toy_rlds(tmp_path / "in", final_step=final_step)
    out, losses, both = there_and_back(path, tmp_path, "rlds", "out", split=split)
    assert losses == []
    same_rows(both)
    first, second = (reader.manifest for reader in both)
    assert second.counts == first.counts
    same = ("version", "description", "labels")
    assert {k: second.about[k] for k in same} == {k: first.about[k] for k in same}
    assert second.citation == first.citation == "Nobody, 2024."
    names = {file.name.partition(".")[0] for file in out.glob("*.tfrecord*")}
    assert names == {f"out-{one}" for one in (("train", "val") if split == "all" else (split,))}


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_lerobot(version: str, tmp_path: Path) -> None:
    path = write_lerobot(tmp_path / "in", version)
    how = {"video": "none", "format_version": version[1:]}
    out, losses, both = there_and_back(path, tmp_path, "lerobot", "out", written=how)
    assert losses == []
    same_rows(both)
    before, after = (json.loads((one / "meta/info.json").read_text()) for one in (path, out))
    apart = {"chunks_size", "data_path", "total_chunks", "total_videos", "features"}
    apart |= {"data_files_size_in_mb", "video_files_size_in_mb"}
    assert {k: after[k] for k in before.keys() - apart} == {
        k: before[k] for k in before.keys() - apart
    }
    for name, feature in before["features"].items():
        assert after["features"][name] == feature, name


def test_ted(tmp_path: Path) -> None:
    batch = toy_batch([3, 1, 2], text=True, images=True, unknown_final=[1])
    path = tmp_path / "in"
    write_toy(path, [replace(batch, episodes={("id",): np.arange(3)})], dataset="local:in@1")
    offline_data.export(path, tmp_path / "out", to="ted", root=tmp_path / "root", progress=False)
    back = offline_data.convert(tmp_path / "out", "back", root=tmp_path / "root", progress=False)
    same_rows([open_reader(path), open_reader(back.path)])


@pytest.mark.parametrize("kind", ["scene", "powderworld"])
def test_ogbench(kind: str, tmp_path: Path) -> None:
    """All but actions in last states, which lead nowhere and are not read."""
    arrays = toy_arrays_of_ogbench(kind, (4, 2, 6), image=kind == "powderworld")
    path = write_ogbench(tmp_path / "in.npz", arrays)
    out, losses, both = there_and_back(path, tmp_path, "ogbench", "out.npz")
    assert losses == []
    same_rows(both)
    last = np.flatnonzero(arrays["terminals"])
    with np.load(out) as found:
        assert {*found} == {*arrays}
        for name, expected in arrays.items():
            if name == "actions":
                expected[last] = expected[last - 1]
            assert found[name].dtype == expected.dtype
            np.testing.assert_array_equal(found[name], expected, name)


def test_every_format_is_here() -> None:
    """Parquet, hf and npz come back with an equal digest: see `test_read_back`."""
    here = {"robomimic", "minari", "d4rl", "d3rlpy", "zarr", "rlds", "lerobot", "ogbench", "ted"}
    assert {*TARGETS} == here | {"parquet", "npz", "hf"}

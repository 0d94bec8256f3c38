"""Minari datasets are read as they were written, in every storage, by one stated rule each."""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from offline_data.base.errors import FormatError, MissingDependencyError
from offline_data.episode.notes import count_episodes, count_rows
from offline_data.formats.minari import dataset as rules
from offline_data.formats.minari.leaves import NOTE_IMAGES, NOTE_REWARD, NOTE_SEED
from offline_data.formats.minari.metadata import space_leaves
from offline_data.formats.minari.source import Minari
from offline_data.store.reader import open_reader
from offline_data.testing.sources import SourceCase, SourceContract
from offline_data_cli.main import main
from tests.oracles_minari import minari_episodes
from tests.slow import slow_but
from tests.toys.minari import (
    STORAGES,
    ToyEpisode,
    box,
    discrete,
    read_minari,
    toy_episode,
    toy_rows,
    write_minari,
)

if TYPE_CHECKING:
    from offline_data.episode import EpisodeBatch, Key


@pytest.mark.parametrize("storage", STORAGES)
class TestMinari(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path, storage: str) -> SourceCase:
        episodes = [
            toy_episode(n, length, info={"x": box()}, seed=n, options={"start": [n]})
            for n, length in enumerate([4, 1, 30, 2])
        ]
        raw = write_minari(tmp_path / "raw", episodes, storage)
        source = Minari()
        return SourceCase(source, source.release_of(raw, "toy/raw-v0"), raw)


EVERY_STORAGE = pytest.mark.parametrize("storage", STORAGES)


def hdf5(tmp_path: Path, *episodes: ToyEpisode) -> EpisodeBatch:
    return read_minari(write_minari(tmp_path / "toy-v0", episodes))


def infos(number: int, rows: int, **more: Any) -> Mapping[str, Any]:
    return {"x": toy_rows(box(), number, rows), **more}


@EVERY_STORAGE
def test_last_step_without_a_flag_is_truncated(tmp_path: Path, storage: str) -> None:
    none = np.zeros(3, bool)
    episodes = [toy_episode(0, 3, terminations=none, truncations=none), toy_episode(1, 2)]
    batch = read_minari(write_minari(tmp_path / "t-v0", episodes, storage))
    assert batch.steps["next", "truncated"][:, 0].tolist() == [False, False, True, False, True]
    assert not batch.steps["next", "terminated"].any()
    assert count_episodes(1, rules.NOTE_UNENDED) in batch.notes


@EVERY_STORAGE
def test_observations_without_the_last_one(tmp_path: Path, storage: str) -> None:
    short = toy_rows(box(3), 1, 4)
    episodes = [toy_episode(0, 2), toy_episode(1, 4, observations=short), toy_episode(2, 1)]
    batch = read_minari(write_minari(tmp_path / "t-v0", episodes, storage))
    assert batch.final_observation.tolist() == [True, False, True]
    rows = batch.observations["observation",]
    np.testing.assert_array_equal(rows[3:7], short)
    np.testing.assert_array_equal(rows[7], short[3])
    np.testing.assert_array_equal(rows[8:], toy_rows(box(3), 2, 2))
    assert count_episodes(1, rules.NOTE_NO_FINAL) in batch.notes


def test_rows_of_infos(tmp_path: Path) -> None:
    """By the rows in the first episode, and in this one."""

    def read(name: str, *rows: int) -> EpisodeBatch:
        episodes = [toy_episode(n, 2 + n, infos=infos(n, r)) for n, r in enumerate(rows)]
        return read_minari(write_minari(tmp_path / name, episodes))

    same = read("same-v0", 2, 3)
    assert same.steps["next", "info", "x"].tolist() == [1, 2, 1001, 1002, 1003]
    assert not [key for key in same.observations if key[0] == "info"]
    short = read("short-v0", 3, 3)
    found = short.observations["info", "x"]
    np.testing.assert_array_equal(found, [1, 2, 3, np.nan, 1001, 1002, 1003])
    note = rules.NOTE_NO_FIRST.format(leaf="infos/x", nothing="nan")
    assert count_episodes(1, note) in short.notes
    long = read("long-v0", 2, 4)
    assert long.steps["next", "info", "x"].tolist() == [1, 2, 1002, 1003, 1004]
    assert count_episodes(1, rules.NOTE_FIRST_LEFT.format(leaf="infos/x")) in long.notes


@EVERY_STORAGE
def test_infos_missing_in_some_episodes(tmp_path: Path, storage: str) -> None:
    more = {"n": np.arange(2) + 7, "b": np.array([True, True]), "s": ["left", "right"]}
    episodes = [toy_episode(0, 1, infos=infos(0, 2, **more)), toy_episode(1, 1)]
    batch = read_minari(write_minari(tmp_path / "t-v0", episodes, storage))
    np.testing.assert_array_equal(batch.observations["info", "x"], [1, 2, np.nan, np.nan])
    assert batch.observations["info", "n"].tolist() == [7, 8, 0, 0]
    assert batch.observations["info", "b"].tolist() == [True, True, False, False]
    assert batch.observations["info", "s"].tolist() == ["left", "right", None, None]
    for leaf, nothing in (("x", "nan"), ("n", "0"), ("b", "False"), ("s", "None")):
        note = rules.NOTE_MISSING.format(leaf=f"infos/{leaf}", nothing=nothing)
        assert count_episodes(1, note) in batch.notes


@pytest.mark.parametrize("storage", ["arrow", "parquet"])
def test_infos_with_empty_values(tmp_path: Path, storage: str) -> None:
    some = {"x": [1.5, None, 2.5], "n": [4, None, 6], "s": ["a", None, "c"]}
    batch = read_minari(
        write_minari(tmp_path / "t-v0", [toy_episode(0, 2, infos=some), toy_episode(1, 1)], storage)
    )
    np.testing.assert_array_equal(batch.observations["info", "x"][:3], [1.5, np.nan, 2.5])
    assert batch.observations["info", "n"].tolist()[:3] == [4, 0, 6]
    assert batch.observations["info", "s"].tolist()[:3] == ["a", None, "c"]
    for leaf, nothing in (("x", "nan"), ("n", "0"), ("s", "None")):
        note = rules.NOTE_NULLS.format(leaf=f"infos/{leaf}", nothing=nothing)
        assert count_rows(1, note) in batch.notes


def test_parts_grow_where_the_metadata_count_too_few_steps(tmp_path: Path) -> None:
    episodes = [toy_episode(n, 40) for n in range(30)]
    folder = write_minari(tmp_path / "t-v0", episodes, metadata={"total_steps": 30})
    rewards = read_minari(folder).steps["next", "reward"][:, 0]
    np.testing.assert_array_equal(rewards, np.concatenate([e.rewards for e in episodes]))


def test_leaves_that_cannot_be_kept_are_dropped_aloud(tmp_path: Path) -> None:
    pair = np.zeros(3, dtype=[("a", "f4"), ("b", "i4")])
    odd = infos(0, 3, pair=pair, once=np.float64(3), five=np.arange(5), **{"..": np.arange(3)})
    batch = hdf5(tmp_path, toy_episode(0, 2, infos=odd))
    assert {dropped.key for dropped in batch.dropped} == {
        "infos/pair",
        "infos/once",
        "infos/five",
        "infos/..",
    }
    assert [key for key in batch.observations if key[0] == "info"] == [("info", "x")]


@EVERY_STORAGE
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
def test_rewards_keep_floats_and_turn_integers_into_float64(
    tmp_path: Path, storage: str, dtype: str
) -> None:
    rewards = np.array([3, 5], dtype)
    batch = read_minari(
        write_minari(tmp_path / "t-v0", [toy_episode(0, 2, rewards=rewards)], storage)
    )
    assert batch.steps["next", "reward"].tolist() == [[3], [5]]
    whole = dtype.startswith("int")
    assert batch.steps["next", "reward"].dtype == ("float64" if whole else dtype)
    assert (NOTE_REWARD.format(dtype=dtype) in batch.notes) == whole


def test_another_dtype_is_cast_where_nothing_is_lost(tmp_path: Path) -> None:
    whole = np.array([[4, 5], [6, 7]], "int64")
    batch = hdf5(tmp_path, toy_episode(0, 1), toy_episode(1, 2, actions=whole))
    assert batch.steps["action",].dtype == "float32"
    assert batch.steps["action",][1:].tolist() == whole.tolist()
    third = [toy_episode(0, 1), toy_episode(1, 1, actions=np.full((1, 2), 1 / 3))]
    folder = write_minari(tmp_path / "third-v0", third)
    with pytest.raises(FormatError, match=r"main_data.hdf5 episode_1/actions is float64.*float32"):
        read_minari(folder)


@EVERY_STORAGE
def test_episode_columns(tmp_path: Path, storage: str) -> None:
    options = {"b": {"qpos": np.array([0.5, 1.0])}, "a": "x"}
    episodes = [
        toy_episode(0, 1, seed=2**64 - 3, options=options, attributes={"mood": "good"}),
        toy_episode(1, 1),
    ]
    batch = read_minari(write_minari(tmp_path / "t-v0", episodes, storage))
    assert batch.episodes["id",].tolist() == [0, 1]
    assert batch.episodes["seed",].tolist() == [-3, -1]
    assert NOTE_SEED in batch.notes
    text = batch.episodes["options",].tolist()
    assert text == ['{"a": "x", "b": {"qpos": [0.5, 1.0]}}', None]
    assert [value and json.loads(value) for value in batch.episodes["metadata",]] == [
        {"mood": "good"},
        None,
    ]


def test_an_arrow_episode_of_several_record_batches_is_whole(tmp_path: Path) -> None:
    folder = write_minari(tmp_path / "t-v0", [toy_episode(0, 70_000), toy_episode(1, 2)], "arrow")
    batch = read_minari(folder)
    assert batch.lengths.tolist() == [70_000, 2]
    assert (
        batch.observations["observation",][70_000].tolist()
        == toy_rows(box(3), 0, 70_001)[-1].tolist()
    )
    assert batch.steps["next", "reward"][70_000, 0] == 1001 / 4


def image(number: int, *shape: int) -> NDArray[np.uint8]:
    """Noise, so that no two images or their JPEG files are alike."""
    return np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)


def jpeg(pixels: NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="JPEG")
    return file.getvalue()


def decoded(data: bytes) -> NDArray[np.uint8]:
    return np.array(Image.open(io.BytesIO(data)), dtype=np.uint8)


def film(number: int, frames: list[bytes] | NDArray[Any], **more: Any) -> ToyEpisode:
    return toy_episode(number, len(frames) - 1, observations=frames, **more)


@EVERY_STORAGE
@pytest.mark.parametrize("shape", [(48, 40, 3), (40, 36), (7, 7, 3)])
def test_jpeg_of_any_size(tmp_path: Path, storage: str, shape: tuple[int, ...]) -> None:
    frames = [[jpeg(image(10 * n + t, *shape)) for t in range(3 + n)] for n in range(2)]
    episodes = [film(n, some) for n, some in enumerate(frames)]
    space = box(*shape, dtype="uint8")
    batch = read_minari(write_minari(tmp_path / "t-v0", episodes, storage, observation=space))
    expected = [decoded(frame) for some in frames for frame in some]
    np.testing.assert_array_equal(batch.observations["observation",], expected)
    assert batch.notes == (NOTE_IMAGES.format(leaf="observations"),)


def test_frames_of_equal_length_or_raw(tmp_path: Path) -> None:
    """Frames that happen to be of equal length are an array in HDF5; others may not be compressed."""
    pixels = image(1, 40, 40)
    same, other = [jpeg(pixels)] * 3, [jpeg(pixels), jpeg(image(2, 40, 40))]
    raw = image(9, 3, 40, 40)
    space = box(40, 40, dtype="uint8")
    films = [film(0, same), film(1, other), film(2, raw)]
    folder = write_minari(tmp_path / "t-v0", films, observation=space)
    with h5py.File(folder / "data" / "main_data.hdf5") as file:
        assert file["episode_0/observations"].dtype == np.uint8
        assert file["episode_1/observations"].dtype == object
    found = read_minari(folder).observations["observation",]
    np.testing.assert_array_equal(found, [*map(decoded, same + other), *raw])


def test_numbers_that_begin_like_a_jpeg_image_stay_numbers(tmp_path: Path) -> None:
    rows = image(3, 4, 9)
    rows[:, :3] = 0xFF, 0xD8, 0xFF
    space = box(9, dtype="uint8")
    batch = read_minari(write_minari(tmp_path / "t-v0", [film(0, rows)], observation=space))
    np.testing.assert_array_equal(batch.observations["observation",], rows)
    assert not batch.notes


@EVERY_STORAGE
def test_bytes_that_are_no_images_are_dropped_aloud(tmp_path: Path, storage: str) -> None:
    blobs = [b"a", b"bcd", b"ef"]
    folder = write_minari(tmp_path / "t-v0", [toy_episode(0, 2, infos={"b": blobs})], storage)
    batch = read_minari(folder)
    assert [dropped.key for dropped in batch.dropped] == ["infos/b"]
    assert "JPEG" in batch.dropped[0].reason


@EVERY_STORAGE
@pytest.mark.parametrize(
    ("last", "said"),
    [
        (jpeg(image(1, 40, 36))[:30], "is not a JPEG image"),
        (jpeg(image(1, 40, 37)), r"is an image of \[40, 37\]; expected \[40, 36\]"),
    ],
    ids=["damaged", "of another size"],
)
def test_a_wrong_image(tmp_path: Path, storage: str, last: bytes, said: str) -> None:
    frames, space = [jpeg(image(0, 40, 36)), last], box(40, 36, dtype="uint8")
    folder = write_minari(tmp_path / "t-v0", [film(0, frames)], storage, observation=space)
    with pytest.raises(FormatError, match=f"observations, row 1, {said}"):
        read_minari(folder)


@pytest.mark.parametrize(("module", "extra"), [("PIL", "images"), ("pyarrow", "arrow")])
def test_without_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, extra: str
) -> None:
    frames, space = [jpeg(image(t, 40, 36)) for t in range(2)], box(40, 36, dtype="uint8")
    storage = "hdf5" if module == "PIL" else "arrow"
    folder = write_minari(tmp_path / "t-v0", [film(0, frames)], storage, observation=space)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError) as caught:
        read_minari(folder)
    assert caught.value.hint == f"pip install 'offline-data[{extra}]'"


DTYPES = ["float32", "float64", "int64", "int32", "uint8", "int8", "float16"]

shapes = st.lists(st.integers(1, 3), max_size=3)
leaves: st.SearchStrategy[Mapping[str, Any]] = st.one_of(
    st.builds(lambda shape, dtype: box(*shape, dtype=dtype), shapes, st.sampled_from(DTYPES)),
    st.just(discrete()),
    st.just({"type": "Text", "max_length": 20, "min_length": 0, "charset": "abc"}),
    st.builds(
        lambda nvec: {"type": "MultiDiscrete", "dtype": "int64", "nvec": nvec, "start": nvec},
        st.sampled_from([[4, 5], [3], [[2, 2], [3, 3]]]),
    ),
    st.builds(lambda n: {"type": "MultiBinary", "n": n}, st.sampled_from([3, [2, 2]])),
)
names = st.sampled_from(["a", "b", "observation", "light switch", "_index_x", "größe", "0"])
spaces: st.SearchStrategy[Mapping[str, Any]] = st.recursive(
    leaves,
    lambda parts: st.one_of(
        st.builds(
            lambda inner: {"type": "Dict", "subspaces": inner},
            st.dictionaries(names, parts, min_size=1, max_size=3),
        ),
        st.builds(
            lambda inner: {"type": "Tuple", "subspaces": inner},
            st.lists(parts, min_size=1, max_size=3),
        ),
    ),
    max_leaves=4,
)


def flat(nest: Any, key: Key) -> Iterator[tuple[Key, Any]]:
    if isinstance(nest, tuple):
        nest = {str(number): part for number, part in enumerate(nest)}
    if isinstance(nest, dict):
        for name, part in nest.items():
            yield from flat(part, (*key, name))
    else:
        yield key, nest


def laid_end_to_end(episodes: Sequence[ToyEpisode], section: str, key: Key) -> dict[Key, Any]:
    each = [dict(flat(getattr(episode, section), key)) for episode in episodes]
    return {name: np.concatenate([one[name] for one in each]) for name in each[0]}


@pytest.mark.parametrize("storage", slow_but(lambda storage: storage == "arrow", STORAGES))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    observation=spaces,
    action=spaces,
    info=spaces,
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    budget=st.sampled_from([1, 500, 1 << 40]),
)
def test_reads_what_was_written(
    storage: str,
    observation: Mapping[str, Any],
    action: Mapping[str, Any],
    info: Mapping[str, Any],
    lengths: list[int],
    budget: int,
) -> None:
    episodes = [
        toy_episode(n, length, observation=observation, action=action, info={"i": info})
        for n, length in enumerate(lengths)
    ]
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "toy-v0"
        write_minari(written, episodes, storage, observation=observation, action=action)
        batch = read_minari(written, budget)
    assert batch.lengths.tolist() == lengths
    rewards = np.concatenate([episode.rewards for episode in episodes])
    np.testing.assert_array_equal(batch.steps["next", "reward"][:, 0], rewards)
    expected = {
        **laid_end_to_end(episodes, "observations", ("observation",)),
        **laid_end_to_end(episodes, "infos", ("info",)),
    }
    assert set(batch.observations) == set(expected)
    for key, values in expected.items():
        np.testing.assert_array_equal(batch.observations[key], values, err_msg=str(key))
        assert batch.observations[key].dtype.kind == (
            "O" if values.dtype.kind == "U" else values.dtype.kind
        )
    actions = laid_end_to_end(episodes, "actions", ("action",))
    for key, values in actions.items():
        np.testing.assert_array_equal(batch.steps[key], values, err_msg=str(key))
    assert set(actions) == {key for key in batch.steps if key[0] == "action"}
    assert not batch.dropped
    values = dict(flat(episodes[0].observations, ()))
    declared = space_leaves(observation, "here")
    assert {key: leaf.shape for key, leaf in declared.items()} == {
        key: np.shape(part)[1:] for key, part in values.items()
    }


KEYS = {
    "observations": ("observation",),
    "actions": ("action",),
    "rewards": ("next", "reward"),
    "terminations": ("next", "terminated"),
    "truncations": ("next", "truncated"),
    "infos": ("info",),
}


@pytest.mark.parametrize("storage", STORAGES)
def test_every_leaf_of_every_episode_is_the_oracles(tmp_path: Path, storage: str) -> None:
    deep = {"type": "Tuple", "subspaces": [discrete(), box(2, 3, dtype="float64")]}
    spaces: dict[str, Any] = {
        "observation": {
            "type": "Dict",
            "subspaces": {"deep": deep, "pixels": box(4, 5, dtype="uint8")},
        },
        "action": {"type": "MultiDiscrete", "dtype": "int64", "nvec": [[2, 2], [3, 3]]},
    }
    info = {"goal": box(3, 2), "note": {"type": "Text", "max_length": 9}}
    episodes = [toy_episode(n, 3 + n, info=info, **spaces) for n in range(12)]
    folder = write_minari(tmp_path / "toy-v0", episodes, storage, **spaces)
    arguments = ["convert", str(folder), "it", "--from", "minari", "--audit", "none"]
    assert main(["--root", str(tmp_path / "root"), "-q", *arguments]) == 0
    reader = open_reader(next((tmp_path / "root").rglob("manifest.json")).parent)
    expected = list(minari_episodes(folder))
    assert reader.episode_count == len(expected)
    for number, episode in enumerate(expected):
        batch = reader.episode_batch(number, number + 1)
        found: dict[Any, NDArray[Any]] = {**batch.steps, **batch.observations}
        for name, values in episode.items():
            section, *names = name.split("/")
            key = (*KEYS[section], *names)
            values = values.reshape(-1, 1) if key[0] == "next" else values
            np.testing.assert_array_equal(found.pop(key), values, err_msg=f"{number} {name}")
        assert not found

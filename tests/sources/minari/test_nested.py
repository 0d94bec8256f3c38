"""Any nest of any spaces, written by hand in every storage, is read as it was written."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offline_data.sources.minari.spaces import space_leaves
from offline_data.testing.batches import assert_same_batch
from offline_data.testing.minari_toy import STORAGES, read_minari, write_minari
from offline_data.testing.minari_values import ToyEpisode, box, discrete, toy_episode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from offline_data.episodes import Key

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


@pytest.mark.parametrize("storage", STORAGES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
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


@given(observation=spaces)
def test_the_space_declares_what_values_have(observation: Mapping[str, Any]) -> None:
    values = dict(flat(toy_episode(0, 2, observation=observation).observations, ()))
    declared = space_leaves(observation, "here")
    assert {key: leaf.shape for key, leaf in declared.items()} == {
        key: np.shape(part)[1:] for key, part in values.items()
    }


def test_all_storages_are_equal(tmp_path: Path) -> None:
    image = box(3, 5, dtype="uint8")
    parts = {"pos": box(2), "deep": {"type": "Tuple", "subspaces": [discrete(), image]}}
    observation = {"type": "Dict", "subspaces": parts}
    options = {"goal": [1.5, 2.0], "deep": {"b": 1, "a": [True]}}
    episodes = [
        toy_episode(n, length, observation=observation, seed=2**64 - 5 - n, options=options)
        for n, length in enumerate([3, 1, 7])
    ]
    batches = [
        read_minari(write_minari(tmp_path / storage, episodes, storage, observation=observation))
        for storage in STORAGES
    ]
    for batch in batches[1:]:
        assert_same_batch(batch, batches[0])
        assert batch.notes == batches[0].notes

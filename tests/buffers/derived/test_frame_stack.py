from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.buffers.derived import Derived, action_chunk, frame_stack, n_step, normalize
from offline_data.episodes.fields import next_of
from offline_data.errors import UsageError

pytestmark = pytest.mark.usefixtures("gathering")

FEW = settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def frames(of: Any, key: Any, episode: int, time: int, k: int, pad: str) -> Any:
    """Look at the observations up to a time, one at a time."""
    found = []
    for age in range(k - 1, -1, -1):
        frame = np.array(of.state(episode, max(time - age, 0), key))
        found.append(np.zeros_like(frame) if time < age and pad == "zero" else frame)
    return np.stack(found)


@FEW
@given(
    data=st.data(),
    k=st.integers(1, 5),
    pad=st.sampled_from(("repeat", "zero")),
    n=st.integers(0, 4),
)
def test_frames_are_those_before(sets: Any, data: Any, k: int, pad: Any, n: int) -> None:
    of = sets.write(*data.draw(sets.strategy))
    rows = data.draw(st.permutations([*range(of.rows), 0]))
    batch, index = of.gather(rows)
    if n:
        batch = n_step(n)(batch, index, of.storage)
    key = ("observation", "state")
    after = batch["next", "observation", "state"].clone()
    found = frame_stack(k, ["observation", "image"], pad=pad)(batch, index, of.storage)
    assert found["observation", "state"].shape == (len(rows), k, 3)
    assert found["next", "image"].shape == (len(rows), k, 2, 3, 4)
    for place, row in enumerate(rows):
        episode, time = of.place[row]
        later = time + (int(found["steps_to_next_obs"][place]) if n else 1)
        for name in (key, ("image",)):
            want = frames(of, name, episode, time, k, pad)
            np.testing.assert_array_equal(found[name][place].numpy(), want)
            want = frames(of, name, episode, later, k, pad)
            np.testing.assert_array_equal(found[next_of(name)][place].numpy(), want)
        np.testing.assert_array_equal(found[next_of(key)][place, -1], after[place])


def test_at_the_beginning_of_an_episode(sets: Any, episode: Any) -> None:
    of = sets.write([episode(2), episode(3)])
    found = of.derive(frame_stack(3), [2, 3])
    assert found["observation", "state"][:, :, 0].tolist() == [[2001] * 3, [2001, 2001, 2002]]
    following = found["next", "observation", "state"][:, :, 0].tolist()
    assert following == [[2001, 2001, 2002], [2001, 2002, 2003]]
    found = of.derive(frame_stack(3, pad="zero"), [2, 3])
    assert found["observation", "state"][:, :, 0].tolist() == [[0, 0, 2001], [0, 2001, 2002]]
    assert found["next", "observation", "state"][:, :, 0].tolist() == [
        [0, 2001, 2002],
        [2001, 2002, 2003],
    ]


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -3])
def test_frames_joined(sets: Any, episode: Any, dim: int) -> None:
    of = sets.write([episode(4)])
    apart = of.derive(frame_stack(3, ["image"]))
    found = of.derive(frame_stack(3, ["image"], cat_dim=dim))
    for key in ("image", ("next", "image")):
        want = torch.cat(list(apart[key].unbind(1)), dim % 3 + 1)
        assert found[key].shape[1 + dim % 3] == 3 * (2, 3, 4)[dim]
        assert found[key].equal(want)
        assert found[key].is_contiguous()


def test_leaves_are_contiguous_and_apart(sets: Any, episode: Any) -> None:
    of = sets.write([episode(4)])
    found = of.derive(frame_stack(2, "observation"))
    leaves = [found[key] for key in found.keys(include_nested=True, leaves_only=True)]
    assert all(leaf.is_contiguous() for leaf in leaves)
    places = [leaf.untyped_storage().data_ptr() for leaf in leaves]
    assert len(set(places)) == len(places)
    assert found["action"].shape == (4, 1)


def test_root_alone(sets: Any, episode: Any) -> None:
    of = sets.write([episode(3)], keys=["image"])
    found = of.derive(frame_stack(2, "image"))
    assert set(found.keys()) == {"image", "index"}
    assert found["image"].shape == (3, 2, 2, 3, 4)


def test_a_storage_that_grows(grown: Any, sets: Any, episode: Any) -> None:
    storage, derived = grown(sets.write([episode(2)])), frame_stack(2)
    rows = torch.arange(2)
    derived(storage.gather(rows), rows, storage)
    storage.extend(grown(sets.write([episode(2), episode(2)])).content[2:])
    rows = torch.arange(4)
    found = derived(storage.gather(rows), rows, storage)["observation", "state"]
    assert found[:, :, 0].tolist() == [[1001, 1001], [1001, 1002], [2001, 2001], [2001, 2002]]


def test_through_a_buffer_with_chunks_and_scales(sets: Any, episode: Any) -> None:
    of = sets.write([episode(4), episode(2, "truncated", False)])
    scale = {"observation/state": (1000.0, 500.0), "action": (-1000.0, 10.0)}
    derived: list[Derived] = [
        frame_stack(2, [("observation", "state")]),
        action_chunk(3),
        normalize([("observation", "state"), "action"], scale, eps=0),
    ]
    ds = BaseDatasetExperienceReplay(of.path, 8, derived=derived)
    again = pickle.loads(pickle.dumps(ds))  # noqa: S301
    for batch in (ds.sample(), again.sample()):
        for place, row in enumerate(batch["index"].tolist()):
            where, time = of.place[row]
            want = (frames(of, ("observation", "state"), where, time, 2, "repeat") - 1000) / 500
            np.testing.assert_allclose(batch["observation", "state"][place], want, rtol=1e-5)
            want = frames(of, ("observation", "state"), where, time + 1, 2, "repeat")
            found = batch["next", "observation", "state"][place]
            np.testing.assert_allclose(found, (want - 1000) / 500, rtol=1e-5)
            last = of.episodes[where].length - 1
            ahead = [-of.state(where, min(time + j, last))[0] for j in range(3)]
            want = (np.array(ahead)[:, None] + 1000) / 10
            np.testing.assert_allclose(batch["action"][place], want, rtol=1e-5)


def test_it_is_a_value() -> None:
    one, other = frame_stack(4), frame_stack(4, "observation")
    assert one == other == pickle.loads(pickle.dumps(one))  # noqa: S301
    assert len({one, other, frame_stack(4, pad="zero")}) == 2
    assert repr(one) == "frame_stack(4, ['observation'], cat_dim=None, pad='repeat')"


def test_what_cannot_be_meant(sets: Any, episode: Any) -> None:
    with pytest.raises(UsageError, match="k is 0"):
        frame_stack(0)
    with pytest.raises(UsageError, match="pad is 'edge'"):
        frame_stack(2, pad="edge")  # type: ignore[arg-type]
    of = sets.write([episode(3)])
    for derived, message in [
        (frame_stack(2, ["observations"]), "no leaf 'observations'"),
        (frame_stack(2, ["next.observation"]), "no leaf 'next/observation'"),
        (frame_stack(2, ["image"], cat_dim=3), "cat_dim is 3"),
        (frame_stack(2, ["image"], cat_dim=-4), "cat_dim is -4"),
    ]:
        with pytest.raises(UsageError, match=message):
            of.derive(derived)
    ds = BaseDatasetExperienceReplay(of.path, 2, derived=[frame_stack(2)], split_trajs=True)
    with pytest.raises(UsageError, match="whole episodes"):
        ds.sample()
    ds = BaseDatasetExperienceReplay(of.path, 2, derived=[normalize(), frame_stack(2)])
    with pytest.raises(UsageError, match="takes the leaf 'observation/state'"):
        ds.sample()

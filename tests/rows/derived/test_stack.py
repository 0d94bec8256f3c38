from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from offline_data.episode.fields import next_of
from offline_data.rows.derived import action_chunk, frame_stack, n_step


def frames(of: Any, key: Any, episode: int, time: int, k: int, pad: str) -> Any:
    """Look at the observations up to a time, one at a time."""
    found = []
    for age in range(k - 1, -1, -1):
        frame = np.array(of.state(episode, max(time - age, 0), key))
        found.append(np.zeros_like(frame) if time < age and pad == "zero" else frame)
    return np.stack(found)


@pytest.mark.parametrize(
    ("k", "pad", "n", "layout"),
    [(1, "repeat", 0, "compact"), (3, "zero", 0, "ted"), (5, "repeat", 2, "compact"),
     (2, "zero", 4, "compact")],
)  # fmt: skip
def test_frames_are_those_before(sets: Any, k: int, pad: Any, n: int, layout: Any) -> None:
    of = sets.write(layout=layout)
    rows = of.shuffled()
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


@pytest.mark.parametrize("dim", [0, 2, -3])
def test_frames_joined(sets: Any, episode: Any, dim: int) -> None:
    of = sets.write([episode(4)])
    apart = of.derive(frame_stack(3, ["image"]))
    found = of.derive(frame_stack(3, ["image"], cat_dim=dim))
    for key in ("image", ("next", "image")):
        want = torch.cat(list(apart[key].unbind(1)), dim % 3 + 1)
        assert found[key].shape[1 + dim % 3] == 3 * (2, 3, 4)[dim]
        assert found[key].equal(want)
        assert found[key].is_contiguous()


@pytest.mark.parametrize(
    ("k", "pad", "layout"), [(1, "zero", "compact"), (3, "repeat", "ted"), (8, "zero", "compact")]
)
def test_actions_are_those_ahead(sets: Any, k: int, pad: Any, layout: Any) -> None:
    of = sets.write(layout=layout)
    rows = of.shuffled()
    found = of.derive(action_chunk(k, pad=pad), rows)
    assert found["action"].shape == (len(rows), k, 1)
    assert found["chunk_mask"].shape == (len(rows), k)
    assert found["chunk_mask"].dtype == torch.bool
    for place, row in enumerate(rows):
        episode, time = of.place[row]
        for j in range(k):
            inside = time + j < of.episodes[episode].length
            last = min(time + j, of.episodes[episode].length - 1)
            want = -of.state(episode, last)[0] if inside or pad == "repeat" else 0
            assert found["action"][place, j] == want
            assert found["chunk_mask"][place, j] == inside


def test_root_alone(sets: Any, episode: Any) -> None:
    of = sets.write([episode(3)], keys=["image"])
    found = of.derive(frame_stack(2, "image"))
    assert set(found.keys()) == {"image", "index"}
    assert found["image"].shape == (3, 2, 2, 3, 4)

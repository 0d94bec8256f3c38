from __future__ import annotations

import pickle
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.buffers.derived import Derived, frame_stack, normalize
from offline_data.episodes.fields import next_of
from offline_data.errors import UsageError

STATE = ("observation", "state")

module = import_module("offline_data.buffers.derived.normalize")


def roots(of: Any, key: Any = STATE) -> Any:
    """List the observation before every action."""
    return np.stack([of.state(e, t, key) for e, t in of.place]).astype(np.float64)


@pytest.mark.parametrize(("eps", "layout"), [(1e-3, "ted"), (0.5, "compact")])
def test_it_is_the_sets_mean_and_spread(sets: Any, eps: float, layout: Any) -> None:
    of = sets.write(layout=layout)
    batch, index = of.gather(of.shuffled())
    before = batch.clone()
    found = normalize(["observation", "image"], eps=eps)(batch, index, of.storage)
    for key in (STATE, ("observation", "achieved_goal"), ("image",)):
        column = roots(of, key)
        mean, spread = column.mean(0), column.std(0)
        for name in (key, next_of(key)):
            want = (before[name].numpy() - mean) / (spread + eps)
            assert found[name].dtype == torch.float32
            np.testing.assert_allclose(found[name].numpy(), want, rtol=1e-3, atol=1e-3)
    assert found["info", "code"].equal(before["info", "code"])
    assert found["action"].equal(before["action"])


def test_a_parent_stands_for_floating_numbers(sets: Any, episode: Any) -> None:
    of = sets.write([episode(5)])
    found = of.derive(normalize(["info", "observation"]))
    assert found["info", "code"].dtype == torch.int64
    found = of.derive(normalize([("info", "code")], eps=0))
    assert found["info", "code"].dtype == torch.float32
    assert abs(float(found["info", "code"].mean())) < 1e-6
    assert float(found["info", "code"].std(unbiased=False)) == pytest.approx(1)


def test_the_inverse(sets: Any, episode: Any) -> None:
    of, scaled = sets.write([episode(5), episode(3)]), normalize(["observation", "action"])
    batch, rows = of.gather()
    before = batch.clone()
    found = scaled(batch, rows, of.storage)
    assert not found[STATE].equal(before[STATE])
    back = scaled.denormalize(found)
    for key in (STATE, next_of(STATE), "action"):
        torch.testing.assert_close(back[key], before[key], rtol=1e-5, atol=1e-2)
    one = scaled.denormalized("action", scaled.normalized("action", before["action"][0]))
    torch.testing.assert_close(one, before["action"][0], rtol=1e-5, atol=1e-2)


def test_statistics_stay_with_the_object(sets: Any, episode: Any) -> None:
    training, other = sets.write([episode(5)]), sets.write([episode(2), episode(9)])
    scaled = normalize("observation")
    with pytest.raises(UsageError, match="No statistics yet") as caught:
        scaled.normalized(STATE, torch.zeros(3))
    assert "fit(buffer.storage)" in str(caught.value.hint)
    ds = BaseDatasetExperienceReplay(training.path, 4, derived=[scaled])
    want = ds[:][STATE]
    found = BaseDatasetExperienceReplay(other.path, 4, derived=[scaled])[:2][STATE]
    assert found.equal(want[:2])
    again = pickle.loads(pickle.dumps(ds))  # noqa: S301
    assert again[:][STATE].equal(want)
    moved = pickle.loads(pickle.dumps(scaled))  # noqa: S301
    assert other.derive(moved, [0])[STATE].equal(want[:1])
    assert moved.fit(other.storage) is moved
    assert moved == scaled


@pytest.mark.parametrize("items", [1, 30])
def test_chunks_add_up_to_the_whole(
    grown: Any, sets: Any, episode: Any, monkeypatch: pytest.MonkeyPatch, items: int
) -> None:
    monkeypatch.setattr(module, "CHUNK_ITEMS", items)
    storage, rows = grown(sets.write([episode(40)])), torch.arange(40)
    values = torch.randn(40, 2, 3, dtype=torch.float64) * 5 + 1e6
    values[3, 1, 2], values[7, 1, 2], values[39, 0, 0] = np.nan, np.inf, -np.inf
    storage.content["x"] = values
    finite = np.where(np.isfinite(values.numpy()), values.numpy(), np.nan)
    found = normalize(["x"], eps=0)(storage.gather(rows), rows, storage)["x"]
    want = (values.numpy() - np.nanmean(finite, 0)) / np.nanstd(finite, 0)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
    storage.content = storage.content[:0]
    with pytest.raises(UsageError, match="'action' has no finite value"):
        normalize("action").fit(storage)


def test_statistics_that_are_given(grown: Any, sets: Any, episode: Any) -> None:
    storage = grown(sets.write([episode(2)]))
    given_ones = {STATE: (np.array([1000.0, 0, 1]), torch.tensor([1.0, 2, 4]))}
    scaled = normalize([STATE], given_ones, eps=0)
    rows, read = torch.arange(2), storage.gathered
    found = scaled(storage.gather(rows), rows, storage)
    assert found[STATE].tolist() == [[1, 500.5, 250], [2, 501, 250.25]]
    assert storage.gathered == read + 2
    single = normalize([STATE], {"observation.state": (1000, 2)}, eps=0)
    assert single(storage.gather(rows), rows, storage)[STATE][:, 0].tolist() == [0.5, 1]


def test_invalid_arguments(sets: Any, episode: Any) -> None:
    with pytest.raises(UsageError, match="eps is -1"):
        normalize(eps=-1)
    with pytest.raises(UsageError, match="no leaf 'observation'"):
        normalize(["observation"], {"action": (0, 1)})
    of = sets.write([episode(3)])
    for one, message in [
        (normalize(["observatio"]), "no leaf 'observatio'"),
        (normalize([STATE], {STATE: ([1, 2], [1, 2])}), r"have shape \[2\], which does not match \[3, 3\]"),
        (normalize([STATE], {STATE: ([[1], [1], [1]], 1)}), r"have shape \[3, 1\], which does not match"),
        (normalize(["observation"], {STATE: (0, 1)}), "No statistics of 'observation/achieved_goal'"),
    ]:  # fmt: skip
        with pytest.raises(UsageError, match=message):
            of.derive(one)
    derived: list[Derived] = [frame_stack(2, ["image"], cat_dim=0), normalize(["image"])]
    with pytest.raises(
        UsageError, match=r"have shape \[2, 3, 4\], which does not match \[., 4, 3, 4\]"
    ):
        BaseDatasetExperienceReplay(of.path, 2, derived=derived).sample()

from __future__ import annotations

import pickle
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from offline_data.base.errors import UsageError
from offline_data.buffers.dataset import Dataset
from offline_data.buffers.mixtures.dataset_mixture import DatasetMixture
from offline_data.episode.fields import next_of
from offline_data.rows.derived import normalize
from offline_data.torchrl.buffer import ReplayBuffer
from offline_data.torchrl.ensembles.buffer import ReplayBufferEnsemble
from offline_data.torchrl.storages import LazyTensorStorage

STATE = ("observation", "state")

module = import_module("offline_data.rows.derived.normalize")


def roots(of: Any, key: Any = STATE) -> Any:
    """List the observation before every action."""
    return np.stack([of.state(*place, key) for place in of.place]).astype(np.float64)


def assert_scale(scale: Any, column: Any) -> None:
    """The statistics of the state are those of these rows."""
    found = scale.statistics["observation/state"]
    assert found.count.tolist() == [len(column)] * 3
    np.testing.assert_allclose(found.mean, column.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.std, column.std(0), rtol=1e-12)


def assert_scaled(found: Any, stored: Any, column: Any) -> None:
    """States are scaled by the statistics of a column."""
    want = (stored - column.mean(0)) / (column.std(0) + 1e-3)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("eps", "by", "layout"),
    [(None, "std", "ted"), (0.5, "std", "compact"), (None, "quantile", "ted"), (0.5, "quantile", "compact")],
)  # fmt: skip
def test_it_is_the_sets_mean_and_spread(sets: Any, eps: Any, by: str, layout: Any) -> None:
    of = sets.write(layout=layout)
    batch, index = of.gather(of.shuffled())
    before = batch.clone()
    scale = normalize(["observation", "image"], eps=eps, by=by)
    found = scale(batch, index, of.storage)
    for key in (STATE, ("observation", "achieved_goal"), ("image",)):
        column = roots(of, key)
        if by == "std":
            low, spread, shift = column.mean(0), column.std(0) + (1e-3 if eps is None else eps), 0
        else:
            low, high = np.quantile(column, [0.01, 0.99], axis=0)
            spread, shift = (high - low + (1e-6 if eps is None else eps)) / 2, 1
            known: Any = scale.statistics["/".join(key)]
            np.testing.assert_allclose([known.q01, known.q99], [low, high], rtol=1e-12)
            assert (known.count == len(column)).all()
        for name in (key, next_of(key)):
            want = (before[name].numpy() - low) / spread - shift
            assert found[name].dtype == torch.float32
            np.testing.assert_allclose(found[name].numpy(), want, rtol=1e-3, atol=1e-3)
    assert found["info", "code"].equal(before["info", "code"])
    assert found["action"].equal(before["action"])
    for name, leaf in scale.denormalize(found).items(True, True):
        np.testing.assert_allclose(leaf, before[name], rtol=1e-3, atol=1e-2)


def test_a_parent_stands_for_floating_numbers(sets: Any, episode: Any) -> None:
    of = sets.write([episode(5)])
    found = of.derive(normalize(["info", "observation"]))
    assert found["info", "code"].dtype == torch.int64
    found = of.derive(normalize([("info", "code")], eps=0))
    assert found["info", "code"].dtype == torch.float32
    assert abs(float(found["info", "code"].mean())) < 1e-6
    assert float(found["info", "code"].std(unbiased=False)) == pytest.approx(1)


def test_statistics_stay_with_the_object(sets: Any, episode: Any) -> None:
    training, other = sets.write([episode(5)]), sets.write([episode(2), episode(9)])
    scaled = normalize("observation")
    ds = Dataset(training.path, 4, derived=[scaled])
    want = ds[:][STATE]
    found = Dataset(other.path, 4, derived=[scaled])[:2][STATE]
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


def test_statistics_in_the_open(sets: Any, episode: Any) -> None:
    of = sets.write([episode(5), episode(3)])
    ds = Dataset(of.path, 4)
    scaled = normalize(["observation", "action"])
    assert scaled.statistics == {}
    assert scaled.fit(ds) is scaled
    assert_scale(scaled, roots(of))
    state = scaled.statistics["observation/state"]
    assert state.mean.dtype == torch.float64
    goals = {"observation/achieved_goal", "observation/desired_goal"}
    assert set(scaled.statistics) == {"observation/state", "action", *goals}
    view = normalize("observation").fit(ds.episodes_at([1]))
    assert_scale(view, roots(of)[5:])
    again = normalize(["observation", "action"], scaled.statistics)
    assert again.statistics == scaled.statistics
    mean, _ = view.statistics["observation/state"]
    assert mean.equal(view.statistics["observation/state"].mean)
    whole = repr(scaled)
    assert "observation/state" in whole
    assert str(state.mean.numpy()) in whole
    assert repr(pickle.loads(pickle.dumps(scaled))) == whole  # noqa: S301


READS: dict[str, Callable[[Any, Any], Any]] = {
    "a row of a part": lambda _, parts: parts["val"][0],
    "a batch of a part": lambda _, parts: parts["val"].sample(2),
    "a view of a view": lambda _, parts: parts["val"].episodes_at([0]).subset([0])[0],
    "a filter": lambda ds, _: ds.filter("length > 8").sample(2),
    "iteration": lambda ds, _: next(iter(ds)),
    "an episode": lambda _, parts: parts["val"].episode(0).transitions,
    "a loader": lambda _, parts: next(iter(parts["val"].dataloader(2))),
    "torch's loader": lambda _, parts: next(iter(DataLoader(parts["val"], 2))),
    "pickling a part": lambda _, parts: pickle.loads(pickle.dumps(parts["val"]))[0],  # noqa: S301
    "forked workers": lambda _, parts: [*parts["val"].dataloader(2, num_workers=2, multiprocessing_context="fork")][-1],
    "torch's forked workers": lambda _, parts: [*DataLoader(parts["val"], 2, num_workers=1, multiprocessing_context="fork")][-1],
    "an unread state": lambda *_: None,
}  # fmt: skip
SPAWNED: dict[str, Callable[[Any, Any], Any]] = {
    "spawned workers": lambda _, parts: [*parts["val"].dataloader(2, num_workers=2, multiprocessing_context="spawn")][-1],
    "torch's spawned workers": lambda _, parts: [*DataLoader(parts["val"], 2, num_workers=1, multiprocessing_context="spawn")][-1],
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:A DataLoader reads all rows")
@pytest.mark.parametrize(
    "first", [*READS, *(pytest.param(name, marks=pytest.mark.slow) for name in SPAWNED)]
)
def test_whatever_is_read_first_statistics_are_the_datasets(
    sets: Any, episode: Any, first: str
) -> None:
    of = sets.write([episode(n, "truncated", known=n != 7) for n in (2, 9, 3, 1, 7, 4)])
    scale = normalize("observation")
    ds = Dataset(of.path, 4, derived=scale)
    parts = ds.split(train=0.5, val=0.5, seed=0)
    batch = (READS | SPAWNED)[first](ds, parts)
    computed_here = first not in {"torch's forked workers", "an unread state"}
    assert ("observation/state" in repr(scale)) == computed_here
    saved = scale.state_dict()["statistics"]["observation/state"]
    assert_scale(scale, roots(of))
    assert np.array2string(saved["mean"].numpy(), precision=6) in repr(scale)
    if batch is not None:
        batch = batch if batch.batch_dims else batch[None]
        rows = batch.get("dataset_index", batch["index"])
        for key, after in ((STATE, 0), (next_of(STATE), 1)):
            seen = [of.state(e, t + after) for e, t in (of.place[row] for row in rows.tolist())]
            assert_scaled(batch[key], np.stack(seen), roots(of))


@pytest.mark.parametrize("read", [False, True])
def test_fit_replaces_the_statistics_of_the_dataset(sets: Any, episode: Any, read: bool) -> None:
    of = sets.write([episode(n) for n in (2, 9, 3)])
    scale = normalize("observation")
    ds = Dataset(of.path, 4, derived=scale)
    if read:
        ds.sample()
    assert scale.own
    scale.fit(ds.episodes_at([1]))
    assert_scale(scale, roots(of)[2:11])
    assert_scaled(ds[:][STATE], roots(of), roots(of)[2:11])
    kept = scale.statistics
    for done in (scale, pickle.loads(pickle.dumps(scale))):  # noqa: S301
        assert not done.own
        assert done.fit(ds).statistics == kept  # not those of an earlier fit


def test_joint_statistics(sets: Any, episode: Any) -> None:
    one, other = sets.write([episode(5), episode(3)]), sets.write([episode(7, "truncated", False)])
    buffers = [Dataset(of.path, 4) for of in (one, other)]
    grown = ReplayBuffer(LazyTensorStorage(9))
    grown.extend(buffers[0][2:6].exclude("index"))
    column = np.concatenate([roots(one), roots(other), roots(one)[2:6]])
    inner = DatasetMixture(buffers[1], grown, weights=[5, 1])
    ways: list[Any] = [(*buffers, grown), (DatasetMixture(buffers[0], inner),)]
    ways += [(ReplayBufferEnsemble(*buffers, grown),), (buffers[0].storage, inner)]
    for data in ways:
        assert_scale(normalize("observation").fit(*data), column)


def test_members_with_statistics_of_their_own(sets: Any, episode: Any) -> None:
    """Rows scaled by two datasets' statistics do not belong in one batch."""
    paths = [sets.write([episode(n)]).path for n in (5, 8)]

    def members(*scales: Any) -> list[Any]:
        pairs = zip(paths, scales, strict=True)
        return [Dataset(path, 4, derived=scale) for path, scale in pairs]

    scales = normalize(), normalize()
    mixture = DatasetMixture(*members(*scales), batch_size=8)
    nested = DatasetMixture(DatasetMixture(mixture.members[0]), mixture.members[1])
    mixture.members[0].sample()
    for several in (mixture, nested):
        with pytest.raises(
            UsageError, match="Of member 0 and member 1, each has a normalize"
        ) as caught:
            several.sample()
        assert "fit(" in str(caught.value.hint)
    for scale in scales:
        scale.fit(mixture)
    batch = mixture.sample()
    assert scales[0].statistics == scales[1].statistics
    assert torch.equal(scales[0].denormalize(batch)[STATE].round(), batch[STATE].round())
    shared = normalize()
    DatasetMixture(*members(shared, shared), batch_size=8).sample()
    DatasetMixture(
        *members(normalize([STATE], {STATE: (0, 1)}), normalize()), keys=["action"]
    ).sample()


def test_its_state_goes_with_a_checkpoint(sets: Any, episode: Any, tmp_path: Path) -> None:
    of, other = sets.write([episode(5)]), sets.write([episode(2)])
    scaled = normalize("observation").fit(Dataset(of.path, 4))
    torch.save(scaled.state_dict(), tmp_path / "scale.pt")
    found = torch.load(tmp_path / "scale.pt", weights_only=True)
    for fresh in (
        normalize("observation"),
        normalize("observation", {"observation": (0.0, 1.0)}),
        normalize("observation").fit(other.storage),
    ):
        fresh.load_state_dict(found)
        assert not fresh.own  # a later fit changes nothing
        assert fresh.statistics == scaled.statistics
        assert_scale(fresh, roots(of))
        ds = Dataset(other.path, 4, derived=[fresh])
        assert_scaled(ds[:][STATE], roots(other), roots(of))
    given = normalize(["action"], {"action": (1, 2)})
    given.load_state_dict(given.state_dict())
    assert given.statistics["action"].count is None


@pytest.mark.parametrize("by", ["std", "quantile"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "i8", "u1"])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 2, 3), (0, 3)])
def test_arrays_are_as_tensors(shape: tuple[int, ...], dtype: str, by: str) -> None:
    """Every bit, with the operations in their order."""
    first, second = np.array([1.0, 2.0, 3.3]), np.array([1.5, 4.0, 3.3])
    scaled = normalize("observation", {"observation": (first, second)}, eps=0.3, by=by)
    values = (np.arange(np.prod(shape)) % 250).reshape(shape).astype(dtype)[..., ::-1]
    wide = np.float64 if dtype in {"f8", "i8"} else np.float32
    if by == "std":
        divisor, shift = second.astype(wide) + wide(0.3), 0
    else:
        divisor, shift = ((second - first) / 2).astype(wide) + wide(0.15), 1
    want = ((values - first.astype(wide)) / divisor - shift).astype(np.float32)
    found = scaled.normalized("observation", values)
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, want)
    tensor = scaled.normalized("observation", torch.tensor(values.copy()))
    if dtype == "i4":  # numpy widens it to float64, torch does not
        np.testing.assert_allclose(tensor, found, rtol=1e-6)
    else:
        assert tensor.numpy().tobytes() == found.tobytes()
    back = scaled.denormalized("observation", found)
    assert isinstance(back, np.ndarray)
    np.testing.assert_allclose(back, values, rtol=1e-5, atol=1e-4)
    from_tensor = scaled.denormalized("observation", torch.tensor(found))
    assert from_tensor.numpy().tobytes() == back.tobytes()


def test_one_observation_of_an_environment(sets: Any, episode: Any) -> None:
    """Dicts and tuples as environments return them; what has no statistics stays as it is."""
    of = sets.write([episode(5), episode(3)])
    scaled = normalize("observation").fit(of.storage)
    batch, rows = of.gather()
    want = scaled(batch.clone(), rows, of.storage)
    for row in (0, 6):
        seen = {
            "state": batch[STATE][row].numpy(),
            "achieved_goal": batch["observation", "achieved_goal"][row],
            "mission": "go",
        }
        found = scaled.normalized("observation", seen)
        assert isinstance(found["state"], np.ndarray)
        np.testing.assert_array_equal(found["state"], want[STATE][row])
        assert found["achieved_goal"].equal(want["observation", "achieved_goal"][row])
        assert found["mission"] == "go"
        whole = scaled.normalized("observation", batch["observation"][row])
        assert whole["state"].equal(want[STATE][row])
        assert batch[STATE][row].numpy().tolist() == seen["state"].tolist()
    pair = normalize("observation", {"observation/0": (1, 2), "observation/1/x": (0, 4)}, eps=0)
    first, second = pair.normalized("observation", (np.array([3.0]), {"x": 8, "y": 9}))
    assert (first.tolist(), float(second["x"]), second["y"]) == ([1.0], 2.0, 9)
    assert pair.denormalized("observation/1", {"x": np.float32(2)}) == {"x": 8}

"""`SliceSampler(pad="zero")` and `timestep`: subsequences as Decision Transformer draws them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from offline_data.buffers.dataset import Dataset
from offline_data.rows.derived import action_chunk, frame_stack, return_to_go, timestep
from offline_data.rows.samplers import (
    PrioritizedSliceSampler,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from offline_data.testing.toy import toy_batch, write_toy

LENGTHS = [3, 1, 6]
STARTS = [0, 3, 4]
K = 4


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    write_toy(tmp_path / "toy", [toy_batch(LENGTHS, images=True)])
    return tmp_path / "toy"


def open_with(toy: Path, sampler: Any, **options: Any) -> Any:
    derived: list[Any] = [return_to_go(), timestep()]
    return Dataset(toy, sampler=sampler, derived=derived, **options)


def subsequence(episode: int, begin: int) -> dict[str, list[float]]:
    """What the published code makes of an episode from `begin` on, the padding at the end."""
    length = LENGTHS[episode]
    codes = [1000.0 * (episode + 1) + t + 1 for t in range(length + 1)]
    here = range(begin, min(begin + K, length))
    fill = [0.0] * (K - len(here))
    return {
        "observation": [codes[t] for t in here] + fill,
        "action": [-codes[t] for t in here] + fill,
        "reward": [codes[t + 1] / 10 for t in here] + fill,
        "return_to_go": [sum(codes[t + 1 :]) / 10 for t in here] + fill,
        "timestep": [*here, *fill],
        "mask": [1.0] * len(here) + fill,
    }


def found_in(batch: Any) -> list[dict[str, list[float]]]:
    leaves = {
        "observation": batch["observation", "state"][:, 0],
        "action": batch["action"][:, 0],
        "reward": batch["next", "reward"][:, 0],
        "return_to_go": batch["return_to_go"][:, 0],
        "timestep": batch["timestep"],
        "mask": batch["collector", "mask"],
    }
    rows = len(batch) // K
    flat = {name: leaf.double().reshape(rows, K).tolist() for name, leaf in leaves.items()}
    return [{name: leaf[n] for name, leaf in flat.items()} for n in range(rows)]


SAMPLERS: dict[str, Any] = {
    "starts": lambda: SliceSampler(slice_len=K, pad="zero", over="starts", seed=0),
    "episodes": lambda: SliceSampler(slice_len=K, pad="zero", seed=0),
    "each once": lambda: SliceSamplerWithoutReplacement(slice_len=K, pad="zero", seed=0),
    "prioritized": lambda: PrioritizedSliceSampler(
        100, 0.6, 0.4, slice_len=K, pad="zero", strict_length=False
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLERS)
def test_slices_are_those_published(toy: Path, name: str) -> None:
    ds = open_with(toy, SAMPLERS[name](), batch_size=2000 if name != "each once" else 3 * K)
    torch.manual_seed(0)
    drawn: Counter[tuple[int, int]] = Counter()
    for _ in range(1 if name != "each once" else 200):
        batch = ds.sample()
        first = batch["index"].view(-1, K)[:, 0].contiguous()
        episodes = torch.searchsorted(torch.tensor(STARTS), first, right=True) - 1
        for number, found in enumerate(found_in(batch)):
            episode = int(episodes[number])
            begin = int(first[number]) - STARTS[episode]
            drawn[episode, begin] += 1
            for key, values in subsequence(episode, begin).items():
                assert found[key] == pytest.approx(values, rel=1e-6), (key, episode, begin)
    every = {(e, t) for e, length in enumerate(LENGTHS) for t in range(length)}
    assert set(drawn) == every
    by_episode = Counter({e: sum(n for (x, _), n in drawn.items() if x == e) for e in range(3)})
    if name == "starts":
        assert by_episode[2] > 1.5 * by_episode[0] > 1.5 * by_episode[1]
    if name == "each once":
        assert by_episode == {0: 200, 1: 200, 2: 200}


def test_padding_is_zero_and_tells_its_rows(toy: Path) -> None:
    ds = open_with(toy, SAMPLERS["starts"](), batch_size=400)
    batch = ds.sample()
    mask = batch["collector", "mask"]
    assert 0 < int((~mask).sum()) < 400
    for key in batch.keys(include_nested=True, leaves_only=True):
        if key not in ("index", "episode"):
            assert not batch.get(key)[~mask].any(), key
    assert batch["observation", "image"][mask].any()
    ends = batch["next", "truncated"].view(-1, K).sum(1)
    assert ends.tolist() == [1] * len(ends)  # the last row that is there
    assert torch.equal(ds[batch["index"]]["episode"], batch["episode"])


def test_views(toy: Path) -> None:
    view = open_with(toy, None).subset(range(5, 9))  # four rows inside of the last episode
    view.set_sampler(SliceSampler(slice_len=3, pad="zero", seed=0))
    batch = view.sample(300)
    mask = batch["collector", "mask"]
    assert set(batch["dataset_index"].tolist()) == {5, 6, 7, 8}
    assert torch.equal(batch["timestep"][mask], batch["dataset_index"][mask] - 5)


def test_timesteps_of_rows(toy: Path) -> None:
    assert Dataset(toy, 3, derived=timestep()).sample()["timestep"].ndim == 1


def test_keys_come_first_and_numbers_alone_still_do() -> None:
    assert frame_stack("pixels", 4) == frame_stack(4, "pixels") == frame_stack(4, ["pixels"])
    assert frame_stack(4) == frame_stack(k=4) == frame_stack("observation", 4)
    assert action_chunk("action", 8) == action_chunk(8) == action_chunk(8, "action")
    assert (
        return_to_go("rtg", 0.9) == return_to_go(0.9, "rtg") == return_to_go(gamma=0.9, key="rtg")
    )
    assert return_to_go(0.9) == return_to_go("return_to_go", 0.9)
    assert return_to_go() == return_to_go(1.0)

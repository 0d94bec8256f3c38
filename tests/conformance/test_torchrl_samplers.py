"""Slices and priorities of this package and of TorchRL: the same calls on the same transitions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from offline_data import open_dataset
from offline_data.rows import samplers as ours

with warnings.catch_warnings():  # torchrl deprecates classes of its own while it is imported
    warnings.simplefilter("ignore")
    import torchrl.data as theirs
    from torchrl.data.replay_buffers.samplers import prioritized

LENGTHS = [6, 2, 9, 5]
ROWS = sum(LENGTHS)
MASK = ("collector", "mask")


class Tree:
    """TorchRL's segment trees, which are compiled for one release of torch: as a plain array."""

    def __init__(self, size: int, dtype: type, neutral: float, reduce: Callable[..., Any]) -> None:
        self.values: Any = np.full(size, neutral, dtype)
        self.reduce = reduce

    def __getitem__(self, index: Any) -> Any:
        found = self.values[np.asarray(index)]
        return torch.from_numpy(found) if isinstance(index, torch.Tensor) else found

    def __setitem__(self, index: Any, value: Any) -> None:
        self.values[np.asarray(index)] = np.asarray(value)

    def query(self, left: int, right: int) -> float:
        return float(self.reduce(self.values[left:right]))

    def scan_lower_bound(self, mass: Any) -> Any:
        return torch.from_numpy(np.searchsorted(np.cumsum(self.values, dtype=float), mass, "right"))


@pytest.fixture(autouse=True)
def _trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let TorchRL's own code run also where its binary does not load."""
    if prioritized.SumSegmentTreeFp32 is not None:
        return
    for name, dtype in (("32", np.float32), ("64", np.float64)):
        for kind, neutral, reduce in (("Sum", 0.0, np.sum), ("Min", np.inf, np.min)):
            tree = partial(Tree, dtype=dtype, neutral=neutral, reduce=reduce)
            monkeypatch.setattr(prioritized, f"{kind}SegmentTreeFp{name}", tree)


@pytest.fixture
def folder(toys: Callable[..., Path]) -> Path:
    return toys(LENGTHS, layout="ted")


@pytest.fixture
def both(folder: Path) -> Callable[..., tuple[Any, Any]]:
    """Make the same buffer twice, with a sampler of the same name and arguments."""

    def make(size: int, name: str, *args: Any, **options: Any) -> tuple[Any, Any]:
        torchrl = theirs.TensorDictReplayBuffer(
            storage=theirs.TensorStorage(TensorDict.load_memmap(folder / "ted")),
            writer=theirs.ImmutableDatasetWriter(),
            sampler=getattr(theirs, name)(*args, **options),
            batch_size=size,
        )
        sampler = getattr(ours, name)(*args, **options)
        return open_dataset(folder, size, sampler=sampler), torchrl

    return make


def leaves_of(batch: Any) -> dict[Any, tuple[Any, Any]]:
    """Return dtype and shape of every leaf; TorchRL gives the rows of slices as `[B, 1]`."""
    found = {}
    for key in batch.keys(include_nested=True, leaves_only=True):
        leaf = batch[key].reshape(len(batch)) if key == "index" else batch[key]
        found[key] = (leaf.dtype, leaf.shape)
    return found


SLICES: list[dict[str, Any]] = [
    {"slice_len": 4},
    {"num_slices": 6, "traj_key": "episode"},
    {"slice_len": 4, "strict_length": False},
    {"slice_len": 4, "strict_length": False, "pad_output": True},
    {"slice_len": 2, "truncated_key": None, "cache_values": True},
    {"slice_len": 4, "end_key": ("next", "done")},
]


@pytest.mark.parametrize("options", SLICES, ids=str)
def test_slices_have_the_same_leaves(
    both: Callable[..., tuple[Any, Any]], options: dict[str, Any]
) -> None:
    marked = options.get("truncated_key", 1) is not None
    marks = {("next", "truncated"), ("next", "done")} if marked else set()
    mine, other = both(24, "SliceSampler", **options)
    whole = mine[:]
    for _ in range(6):
        batches = mine.sample(), other.sample()
        keys = leaves_of(batches[0]).keys() ^ leaves_of(batches[1]).keys()
        assert keys <= {MASK}  # TorchRL leaves it out where no episode is too short
        if len(batches[0]) == len(batches[1]):
            found = [leaves_of(batch.exclude(MASK)) for batch in batches]
            assert found[0] == found[1]
        for batch in batches:
            rows = batch["index"].reshape(-1)
            for key in set(leaves_of(batch)) - marks - {"index", MASK}:
                assert torch.equal(batch[key], whole[key][rows]), key


@pytest.mark.parametrize(
    ("alpha", "beta", "dtype"),
    [
        (0.7, 0.5, torch.float32),
        (1.0, 1.0, torch.float32),
        (0.5, 0.4, torch.float64),
        (0.0, 0.3, torch.float64),
    ],
)
def test_weights_and_importance_weights_are_torchrls(
    both: Callable[..., tuple[Any, Any]], alpha: float, beta: float, dtype: torch.dtype
) -> None:
    """Powers differ by a rounding where torch computes the last few numbers of a batch."""
    mine, other = both(300, "PrioritizedSampler", ROWS, alpha, beta, dtype=dtype)
    priority = torch.rand(ROWS, generator=torch.Generator().manual_seed(0), dtype=dtype) * 5
    for buffer in (mine, other):
        buffer.update_priority(torch.arange(ROWS), priority)
    batches = mine.sample(), other.sample()
    assert leaves_of(batches[0]) == leaves_of(batches[1])
    tolerance = 4 * torch.finfo(dtype).eps
    stored = mine.sampler.state_dict()["weights"]
    expected = torch.as_tensor(other._sampler._sum_tree[torch.arange(ROWS)])
    torch.testing.assert_close(stored, expected, rtol=tolerance, atol=0)
    of_row = torch.full((ROWS,), float("nan"), dtype=dtype)
    of_row[batches[1]["index"]] = batches[1]["priority_weight"]
    of_mine = of_row[batches[0]["index"]]
    known = ~of_mine.isnan()
    assert int(known.sum()) > 200
    weights = batches[0]["priority_weight"][known]
    torch.testing.assert_close(weights, of_mine[known], rtol=tolerance, atol=0)

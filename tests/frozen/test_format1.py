"""Datasets, views, lock files and checkpoints of format 1, written before the first release, still open."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import offline_data as od
from tests.frozen.values import of_batch

WRITTEN = Path(__file__).parent / "format1"
EXPECTED = json.loads((WRITTEN / "expected.json").read_text(encoding="utf-8"))
SAMPLERS: dict[str, Callable[[], od.Sampler]] = {
    "uniform": od.RandomSampler,
    "prioritized": lambda: od.PrioritizedSampler(8, alpha=0.7, beta=0.9),
    "exact": od.SamplerWithoutReplacement,
}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Return a copy of what was written."""
    return Path(shutil.copytree(WRITTEN, tmp_path / "format1"))


def load(folder: Path, name: str) -> Any:
    return od.load_dataset(f"local:{name}", 4, root=folder / "root", download=False)


@pytest.mark.parametrize("name", ["compact", "ted", "words"])
def test_datasets(name: str, written: Path) -> None:
    assert of_batch(load(written, name)[:]) == EXPECTED[name]
    assert od.verify(f"local:{name}", root=written / "root").ok


@pytest.mark.parametrize("name", ["long", "rows"])
def test_saved_views(name: str, written: Path) -> None:
    view = load(written, "compact").saved_view(name)
    assert of_batch(view[:]) == EXPECTED[f"view {name}"]


def test_lock_file(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(written)
    before = (written / "datasets.lock").read_text(encoding="utf-8")
    od.sync(root="root", progress=False)
    assert not od.lock(root="root", progress=False).changes
    assert (written / "datasets.lock").read_text(encoding="utf-8") == before


@pytest.mark.filterwarnings("ignore:.*checksum:UserWarning", "ignore:.*digest:UserWarning")
@pytest.mark.parametrize("name", SAMPLERS)
def test_checkpoints(name: str, written: Path) -> None:
    buffer = od.TensorDictReplayBuffer(
        storage=od.LazyTensorStorage(8), sampler=SAMPLERS[name](), batch_size=4
    )
    buffer.loads(str(written / "checkpoints" / name))
    assert of_batch(buffer[:]) == EXPECTED[f"checkpoint {name}"]
    assert len(buffer.sample()) == 4


@pytest.mark.filterwarnings("ignore:.*checksum:UserWarning", "ignore:.*digest:UserWarning")
def test_checkpoint_of_a_mixture(written: Path) -> None:
    members = [load(written, "compact"), load(written, "compact")]
    mixture = od.DatasetMixture(*members, weights=[0.3, 0.7], batch_size=4)
    mixture.loads(str(written / "checkpoints" / "mixture"))
    assert torch.isfinite(mixture.sample()["next", "reward"]).all()

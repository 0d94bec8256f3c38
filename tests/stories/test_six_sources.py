"""The smallest real or faithful files of six sources, through every verb, to a training step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import offline_data
from tests.ingest.here import convert_here
from tests.stories.conftest import Shell

FILES = {
    "openx": "rlds_octo_bridge/bridge_dataset",
    "atari_dqn": "atari_dqn_generated/Pong/1",
    "gen_dgrl": "fixtures_generated/gendgrl/bigfish.tar.xz",
    "roboset": "roboset_robohive",
    "vd4rl": "fixtures_generated/vd4rl/main/walker_walk/random/64px",
    "openml": "openml_sklearn/id_61/data-v1-dl-61.arff.gz",
}


@pytest.mark.parametrize("source", FILES)
def test_from_raw_files_to_a_training_step(
    source: str, shell: Shell, realdata: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert_here(monkeypatch)

    shell.run("convert", str(realdata / FILES[source]), "mine", "--from", source)
    for verb in ("info", "stats", "head", "sample", "verify"):
        assert shell.run(verb, "local:mine").stdout
    shell.run("preprocess", "local:mine", "--step", "reward_scale:scale=2", "--out", "twice")
    assert shell.run("verify", "local:twice").stdout

    rows = offline_data.load_dataset("local:mine", 16, root=shell.root, download=False)
    twice = offline_data.load_dataset("local:twice", 16, root=shell.root, download=False)
    assert torch.equal(twice[:]["next", "reward"], 2 * rows[:]["next", "reward"])

    def inputs(batch: Any) -> torch.Tensor:
        leaves = [
            value.float().reshape(len(value), -1)
            for value in batch.exclude("next", "index").values(True, True)
            if isinstance(value, torch.Tensor)
        ]
        return torch.nan_to_num(torch.cat(leaves, 1))

    batch = rows.sample()
    model = torch.nn.Linear(inputs(batch).shape[1], 1)
    loss = (model(inputs(batch)) - batch["next", "reward"].float()).square().mean()
    loss.backward()
    assert model.weight.grad is not None
    assert torch.isfinite(model.weight.grad).all()

"""`LeRobotExperienceReplay`: TorchRL's arguments and names over a converted dataset."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from offline_data import LeRobotExperienceReplay
from offline_data.base.config import Settings
from offline_data.base.ids import parse_id
from offline_data.pipeline.ingest import Options, download
from offline_data.pipeline.jobs.executors import InProcess
from tests.toys.lerobot import LENGTHS, TASKS, toy_image, write_lerobot
from tests.toys.servers import HubServer

with warnings.catch_warnings():  # torchrl deprecates classes of its own while it is imported
    warnings.simplefilter("ignore")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lerobot")
    write_lerobot(folder / "toy", "v3.0")
    with HubServer({"me/toy": folder / "toy"}) as hub:
        settings = Settings(folder / "root", hub_endpoint=hub.url, minari_path=folder)
        download(parse_id("lerobot:me/toy"), settings, Options(), executor=InProcess())
    return folder / "root"


def opened(root: Path, **options: Any) -> Any:
    return LeRobotExperienceReplay("me/toy", root=root, download=False, **options)


def test_names_and_values(root: Path) -> None:
    rows = opened(root, batch_size=4)[:]
    code = torch.tensor([1000.0 * e + t + 1 for e, n in enumerate(LENGTHS) for t in range(n)])
    assert rows["action"][:, 0].equal(-code)
    assert rows["observation", "state"][:, 0].equal(code)
    assert rows["frame"].tolist() == [t for n in LENGTHS for t in range(n)]
    assert rows["episode"].tolist() == [e for e, n in enumerate(LENGTHS) for _ in range(n)]
    assert rows["language_instruction"][0] == TASKS[0]
    image = rows["observation", "image", "cam"]
    assert image[5].equal(torch.from_numpy(toy_image(1, 0)))
    later = rows["next", "observation", "image", "cam"]
    assert later[0].equal(torch.from_numpy(toy_image(0, 1)))
    assert ("observation", "images") not in rows.keys(include_nested=True)


def test_slices_and_names_of_ones_own(root: Path) -> None:
    names = {
        "task": "said",
        "observation.state": ("observation", "proprio"),
        "episode_index": "trajectory",
    }
    buffer = opened(root, batch_size=6, slice_len=3, key_map=names)
    for made in (buffer, pickle.loads(pickle.dumps(buffer))):  # noqa: S301 -- our own bytes
        batch = made.sample()
        episodes = batch["trajectory"].reshape(2, 3)
        assert (episodes == episodes[:, :1]).all()
        assert batch["said"][0] in TASKS
        state = batch["observation", "proprio"][:, 0]
        assert batch["next", "observation", "proprio"].shape == (6, 3)
        assert state.equal(-batch["action"][:, 0])

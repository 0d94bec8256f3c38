"""LeRobot datasets as a user meets them: commands at 80 columns, batches of a policy, a training step."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import offline_data
from offline_data import StreamingDataset, action_chunk, frame_stack, normalize
from offline_data.base.config import Settings
from tests.pipeline.ingest.here import conversions_start_no_process
from tests.stories.conftest import Shell
from tests.toys.lerobot import LENGTHS, TASKS, write_lerobot
from tests.toys.servers import HubServer

__all__ = ["conversions_start_no_process"]

SETS = ("lerobot_generated_v21/full", "lerobot_generated_v30/full", "lerobot_v30_record-test")


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_every_command_on_real_files(name: str, realdata: Path, shell: Shell) -> None:
    said = shell.run("convert", str(realdata / name), "robot", "--format", "table")
    absent = name.endswith("record-test")
    assert ("videos of" in said.stderr) == absent
    about = json.loads((realdata / name / "meta/info.json").read_text())
    for line in ("info", "stats", "head -n 2", "check", "sample --batch 4"):
        verb, *more = line.split()
        out = shell.run(verb, "local:robot", *more, "--format", "table").stdout
        assert max(map(len, out.splitlines())) <= 80, verb
    told = shell.json("info", "local:robot")
    assert told["transitions"] == about["total_frames"]
    assert told["about"]["features"]["action"]["names"] == about["features"]["action"]["names"]
    if absent:
        assert "no image feature" in shell.run("view", "local:robot", "0", code=2).stderr
    else:
        film = shell.json("view", "local:robot", "0", "--out", str(shell.folder / "a.mp4"))
        assert film["fps"] == about["fps"]


def test_a_set_without_rewards_says_so(tmp_path: Path, shell: Shell) -> None:
    names = ("next.reward", "next.done", "next.success")
    folder = write_lerobot(
        tmp_path / "toy", "v3.0", edit=lambda rows: rows.drop_columns([*names]), images=False
    )
    info = json.loads((folder / "meta/info.json").read_text())
    for name in names:
        del info["features"][name]
    (folder / "meta/info.json").write_text(json.dumps(info))
    shell.run("convert", str(folder), "robot")
    assert "has no rewards" in shell.run("sample", "local:robot").stderr
    assert "has no rewards" in shell.run("info", "local:robot").stdout
    described = shell.run("info", "local:robot", "--format", "table").stdout
    assert "action float32" in " ".join(described.split())
    shutil.rmtree(shell.root)
    shell.run("convert", str(write_lerobot(tmp_path / "rewarded", images=False)), "robot")
    assert "has no rewards" not in shell.run("sample", "local:robot").stderr


def test_a_policy_with_a_horizon_trains(tmp_path: Path) -> None:
    """Two observations and eight actions, as of a diffusion policy."""
    folder = write_lerobot(tmp_path / "toy", "v3.0", videos=())
    offline_data.convert(folder, "robot", root=tmp_path / "root", progress=False)
    scale = normalize(["observation/state", "action"])
    images = "observation/images/vid"
    ds: Any = offline_data.load_dataset(
        "local:robot",
        batch_size=16,
        root=tmp_path / "root",
        keys=["observation/state", images, "action"],
        derived=[frame_stack(["observation/state", images], 2), action_chunk(8), scale],
    )
    rows = ds[:]
    assert rows["observation", "images", "vid"].shape == (sum(LENGTHS), 2, 32, 48, 3)
    assert rows["chunk_mask"].sum(1).tolist() == [min(8, n - t) for n in LENGTHS for t in range(n)]
    torch.manual_seed(0)
    policy = torch.nn.Linear(2 * 3 + 1, 8 * 2)
    optimizer = torch.optim.Adam(policy.parameters(), 1e-2)
    losses = []
    for _, batch in zip(range(60), ds, strict=False):
        grey = batch["observation", "images", "vid"].float().mean((1, 2, 3, 4)) / 255
        seen = torch.cat([batch["observation", "state"].flatten(1), grey[:, None]], 1)
        error = (policy(seen).unflatten(1, (8, 2)) - batch["action"]).square()
        loss = (error * batch["chunk_mask"][..., None]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4


def test_a_stream_reads_what_is_asked_for(tmp_path: Path) -> None:
    """Batches without a dataset on the disk: transitions, slices, and only some features."""
    lengths = (5, 2, 3, 4)
    folder = write_lerobot(tmp_path / "toy", "v3.0", lengths, videos=(2,))
    codes = [1000 * e + t + 1 for e, n in enumerate(lengths) for t in range(n)]
    ends = {1000 * e + n for e, n in enumerate(lengths) if e % 2}  # truncated: no next observation
    with HubServer({"me/toy": folder}) as hub:
        settings = Settings(tmp_path / "root", hub_endpoint=hub.url, minari_path=tmp_path)

        def stream(**options: Any) -> list[Any]:
            return [*StreamingDataset("lerobot:me/toy", 4, settings=settings, **options)]

        batches = stream(only="observation.state")
        assert not any(".mp4" in request.path for request in hub.requests)
        seen = [code for batch in batches for code in batch["observation", "state"][:, 0].tolist()]
        assert sorted(seen) == [code for code in codes if code not in ends]
        for batch in batches:
            texts = [TASKS[int(code) // 1000 % 2] for code in -batch["action"][:, 0]]
            assert list(batch["task"]) == texts
            assert list(batch["observation"].keys()) == ["state"]
        for batch in stream():
            episodes = (-batch["action"][:, 0]).long() // 1000
            step = (-batch["action"][:, 0]).long() % 1000 - 1
            grey = batch["observation", "images", "vid"].float().mean((1, 2, 3))
            torch.testing.assert_close(grey, 40.0 * episodes + 4 * step + 20, atol=2, rtol=0)
            pixels = batch["observation", "images", "cam"]
            assert pixels[:, 0, 0, 0].tolist() == (episodes + 1).tolist()
        slices = torch.cat([batch["action"][:, 0] for batch in stream(slice_len=2)])
        assert slices.reshape(4, 2).diff(dim=1).tolist() == [[-1.0]] * 4
    assert not [path for path in (tmp_path / "root/.downloads").rglob("*") if path.is_file()]
    assert not [*(tmp_path / "root").rglob("manifest.json")]

"""The smallest real or faithful files of six sources, through every verb, to a training step.

The same files are also downloaded, from a server that has them as their host does.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import offline_data
from offline_data.store.manifest import read_manifest
from tests.pipeline.ingest.here import convert_here
from tests.stories.conftest import Shell
from tests.toys.servers import FileServer, GcsServer, HubServer, LocalServer

pytestmark = pytest.mark.slow

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

    split = ["--split", "all"] if source == "openx" else []
    shell.run("convert", str(realdata / FILES[source]), "mine", "--from", source, *split)
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


def openx(raw: Path, _: Path) -> LocalServer:
    place = "/datasets/bridge_release/data/tfds/bridge_dataset/1.0.0/"
    return FileServer({place + one.name: one.read_bytes() for one in raw.glob("1.0.0/*")})


def atari_dqn(raw: Path, _: Path) -> LocalServer:
    files = {f"dqn/Pong/1/replay_logs/{one.name}": one for one in raw.glob("replay_logs/*")}
    return GcsServer(
        {"atari-replay-datasets": {name: one.read_bytes() for name, one in files.items()}}
    )


def gen_dgrl(raw: Path, _: Path) -> LocalServer:
    return FileServer({"/DGRL/10M/bigfish.tar.xz": raw.read_bytes()})


def roboset(raw: Path, folder: Path) -> LocalServer:
    return on_hub("jdvakil/RoboSet_Sim", "DAPG(human)/door_v2d-v1", raw, folder)


def vd4rl(raw: Path, folder: Path) -> LocalServer:
    return on_hub("conglu/vd4rl", "vd4rl/main/walker_walk/random/64px", raw, folder)


def on_hub(repository: str, place: str, raw: Path, folder: Path) -> LocalServer:
    (folder / place).mkdir(parents=True)
    for file in raw.iterdir():
        (folder / place / file.name).symlink_to(file)
    return HubServer({repository: folder})


def openml(raw: Path, _: Path) -> LocalServer:
    about = gzip.decompress((raw.parent / "api-v1-jd-61.json.gz").read_bytes())
    table = gzip.decompress(raw.read_bytes())
    return FileServer({"/api/v1/json/data/61": about, "/data/v1/download/61/iris.arff": table})


HOSTS: dict[str, tuple[str, str, Callable[[Path, Path], LocalServer]]] = {
    "openx": ("bridge_dataset", "https://rail.eecs.berkeley.edu", openx),
    "atari_dqn": ("Pong/1", "https://storage.googleapis.com", atari_dqn),
    "gen_dgrl": ("bigfish-10M", "https://dl.fbaipublicfiles.com", gen_dgrl),
    "roboset": ("DAPG(human)/door_v2d-v1", "", roboset),
    "vd4rl": ("main/walker_walk/random/64px", "", vd4rl),
    "openml": ("61", "https://www.openml.org", openml),
}
"""A name of each source that its files may have, and the host, if not the hub."""


@pytest.mark.parametrize("source", HOSTS)
def test_downloaded_from_a_server(
    source: str, shell: Shell, realdata: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert_here(monkeypatch)
    name, host, serve = HOSTS[source]
    raw = realdata / FILES[source]
    split = ["--split", "all"] if source == "openx" else []
    (converted,) = shell.json("convert", str(raw), "mine", "--from", source, *split)
    with serve(raw, tmp_path / "hub") as server:
        places = {"OFFLINE_DATA_MIRRORS": f"{host}={server.url}"} if host else {}
        online = Shell(shell.folder, {"HF_ENDPOINT": server.url, **places})
        (downloaded,) = online.json("download", f"{source}:{name}")
    assert not shell.run("verify", f"{source}:{name}", "-q").stderr
    ours, theirs = (read_manifest(Path(one["path"])) for one in (downloaded, converted))
    assert ours.digests == theirs.digests
    assert ours.counts == theirs.counts

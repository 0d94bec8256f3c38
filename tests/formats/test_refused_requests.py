"""Downloads in which a host refuses, lacks or replaces one file: the error names it, and says what to do.

Every source of the registry is tried. Each file that its download asks for goes wrong in turn, wherever
it is asked for; nothing is published then, and the same call succeeds once the host does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import AuthError, NotFoundError, OfflineDataError
from offline_data.base.ids import parse_id
from offline_data.fetch import client, plan
from offline_data.formats.atari_dqn import source as atari_dqn
from offline_data.formats.options import TextOptions
from offline_data.formats.registry import iter_catalogs
from offline_data.formats.rlds.webdataset import REPO
from offline_data.pipeline.ingest import Options, Stored, download
from offline_data.pipeline.jobs.executors import InProcess
from offline_data.text.tokenizer import pin_tokenizer
from tests.formats.test_d3rlpy import write_flat
from tests.formats.test_flat_sources import flat_arrays, write_dsrl
from tests.remedy import assert_none
from tests.toys.atari import write_replay_log
from tests.toys.d4rl import write_d4rl_hdf5
from tests.toys.gen_dgrl import toy_files, write_archive
from tests.toys.lerobot import write_lerobot
from tests.toys.maniskill import toy_trajectory, write_maniskill
from tests.toys.minari import toy_episode, write_minari
from tests.toys.ogbench import toy_arrays, write_ogbench
from tests.toys.openml import toy_table
from tests.toys.rlds import toy_record, write_rlds
from tests.toys.robomimic import toy_demo, write_demos, write_libero
from tests.toys.roboset import write_roboset
from tests.toys.servers import (
    Answer,
    FileServer,
    GcsServer,
    HubServer,
    LocalServer,
    Request,
)
from tests.toys.text import write_tokenizer
from tests.toys.vd4rl import write_vd4rl_hdf5, write_vd4rl_npz
from tests.toys.webdataset import write_webdataset

pytestmark = pytest.mark.slow


def hub(repository: str, folder: Path) -> LocalServer:
    return HubServer({repository: folder}, lfs_size=1 << 30)  # every file by its own name


def bucket(name: str, prefix: str, folder: Path) -> LocalServer:
    return GcsServer(
        {name: {f"{prefix}{path.name}": path.read_bytes() for path in folder.iterdir()}}
    )


def file(place: str, path: Path) -> LocalServer:
    return FileServer({place: path.read_bytes()})


def atari(folder: Path) -> LocalServer:
    write_replay_log(folder, (6, 1, 24), capacity=40)
    return bucket(atari_dqn.BUCKET, "dqn/Pong/1/replay_logs/", folder)


def libero(folder: Path) -> LocalServer:
    write_libero(folder / "libero_10" / "a_demo.hdf5", rows=8)
    return hub("yifengzhu-hf/LIBERO-datasets", folder)


def maniskill(folder: Path) -> LocalServer:
    trajectories = {0: toy_trajectory(0, 4, obs="none", end="terminated")}
    write_maniskill(folder / "demos" / "PickCube-v1" / "rl" / "trajectory.h5", trajectories)
    return hub("haosulab/ManiSkill_Demonstrations", folder)


def demos(repository: str, place: str, folder: Path) -> LocalServer:
    write_demos(folder / place, {0: toy_demo(0, 3)})
    return hub(repository, folder)


def minari(folder: Path) -> LocalServer:
    write_minari(folder / "door" / "human-v2", [toy_episode(0, 4), toy_episode(1, 2)])
    return hub("farama-minari/D4RL", folder)


def openx_hub(folder: Path) -> LocalServer:
    write_webdataset(folder / "viola", "viola", "file", [[3, 1]])
    return hub(REPO, folder)


def text(folder: Path) -> LocalServer:
    (folder / "train.jsonl").write_text('{"text": "the cat"}')
    return hub("someone/stories", folder)


def roboset(folder: Path) -> LocalServer:
    write_roboset(folder / "DAPG(human)" / "door_v2d-v1", seeds=(0,), trials=(0, 1))
    return hub("jdvakil/RoboSet_Sim", folder)


def vd4rl(folder: Path) -> LocalServer:
    write_vd4rl_npz(folder / "vd4rl/main/walker_walk/random/64px", (3,))
    write_vd4rl_hdf5(folder / "vd4rl/main/walker_walk/random/84px", (3, 2), cuts=())
    return hub("conglu/vd4rl", folder)


ARFF = "https://www.openml.org/data/v1/download/6100/toy.arff"
CAR = "/datasets/YYY-45/DSRL/resolve/main/SafetyCarGoal1Gymnasium-v0-120-1671.hdf5"
PEN = "/datasets/offline_rl/hand_dapg_v1/pen-human-v1.hdf5"
PUBLISHED: Mapping[str, Callable[[Path], LocalServer]] = {
    "atari_dqn:Pong/1": atari,
    "d4rl:pen-human-v1": lambda to: file(PEN, write_d4rl_hdf5(to / "x.hdf5")),
    "d3rlpy:cartpole": lambda to: file("/s/uep0lzlhxpi79pd/cartpole_v1.1.0.h5", write_flat(to / "x.h5")),
    "dsrl:OfflineCarGoal1Gymnasium-v0": lambda to: file(CAR, write_dsrl(to / "x.hdf5", flat_arrays())),
    "gen_dgrl:bigfish-10M": lambda to: file("/DGRL/10M/bigfish.tar.xz", write_archive(to / "x.tar.xz", toy_files((3, 2)))),
    "hf:someone/stories": text,
    "lerobot:me/toy": lambda to: hub("me/toy", write_lerobot(to / "toy", "v3.0", (3, 2), files=())),
    "libero:libero_10": libero,
    "maniskill:PickCube-v1/rl/trajectory": maniskill,
    "mimicgen:core/stack_d0": partial(demos, "amandlek/mimicgen_datasets", "core/stack_d0.hdf5"),
    "minari:D4RL/door/human-v2": minari,
    "ogbench:cube-single-play-v0": lambda to: file("/datasets/ogbench/cube-single-play-v0.npz", write_ogbench(to / "x.npz", toy_arrays("cube", (3, 2)))),
    "openml:61": lambda _: FileServer(toy_table().served(url=ARFF)),
    "openx:viola": lambda to: bucket("gresearch", "robotics/viola/0.1.0/", write_rlds(to / "viola", {"train": [[toy_record(0, 3)]]}, name="viola")),
    "openx:viola@hub": openx_hub,
    "robomimic:lift/ph/low_dim_v15": partial(demos, "robomimic/robomimic_datasets", "v1.5/lift/ph/low_dim_v15.hdf5"),
    "roboset:DAPG(human)/door_v2d-v1": roboset,
    "vd4rl:main/walker_walk/random/64px": vd4rl,
    "vd4rl:main/walker_walk/random/84px": vd4rl,
}  # fmt: skip
"""A server of a small dataset, by its id."""
OPTIONAL = {("openx:viola", "o")}
"""Requests whose failure stops no download: a listing, which only adds sizes and digests."""
UNLISTED = {"d4rl", "d3rlpy", "dsrl", "gen_dgrl", "ogbench"}
"""Sources that ask for no listing, only for the file."""
PAGE = Answer(b"<!DOCTYPE html><html>", headers={"Content-Type": "text/html"})
FAULTS: Mapping[str, tuple[Answer, type[OfflineDataError], str]] = {
    "401": (Answer(b"", 401), AuthError, "offline_data.convert("),
    "403": (Answer(b"", 403), AuthError, "offline_data.convert("),
    "404": (Answer(b"", 404), NotFoundError, ""),
    "page": (PAGE, OfflineDataError, ""),
}
"""What is answered, the error that comes of it, and a word of its hint."""


UNTRIED = {
    "diffusion_policy": "one file, fetched as that of dsrl",
    "katakomba": "one file of the hub, fetched as that of maniskill",
    "neorl": "one file with a published digest, fetched as that of dsrl",
}


def test_every_source_that_publishes_is_tried() -> None:
    assert_none(
        {catalog.name for catalog in iter_catalogs()}
        - {parse_id(name).source for name in PUBLISHED}
        - UNTRIED.keys(),
        "add a server of a small dataset to PUBLISHED in tests/formats/test_refused_requests.py, or to "
        "UNTRIED there why another source stands for it",
    )


@pytest.fixture
def server(name: str, tmp_path: Path) -> Iterator[LocalServer]:
    published = tmp_path / "published"
    published.mkdir()
    with PUBLISHED[name](published) as running:
        yield running


def serve_every_host(server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the requests for all hosts to one server, except those of hub URLs."""

    def only_here(urls: list[str], *_: object) -> tuple[str, ...]:
        parts = [urlsplit(url) for url in urls]
        return tuple(
            url if one.scheme == "hf" else one._replace(scheme="http", netloc=here).geturl()
            for url, one in zip(urls, parts, strict=True)
        )

    here = urlsplit(server.url).netloc
    monkeypatch.setattr(client, "with_mirrors", only_here)
    monkeypatch.setattr(plan, "with_mirrors", only_here)


@pytest.mark.usefixtures("no_waits")
@pytest.mark.parametrize("name", PUBLISHED)
def test_each_file_goes_wrong(
    server: LocalServer, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_every_host(server, monkeypatch)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    dataset, right = parse_id(name), server.answer
    options = Options()
    if dataset.source == "hf":
        options = Options(text=pin_tokenizer(TextOptions(str(write_tokenizer(tmp_path)))))

    def get(root: str) -> Stored:
        folder = tmp_path / root
        settings = Settings(folder, hub_endpoint=server.url, workers=1, minari_path=tmp_path)
        return download(dataset, settings, options, executor=InProcess())

    assert get("good").manifest.counts["transitions"] > 0
    asked = {PurePosixPath(one.path).name: one.path for one in reversed(server.requests)}
    assert len(asked) > (dataset.source not in UNLISTED)
    for number, (name_of, path) in enumerate(asked.items()):
        for fault, (answer, kind, hinted) in FAULTS.items():
            if fault == ("401", "403")[number % 2]:
                continue

            def wrong(request: Request, file: str = name_of, answer: Answer = answer) -> Answer:
                return answer if PurePosixPath(request.path).name == file else right(request)

            monkeypatch.setattr(server, "answer", wrong)
            if (name, name_of) in OPTIONAL and answer is not PAGE:
                assert not get(f"{name_of}-{fault}").existed
                continue
            with pytest.raises(kind) as caught:
                get(f"{name_of}-{fault}")
            # of the hub's API an error names the repository
            parts = path.split("/")[3:5] if path.startswith("/api/d") else path.split("/")[-2:]
            assert "/".join(parts) in unquote(caught.value.message), (name_of, fault)
            assert hinted in (caught.value.hint or ""), (name_of, fault)
            assert not list((tmp_path / f"{name_of}-{fault}").rglob("manifest.json")), (
                name_of,
                fault,
            )
    monkeypatch.setattr(server, "answer", right)
    assert not get(f"{name_of}-{fault}").existed

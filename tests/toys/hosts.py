"""The hosts that the documentation names, on this machine: a hub, D4RL's file server and a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from huggingface_hub import constants

from offline_data.fetch import gcs
from offline_data.formats.catalogues.d4rl import read_table
from tests.toys.d4rl import TOYS, ToyD4RL, write_published
from tests.toys.hub import TOKEN, WritableHub
from tests.toys.lerobot import write_lerobot
from tests.toys.minari import box, toy_episode, write_minari
from tests.toys.rlds import toy_record, write_rlds
from tests.toys.servers import FileServer, GcsServer

D4RL_HOST = "http://rail.eecs.berkeley.edu/datasets/offline_rl/"
HOPPER = replace(
    TOYS["mujoco-v2"],
    episodes=tuple((60, "timeout" if number % 2 else "terminal") for number in range(10)),
    observation=(11,),
    action=(3,),
)
"""As `d4rl:hopper-medium-v2`, with fewer rows."""
PEN = replace(TOYS["adroit"], dataset="pen-human-v1")


@contextmanager
def published(folder: Path, *d4rl: ToyD4RL) -> Iterator[dict[str, str]]:
    """Publish toys of datasets; yields the environment variables that direct `offline-data` to them,
    and `HUB`, the folder of the Minari repository.

    `minari:D4RL/door/human-v2` has the published shapes and counts, `openx:viola/train` 30 episodes of
    20 steps. D4RL's catalogue states the sizes of `d4rl`, in this process and its children.
    """
    seen, acted = box(39), box(28)
    lengths = [273] + 24 * [269]
    episodes = [toy_episode(*one, observation=seen, action=acted) for one in enumerate(lengths)]
    write_minari(folder / "hub/door/human-v2", episodes, observation=seen, action=acted)
    files, table = {}, read_table()
    sized = {}
    for toy in d4rl or (HOPPER, PEN):
        entry = table[toy.dataset]
        content = write_published(folder / "d4rl", toy).read_bytes()
        files["/" + entry.url.removeprefix(D4RL_HOST)] = content
        sized[toy.dataset] = replace(entry, bytes=len(content))
    records = [toy_record(episode, 20) for episode in range(30)]
    viola = write_rlds(folder / "viola", {"train": [records[:20], records[20:]]}, name="viola")
    gsm8k = folder / "gsm8k/main/train.jsonl"
    gsm8k.parent.mkdir(parents=True)
    gsm8k.write_text('{"question": "the cat sat", "answer": " on the mat"}\n' * 4)
    pusht = write_lerobot(folder / "pusht", videos=(), images=False)
    repositories = {
        "farama-minari/D4RL": folder / "hub",
        "lerobot/pusht": pusht,
        "openai/gsm8k": folder / "gsm8k",
    }
    objects = {f"robotics/viola/0.1.0/{path.name}": path.read_bytes() for path in viola.iterdir()}
    with (
        GcsServer({"gresearch": objects}) as bucket,
        WritableHub(repositories) as hub,
        FileServer(files) as host,
        patch.dict(table, sized),
        patch.object(constants, "HF_HUB_DISABLE_XET", True),  # the hub here has the plain protocol
    ):
        yield {
            "HUB": str(folder / "hub"),
            "HF_ENDPOINT": hub.url,
            "HF_TOKEN": TOKEN,
            "OFFLINE_DATA_MIRRORS": f"{D4RL_HOST}={host.url}/;{gcs.HOST}={bucket.url}",
        }

"""Streaming an RLDS dataset from a local server: transitions per second by number of reading processes.

One shuffled epoch, from the first request to the last batch of 256, with processes started for each. The
upper limit is a single process that parses the same files from disk without making batches. `0 workers`
is the program itself, with its child process for parsing; each worker has its own child.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.decode import SIDE, _jpeg
from benchmarks.file_server import serving
from benchmarks.memory import added_mib
from benchmarks.timing import Row, interleaved
from offline_data.base.config import Settings
from offline_data.buffers.streaming import StreamingDataset
from offline_data.formats.rlds.source import OpenX
from tests.toys.rlds import toy_features, toy_record, write_rlds

NAME, HOST = "bridge_dataset", "https://rail.eecs.berkeley.edu"
"""A dataset whose host cannot be listed, so that a plain file server can replace it."""
SHARDS, EPISODES, BATCH = 16, 16, 256

_IMPORT = """
from offline_data.buffers.streaming import StreamingDataset
from offline_data.base.config import Settings
settings = Settings(Path(sys.argv[1]), mirrors=((sys.argv[2], sys.argv[3]),))
"""
_EPOCH = """
for batch in StreamingDataset("openx:bridge_dataset/train", 256, settings=settings, window_bytes=32 << 20):
    pass
"""


@dataclass(frozen=True)
class Case:
    """Episodes of one kind."""

    title: str
    length: int
    images: bool
    options: dict[str, Any]


CASES = (
    Case("vectors: 64 floats, a text", 200, False, {}),
    Case(f"JPEG of {SIDE} x {SIDE}, decoded", 50, True, {}),
    Case(f"JPEG of {SIDE} x {SIDE}, decode=False", 50, True, {"decode": False}),
)


def run(folder: Path, *, repeats: int, scale: float) -> list[Row]:
    """Measure every case; `scale` shrinks the number of shards."""
    return [row for case in CASES for row in _measure(case, folder / case.title, repeats, scale)]


def _measure(case: Case, folder: Path, repeats: int, scale: float) -> list[Row]:
    from torch.utils.data import DataLoader

    shards = max(2, int(SHARDS * scale))
    raw = _write(folder / "raw", case, shards)
    size = sum(path.stat().st_size for path in raw.iterdir())
    count = shards * EPISODES * case.length
    with serving(raw) as url:
        settings = Settings(folder / "root", mirrors=((HOST, url),))

        def epoch(workers: int) -> Callable[[], object]:
            def stream() -> None:
                made = StreamingDataset(
                    f"openx:{NAME}/train", BATCH, settings=settings, **case.options
                )
                loader: Any = made
                if workers:
                    loader = DataLoader(
                        made, batch_size=None, num_workers=workers, collate_fn=_same
                    )
                rows = sum(len(batch) for batch in loader)
                if rows != count - shards * EPISODES:  # the last of each has no next observation
                    raise SystemExit(f"the stream has {rows} transitions, not {count}")

            return stream

        def parse() -> None:
            source = OpenX()
            opened = source.open(source.release_of(raw, NAME), raw)
            for shard in opened.shards():
                for _ in opened.read(shard):
                    pass

        jobs = {f"{n} workers": epoch(n) for n in (0, 1, 2)} | {"parsed only": parse}
        seconds = interleaved(jobs, repeats=repeats)
        added = added_mib(_IMPORT, _EPOCH, folder / "memory", HOST, url)
    ours = seconds["0 workers"]
    title = f"{case.title}; {shards} shards of {size / shards / (1 << 20):.1f} MiB"
    return [
        Row(
            title,
            name,
            f"{took / ours:.2f}×",
            f"{count / took:,.0f} transitions/s, {size / took / (1 << 20):.0f} MiB/s"
            + (f", +{added} MiB (windows of 32 MiB)" if name == "0 workers" else ""),
        )
        for name, took in seconds.items()
    ]


def _same(batch: Any) -> Any:
    return batch


def _write(folder: Path, case: Case, shards: int) -> Path:
    """Write records like those of the toy, longer, and with larger images or none."""
    tree = toy_features()
    steps = tree["featuresDict"]["features"]["steps"]["sequence"]["feature"]
    observation = steps["featuresDict"]["features"]["observation"]["featuresDict"]["features"]
    for name in ("depth", "cloud", "points", "instruction"):
        del observation[name]
    observation["state"]["tensor"]["shape"]["dimensions"] = ["64"]
    if case.images:
        observation["image"]["image"]["shape"]["dimensions"] = [str(SIDE), str(SIDE), "3"]
        images = [_jpeg(number) for number in range(64)]
    else:
        del observation["image"]
    rng = np.random.default_rng(0)

    def record(episode: int) -> dict[str, Any]:
        made = toy_record(episode, case.length)
        for name in [n for n in made if n.startswith("steps/observation/")]:
            del made[name]
        made["steps/observation/state"] = rng.random(64 * case.length, np.float32)
        if case.images:
            chosen = [images[(episode + t) % 64] for t in range(case.length)]
            made["steps/observation/image"] = chosen
        made["steps/is_terminal"][:] = 0
        return made

    records = [[record(s * EPISODES + e) for e in range(EPISODES)] for s in range(shards)]
    return write_rlds(folder, {"train": records}, features=tree, name=NAME)

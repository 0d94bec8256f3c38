"""What a step measures, and all bytes that come of it, whoever takes the measures and in what order."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offline_data
from offline_data.episodes import EpisodeBatch
from offline_data.preprocess import plan as planning
from offline_data.preprocess.executors.base import Executor
from offline_data.preprocess.executors.local import InProcess, LocalProcesses
from offline_data.store.reader import open_reader
from offline_data.testing.toy import write_toy

LENGTHS = [5, 1, 9, 3, 7, 2, 8, 4, 6, 11, 1, 10, 3, 12, 5, 2, 9, 4]
UNKNOWN = (3, 9)
GAMMA = 0.9
STEPS = [
    "normalize:observation,action",
    "normalize_return:scale=100",
    f"return_to_go:gamma={GAMMA}",
    "filter:return > percentile(return, 25)",
]


class Backwards:
    """Runs the last task first, in this process, and counts how many there are."""

    shards = False
    name = "backwards"

    def __init__(self) -> None:
        self.counts: list[int] = []

    def run(self, job: Any, tasks: Sequence[Any], progress: Any) -> Iterator[tuple[int, Any]]:
        self.counts.append(len(tasks))
        found = list(InProcess().run(job, list(tasks)[::-1], progress))
        return ((len(tasks) - 1 - number, answer) for number, answer in found)


def episodes() -> EpisodeBatch:
    """Make episodes whose sums in float64 depend on the order in which they are taken."""
    rows, ends = sum(LENGTHS), np.cumsum(LENGTHS) - 1
    v = np.arange(1, rows + len(LENGTHS) + 1)
    last = np.isin(np.arange(rows), ends)[:, None]
    observation = np.stack([np.sin(v) * 10.0 ** (v % 7), np.sqrt(v)], axis=1)
    for episode in UNKNOWN:
        row = ends[episode] + episode + 1
        observation[row] = observation[row - 1]
    return EpisodeBatch(
        np.array(LENGTHS),
        {
            ("action",): np.cos(np.arange(1, rows + 1)).astype(np.float32),
            ("next", "reward"): np.exp(np.sin(np.arange(1, rows + 1)))[:, None],
            ("next", "terminated"): last,
            ("next", "truncated"): np.zeros_like(last),
        },
        {("observation",): observation},
        ~np.isin(np.arange(len(LENGTHS)), UNKNOWN),
    )


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(planning, "GROUP_BYTES", 500)  # about twelve rows: many groups
    write_toy(tmp_path / "toy", [episodes()])
    return tmp_path / "toy"


def made(parent: Path, dest: Path, engine: Executor, chunksize: int) -> tuple[Any, Any]:
    """Return what the steps learnt, and a digest of every file but the manifest."""
    offline_data.open_dataset(parent).preprocess(
        STEPS, dest=dest, engine=engine, chunksize=chunksize
    )
    files = sorted(path for path in dest.rglob("*") if path.is_file())
    digests = {
        str(path.relative_to(dest)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.name != "manifest.json"
    }
    return open_reader(dest).manifest.converter["options"]["recipe"], digests


def test_bytes_do_not_depend_on_processes_or_chunks(parent: Path, tmp_path: Path) -> None:
    first = made(parent, tmp_path / "first", InProcess(), 10_000)
    assert {"steps", "observations", "episodes"} <= {name.partition("/")[0] for name in first[1]}
    backwards = Backwards()
    runs: list[tuple[Executor, int]] = [
        (backwards, 1),
        (backwards, 29),
        (InProcess(), 13),
        (LocalProcesses(2), 17),
        (LocalProcesses(3), 31),
    ]
    for number, (engine, chunksize) in enumerate(runs):
        assert made(parent, tmp_path / str(number), engine, chunksize) == first, number
    assert min(backwards.counts) > 2
    assert len(set(backwards.counts)) > 1


def test_what_was_measured_is_right(parent: Path, tmp_path: Path) -> None:
    recipe, _ = made(parent, tmp_path / "made", Backwards(), 7)
    batch = episodes()
    stops = np.cumsum(batch.lengths)
    known = [
        batch.observations["observation",][row]
        for e, (stop, length) in enumerate(zip(stops, batch.lengths, strict=True))
        for row in range(stop - length + e, stop + e + (e not in UNKNOWN))
    ]
    for column, values in enumerate(zip(*known, strict=True)):
        mean = math.fsum(values) / len(values)
        spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
        learnt = recipe[0]["leaves"]["observation"]
        assert learnt["mean"][column] == pytest.approx(mean, rel=1e-12)
        assert learnt["std"][column] == pytest.approx(spread, rel=1e-12)
    reward = batch.steps["next", "reward"][:, 0]
    returns = [math.fsum(reward[b - n : b]) for b, n in zip(stops, batch.lengths, strict=True)]
    assert recipe[1]["minimum"] == pytest.approx(min(returns), rel=1e-12)
    assert recipe[1]["maximum"] == pytest.approx(max(returns), rel=1e-12)
    factor = 100 / (max(returns) - min(returns))
    kept = [e for e, one in enumerate(returns) if one > np.percentile(returns, 25)]
    reader = open_reader(tmp_path / "made")
    assert reader.lengths.tolist() == [LENGTHS[e] for e in kept]
    to_go = iter(reader.step(("return_to_go",))[:, 0])
    for e in kept:
        for row in range(stops[e] - LENGTHS[e], stops[e]):
            rest = reward[row : stops[e]]
            want = math.fsum(factor * one * GAMMA**ahead for ahead, one in enumerate(rest))
            assert next(to_go) == pytest.approx(want, rel=1e-9)
    assert next(to_go, None) is None


@pytest.mark.parametrize(
    ("step", "passes"),
    [
        ("split:a,a=0.5", 1),
        ("subsample:every=3", 1),
        ("filter:length > 4", 1),
        ("filter:length > 4 and return > 1", 2),
        ("dedupe", 2),
    ],
)
def test_data_are_read_once_where_tables_are_enough(
    parent: Path, tmp_path: Path, step: str, passes: int
) -> None:
    backwards = Backwards()
    offline_data.open_dataset(parent).preprocess(
        ["cast:observation=float32", step], dest=tmp_path / "made", engine=backwards
    )
    assert len(backwards.counts) == passes
    offline_data.open_dataset(parent).preprocess([step], dest=tmp_path / "alone")
    assert (
        open_reader(tmp_path / "made").lengths.tolist()
        == open_reader(tmp_path / "alone").lengths.tolist()
    )

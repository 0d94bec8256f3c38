"""`encode:format=h264`: files that PyAV alone decodes, the errors that are stated, and runs that stop."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import MissingDependencyError, StepError
from offline_data.pipeline.jobs.executors import LocalProcesses
from offline_data.pipeline.jobs.workdir import WorkDir
from offline_data.pipeline.preprocess.steps.encoded import Encode
from offline_data.pipeline.preprocess.steps.registry import parse_step
from offline_data.store.layout import OBSERVATIONS, STEPS
from offline_data.store.reader import open_reader
from offline_data.store.verify import verify
from offline_data.testing.chunks import toy_chunk, with_leaves
from offline_data.testing.toy import write_toy
from offline_data_cli.main import main
from tests.films import FILM, film_batch
from tests.films import LENGTHS as FILM_LENGTHS
from tests.pictures import JPEG, LENGTHS, PIXELS, PNG, WRIST, Kind, encoded_batch, raw, write
from tests.pipeline.preprocess.oracle import digests
from tests.pipeline.preprocess.runs import Shuffled, Stopping, make
from tests.slow import slow_but
from tests.syncs import Syncs, files_in

STEP = "encode:format=h264,keyframes=2"
EVEN: Kind = ("png", "uint8", (16, 32, 3))
_TASKS: dict[str, Any] = {"chunksize": 1}


@pytest.fixture(autouse=True)
def _each_episode_is_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offline_data.pipeline.preprocess.plan.GROUP_BYTES", 1)


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """A dataset of raw images, with an even width and height."""
    return write(tmp_path / "raw", raw(encoded_batch(kind=EVEN)))


def frames_of(folder: Path, table: str, key: Any) -> tuple[list[NDArray[Any]], list[list[int]]]:
    """Decode the files of a leaf by PyAV; returns frames, and numbers of key frames, of each file."""
    frames, keys = [], []
    for path in sorted((folder / table / f"{'/'.join(key)}.video").glob("*.mp4")):
        with av.open(str(path)) as file:
            frames.append(
                np.stack([one.to_ndarray(format="rgb24") for one in file.decode(video=0)])
            )
        with av.open(str(path)) as file:
            packets = [packet for packet in file.demux(video=0) if packet.pts is not None]
            keys.append([n for n, packet in enumerate(packets) if packet.is_keyframe])
    return frames, keys


@pytest.mark.parametrize(
    ("stored", "keyframes", "leaves"),
    [
        ("raw", 2, [(OBSERVATIONS, PIXELS), (STEPS, WRIST)]),
        pytest.param("odd", 1, [(OBSERVATIONS, PIXELS), (STEPS, WRIST)], marks=pytest.mark.slow),
        pytest.param("jpeg", 5, [(OBSERVATIONS, PIXELS), (STEPS, WRIST)], marks=pytest.mark.slow),
        ("video", 3, [(OBSERVATIONS, FILM)]),
    ],
)
def test_frames_key_frames_and_errors(
    stored: str,
    keyframes: int,
    leaves: Sequence[tuple[str, Any]],
    tmp_path: Path,
    settings: Settings,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lengths = FILM_LENGTHS if stored == "video" else LENGTHS
    if stored == "video":
        write_toy(tmp_path / "d", [film_batch(tmp_path)[0]])
    else:
        batch = encoded_batch(kind={"raw": EVEN, "odd": PNG, "jpeg": JPEG}[stored])
        write(tmp_path / "d", batch if stored == "jpeg" else raw(batch))
    text = f"encode:format=h264,keyframes={keyframes}"
    folder = make(tmp_path / "d", [text], tmp_path / "made", settings).path
    assert verify(folder) == ()
    new, old, errors = open_reader(folder), open_reader(tmp_path / "d"), []
    for table, key in leaves:
        frames, keys = frames_of(folder, table, key)
        counts = [length + (table == OBSERVATIONS) for length in lengths]
        assert [len(one) for one in frames] == counts
        assert keys == [list(range(0, count, keyframes)) for count in counts]
        found: Any = new.leaf(table, key)
        assert found.encoding == "video"
        np.testing.assert_array_equal(np.asarray(found), np.concatenate(frames))
        before = np.asarray(old.leaf(table, key)).astype(int)
        errors.append(np.abs(np.concatenate(frames) - before).reshape(-1))
    every = np.concatenate(errors)
    assert every.max() > 0
    assert every.mean() < 8
    (step,) = new.manifest.converter["options"]["recipe"]
    assert step["error"] == {"max": every.max(), "mean": pytest.approx(every.mean(), rel=1e-12)}
    stated = f"{every.max()} of 255 at most, by {every.mean():.3g} on average"
    assert [note for note in new.manifest.notes if note.endswith(stated)]
    capsys.readouterr()
    assert main(("info", str(folder))) == 0
    assert f"errors up to {every.max()} of 255, {every.mean():.3g} on average" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.slow
def test_bytes_do_not_depend_on_how_it_ran(
    parent: Path, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[dict[str, Any]] = [
        {},
        {"num_chunks": 1},
        {**_TASKS, "executor": Shuffled(shards=True)},
        {**_TASKS, "executor": LocalProcesses(2)},
    ]
    found = [
        make(parent, [STEP], tmp_path / f"{number}/out", settings, **run).path
        for number, run in enumerate(runs)
    ]
    monkeypatch.setattr("offline_data.store.encoded.usable_cores", lambda: 7)
    monkeypatch.setattr("offline_data.pipeline.jobs.workdir._OPEN", 1)
    syncs = Syncs(monkeypatch)
    found.append(make(parent, [STEP], tmp_path / "last/out", settings).path)
    assert syncs.lacks(files_in(found[-1])) == []
    recipes = [open_reader(one).manifest.converter["options"]["recipe"] for one in found]
    for folder, recipe in zip(found[1:], recipes[1:], strict=True):
        assert (digests(folder), recipe) == (digests(found[0]), recipes[0])


@pytest.mark.parametrize("damaged", slow_but(lambda damaged: damaged, [False, True]))
def test_a_run_that_was_killed_goes_on(
    damaged: bool, parent: Path, tmp_path: Path, settings: Settings
) -> None:
    whole = make(parent, [STEP], tmp_path / "whole/out", settings).path
    with pytest.raises(KeyboardInterrupt):
        make(parent, [STEP], tmp_path / "out", settings, executor=Stopping(3), **_TASKS)
    work = WorkDir(tmp_path / ".out.preprocess")
    done = work.numbers()
    assert len(done) == 3
    if damaged:
        film = min(work.shard(done[0]).rglob("*.mp4"))
        film.write_bytes(film.read_bytes()[:-1] + b"x")
    executor = Shuffled()
    make(parent, [STEP], tmp_path / "out", settings, executor=executor, resume=True, **_TASKS)
    assert sorted(executor.ran) == sorted({*range(len(LENGTHS))} - {*done[damaged:]})
    assert digests(tmp_path / "out") == digests(whole)
    assert not work.path.exists()
    of = (open_reader(folder).manifest for folder in (tmp_path / "out", whole))
    one, other = (manifest.converter["options"]["recipe"] for manifest in of)
    assert one == other


@pytest.mark.parametrize(
    "after",
    slow_but(
        lambda after: after == "reward_scale:2",
        ["reward_scale:2", "resample:10,source_fps=10,action=sum", "decode"],
    ),
)
def test_errors_are_those_of_the_step(
    after: str, parent: Path, tmp_path: Path, settings: Settings
) -> None:
    recipe = ["crop:8,8,observation.pixels", STEP, after]
    folder = make(parent, recipe, tmp_path / "made", settings).path
    alone = make(parent, recipe[:2], tmp_path / "alone", settings).path
    found, expected = (
        open_reader(one).manifest.converter["options"]["recipe"] for one in (folder, alone)
    )
    assert [("error" in step) for step in found] == [False, True, False]
    assert found[1]["error"] == expected[1]["error"]


@pytest.mark.slow  # by default, steps do
def test_functions_keep_the_errors(parent: Path, tmp_path: Path) -> None:
    def same(td: Any) -> Any:
        return td

    options: list[dict[str, Any]] = [{"by": "row"}, {"by": "episode"}]
    for number, option in enumerate(options):
        folder = tmp_path / str(number)
        offline_data.open_dataset(parent).preprocess([STEP, same], dest=folder, **option)
        assert "error" in open_reader(folder).manifest.converter["options"]["recipe"][0]


def test_what_is_encoded_again(tmp_path: Path) -> None:
    """Without names these are all leaves `[H, W, 3]`, however they are stored."""
    images = {
        "eye": np.full((3, 8, 8, 3), 51, np.uint8),
        "grey": np.full((3, 8, 8, 1), 51, np.uint8),
    }
    chunk = with_leaves(toy_chunk([2]), observations=images)
    for step in ("encode", STEP, STEP):
        chunk = parse_step(step).apply(chunk)
    found: Any = chunk.batch.observations
    assert (found["eye",].encoding, found["grey",].encoding) == ("video", "png")
    assert len(chunk.losses) == 2


def test_recipes_of_images_are_described_as_before() -> None:
    assert Encode().describe() == {"step": "encode", "keys": [], "format": "png", "quality": 95}
    described = parse_step("encode:a,format=h264,keyframes=4").describe()
    assert described == {"step": "encode", "keys": ["a"], "format": "h264", "keyframes": 4}


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((9, 8, 1), "uint16", r"feature 'x' \(uint16 \[9, 8, 1\]\) cannot be h264 video"),
        ((1, 16500, 3), "uint8", "x of episode 0: x264 encodes no frames of 1 x 16500 pixels"),
    ],
)
def test_frames_that_x264_does_not_take(shape: Any, dtype: str, message: str) -> None:
    chunk = with_leaves(toy_chunk([2]), observations={"x": np.ones((3, *shape), dtype)})
    with pytest.raises(StepError, match=message):
        parse_step("encode:x,format=h264").apply(chunk)


def test_without_pyav(parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingDependencyError, match="MP4 files need PyAV") as caught:
        offline_data.open_dataset(parent).preprocess(STEP, dest=tmp_path / "made")
    assert caught.value.hint == "pip install 'offline-data[video]', or encode images: format=png"

"""Rules on videos: frames at another time than rows, key frames, more frames than rows, times of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from offline_data.analysis.checks.block import RowBlock, is_numeric
from offline_data.analysis.checks.finding import Finding, Severity
from offline_data.analysis.checks.rule import Measured, Rule, Tally
from offline_data.analysis.checks.rules.images import (
    encoded_place,
    encoded_rows,
    image_leaves,
    spread,
)
from offline_data.base.errors import FormatError
from offline_data.base.plurals import plural, plural_of
from offline_data.episode.fields import Key, join_key
from offline_data.raw.video import VideoFile
from offline_data.store.layout import VIDEO
from offline_data.store.reader import DatasetReader
from offline_data.store.video import StoredVideo, VideoColumn

_TIME = ("timestamp",)


class FramesOfEpisodes(Rule):
    """A number of frames of each episode and camera is above a limit."""

    column: ClassVar[str]  # first part of names of columns of episodes, one for each camera

    def frames(self, reader: DatasetReader, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return numbers of frames, of the largest number of the column in each episode."""
        raise NotImplementedError

    def problem(self, reader: DatasetReader, frames: float) -> str:
        """Return what such episodes have, at most."""
        raise NotImplementedError

    def findings(self, measured: Measured) -> Iterator[Finding]:
        reader = measured.reader
        for key, column in reader.episodes.items():
            if key[0] != self.column:
                continue
            numbers = np.abs(np.asarray(column, np.float64)).reshape(len(column), -1)
            frames = self.frames(reader, numbers.max(axis=1, initial=0))
            over = np.flatnonzero(frames > self.limits["frames"])
            if len(over):
                worst = int(over[frames[over].argmax()])
                yield self.finding(
                    reader,
                    plural_of(len(over), len(frames), "episode", "has", "have")
                    + f" {self.problem(reader, float(frames[worst]))}",
                    leaf=join_key(("observation", *key[1:])),
                    episode=worst,
                    row=int(reader.starts[worst]),
                    count=len(over),
                )


class FramesOffTime(FramesOfEpisodes):
    """Frames of a video were taken at another time than their rows.

    LeRobot stores videos next to the rows, and both have times. If an episode has as many frames as
    rows, they are paired in order, even if a camera began late or recorded unevenly; otherwise each
    row has the nearest frame. Either way the policy saw the image somewhat earlier or later than
    the state of its row. The difference of each episode is in `ds.episodes["frame_shift", …]`, in
    seconds, if the videos were read by this package.

    A constant offset of a fraction of a second is mostly harmless, since a policy that is trained
    with it also acts with it.
    """

    code = "RL054"
    name = "frames-off-time"
    severity = "warning"
    hint = "inspect these episodes with `view`, and remove them with a filter if frames lag behind"
    thresholds: ClassVar = {"frames": 0.25}
    explained: ClassVar = {"frames": "Difference, in frames, above which an episode is reported."}

    column = "frame_shift"

    def frames(self, reader: DatasetReader, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        return numbers * (_frames_per_second(reader) or 0.0)

    def problem(self, reader: DatasetReader, frames: float) -> str:
        seconds = frames / (_frames_per_second(reader) or 1.0)
        return (
            f"frames at another time than the rows, by up to {seconds:.3g} s ({frames:.3g} frames)"
        )


class FalseKeyFrames(Rule):
    """A kept video has key frames after which frames cannot be decoded.

    Encoders with intra refresh, such as those of cameras and drones, renew a picture column by column,
    and mark where they begin to. Frames after such a mark are decoded from an earlier key frame, which
    is slow where that is far away; decoders that begin at the mark fail, or show a picture of parts.
    Conversions leave such marks out of the list of key frames; earlier versions of this package did
    not. A frame that cannot be decoded from any key frame is an error.

    A sample of 256 key frames of each camera is decoded.
    """

    code = "RL056"
    name = "false-key-frames"
    severity = "warning"
    hint = "make the dataset again with --force, which lists key frames anew; or with --video png"
    thresholds: ClassVar = {"sample": 256}
    explained: ClassVar = {"sample": "Key frames of a camera that are decoded."}

    def findings(self, measured: Measured) -> Iterator[Finding]:
        reader = measured.reader
        for key, leaf in image_leaves(reader).items():
            if leaf.encoding == VIDEO:
                column, _ = encoded_rows(reader, key)
                yield from self._of_leaf(reader, key, cast("VideoColumn", column))

    def _of_leaf(self, reader: DatasetReader, key: Key, column: VideoColumn) -> Iterator[Finding]:
        files, rows = column.used()
        keys = [(n, k) for n, file in enumerate(files) for k in np.flatnonzero(file.index[:, 1])]
        looked = [keys[place] for place in spread(len(keys), self.limits["sample"]).tolist()]
        for severity, wrong in _false_keys(files, looked).items():
            if wrong:
                file, frame = wrong[0]
                after = (rows[:, 0] == file) & (rows[:, 1] >= frame)
                place = encoded_place(reader, key, int(after.argmax())) if after.any() else None
                yield self.finding(
                    reader,
                    f"Frames after {len(wrong):,} of {plural(len(looked), 'examined key frame')} "
                    + ("cannot be" if severity == "error" else "can only be")
                    + " decoded"
                    + " from an earlier one" * (severity == "warning"),
                    place,
                    leaf=join_key(key),
                    count=len(wrong),
                    severity=severity,
                )


class ExtraFrames(FramesOfEpisodes):
    """A video has more frames than its episode has rows.

    Rows get the frames at their times; the others are never sampled. Frames after the last row are
    mostly harmless: the camera was stopped later than the robot. Frames between rows mean that the
    camera was faster than the rows, or that rows are missing. The number of each episode is in
    `ds.episodes["extra_frames", …]`, if the videos were read by this package.
    """

    code = "RL057"
    name = "extra-frames"
    severity = "warning"
    hint = "compare the ends of such an episode with `view`; ask the authors if rows are missing"
    thresholds: ClassVar = {"frames": 0}
    explained: ClassVar = {"frames": "Frames beyond the rows above which an episode is reported."}

    column = "extra_frames"

    def frames(self, reader: DatasetReader, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        del reader
        return numbers

    def problem(self, reader: DatasetReader, frames: float) -> str:
        del reader
        return f"more frames than rows, by up to {int(frames)}"


class OffGridTimestamps(Rule):
    """`timestamp` is not the number of the row in its episode, divided by the frames per second.

    LeRobot looks for the frame of a row at its `timestamp`, and fails if no frame is within 0.1 ms.
    Here frames belong to rows by their order, or else by the nearest time, so training is possible;
    windows in seconds (`delta_timestamps`) take rows to be evenly spaced. Harmless where `timestamp`
    is the time of a clock and the rows are nearly even.
    """

    code = "RL058"
    name = "off-grid-timestamps"
    severity = "warning"
    hint = "compare `timestamp` with the recording; resample uneven rows (`--step resample`)"
    thresholds: ClassVar = {"seconds": 1e-4}
    explained: ClassVar = {"seconds": "Difference, in seconds, above which a row is reported."}

    def leaves(self, reader: DatasetReader) -> Iterable[Key]:
        leaf = reader.step_leaves.get(_TIME)
        known = leaf is not None and is_numeric(leaf) and leaf.shape in {(), (1,)}
        return [_TIME] if known and _frames_per_second(reader) else []

    def measure(self, block: RowBlock, key: Key) -> Tally:
        times = block.numbers(key).reshape(-1)
        rows = block.first + np.arange(len(block)) - block.reader.starts[block.episodes]
        expected = rows / (_frames_per_second(block.reader) or 1.0)
        apart = np.abs(times.astype(np.float64) - expected)
        rounding = np.spacing(expected.astype(np.float32))
        off = np.flatnonzero(~(apart <= np.maximum(self.limits["seconds"], rounding)))
        high = float(np.fmax.reduce(apart[off], initial=0))
        return Tally.of(block, key, off, rows=len(block), high=high)

    def message(self, reader: DatasetReader, key: Key, found: Tally) -> str:
        del key
        return (
            plural_of(found.number, found.rows, "row", "differs", "differ")
            + f" from row / {_frames_per_second(reader):g} fps by up to {found.high:.3g} s"
        )


def _false_keys(
    files: Sequence[StoredVideo], looked: Sequence[tuple[int, int]]
) -> dict[Severity, list[tuple[int, int]]]:
    """Return key frames, by file and frame, that decoding cannot begin at, and undecodable ones."""
    found: dict[Severity, list[tuple[int, int]]] = {"warning": [], "error": []}
    for number, some in groupby(looked, key=lambda one: one[0]):
        film = VideoFile(files[number].path, files[number].index, threads=False)
        for _, frame in some:
            try:
                if not film.begins_at(frame):
                    found["warning"].append((number, frame))
                    next(film.read(np.array([frame])))
            except FormatError:
                found["warning"] = [one for one in found["warning"] if one != (number, frame)]
                found["error"].append((number, frame))
        film.close()
    return found


def _frames_per_second(reader: DatasetReader) -> float | None:
    """Return the rate that the source states, if it is one."""
    fps = reader.manifest.about.get("fps")
    return float(fps) if isinstance(fps, (int, float)) and 0 < fps < 1e6 else None

"""CALVIN: recordings of a teleoperated robot arm, a file for each step, and instructions for parts of them.

```
task_D_D/training/                      also of its own, as is validation/
    episode_0053819.npz, …              a step: rgb_static, robot_obs, …, and the actions that follow
    ep_start_end_ids.npy                first and last step of each recording, both included
    lang_annotations/auto_lang_ann.npy  instructions, each with its first step and one past its last
    scene_info.npy                      first and last step in each scene
```

`actions` of a step is the pose of the arm in the next one. Recordings have up to 54,000 steps of 0.6 MB
each, more than memory holds, and no ends that mean anything: they are cut to episodes.

```
steps of a recording      0  1  2  …  511  512  …        an instruction for steps 500 to 563 moves a cut
instruction                              ├────────┤
episodes                  ├──────────────────────── 564 ├──
```

Source: `dataset/README.md` and `calvin_models/calvin_agent/datasets` of https://github.com/mees/calvin,
and `calvin_env/datarenderer.py`, which writes the files, of https://github.com/mees/calvin_env.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, NotFoundError
from offline_data.base.files import is_file, is_folder
from offline_data.base.ids import did_you_mean
from offline_data.base.plurals import plural
from offline_data.episode import Dropped, EpisodeBatch
from offline_data.episode.cut import runs_within
from offline_data.episode.fields import TERMINATED, TRUNCATED, Key, check_key
from offline_data.formats.base import (
    CatalogEntry,
    CatalogSource,
    Part,
    RandomAccess,
    Release,
    SourceInfo,
)
from offline_data.formats.fingerprint import fingerprint
from offline_data.formats.options import ALL_SPLITS, names_in
from offline_data.raw.npy import open_npz, read_npy

Annotation: TypeAlias = tuple[int, int, str, str]  # first step, stop, task and instruction
Kind: TypeAlias = "tuple[np.dtype[Any], tuple[int, ...]]"  # dtype, shape of an array of a step

RECORDINGS = "ep_start_end_ids.npy"
WORDS = "lang_annotations/auto_lang_ann.npy"
SCENES = "scene_info.npy"
SPLITS = ("training", "validation")
_STEP, _INDEX, _LONGEST = 1 << 26, 1 << 30, 10**8
"""Maximum bytes of a step and of an index file, and maximum steps of a recording."""
_CUT = 512
"""Steps after which a recording is cut at the next step without an instruction, or after twice as many."""
_LOOKED_AT = 1000  # files of steps whose content changes the revision

_ACTIONS: dict[str, Key] = {"actions": ("action",), "rel_actions": ("extra", "rel_actions")}
_INSTRUCTION: Key = ("language_instruction",)
_TASK: Key = ("task",)
POSES = (
    "action is the pose of arm and gripper in the next step, extra/rel_actions its difference, scaled as "
    "CALVIN's environment expects it."
)
CUTS = (
    f"Recordings are cut to episodes of {_CUT} steps or some more, which end truncated; only the last one of a "
    "recording has no observation after its last action."
)
LANGUAGE = (
    "language_instruction and task are those of the annotation that ends first among those of a step, and empty "
    "where there is none; annotations of an episode are JSON: first step, one past the last, task, instruction."
)
EMBEDDINGS = "Embeddings of the instructions by a language model; their text is kept."


class Calvin(CatalogSource):
    """The user's folders: CALVIN's archives are unpacked first."""

    name = "calvin"
    title = "CALVIN: a teleoperated arm at a table, with instructions (npz, a file for each step)"
    action = "continuous"
    takes = ("only",)
    citation = (
        "Oier Mees, Lukas Hermann, Erick Rosete-Beas, Wolfram Burgard: CALVIN: A Benchmark for "
        "Language-Conditioned Policy Learning for Long-Horizon Robot Manipulation Tasks, IEEE Robotics and "
        "Automation Letters 7 (3), 2022"
    )

    def catalog(self) -> Sequence[CatalogEntry]:
        return ()

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:  # noqa: ARG002
        raise NotFoundError(
            f"There is no {self.name}:{name}: its archives of up to 656 GB are not downloaded",
            hint="get one with CALVIN's dataset/download_data.sh, then `offline-data convert task_D_D NAME`",
        )

    def has_format(self, path: Path) -> bool:
        for folder in _folders_in(path).values():
            first = int(_read_recordings(folder)[0, 0])
            return is_file(folder / _file_of(first))
        return False

    def release_of(self, path: Path, name: str) -> Release:
        """Describe a folder; its revision depends on the content of some of the files of steps."""
        folders = _folders_in(path)
        if not folders:
            raise FormatError(
                f"{path} is not a CALVIN dataset: expected {RECORDINGS} in it, or in its folder "
                f"{' or '.join(SPLITS)}"
            )
        files = []
        for folder in folders.values():
            files += [folder / one for one in (RECORDINGS, WORDS, SCENES)]
            ranges = _read_recordings(folder)
            steps = np.linspace(ranges[:, 0], ranges[:, 1], max(2, _LOOKED_AT // len(ranges)))
            files += [
                folder / _file_of(step) for step in np.unique(steps.astype(np.int64)).tolist()
            ]
        splits = tuple(folders) if len(folders) > 1 else ()
        return Release(name, fingerprint(path, filter(is_file, files)), local=path, splits=splits)

    def open(self, release: Release, raw: Path) -> CalvinEpisodes:
        folders = _folders_in(raw)
        if release.options.split not in {None, ALL_SPLITS}:
            folders = {str(release.options.split): folders[str(release.options.split)]}
        found = [_recordings_of(folder) for folder in folders.values()]
        recordings = [one for some, _ in found for one in some]
        columns = everything = _columns_of(recordings[0])
        if release.options.only is not None:
            asked = names_in(release.options.only)
            if missing := [name for name in asked if name not in columns]:
                raise NotFoundError(
                    f"{raw} has no feature {missing[0]!r}; it has {', '.join(columns)}",
                    hint=did_you_mean(missing[0], columns),
                )
            columns = {name: one for name, one in columns.items() if name in (*asked, *_ACTIONS)}
        episodes = [
            Piece(number, *bounds)
            for number, recording in enumerate(recordings)
            for bounds in recording.cuts()
        ]
        lost = sum(count for _, count in found)
        warnings = [f"{plural(lost, 'annotation')} not within a recording: left out."] * bool(lost)
        has_words = any(one.annotations for one in recordings)
        said = LANGUAGE if has_words else f"There are no instructions: no {WORDS}."
        dropped = [Dropped(WORDS.replace(".npy", "/language/emb"), EMBEDDINGS)] * has_words
        info = replace(
            self.describe(release, POSES, CUTS, said, *warnings),
            citation=self.citation,
            transitions=sum(one.stop - one.first for one in episodes),
            episodes=len(episodes),
            dropped=tuple(dropped),
            warnings=tuple(warnings),
        )
        return CalvinEpisodes(
            tuple(recordings), tuple(episodes), columns, frozenset(everything), info
        )


@dataclass(frozen=True, eq=False)
class Recording:
    """Consecutive steps of one recording."""

    folder: Path
    first: int
    stop: int  # one past its last step
    scene: str | None
    annotations: Sequence[Annotation]  # those of its steps only

    def cuts(self) -> Iterator[tuple[int, int, bool]]:
        """Yield the first step of each episode, one past its last, and whether the next one is known."""
        inside = np.zeros(self.stop - self.first + 1, np.int64)
        for first, stop, _, _ in self.annotations:
            inside[min(first + 1, stop) - self.first] += 1
            inside[stop - self.first] -= 1
        free = np.cumsum(inside) == 0
        begin, count = 0, self.stop - self.first
        while begin < count:
            found = np.flatnonzero(free[begin + _CUT : begin + 2 * _CUT])
            end = begin + _CUT + int(found[0] if len(found) else _CUT)
            end = min(end, count)
            yield self.first + begin, self.first + end, end < count
            begin = end

    def between(self, first: int, stop: int) -> list[Annotation]:
        """Return the annotations with steps from `first` to before `stop`, counted from `first`."""
        return [
            (max(begin, first) - first, min(end, stop) - first, task, text)
            for begin, end, task, text in self.annotations
            if begin < stop and end > first
        ]


@dataclass(frozen=True)
class Piece:
    """A part of a recording."""

    recording: int  # its number
    first: int
    stop: int
    final: bool  # whether step `stop` belongs to the recording, too


@dataclass(frozen=True, eq=False)
class CalvinEpisodes(RandomAccess):
    """The episodes of one or both splits."""

    recordings: tuple[Recording, ...]
    episodes: tuple[Piece, ...]
    columns: Mapping[str, Kind]  # the arrays of a step that are read
    names: frozenset[str]  # names of all arrays of a step
    info: SourceInfo

    @cached_property
    def _sizes(self) -> NDArray[np.int64]:
        step = sum(dtype.itemsize * int(np.prod(shape)) for dtype, shape in self.columns.values())
        return np.array([(one.stop - one.first + 1) * step for one in self.episodes])

    def parts(self, budget: int) -> Sequence[Part]:
        return [
            Part(first, stop, sum(one.stop - one.first for one in self.episodes[first:stop]))
            for first, stop in runs_within(self._sizes, budget)
        ]

    def read_part(self, part: Part) -> EpisodeBatch:
        chosen = self.episodes[part.first : part.stop]
        lengths = np.array([one.stop - one.first for one in chosen])
        rows = {
            name: np.empty((int(lengths.sum()) + len(chosen), *shape), dtype)
            for name, (dtype, shape) in self.columns.items()
        }
        row = 0
        for one in chosen:
            recording = self.recordings[one.recording]
            for step in range(one.first, one.stop + one.final):
                self._read_step(recording.folder / _file_of(step), rows, row)
                row += 1
            if not one.final:
                for column in rows.values():
                    column[row] = column[row - 1]
                row += 1
        after = np.cumsum(lengths + 1) - 1
        last = np.zeros((int(lengths.sum()), 1), bool)
        last[np.cumsum(lengths) - 1] = True
        steps: dict[Key, NDArray[Any]] = {TERMINATED: last & False, TRUNCATED: last}
        observations: dict[Key, NDArray[Any]] = {}
        for name, column in rows.items():
            if name in _ACTIONS:
                steps[_ACTIONS[name]] = np.delete(column, after, axis=0)
            else:
                observations[_leaf_of(name)] = column
        facts: dict[Key, NDArray[Any]] = {
            ("recording",): np.array([one.recording for one in chosen]),
            ("first_step",): np.array([one.first for one in chosen]),
        }
        if any(one.scene is not None for one in self.recordings):
            scenes = [self.recordings[one.recording].scene or "" for one in chosen]
            facts["scene",] = np.array(scenes, object)
        if any(one.annotations for one in self.recordings):
            self._add_words(chosen, steps, facts)
        final = np.array([one.final for one in chosen])
        return EpisodeBatch(lengths, steps, observations, final, facts)

    def _read_step(self, path: Path, rows: Mapping[str, NDArray[Any]], row: int) -> None:
        with open_npz(path, budget=_STEP) as arrays:
            if other := self.names ^ arrays.keys():
                raise FormatError(
                    f"{path}: only it, or the first step, has {', '.join(sorted(other))}"
                )
            for name, column in rows.items():
                values = arrays[name]
                found, expected = (values.dtype.newbyteorder("="), values.shape), self.columns[name]
                if found != expected:
                    raise FormatError(
                        f"{path}: {name!r} is {found[0]} {list(found[1])}, and {expected[0]} "
                        f"{list(expected[1])} in the first step"
                    )
                column[row] = values

    def _add_words(
        self,
        chosen: Sequence[Piece],
        steps: dict[Key, NDArray[Any]],
        facts: dict[Key, NDArray[Any]],
    ) -> None:
        """Add what is said of steps and episodes."""
        tasks, texts, listed = [], [], []
        for one in chosen:
            words = np.full((2, one.stop - one.first), "", object)
            found = self.recordings[one.recording].between(one.first, one.stop)
            for first, stop, *said in sorted(found, key=lambda each: each[1], reverse=True):
                words[:, first:stop] = np.array(said, object)[:, None]
            tasks.append(words[0])
            texts.append(words[1])
            listed.append(json.dumps(found))
        steps[_TASK], steps[_INSTRUCTION] = np.concatenate(tasks), np.concatenate(texts)
        facts["annotations",] = np.array(listed, object)


def _file_of(step: int) -> str:
    return f"episode_{step:07d}.npz"


def _leaf_of(name: str) -> Key:
    return ("state",) if name == "scene_obs" else check_key(("observation", name))


def _folders_in(path: Path) -> dict[str, Path]:
    """Return the folders of recordings by split; that of a folder which is one itself is its name."""
    if not is_folder(path):
        return {}
    if is_file(path / RECORDINGS):
        return {path.name: path}
    return {split: path / split for split in SPLITS if is_file(path / split / RECORDINGS)}


def _read_index(path: Path, *, objects: bool = False) -> Any:
    """Return the array of a file; with `objects`, the object that was saved as one."""
    with path.open("rb") as stream:
        found: Any = read_npy(stream, size=_INDEX, where=str(path), objects=objects)
    return found.item() if objects and found.size == 1 else found


def _read_recordings(folder: Path) -> NDArray[np.int64]:
    """Return the first and the last step of each recording; raises `FormatError`."""
    path = folder / RECORDINGS
    found = _read_index(path)
    if found.ndim != 2 or found.shape[1] != 2 or not len(found) or found.dtype.kind not in "iu":
        raise FormatError(
            f"{path} is {found.dtype} {list(found.shape)}, expected whole numbers [E, 2]"
        )
    for first, last in found.tolist():
        if not 0 <= first <= last < first + _LONGEST or last >= 1 << 62:
            raise FormatError(f"{path}: a recording has steps {first} to {last}")
    return np.asarray(found.astype(np.int64))


def _recordings_of(folder: Path) -> tuple[list[Recording], int]:
    """Return the recordings of a split, and how many annotations are in none; raises `FormatError`."""
    scenes = _read_scenes(folder / SCENES) if is_file(folder / SCENES) else None
    words = _read_annotations(folder / WORDS) if is_file(folder / WORDS) else []
    recordings = []
    for first, last in _read_recordings(folder).tolist():
        if missing := [one for one in (first, last) if not is_file(folder / _file_of(one))]:
            raise FormatError(
                f"{folder} has no {_file_of(missing[0])}; {RECORDINGS} has a recording of steps {first} to "
                f"{last}",
                hint="unpack the archive again",
            )
        inside = [one for one in words if first <= one[0] < one[1] <= last + 1]
        unknown = None if scenes is None else ""
        scene = next((name for name, a, b in scenes or () if a <= first <= b), unknown)
        recordings.append(Recording(folder, first, last + 1, scene, inside))
    return recordings, len(words) - sum(len(one.annotations) for one in recordings)


def _read_scenes(path: Path) -> list[tuple[str, int, int]]:
    """Return name, first and last step of each scene; raises `FormatError`."""
    scenes = _read_index(path, objects=True)
    try:
        return [(name, *_range(bounds)) for name, bounds in scenes.items() if name + ""]
    except (AttributeError, TypeError, ValueError) as error:
        raise FormatError(
            f"{path} is not a dict of scenes; expected first and last step of each by its name"
        ) from error


def _read_annotations(path: Path) -> list[Annotation]:
    """Return the annotations of a split; raises `FormatError`."""
    found = _read_index(path, objects=True)
    try:
        ranges, language = found["info"]["indx"], found["language"]
        said = zip(ranges, language["task"], language["ann"], strict=True)
        return [(*_range(bounds), str(task), str(text)) for bounds, task, text in said]
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"{path} is not a dict of annotations; expected `info/indx` and as many of "
            "`language/task` and `language/ann`"
        ) from error


def _range(bounds: Any) -> tuple[int, int]:
    first, last = (operator.index(one) for one in bounds)
    return first, last


def _columns_of(recording: Recording) -> dict[str, Kind]:
    """Return dtype and shape of the arrays of the first step; raises `FormatError`."""
    path = recording.folder / _file_of(recording.first)
    with open_npz(path, budget=_STEP) as arrays:
        headers = {name: arrays.header(name) for name in arrays}
    found = {name: (one.dtype.newbyteorder("="), one.shape) for name, one in headers.items()}
    if missing := [name for name in _ACTIONS if name not in found]:
        raise FormatError(f"{path} has no array {missing[0]!r}; it has {', '.join(found)}")
    for name, (dtype, shape) in found.items():
        if dtype.kind not in "biuf" or not all(shape):
            raise FormatError(f"{path}: {name!r} is {dtype} {list(shape)}, expected numbers")
    return found

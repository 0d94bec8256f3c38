"""Atari DQN Replay: the training experience of DQN on 60 games, five runs each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

from offline_data.base.config import Settings
from offline_data.base.errors import (
    AuthError,
    FormatError,
    NetworkError,
    NoNetworkError,
    NotFoundError,
    OfflineError,
    UsageError,
)
from offline_data.base.files import is_file, is_folder
from offline_data.fetch.files import RemoteFile
from offline_data.fetch.gcs import list_bucket
from offline_data.fetch.retry import FetchLimits
from offline_data.formats.atari_dqn.dataset import ReplayLog
from offline_data.formats.atari_dqn.log import (
    COUNTS,
    LEAVES,
    CheckpointRun,
    file_of,
    read_checkpoint,
    runs_of,
)
from offline_data.formats.base import (
    UNVERSIONED,
    CatalogSource,
    Release,
    SourceInfo,
)
from offline_data.formats.catalogues.games import AtariDQNCatalog, games
from offline_data.formats.fingerprint import fingerprint
from offline_data.formats.folders import entries
from offline_data.formats.options import Options

BUCKET = "atari-replay-datasets"
CHECKPOINTS = 51  # number in a complete run
FOLDER = "replay_logs"  # the folder of a run that contains its files

_MAGIC = b"\x1f\x8b\x08"
_LIMITS = FetchLimits(connect=4.0, read=10.0, tries=2)  # interactive listings
_TERMINALS = re.compile(re.escape(file_of("terminal", 0)).replace("0", r"(0|[1-9]\d{0,5})"))
_ALIAS = re.compile(
    r"(?P<game>[a-z-]+)-(?P<what>mixed|medium|expert|epoch-(?P<n>[1-9]\d?))-v(?P<v>[0-4])"
)
_EPOCHS = {"mixed": 1, "medium": 10, "expert": 50}

_COPY = (
    "where you have a copy of the run's folder, `offline-data convert FOLDER NAME --from atari_dqn` "
    "reads it; OFFLINE_DATA_MIRRORS names another host"
)
NOTES = (
    "Frames are single: frame_stack(4, pad='zero') gives what the agent saw.",
    "Rewards were clipped to [-1, 1] when they were recorded.",
    "Episodes that ended at the limit of 27,000 steps are marked terminated, as the log has them.",
    "The frame after the last action of an episode was not recorded.",
    "The rows of zeros before each episode are left out.",
    "Recorded with sticky actions (0.25), minimal sets of actions and the ROMs of atari-py 0.2.5.",
)


def d4rl_atari_names() -> dict[str, str]:
    """Return the games by d4rl-atari's names.

    Example:
        >>> d4rl_atari_names()["ms-pacman"]
        'MsPacman'
    """
    return {re.sub(r"(?<!^)(?=[A-Z])", "-", game).lower(): game for game in games()}


class AtariDQN(AtariDQNCatalog, CatalogSource):
    """Runs of the DQN Replay Dataset: `Pong/1`, or d4rl-atari's name `pong-mixed-v0`.

    A run has 51 checkpoints of a million steps, 0 to 50, which can be loaded individually.
    d4rl-atari's `mixed`, `medium` and `expert` are checkpoints 1, 10 and 50, `epoch-N` is checkpoint
    N; `v0` is run 1.
    """

    takes = ("checkpoints",)

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:
        """Return a run with its files as the bucket lists them, or, offline, the expected ones."""
        # The expected ones are also used if there are mirrors and the bucket does not answer.
        run, checkpoint = self._run_of(name)
        self.check_unversioned(name, revision)
        wanted = range(CHECKPOINTS) if checkpoint is None else (checkpoint,)
        files = [(name, number) for number in wanted for name in (*LEAVES, *COUNTS)]
        prefix = f"dqn/{run}/{FOLDER}/"
        try:
            listed = list_bucket(f"gs://{BUCKET}/{prefix}", settings, limits=_LIMITS)
            there = {file.name.removeprefix(prefix): file for file in listed}
        except (AuthError, NetworkError, NotFoundError) as error:
            if isinstance(error, NoNetworkError) and not settings.mirrors:
                raise
            if not isinstance(error, OfflineError) and not settings.mirrors:
                raise type(error)(f"{self.name}:{name}: {error.message}", hint=_COPY) from error
            there = None
        whole = [
            number
            for number in wanted
            if there is None or all(file_of(name, number) in there for name in (*LEAVES, *COUNTS))
        ]
        if not whole:
            raise NotFoundError(
                f"{self.name}:{name}: the bucket {BUCKET} has no whole checkpoint of it", hint=_COPY
            )
        host = f"https://storage.googleapis.com/{BUCKET}/{prefix}"
        remote = []
        for path in (file_of(*file) for file in files if file[1] in whole):
            plain = RemoteFile(path, (host + quote(path),), magic=_MAGIC)
            remote.append(plain if there is None else there[path].file(prefix, _MAGIC))
        return _of_checkpoints(Release(name, UNVERSIONED, tuple(remote)), whole)

    def with_options(self, release: Release, options: Options) -> Release:
        release = super().with_options(release, options)
        if options.checkpoints is None:
            return release
        first, stop = options.checkpoints
        if release.local is not None:
            there: Iterable[int] = _numbers(_log_folder(release.local))
        else:
            there = {int(file.path.split(".")[-2]) for file in release.files}
        taken = [n for n in sorted(there) if (first or 0) <= n and (stop is None or n < stop)]
        if not taken:
            raise UsageError(
                f"{release.name} has no checkpoint in {first or 0}:{'' if stop is None else stop}; "
                f"it has {_ranges(sorted(there))}"
            )
        kept = tuple(file for file in release.files if int(file.path.split(".")[-2]) in taken)
        return _of_checkpoints(replace(release, files=kept), taken)

    def has_format(self, path: Path) -> bool:
        return bool(_numbers(_log_folder(path)))

    def release_of(self, path: Path, name: str) -> Release:
        folder = _log_folder(path)
        numbers = _numbers(folder)
        if not numbers:
            raise FormatError(
                f"{path} has no checkpoint: expected files like {file_of('terminal', 0)} in it",
                hint="name the folder of one run, which has a folder replay_logs",
            )
        files = [folder / file_of(name, n) for n in numbers for name in (*LEAVES, *COUNTS)]
        here = [file for file in files if file.is_file()]
        return Release(name, fingerprint(folder, here), local=path, shards=len(numbers))

    def open(self, release: Release, raw: Path) -> ReplayLog:
        folder = _log_folder(raw)
        first, stop = release.options.checkpoints or (None, None)
        numbers = [n for n in _numbers(folder) if (first or 0) <= n and (stop is None or n < stop)]
        if not numbers:
            raise FormatError(f"{raw} has none of the requested checkpoints")
        for file in (file_of(name, n) for n in numbers for name in (*LEAVES, *COUNTS)):
            if release.local is not None and not is_file(folder / file):
                raise FormatError(
                    f"{raw} has no {file}",
                    hint="copy it too, or take other checkpoints: --checkpoints A:B",
                )
        runs = tuple(runs_of([read_checkpoint(folder, number) for number in numbers]))
        if not any(len(run.starts) for run in runs):
            raise FormatError(
                f"{folder} has no step of an episode in checkpoint {_ranges(numbers)}"
            )
        notes = [*NOTES, *_notes_on(runs)]
        info = SourceInfo(
            # without the preceding rows, the first steps may turn out to be padding
            None
            if any(run.headless for run in runs)
            else sum(int((run.stops - run.starts).sum()) for run in runs),
            sum(len(run.starts) for run in runs),
            notes=tuple(notes),
        )
        if release.local is None:
            run, checkpoint = self._run_of(release.name)
            game = run.partition("/")[0]
            missing = sorted(set(range(CHECKPOINTS)) - set(numbers))
            if release.options.checkpoints is None and checkpoint is None and missing:
                notes.append(f"The bucket has no checkpoint {_ranges(missing)} of this run.")
            info = replace(
                info,
                spaces={"observation": {"type": "Box", "dtype": "uint8", "shape": [84, 84]}},
                environment={
                    "id": f"{game}NoFrameskip-v0",
                    "frame_skip": 4,
                    "repeat_action_probability": 0.25,
                    "max_episode_steps": 27_000,
                },
                about={"game": game, "run": run, "checkpoints": numbers},
                citation=self.citation,
                notes=tuple(notes),
            )
        return ReplayLog(info, folder, runs, release.options.skip_bad_episodes)

    def _run_of(self, name: str) -> tuple[str, int | None]:
        """Return the run that a name refers to, and the checkpoint if it refers to only one."""
        known = [entry.name for entry in self.catalog()]
        if name in known:
            return name, None
        names = d4rl_atari_names()
        if (found := _ALIAS.fullmatch(name)) and found["game"] in names:
            checkpoint = int(found["n"]) if found["n"] else _EPOCHS[found["what"]]
            if checkpoint < CHECKPOINTS:
                return f"{names[found['game']]}/{int(found['v']) + 1}", checkpoint
        known += [f"{game}-{what}-v{v}" for game in names for what in _EPOCHS for v in range(5)]
        raise self.not_found(name, known)


def _of_checkpoints(release: Release, numbers: Sequence[int]) -> Release:
    opening = [file_of(name, n) for n in numbers for name in ("terminal", *COUNTS)]
    return replace(release, shards=len(numbers), opening=None if release.local else tuple(opening))


def _log_folder(path: Path) -> Path:
    return path / FOLDER if is_folder(path / FOLDER) else path


def _numbers(folder: Path) -> list[int]:
    """List the checkpoints in a folder, in order."""
    if not is_folder(folder):
        return []
    found = (_TERMINALS.fullmatch(file.name) for file in entries(folder))
    return sorted(int(match[1]) for match in found if match)


def _ranges(numbers: Sequence[int]) -> str:
    """Format ascending numbers as ranges.

    Example:
        >>> _ranges([0, 1, 2, 5])
        '0-2, 5'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)


def _notes_on(runs: Sequence[CheckpointRun]) -> list[str]:
    notes = []
    for run in runs:
        first, last = run.checkpoints[0].number, run.checkpoints[-1].number
        if run.headless:
            notes.append(
                f"Checkpoint {first} may start inside an episode; the rest of it is kept as an episode "
                "with `initial_observation` False."
            )
        if run.cut:
            notes.append(
                f"The last episode of checkpoint {last} continues after it: it is cut there, and marked "
                "truncated."
            )
    for before, after in pairwise(runs):
        if before.checkpoints[-1].number + 1 == after.checkpoints[0].number:
            notes.append(
                f"Checkpoint {after.checkpoints[0].number} does not follow the one before it: a "
                "checkpoint between them was not written."
            )
    return notes

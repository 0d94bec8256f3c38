"""Replay a dataset's actions in its environment and compare what happens with what is stored.

Only an environment that is registered with Gymnasium is made, by its id and without the keywords,
wrappers and options of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError, NotFoundError, UsageError
from offline_data.base.json import shown
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.base.progress import SILENT, Progress
from offline_data.document.blocks import Block, fields_of, table
from offline_data.document.html import Document
from offline_data.episode.fields import REWARD, TERMINATED, Key, join_key
from offline_data.formats.environments import import_gymnasium, make_environment
from offline_data.store.layout import LeafSpec
from offline_data.store.manifest import Outcome, ReplaySummary
from offline_data.store.reader import DatasetReader

# Equal; equal up to the tolerance; beyond it after some steps; from the first step on; not played.
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

MOST_SKIPPED = 10  # longest frame skip that is tried

_PROOF = 10  # rows beyond the first difference that an explanation must reproduce
_MOST_ACTIONS = 32  # discrete actions up to which the unknown first one of late actions is tried

Actions: TypeAlias = Callable[[int], Sequence[Any]]  # to apply for a row; none: it is not played


@pickled_by_name
@dataclass(frozen=True)
class EpisodeReplay:
    """Comparison of one episode."""

    episode: int
    steps: int
    """Rows of the episode."""
    outcome: Outcome
    first: int | None = None
    """First row whose outcome is not exactly the stored one; -1: the first observation."""
    difference: float | None = None
    """Largest difference in that row, or for `rounding` in the episode."""
    leaf: str | None = None
    """Feature that differs most there, an observation if one does."""
    beyond: int | None = None
    """First row that differs by more than the tolerance, after which the episode is not played."""
    cause: str | None = None
    """Likely cause, where it can be determined."""


@pickled_by_name
@dataclass(frozen=True, repr=False)
class Replay(Document):
    """Result of `replay`; printed as a table."""

    id: str
    recorded: str | None
    """Id of the environment in the manifest."""
    environment: str
    """Id of the environment that was played."""
    tolerance: float
    episodes: tuple[EpisodeReplay, ...]

    def blocks(self) -> list[Block]:
        spec = "episode:count steps:count outcome first difference:number feature=leaf cause"
        return [fields_of(self, "id recorded environment"), table(spec, self.episodes)]

    @property
    def counts(self) -> dict[Outcome, int]:
        """Number of episodes of each outcome that occurs."""
        found = [one.outcome for one in self.episodes]
        return {name: found.count(name) for name in OUTCOMES if name in found}

    def to_manifest(self) -> ReplaySummary:
        """Return what the manifest records."""
        largest = max((one.difference or 0.0 for one in self.episodes), default=0.0)
        return {
            "environment": self.environment,
            "gymnasium": import_gymnasium("replay").__version__,
            "date": datetime.now(timezone.utc).date().isoformat(),
            "tolerance": self.tolerance,
            "counts": self.counts,
            "difference": largest if np.isfinite(largest) else None,
        }

    @property
    def reproduced(self) -> bool:
        """Whether all episodes are exact or within rounding."""
        return self.counts.keys() <= {"exact", "rounding"}

    @property
    def summary(self) -> str:
        """One sentence about all episodes."""
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        return f"{plural(len(self.episodes), 'episode')} in {self.environment}: {counts}"

    def __repr__(self) -> str:
        lines = [f"{self.id}: {self.summary}"]
        for one in self.episodes:
            at = f" from step {one.first}, {one.leaf} {one.difference:.3g}" if one.leaf else ""
            lines.append(
                f"episode {one.episode}: {one.outcome}{at}" + f": {one.cause}" * bool(one.cause)
            )
        return "\n".join(lines)


def replay_dataset(
    reader: DatasetReader,
    progress: Progress = SILENT,
    *,
    env: Any = None,
    numbers: NDArray[np.int64] | None = None,
    tolerance: float = 1e-5,
) -> Replay:
    """Replay episodes by number (None: all) as `offline_data.replay`; raises as `make_env`."""
    if not 0 <= tolerance < np.inf:
        raise UsageError(f"tolerance is {tolerance}; expected a finite number, 0 or more")
    spec = reader.manifest.environment
    made = env is None or isinstance(env, str)
    if made:
        name = env or spec.get("id")
        if name is None:
            raise NotFoundError(
                f"{reader.manifest.id} does not say which environment it was recorded in",
                hint="name it: --env Hopper-v5, replay(…, env='Hopper-v5')",
            )
        env = make_environment({"id": name, "max_episode_steps": -1}, {"disable_env_checker": True})
    try:
        played, found = _Player(reader, env, tolerance), []
        numbers = np.arange(reader.episode_count) if numbers is None else numbers
        with progress.task("replay", int(reader.lengths[numbers].sum()), "steps") as task:
            for number in numbers.tolist():
                found.append(played.compare(number))
                task.advance(found[-1].steps)
    finally:
        if made:
            env.close()
    name = env.spec.id if env.spec else type(env.unwrapped).__name__
    recorded = None if spec.get("id") is None else str(spec["id"])
    return Replay(reader.manifest.id, recorded, name, tolerance, tuple(found))


class _Player:
    """Plays episodes in one environment, in their order.

    An episode without a seed continues the random numbers of the one before it in the dataset, as
    `reset()` does while recording; it is compared if that one was reproduced.
    """

    def __init__(self, reader: DatasetReader, env: Any, tolerance: float) -> None:
        self._reader, self._env, self._tolerance = reader, env, tolerance
        self._leaves: dict[Key, LeafSpec] = {
            key: leaf
            for key, leaf in reader.observation_leaves.items()
            if key[0] == "observation" and not leaf.text and leaf.encoding is None
        }
        if not self._leaves:
            raise UsageError(f"{reader.manifest.id} has no observation of numbers to compare")
        if not any(key[0] == "action" for key in reader.step_leaves):
            raise UsageError(f"{reader.manifest.id} has no feature 'action' to play")
        states = {key[-1]: key for key in reader.observation_leaves if key[0] in {"info", "state"}}
        can = hasattr(env.unwrapped, "set_state") and {"qpos", "qvel"} <= states.keys()
        self._state = (states["qpos"], states["qvel"]) if can else None
        self._seeds = reader.episodes.get(("seed",))
        self._next: int | None = None  # episode with a known first state: after a reproduced one

    def compare(self, number: int) -> EpisodeReplay:
        """Play an episode and compare it."""
        steps, seed = int(self._reader.lengths[number]), self._seed_of(number)
        if self._state is None and seed is None and self._next != number:
            cause = "no seed and no state is stored, so its first state is unknown"
            return EpisodeReplay(number, steps, "failed", cause=cause)
        stored = _EpisodeRows(self._reader, number, self._leaves)
        try:
            found = self._play(number, stored, lambda row: [self._action(stored, row)])
            if found.beyond is None:
                self._next = number + 1
                return found
            cause = self._explain(number, stored, found)
        except Exception as error:  # noqa: BLE001 - an environment's own code, with a file's actions
            reason = shown(str(error) or type(error).__name__, 200)
            return EpisodeReplay(number, steps, "failed", cause=f"the environment fails: {reason}")
        return EpisodeReplay(**{**vars(found), "cause": cause})

    def _play(
        self, number: int, stored: _EpisodeRows, actions: Actions, until: int | None = None
    ) -> EpisodeReplay:
        first = beyond = leaf = None
        largest = 0.0
        for row, new in self._rows(number, stored, actions, until):
            difference, where, excess = stored.difference(row, new, self._tolerance)
            if difference > 0 and first is None:
                first = row
            if difference > largest:
                largest, leaf = difference, where
            if excess:
                largest, leaf, beyond = difference, where, row
                break
        outcome: Outcome = "exact" if first is None else "rounding"
        if beyond is not None:
            outcome = "different" if beyond <= 0 else "diverging"
        most = None if first is None else largest
        return EpisodeReplay(number, stored.steps, outcome, first, most, leaf, beyond)

    def _rows(
        self, number: int, stored: _EpisodeRows, actions: Actions, until: int | None
    ) -> Iterator[tuple[int, dict[Key, Any]]]:
        """Yield each row and what came out of it, by leaf; first -1 and the observation of `reset`."""
        observed, _ = self._env.reset(seed=self._seed_of(number))
        if self._state is not None:
            at = np.array([self._reader.starts[number]])
            qpos, qvel = (
                self._reader.observations_at(key, at, after=False)[0].astype(np.float64)
                for key in self._state
            )
            self._env.unwrapped.set_state(qpos, qvel)
        else:
            yield -1, dict(_leaves_of(observed, ("observation",)))
        for row in range(stored.steps if until is None else min(until, stored.steps)):
            reward, ended, played = 0.0, False, actions(row)
            for action in played:
                observed, gained, ended, _, _ = self._env.step(action)
                reward += float(gained)
                if ended:
                    break
            if played:
                outcome = {REWARD: reward, TERMINATED: bool(ended)}
                yield row, {**dict(_leaves_of(observed, ("observation",))), **outcome}

    def _action(self, stored: _EpisodeRows, row: int) -> Any:
        return _value_of(self._env.action_space, stored.actions, ("action",), row)

    def _seed_of(self, number: int) -> int | None:
        seed = -1 if self._seeds is None else int(np.asarray(self._seeds[number]).item())
        return seed if seed >= 0 else None

    def _explain(self, number: int, stored: _EpisodeRows, found: EpisodeReplay) -> str:
        """Return the likely cause of a difference."""
        spec = self._reader.manifest.environment
        recorded, name = spec.get("id"), self._env.spec.id if self._env.spec else None
        if recorded is not None and recorded != name:
            return f"another environment or version: recorded in {shown(recorded)}"
        without = [part for part in ("kwargs", "additional_wrappers") if spec.get(part)]
        options = self._reader.episodes.get(("options",))
        if options is not None and int(np.asarray(options[number]).item()) >= 0:
            without.append("options of reset")
        if without:
            return f"recorded with {' and '.join(without)}, which are not used here"
        if found.beyond == -1 and self._seed_of(number) is None:
            return "no seed and no state is stored, and the episode before does not lead to it"
        if found.beyond == -1:
            return "the seed gives another first observation: another version, or a wrapper"
        if self._seed_of(number) is None and self._state is None:
            return "the reason cannot be tested: only episodes with a seed or state start again"
        for cause, actions in self._explanations(stored):
            row = found.beyond or 0
            if not actions(row):
                continue  # the row that differs would not be played
            if self._play(number, stored, actions, row + _PROOF).beyond is None:
                return cause
        if found.leaf in {join_key(REWARD), join_key(TERMINATED)}:
            return f"observations agree so far and {found.leaf} does not: changed, or a wrapper"
        return "another version of the environment, or actions that were changed"

    def _explanations(self, stored: _EpisodeRows) -> Iterator[tuple[str, Actions]]:
        """Yield causes, and the actions that reproduce the episode if it is that one."""
        space, last = self._env.action_space, stored.steps - 1
        choices = space.n if hasattr(space, "start") and hasattr(space, "n") else 0  # Discrete

        def action(row: int) -> Any:
            return self._action(stored, row)

        if hasattr(space, "low"):
            yield (
                "actions are stored before they were clipped to the space",
                lambda row: [np.clip(action(row), space.low, space.high)],
            )
        yield (
            "actions are shifted by one row: row t has the action of t - 1",
            lambda row: [action(row + 1)] if row < last else [],
        )
        for first in range(choices if choices <= _MOST_ACTIONS else 0):
            yield (
                "actions are shifted by one row: row t has the action of t + 1",
                lambda row, first=first: [action(row - 1) if row else space.start + first],  # type: ignore[misc]
            )
        for count in range(2, MOST_SKIPPED + 1):
            yield (
                f"frame skip: a row is {count} steps of the environment",
                lambda row, count=count: [action(row)] * count,  # type: ignore[misc]
            )


class _EpisodeRows:
    """The stored rows of an episode."""

    def __init__(self, reader: DatasetReader, number: int, leaves: Mapping[Key, LeafSpec]) -> None:
        begin, self.steps = int(reader.starts[number]), int(reader.lengths[number])
        rows = np.arange(begin, begin + self.steps)
        known = bool(reader.final[number])
        self._compared = self.steps if known else self.steps - 1
        self._observations = {
            key: np.concatenate(
                [
                    reader.observations_at(key, rows[:1], after=False),
                    reader.observations_at(key, rows, after=True),
                ]
            )
            for key in leaves
        }
        self._steps = {
            key: reader.step(key)[rows] for key in (REWARD, TERMINATED) if key in reader.step_leaves
        }
        self.actions = {
            key: reader.step(key)[rows] for key in reader.step_leaves if key[0] == "action"
        }

    def difference(
        self, row: int, new: Mapping[Key, Any], tolerance: float
    ) -> tuple[float, str, bool]:
        """Return the largest difference, its leaf, and whether one is beyond the tolerance."""
        known = row < self._compared
        stored = {key: each[row + 1] for key, each in self._observations.items() if known}
        stored |= {key: each[row] for key, each in self._steps.items() if key in new}
        worst, leaf, beyond = 0.0, "", False
        for key, value in stored.items():
            shape = np.shape(new[key]) if key in new else "no such feature"
            if key in self._observations and shape != value.shape:
                raise FormatError(
                    f"{join_key(key)} is {[*value.shape]} here, in the environment {shape}"
                )
            expected = value.astype(np.float64)
            with np.errstate(over="ignore"):
                numbers = np.asarray(new[key]).astype(value.dtype).astype(np.float64)
                equal = (expected == numbers) | (np.isnan(expected) & np.isnan(numbers))
                apart = np.where(equal, 0, np.abs(numbers - expected))
            apart = np.asarray(np.where(np.isnan(apart), np.inf, apart), np.float64)
            largest = float(apart.max(initial=0))
            exceeds = bool((apart > tolerance * np.maximum(1, np.abs(expected))).any())
            if key in self._steps and beyond:
                continue  # a consequence
            if largest > worst or (exceeds and not beyond):
                worst, leaf = largest, join_key(key)
            beyond |= exceeds
        return worst, leaf, beyond


def _leaves_of(value: Any, key: Key) -> Iterator[tuple[Key, Any]]:
    """Yield the leaves of an observation, by the keys that they are stored under."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _leaves_of(part, (*key, str(name)))
    elif isinstance(value, tuple):
        for number, part in enumerate(value):
            yield from _leaves_of(part, (*key, str(number)))
    else:
        yield key, value


def _value_of(space: Any, columns: Mapping[Key, NDArray[Any]], key: Key, row: int) -> Any:
    """Return the action of a row in the form that the space has."""
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return {
            name: _value_of(part, columns, (*key, str(name)), row) for name, part in parts.items()
        }
    if parts is not None:
        return tuple(
            _value_of(part, columns, (*key, str(number)), row) for number, part in enumerate(parts)
        )
    if key not in columns:
        known = ", ".join(map(join_key, columns))
        raise NotFoundError(f"The environment acts by {join_key(key)}; stored are {known}")
    return columns[key][row].reshape(space.shape)[()]

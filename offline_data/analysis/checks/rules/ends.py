"""Rules on how episodes end, how long they are, and what follows their last action."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from offline_data.analysis.checks.block import RowBlock, numeric, zero_rows
from offline_data.analysis.checks.finding import Finding
from offline_data.analysis.checks.rule import Measured, Rule, Tally
from offline_data.analysis.checks.tokens import token_leaves
from offline_data.base.plurals import plural, plural_of
from offline_data.episode.autoreset import find_autoreset
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED, Key
from offline_data.store.reader import DatasetReader


def _flags(reader: DatasetReader) -> NDArray[np.bool_]:
    """Return whether each episode ends terminated, and truncated, `[2, E]`."""
    return np.array([reader.episodes[(name,)] for name in ("terminated", "truncated")], bool)


class _EpisodeRule(Rule):
    """A rule that needs only the table of episodes."""

    verbs: ClassVar[tuple[str, str]] = ("has", "have")  # of one episode, of several
    problem: ClassVar[str] = ""
    at_end: ClassVar[bool] = True  # a finding is at the last row of an episode, else the first

    def choose(self, reader: DatasetReader) -> NDArray[np.bool_]:
        """Return which episodes to report, `[E]`."""
        raise NotImplementedError

    def findings(self, measured: Measured) -> Iterator[Finding]:
        reader = measured.reader
        found = np.flatnonzero(self.choose(reader))
        if count := len(found):
            first = int(found[0])
            row = int(reader.starts[first]) + (int(reader.lengths[first]) - 1) * self.at_end
            some = plural_of(count, reader.episode_count, "episode", *self.verbs)
            text = f"{some} {self.describe(reader)}"
            yield self.finding(reader, text, episode=first, row=row, count=count)

    def describe(self, reader: DatasetReader) -> str:
        """Return the rest of the sentence, after the verb."""
        return self.problem


class NeitherEnd(_EpisodeRule):
    """An episode ends neither terminated nor truncated.

    Code that finds episodes by their flags joins it with the next one, and bootstraps a value from
    a state of another episode. This package stores where episodes end; other code relies on the
    flags.
    """

    code = "RL010"
    name = "neither-end"
    severity = "warning"
    hint = "set truncated on the last row of these episodes in the source"
    verbs = ("ends", "end")
    problem = "neither terminated nor truncated"

    def choose(self, reader: DatasetReader) -> NDArray[np.bool_]:
        return np.asarray(~_flags(reader).any(axis=0))


class BothEnds(_EpisodeRule):
    """An episode ends both terminated and truncated.

    The flag `terminated` takes precedence: nothing is bootstrapped after the last action. If the
    time limit alone ended the episode, as in sources that set both flags at the last step, values
    are too low.
    """

    code = "RL011"
    name = "both-ends"
    severity = "info"
    hint = "see in the source whether the environment or the time limit ended these episodes"
    verbs = ("ends", "end")
    problem = "both terminated and truncated"

    def choose(self, reader: DatasetReader) -> NDArray[np.bool_]:
        return np.asarray(_flags(reader).all(axis=0))


class DoneInsideEpisode(Rule):
    """A row before the last of an episode is terminated or truncated.

    Values are cut off there, and code that finds episodes by their flags cuts the episode in two.
    """

    code = "RL012"
    name = "done-inside-episode"
    severity = "error"
    hint = "convert with the source's own episode ends, or clear the flags with `preprocess`"

    def leaves(self, reader: DatasetReader) -> Iterable[Key]:
        return (TERMINATED, TRUNCATED)

    def measure(self, block: RowBlock, key: Key) -> Tally:
        set_ = block.numbers(key)[:, 0].copy()
        set_[block.ends] = False
        return Tally.of(block, key, np.flatnonzero(set_))

    def message(self, reader: DatasetReader, key: Key, found: Tally) -> str:
        rows = plural(found.number, "row is", "rows are")
        return f"{rows} {key[-1]} before the end of the episode"


class UnknownFinalObservation(_EpisodeRule):
    """The source lacks the observation after the last action of an episode.

    Nothing can be bootstrapped from it: samplers skip that transition unless it is terminated.
    Sources of N rows for N actions (D4RL, RLDS, Atari) have no such observation.
    """

    code = "RL013"
    name = "unknown-final-observation"
    severity = "info"
    hint = "nothing; slices keep these rows, and samplers of transitions skip them"
    problem = "no observation after the last action, which is not terminated"

    def choose(self, reader: DatasetReader) -> NDArray[np.bool_]:
        return np.asarray(~(reader.final | _flags(reader)[0]))


class MadeUpFinalObservation(Rule):
    """The observation after a truncated episode's last action is all zero or NaN.

    It is a placeholder and not a state: values bootstrapped from it are wrong. TorchRL's D4RL
    loader writes zeros there.
    """

    code = "RL014"
    name = "made-up-final-observation"
    severity = "error"
    hint = "convert from the original files, with this package"

    def leaves(self, reader: DatasetReader) -> Iterable[Key]:
        return numeric(reader.observation_leaves, "observation")

    def measure(self, block: RowBlock, key: Key) -> Tally:
        values = block.numbers(key)
        values = values.reshape(-1, prod(values.shape[1:]))
        at = block.known_ends
        terminated = block.reader.episodes[("terminated",)]
        cut = ~np.asarray(terminated[block.episodes[at]], bool)
        finals = at + np.arange(len(at)) + 1
        ends = values[finals[cut]]
        zero = ~ends.any(1)
        nan = np.isnan(ends).all(1) if ends.dtype.kind == "f" else np.zeros(len(ends), bool)
        low, high = block.extremes(key)
        never = (low > 0).any() or (high < 0).any()
        zeros = finals[:0] if never else zero_rows(values)
        elsewhere = len(zeros) - int(np.isin(finals, zeros).sum())  # a state like others there
        figures = {"ends": len(ends), "zero": int(zero.sum()), "nan": int(nan.sum())}
        return Tally.of(block, key, finals[cut][zero | nan], **figures, elsewhere=elsewhere)

    def of_leaf(self, reader: DatasetReader, key: Key, found: Tally) -> Iterator[Finding]:
        zero = 0 if found.elsewhere else found.zero
        if number := zero + found.nan:
            what = "0" if not found.nan else "NaN" if not zero else "0 or NaN"
            ends = plural(found.ends, "episode that is", "episodes that are")
            text = f"Of {ends} not terminated, {plural(number, 'has', 'have')} only {what}"
            text += " as the observation after their last action"
            yield self.finding(reader, text, found.place, count=number)


class AutoresetRows(Rule):
    """Episodes have rows of a vector environment's automatic resets.

    Gymnasium's vector environments reset by themselves. In mode `next_step` a row of the reset, with a
    reward of 0 and an action that was ignored, begins each later episode; in mode `same_step` the next
    observation of an episode's last row is the first one of the next episode, so that values are
    bootstrapped from another state. The finding needs 10 ends at which a step is longer than 99 % of the
    steps inside episodes; a long run that was cut into pieces has none.
    """

    code = "RL018"
    name = "autoreset-rows"
    severity = "warning"

    def findings(self, measured: Measured) -> Iterator[Finding]:
        reader = measured.reader
        keys = numeric(reader.observation_leaves, "observation")

        def states(rows: NDArray[np.int64], after: bool) -> NDArray[Any]:
            found = [reader.observations_at(key, rows, after=after) for key in keys]
            return np.concatenate([one.reshape(len(rows), -1) for one in found], axis=1)

        reward = reader.step(REWARD) if REWARD in reader.step_leaves else None
        found = find_autoreset(states, reader.lengths, reader.final, reward) if keys else None
        if found is not None:
            mode, ends = found
            what = "observation is the first one of the next episode"
            if mode == "next_step":
                what = "episode begins with a row of the reset, whose action was ignored"
            where = f"At {plural(ends, 'end')} of {reader.episode_count - 1:,}"
            text = f"{where} the next {what}: convert again with --autoreset {mode}, "
            text += f'or `autoreset = "{mode}"` in the mapping'
            yield self.finding(reader, text, count=ends, about=mode)


class OneStepEpisodes(_EpisodeRule):
    """Some episodes have a single step, in a dataset of longer ones.

    They often come from an end flag that is set on two consecutive rows. A dataset of one-step
    episodes only (a table, a contextual bandit) is not reported, nor are documents of one token.
    """

    code = "RL016"
    name = "one-step-episodes"
    severity = "warning"
    hint = "check the end flags of the source around these rows"
    thresholds: ClassVar = {"share": 0.01}
    explained: ClassVar = {"share": "minimum share of episodes that is reported"}

    problem = "one step"
    at_end = False

    def choose(self, reader: DatasetReader) -> NDArray[np.bool_]:
        short = reader.lengths == 1
        some = self.limits["share"] <= short.mean() < 1 and not token_leaves(reader)
        return np.asarray(short & some)


class OutlierLength(_EpisodeRule):
    """An episode is many times as long as the others.

    Usually an end flag is missing, and several episodes are stored as one. Documents of tokens are
    not checked: see RL107.
    """

    code = "RL017"
    name = "outlier-length"
    severity = "info"
    hint = "check the end flags of the source within this episode"
    thresholds: ClassVar = {"times": 10.0, "least_episodes": 20}
    explained: ClassVar = {
        "times": "length as a multiple of the 95th percentile of lengths",
        "least_episodes": "minimum number of episodes of a dataset",
    }

    at_end = False

    def choose(self, reader: DatasetReader) -> NDArray[np.bool_]:
        lengths = reader.lengths
        few = len(lengths) < self.limits["least_episodes"] or bool(token_leaves(reader))
        return (lengths > self.limits["times"] * _usual_length(lengths)) & (not few)

    def describe(self, reader: DatasetReader) -> str:
        usual, longest = _usual_length(reader.lengths), reader.lengths.max()
        times = f"more than {self.limits['times']:g} times"
        return f"{times} the length of 95 % of the others ({usual:,.0f} steps); the longest has {longest:,}"


def _usual_length(lengths: NDArray[np.int64]) -> float:
    return float(np.quantile(lengths, 0.95))

"""Statistics of a dataset as values, and what is shown of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod

import numpy as np
from numpy.typing import NDArray

from offline_data.analysis.histograms import FeatureHistogram
from offline_data.base.errors import NotFoundError, UsageError
from offline_data.base.ids import unknown
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.document import text
from offline_data.document.blocks import Block, Fields, Table, fields_of, non_empty, table
from offline_data.document.html import Document
from offline_data.episode.fields import join_key, split_key
from offline_data.store.quantiles import LEVELS, QUANTILES
from offline_data.store.statistics import Number

MOST_FEATURES = 1024  # numbers in a row of a leaf that has figures of each of them: images have not

_ENDS = ("q01", "q99")  # quantiles in openpi's `norm_stats.json`
_QUANTILES = {"Q01": 0.01, "Q10": 0.1, "Q50": 0.5, "Q90": 0.9, "Q99": 0.99}  # that are shown


@pickled_by_name
@dataclass(frozen=True, eq=False)
class FeatureStats:
    """Figures of each number of a feature's rows, over the finite values of it; arrays `[*shape]`.

    Final observations count in `min` and `max` alone, see `LeafStats`.
    """

    count: NDArray[np.int64]
    """Finite values."""
    min: NDArray[np.generic]
    """In the feature's dtype, booleans as 0 and 1; NaN where no value is finite, like the next three."""
    max: NDArray[np.generic]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    """Standard deviation of the population."""
    quantiles: NDArray[np.float64]
    """At the levels `QUANTILES`, `[*shape, levels]`; levels 0 and 1 are `min` and `max`. NaN where no
    value is finite."""
    rank_error: float
    """Bound of the distance between ranks of `quantiles` and the exact ones, as a share of the rows:
    0 where they are exact, as for fewer than 1,024 rows (8,192 of up to 32 numbers)."""
    histogram: FeatureHistogram


@pickled_by_name
@dataclass(frozen=True, repr=False)
class LeafStats:
    """Statistics over the finite items of a numeric feature; printed, those of each dimension.

    They are of the T rows of an episode that a policy sees. The observation after its last action, if it
    is known, counts in `min` and `max` alone.
    """

    key: str
    """TED key, parts joined by `/`."""
    dtype: str
    shape: tuple[int, ...]
    """Shape of one row."""
    rows: int
    """Number of rows, without final observations: `N`."""
    min: Number | None
    """None for complex features and if no item is finite, like the next three."""
    max: Number | None
    mean: float | None
    std: float | None
    """Population standard deviation."""
    nan: int
    inf: int
    features: FeatureStats | None = field(default=None, compare=False)
    """Figures of each number of a row; None for complex features and rows of more than `MOST_FEATURES`."""

    @property
    def kind(self) -> str:
        """Its dtype and the shape of a row, `float32[3]`."""
        return self.dtype + (str(list(self.shape)) if self.shape else "")

    def feature_rows(self) -> list[tuple[str, int, Number, Number, float, float]]:
        """List name (`action[0]`), count, min, max, mean and std of each feature, if there are several."""
        found = self.features
        if found is None or prod(self.shape) < 2:
            return []
        places = [str(list(place)) for place in np.ndindex(*self.shape)]
        columns = (found.count, found.min, found.max, found.mean, found.std)
        figures = zip(*(column.ravel().tolist() for column in columns), strict=True)
        return [(self.key + place, *row) for place, row in zip(places, figures, strict=True)]

    def quantile_rows(self) -> list[tuple[str | float, ...]]:
        """List name and quantiles at the levels `QUANTILES` of each feature, or of the only one."""
        if self.features is None:
            return []
        rows = self.features.quantiles.reshape(-1, len(QUANTILES)).tolist()
        places = list(np.ndindex(*self.shape)) if len(rows) > 1 else [()]
        names = [self.key + (str(list(place)) if place else "") for place in places]
        return [(name, *row) for name, row in zip(names, rows, strict=True)]

    def __repr__(self) -> str:
        return text.render([leaf_table([self]), *non_empty(feature_table([self]))])


@dataclass(frozen=True)
class TextStats:
    """Statistics of a text feature."""

    key: str
    rows: int
    distinct: int
    """Number of distinct words that occur."""
    missing: int
    """Number of items without text in the source."""
    most_common: tuple[tuple[str, int], ...]
    """Up to `MOST_COMMON` words with their counts, most frequent first."""


@pickled_by_name
@dataclass(frozen=True)
class Spread:
    """Distribution of the finite values of one quantity over the episodes."""

    min: float
    median: float
    mean: float
    max: float


@pickled_by_name
@dataclass(frozen=True)
class EpisodeStats:
    """Statistics of episodes."""

    length: Spread | None
    returns: Spread | None
    """Undiscounted returns; None if none is finite."""
    terminated: float
    """Fraction of episodes that end terminated, in [0, 1]."""
    truncated: float
    without_final_observation: int
    """Number of episodes whose observation after the last action is unknown."""


@pickled_by_name
@dataclass(frozen=True, repr=False)
class DatasetStats(Document):
    """All statistics of a dataset or a view of it, features ordered by key; printed as tables."""

    id: str
    transitions: int
    episodes: int
    leaves: tuple[LeafStats, ...]
    texts: tuple[TextStats, ...]
    per_episode: EpisodeStats
    quantile_levels: tuple[float, ...] = QUANTILES
    """Levels of the quantiles in `features`."""
    actions: LeafStats | None = None
    """Of action chunks or relative actions, if requested; a row is one action of one chunk."""

    def __getitem__(self, key: str | tuple[str, ...]) -> LeafStats | TextStats:
        """Return the figures of one feature by its TED key; raises `NotFoundError`."""
        name = join_key(split_key(key) if isinstance(key, str) else key)
        every: tuple[LeafStats | TextStats, ...] = (*self.leaves, *self.texts)
        known = {leaf.key: leaf for leaf in every}
        if name not in known:
            hint = f'["{next(iter(known))}"].mean is the mean of one'
            raise unknown(NotFoundError, "There is no feature", name, known, hint=hint)
        return known[name]

    def norm_stats(self, state: str | None = None) -> dict[str, dict[str, dict[str, list[float]]]]:
        """Return the content of openpi's `norm_stats.json`: figures of `state` and `actions`.

        Actions are those of `actions` if chunks or relative actions were requested, else the feature.

        Args:
            state: Feature of the robot's state; None: `observation/state` or the only observation.

        Raises:
            NotFoundError: No such feature.
            UsageError: No feature named and none is obvious, or one that is not a vector of numbers
                with finite values.
        """
        seen = [leaf.key for leaf in self.leaves if split_key(leaf.key)[0] == "observation"]
        if state is None and "observation/state" not in seen and len(seen) != 1:
            raise UsageError(
                f"{self.id} has no feature observation/state and {plural(len(seen), 'other')}",
                hint="name the robot's state: --state KEY, norm_stats(KEY)",
            )
        state = state or ("observation/state" if "observation/state" in seen else seen[0])
        found = {}
        for name, leaf in (("state", self[state]), ("actions", self.actions or self["action"])):
            figures = leaf.features if isinstance(leaf, LeafStats) else None
            vector = isinstance(leaf, LeafStats) and len(leaf.shape) < 2
            if figures is None or not vector or not np.all(figures.count):
                raise UsageError(
                    f"openpi takes one vector of numbers as {name}; {leaf.key!r} is none, or has "
                    "dimensions without a finite value"
                )
            levels = {name: figures.quantiles[..., QUANTILES.index(LEVELS[name])] for name in _ENDS}
            columns = {"mean": figures.mean, "std": figures.std, **levels}
            found[name] = {key: column.reshape(-1).tolist() for key, column in columns.items()}
        return {"norm_stats": found}

    def blocks(self) -> list[Block]:
        return stats_blocks(self)


def leaf_table(leaves: Iterable[LeafStats]) -> Table:
    """Return a row of figures for each feature."""
    spec = "feature=key:code type=kind min:number max:number mean:number std:number"
    return table(f"{spec} NaN=nan:number Inf=inf:number", leaves)


def feature_table(leaves: Iterable[LeafStats]) -> Table:
    """Return a row of figures for each dimension of features that have several."""
    return table(
        "dimension=feature:code finite:count min:number max:number mean:number std:number",
        [row for leaf in leaves for row in leaf.feature_rows()],
    )


def text_table(stats: DatasetStats) -> Table:
    """Return a row for each text feature, with its most common words."""
    return table(
        "text=key:code distinct:count missing:count common",
        stats.texts,
        common=lambda one: ", ".join(f"{word!r} {n:,}" for word, n in one.most_common),
    )


def spread_table(stats: DatasetStats) -> Table:
    """Return the spread of lengths and returns."""
    spreads = {"length": stats.per_episode.length, "return": stats.per_episode.returns}
    return table(
        "episodes min:number median:number mean:number max:number",
        [{"episodes": name, **vars(spread)} for name, spread in spreads.items() if spread],
    )


def ends_fields(stats: DatasetStats) -> Fields:
    """Return numbers of steps and episodes, and how episodes end."""
    return fields_of(
        stats,
        "id:code steps=transitions:count episodes:count terminated=per_episode.terminated:share "
        "truncated=per_episode.truncated:share "
        "no_final_observation=per_episode.without_final_observation:count",
    )


def stats_blocks(
    stats: DatasetStats, *, features: bool = False, quantiles: bool = False
) -> list[Block]:
    """Return the statistics of a dataset; with those of each dimension, and its quantiles, on request."""
    leaves = [*stats.leaves, *([stats.actions] if stats.actions else [])]
    places = [0, *(1 + stats.quantile_levels.index(level) for level in _QUANTILES.values())]
    levels = table(
        f"quantiles_of:code {' '.join(f'{title}:number' for title in _QUANTILES)}",
        [
            tuple(row[place] for place in places)
            for leaf in leaves
            for row in (leaf.quantile_rows() if quantiles else ())
        ],
    )
    optional = non_empty(feature_table(leaves if features else ()), levels, text_table(stats))
    return [ends_fields(stats), leaf_table(leaves), *optional, spread_table(stats)]

"""`stats`: figures of every leaf and of the episodes."""

from typing import TYPE_CHECKING

from offline_data_cli.call import Call
from offline_data_cli.options import Dataset
from offline_data_cli.result import Block, Column, Field, Fields, Result, Table

if TYPE_CHECKING:
    from offline_data.reports.stats import DatasetStats, EpisodeStats

_LEAVES = (
    Column("LEAF"),
    Column("TYPE"),
    Column("MIN", "number"),
    Column("MAX", "number"),
    Column("MEAN", "number"),
    Column("STD", "number"),
    Column("NAN", "number"),
    Column("INF", "number"),
)
_TEXTS = (Column("TEXT"), Column("DISTINCT", "count"), Column("MISSING", "count"), Column("COMMON"))
_SPREADS = (
    Column("EPISODES"),
    Column("MIN", "number"),
    Column("MEDIAN", "number"),
    Column("MEAN", "number"),
    Column("MAX", "number"),
)


def stats(call: Call, dataset: Dataset) -> Result:
    """Show figures of every leaf and of the episodes."""
    from offline_data.reports.stats import dataset_stats
    from offline_data.store.library import locate
    from offline_data.store.reader import open_reader

    entry = locate(dataset, call.settings)
    figures = dataset_stats(open_reader(entry.path), call.progress)
    return stats_result(figures)


def stats_result(figures: "DatasetStats") -> Result:
    """Lay out the figures of a dataset."""
    blocks: list[Block] = [_counts(figures), _leaves(figures)]
    if figures.texts:
        blocks.append(_texts(figures))
    blocks.append(_episodes(figures.per_episode))
    return Result(figures, tuple(blocks), (figures.id,))


def _counts(figures: "DatasetStats") -> Fields:
    episodes = figures.per_episode
    return Fields(
        (
            Field("id", figures.id),
            Field("transitions", figures.transitions, "count"),
            Field("episodes", figures.episodes, "count"),
            Field("terminated", episodes.terminated, "share"),
            Field("truncated", episodes.truncated, "share"),
            Field("no final observation", episodes.without_final_observation, "count"),
        )
    )


def _leaves(figures: "DatasetStats") -> Table:
    rows = tuple(
        (
            leaf.key,
            leaf.dtype + (str(list(leaf.shape)) if leaf.shape else ""),
            leaf.min,
            leaf.max,
            leaf.mean,
            leaf.std,
            leaf.nan,
            leaf.inf,
        )
        for leaf in figures.leaves
    )
    return Table(_LEAVES, rows)


def _texts(figures: "DatasetStats") -> Table:
    rows = tuple(
        (
            text.key,
            text.distinct,
            text.missing,
            ", ".join(f"{word!r} {times}" for word, times in text.most_common),
        )
        for text in figures.texts
    )
    return Table(_TEXTS, rows)


def _episodes(figures: "EpisodeStats") -> Table:
    named = (("length", figures.length), ("return", figures.returns))
    rows = tuple(
        (name, spread.min, spread.median, spread.mean, spread.max)
        for name, spread in named
        if spread is not None
    )
    return Table(_SPREADS, rows)

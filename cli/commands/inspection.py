"""`head`, `sample` and `stats`: the values of a dataset."""

import time
from typing import TYPE_CHECKING, Annotated, Any

from offline_data_cli.context import Context
from offline_data_cli.options import Dataset, option
from offline_data_cli.render import number
from offline_data_cli.result import Block, Column, Field, Fields, Result, Table

if TYPE_CHECKING:
    from offline_data.reports.stats import DatasetStats
    from offline_data.store.library import Entry

_MOST_ITEMS = 6
"""Items of an array that people see; `--json` has them all."""

_MOST = 1 << 24
"""Largest batch in transitions."""


def _numbers(*titles: str) -> tuple[Column, ...]:
    return tuple(Column(title, "number") for title in titles)


_LEAVES = (Column("LEAF"), Column("TYPE"), Column("SHAPE"), *_numbers("MIN", "MAX"))
_STATISTICS = (Column("LEAF"), Column("TYPE"), *_numbers("MIN", "MAX", "MEAN", "STD", "NAN", "INF"))
_TEXTS = (Column("TEXT"), Column("DISTINCT", "count"), Column("MISSING", "count"), Column("COMMON"))
_EPISODES = (Column("EPISODES"), *_numbers("MIN", "MEDIAN", "MEAN", "MAX"))


def head(
    context: Context,
    dataset: Dataset,
    count: Annotated[int, option("Number of transitions.", "-n", metavar="N", min=1)] = 5,
    episode: Annotated[
        int | None, option("Only episode E, counted from 0.", metavar="E", min=0)
    ] = None,
) -> Result:
    """Show the first transitions of a dataset or of one episode."""
    from offline_data.reports.info import first_transitions
    from offline_data.store.library import locate
    from offline_data.store.reader import open_reader

    entry = locate(dataset, context.settings)
    transitions = first_transitions(open_reader(entry.path), count, episode)
    blocks = tuple(
        Fields(
            tuple(Field(key, brief(value)) for key, value in one.values.items()),
            f"episode {one.episode}, step {one.step}, index {one.index}",
        )
        for one in transitions
    )
    return Result(transitions, blocks, (str(entry.id),))


def brief(value: Any) -> str:
    """Write the value of a leaf on one line: its first items, then its shape.

    Example:
        >>> import numpy as np
        >>> brief(np.array([0.5, 2.0])), brief(np.zeros((2, 4), "u1"))
        ('0.5 2', '0 0 0 0 0 0 … uint8 [2, 4]')
    """
    import numpy as np

    array = np.asarray(value)
    items = " ".join(
        f"{item:.6g}" if isinstance(item, float) else str(item)
        for item in array.ravel()[:_MOST_ITEMS].tolist()
    )
    return items if array.size <= _MOST_ITEMS else f"{items} … {array.dtype} {list(array.shape)}"


def sample(
    context: Context,
    dataset: Dataset,
    batch: Annotated[
        int, option("Transitions in the batch.", "--batch", metavar="N", min=1, max=_MOST)
    ] = 256,
    slices: Annotated[
        int | None,
        option(
            "Sample slices of L consecutive steps instead of single transitions.",
            "--slices",
            metavar="L",
            min=1,
            max=_MOST,
        ),
    ] = None,
) -> Result:
    """Sample a random batch and show its leaves."""
    from offline_data.errors import UsageError
    from offline_data.store.library import locate

    if slices and batch % slices:
        fitting = max(batch // slices, 1) * slices
        raise UsageError(
            f"--batch {batch} must be a multiple of --slices {slices}",
            hint=f"try --batch {fitting}",
        )
    return sample_result(locate(dataset, context.settings), batch, slices)


def sample_result(entry: "Entry", batch: int, slices: int | None = None) -> Result:
    """Sample one batch of a dataset and lay out its leaves."""
    import offline_data

    sampler = None if slices is None else offline_data.SliceSampler(slice_len=slices)
    buffer = offline_data.open_dataset(entry.path, batch_size=batch, sampler=sampler)
    begin = time.perf_counter()
    drawn: Any = buffer.sample()
    seconds = time.perf_counter() - begin
    items = drawn.items(include_nested=True, leaves_only=True)
    named = {key if isinstance(key, str) else "/".join(key): value for key, value in items}
    leaves = {key: _leaf(named[key]) for key in sorted(named)}
    data = {
        "id": str(entry.id),
        "batch": batch,
        "slices": slices,
        "seconds": seconds,
        "leaves": leaves,
    }
    rows = tuple(
        (key, leaf["dtype"], str(leaf["shape"]), leaf["min"], leaf["max"])
        for key, leaf in leaves.items()
    )
    of = f" in slices of {slices}" if slices else ""
    note = f"{batch} transitions{of} sampled in {number(1000 * seconds)} ms (first batch)"
    return Result(data, (Table(_LEAVES, rows),), (str(entry.id),), (note,))


def _leaf(tensor: Any) -> dict[str, Any]:
    ordered = tensor.numel() > 0 and not tensor.is_complex()
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "min": tensor.min().item() if ordered else None,
        "max": tensor.max().item() if ordered else None,
    }


def stats(context: Context, dataset: Dataset) -> Result:
    """Show statistics of every leaf and of the episodes."""
    from offline_data.reports.stats import dataset_stats
    from offline_data.store.library import locate
    from offline_data.store.reader import open_reader

    entry = locate(dataset, context.settings)
    return stats_result(dataset_stats(open_reader(entry.path), context.progress))


def stats_result(found: "DatasetStats") -> Result:
    """Lay out the statistics of a dataset."""
    episodes = found.per_episode
    counts = Fields(
        (
            Field("id", found.id),
            Field("transitions", found.transitions, "count"),
            Field("episodes", found.episodes, "count"),
            Field("terminated", episodes.terminated, "share"),
            Field("truncated", episodes.truncated, "share"),
            Field("no final observation", episodes.without_final_observation, "count"),
        )
    )
    leaves = tuple(
        (
            leaf.key,
            leaf.dtype + (str(list(leaf.shape)) if leaf.shape else ""),
            *(leaf.min, leaf.max, leaf.mean, leaf.std, leaf.nan, leaf.inf),
        )
        for leaf in found.leaves
    )
    texts = tuple(
        (
            text.key,
            text.distinct,
            text.missing,
            ", ".join(f"{word!r} {times}" for word, times in text.most_common),
        )
        for text in found.texts
    )
    spreads = tuple(
        (name, spread.min, spread.median, spread.mean, spread.max)
        for name, spread in (("length", episodes.length), ("return", episodes.returns))
        if spread is not None
    )
    blocks: list[Block] = [counts, Table(_STATISTICS, leaves)]
    if texts:
        blocks.append(Table(_TEXTS, texts))
    blocks.append(Table(_EPISODES, spreads))
    return Result(found, tuple(blocks), (found.id,))

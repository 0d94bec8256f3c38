"""`episodes` and `replay`: the quality of episodes, and whether an environment reproduces them."""

from typing import Annotated

from offline_data_cli.commands.pages import Replace, new_figure
from offline_data_cli.names import entry_named
from offline_data_cli.options import Context, Dataset, count, option
from offline_data_cli.result import Result


def episodes(
    context: Context,
    dataset: Dataset,
    sort: Annotated[
        str | None,
        option("Sort by a column, largest first; unknown values last.", metavar="COLUMN"),
    ] = None,
    reverse: Annotated[bool, option("With --sort: smallest first.")] = False,
    where: Annotated[
        str | None,
        option("Only episodes that match an expression, as in `filter`.", metavar="EXPRESSION"),
    ] = None,
    limit: Annotated[int | None, count("Show at most N episodes.")] = None,
    leaf: Annotated[
        str | None,
        option(
            "Feature of idle, jerk and velocity. (default: positions or state, else the action)",
            metavar="KEY",
        ),
    ] = None,
    similar: Annotated[
        bool, option("Add the nearest other episode and duplicates. Slower.")
    ] = False,
    out: Annotated[
        str | None, option("Draw all columns in a .png, .svg or .pdf file.", metavar="FILE")
    ] = None,
    force: Replace = False,
) -> Result:
    """Show the quality of episodes: idle steps, jerk, outliers and more.

    Values that are not known are empty. Column outliers names the columns in which an episode is an outlier.
    """
    import numpy as np

    from offline_data.analysis.episodes import episode_quality, with_marks
    from offline_data.base.errors import UsageError
    from offline_data.reports import figure
    from offline_data.store.reader import open_reader

    if reverse and sort is None:
        raise UsageError("--reverse requires --sort", hint="add --sort jerk")
    entry, picture = entry_named(context, dataset), new_figure(out, force)
    reader = open_reader(entry.path)
    quality = episode_quality(reader, context.progress, leaf=leaf)
    if similar:
        from offline_data.analysis.similar import with_similar

        quality = with_similar(reader, quality)
    columns = with_marks(reader, quality)
    every = np.arange(len(quality["length"]))
    numbers = every if sort is None else columns.order(sort, reverse=reverse)
    if where is not None:
        from offline_data.pipeline.preprocess.steps.episodes import episodes_where

        numbers = numbers[episodes_where(reader, where)[numbers]]
    rows = columns.rows(numbers[:limit])
    unit = f"per second at {quality.rate:g} steps/s" if quality.rate else "per step"
    notes = [f"idle, jerk and velocity are of {quality.leaf}, {unit}"] if quality.leaf else []
    if picture:
        figure.write(figure.draw_quality(str(entry.id), quality), picture)
        notes.append(f"{picture} written")
    data = {"id": str(entry.id), "leaf": quality.leaf, "rate": quality.rate, "episodes": rows}
    return Result(data, columns.blocks(rows, sort), (str(entry.id),), notes)


def replay(
    context: Context,
    dataset: Dataset,
    env: Annotated[
        str | None,
        option("Registered environment to play. (default: that of the dataset)", metavar="ENV"),
    ] = None,
    episodes: Annotated[int | None, count("Only the first N episodes.")] = None,
    tolerance: Annotated[
        float,
        option("Difference that counts as rounding, relative above 1.", metavar="X", min=0),
    ] = 1e-5,
    fail: Annotated[
        bool, option("Exit with 1 unless all episodes are exact or within rounding.")
    ] = False,
    save: Annotated[bool, option("Record a summary in the manifest, which `info` shows.")] = False,
    out: Annotated[
        str | None, option("Draw the result in a .png, .svg or .pdf file.", metavar="FILE")
    ] = None,
    force: Replace = False,
) -> Result:
    """Play the actions in the environment and compare every step.

    The environment must be registered with Gymnasium; keywords and wrappers of the dataset are not used.
    """
    from offline_data import api
    from offline_data.reports import figure

    entry, picture = entry_named(context, dataset), new_figure(out, force)
    found = api.replay(
        entry.path,
        env=env,
        episodes=episodes,
        tolerance=tolerance,
        save=save,
        settings=context.settings,
        progress=context.progress,
    )
    data = {**vars(found), "counts": found.counts, "reproduced": found.reproduced}
    notes = [found.summary, *(["recorded in the manifest"] if save else [])]
    if picture:
        figure.write(figure.draw_replay(found), picture)
        notes.append(f"{picture} written")
    return Result(data, found.blocks(), (found.id,), notes, int(fail and not found.reproduced))

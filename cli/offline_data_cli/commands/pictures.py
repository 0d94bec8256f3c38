"""`plot`, `view` and `card`: a dataset as a figure, a film of an episode, a dataset card."""

import re
from enum import Enum
from typing import Annotated

from offline_data.base.errors import UsageError
from offline_data.document.blocks import non_empty, table
from offline_data_cli.commands.pages import Replace, new_figure, new_file, report, write_page
from offline_data_cli.names import entry_named
from offline_data_cli.options import Context, Dataset, argument, option
from offline_data_cli.result import Drawing, Result


class PictureKind(str, Enum):
    """Values of `plot --kind`."""

    histogram = "histogram"
    range = "range"
    curve = "curve"
    coverage = "coverage"


def plot(
    context: Context,
    dataset: Dataset,
    out: Annotated[
        str | None,
        option(
            "Write a .png, .svg or .pdf figure. (default: draw in the terminal)",
            metavar="FILE",
        ),
    ] = None,
    leaf: Annotated[
        str | None, option("Draw only this feature, or return or length.", metavar="NAME")
    ] = None,
    kind: Annotated[
        PictureKind | None,
        option("Draw only this: histogram, range, curve or coverage.", metavar="KIND"),
    ] = None,
    list_: Annotated[
        bool, option("List the features and kinds of pictures that can be drawn.", "--list")
    ] = False,
    force: Replace = False,
) -> Result:
    """Plot returns, lengths, rewards, actions, coverage and more."""
    if out is not None and out.lower().endswith(".html"):
        if leaf or kind or list_:
            raise UsageError("--leaf, --kind and --list are not for .html", hint="--out FILE.svg")
        return report(context, [dataset], out, force=force)
    from offline_data.reports import figure
    from offline_data.reports.pictures import drawable, select, summarise
    from offline_data.store.reader import open_reader

    entry = entry_named(context, dataset)
    path = new_figure(out, force)
    reader = open_reader(entry.path)
    found = summarise(reader, context.progress)
    if list_:
        pairs = [pair for pair in drawable(found) if leaf in {None, pair[0]}]
        data = [{"leaf": key, "kind": what} for key, what in pairs]
        return Result(data, non_empty(table("feature=leaf kind", data)), [key for key, _ in pairs])
    if leaf or kind:
        found = select(reader, found, leaf, kind.value if kind else None)
    if not path:
        from offline_data_cli.charts import chart_lines

        return Result(found, (Drawing(lambda wide: chart_lines(found, wide)),), (str(entry.id),))
    content = figure.encode(figure.draw(found), figure.check_format(path))
    return write_page(str(entry.id), path, content)


def view(
    context: Context,
    dataset: Dataset,
    episode: Annotated[int, argument("EPISODE", "Number of the episode, from 0.", min=0)],
    out: Annotated[
        str | None,
        option(
            "Write .mp4 or .gif. (default: NAME-EPISODE.mp4 here)",
            metavar="FILE",
        ),
    ] = None,
    leaf: Annotated[
        str | None, option("Image feature to show. (default: the first)", metavar="KEY")
    ] = None,
    fps: Annotated[
        float | None,
        option("Frames per second. (default: as the dataset states, else 30)", metavar="N"),
    ] = None,
    rerun: Annotated[bool, option("Open the Rerun viewer instead of writing a file.")] = False,
    force: Replace = False,
) -> Result:
    """Write the images of an episode as a video, or open them in Rerun."""
    from offline_data.analysis.frames import film
    from offline_data.analysis.transitions import episode_span
    from offline_data.episode.fields import REWARD
    from offline_data.reports import video
    from offline_data.store.reader import open_reader

    if rerun and out is not None:
        raise UsageError("--rerun writes no file; remove --out or --rerun")
    entry = entry_named(context, dataset)
    if out is not None and out.endswith(".html"):
        if leaf is not None or fps is not None:
            raise UsageError("A page has all images; remove --leaf and --fps, or write a .mp4")
        return report(context, [dataset], out, episode=episode, force=force)
    reader = open_reader(entry.path)
    shown = film(reader, episode, leaf)
    name = str(entry.id)
    if rerun:
        span = slice(*episode_span(reader, episode))
        rewards = reader.step(REWARD)[span].ravel() if REWARD in reader.step_leaves else ()
        video.open_rerun(shown, rewards, f"{name} episode {episode}")
        return Result({"id": name, "episode": episode}, (), (name,), shown.notes)
    plain = re.sub(r"[^\w.-]+", "-", entry.id.name.rpartition("/")[2])
    path = new_file(out if out is not None else f"{plain}-{episode}.mp4", force)
    if fps is None:
        stated = reader.manifest.about.get("fps")
        fps = (
            float(stated)
            if isinstance(stated, (int, float)) and 0 < stated < video.FASTEST
            else 30.0
        )
    video.write_film(shown, path, fps)
    data = {"id": name, "episode": episode, "path": path, "leaf": shown.key, "fps": fps}
    data |= {"frames": shown.length, "width": shown.width, "height": shown.height}
    return Result(data, (str(path),), (str(path),), shown.notes)

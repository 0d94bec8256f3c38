"""`report` and `browse`: HTML pages and cards about datasets."""

import os
import re
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from offline_data.base.config import user_path
from offline_data.base.errors import NotFoundError, UsageError
from offline_data.base.files import write_user_file
from offline_data.base.plurals import plural
from offline_data_cli.names import entry_named
from offline_data_cli.options import Context, Dataset, Datasets, option
from offline_data_cli.render import say, stderr_is_terminal
from offline_data_cli.result import Result

if TYPE_CHECKING:
    from offline_data.store.library import Entry

Replace = Annotated[bool, option("Replace an existing file.", "--force")]
Out = Annotated[
    str | None, option("File to write. (default: NAME.html in this folder)", metavar="FILE")
]


class ReportPart(str, Enum):
    """Values of `report --only`."""

    episodes = "episodes"
    features = "features"
    findings = "findings"
    metadata = "metadata"


def report(
    context: Context,
    datasets: Datasets,
    out: Annotated[
        str | None,
        option("File to write. (default: NAME.html in this folder)", metavar="FILE"),
    ] = None,
    card: Annotated[
        bool, option("Print a dataset card instead. It is README.md for the Hugging Face Hub.")
    ] = False,
    episode: Annotated[
        int | None,
        option("Only this episode, in one file of at most about 16 MB.", metavar="N", min=0),
    ] = None,
    episodes: Annotated[
        str | None,
        option(
            "Episodes that the page plays. (default: outliers, the best, the worst and some at "
            "random, up to 4 MiB)",
            metavar="A:B",
        ),
    ] = None,
    only: Annotated[
        list[ReportPart] | None,
        option(
            "Write only this part. episodes, features, findings or metadata; may be repeated.",
            metavar="PART",
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        option(
            "Tokenizer that decodes texts: a file or a name on the hub. "
            "(default: the dataset's, if it is on this disk)",
            metavar="NAME",
        ),
    ] = None,
    force: Replace = False,
) -> Result:
    """Write an HTML page about a dataset, or comparing several."""
    from offline_data import api
    from offline_data.reports.pages.page import check_page_name

    named = [entry_named(context, dataset) for dataset in datasets]
    entries = list({entry.path: entry for entry in named}.values())
    if card:
        if len(entries) > 1:
            raise UsageError("--card takes one dataset", hint="run it for each of them")
        if episode is not None or episodes is not None or only or tokenizer:
            raise UsageError(
                "--card is Markdown; --episode, --episodes, --only and --tokenizer are for a page",
                hint="remove --card",
            )
        name = str(entries[0].id)
        if out is None or out == "-":
            text = api.card(entries[0].path, settings=context.settings, progress=context.progress)
            return Result({"id": name, "card": text}, (text.rstrip("\n"),), (name,))
        from offline_data.reports.pages.preview import card_files

        path = new_file(out, force)
        card_text, *picture = card_files(entries[0], context.progress, name=path.name).items()
        for file, content in picture:
            write_page(name, new_file(str(path.with_name(file)), force), content)
        return write_page(name, path, card_text[1])
    if len(entries) > 1 and (episode is not None or episodes is not None or only or tokenizer):
        raise UsageError(
            "--episode, --episodes, --only and --tokenizer take one dataset",
            hint="run it for each of them",
        )
    if episode is not None and (episodes is not None or only):
        other = "--only" if only else "--episodes"
        raise UsageError(f"--episode and {other} exclude each other", hint="remove one of them")
    if only and episodes is not None and "episodes" not in only:
        raise UsageError(
            "--episodes chooses episodes, and --only leaves them out", hint="--only episodes"
        )
    # names of datasets as those of files
    names = [re.sub(r"[^\w.-]+", "-", entry.id.name).strip("-.")[:100] for entry in entries]
    plain = "-vs-".join(name or "dataset" for name in names)[:120]
    if out is not None:
        check_page_name(out)
    path = new_file(out or f"{plain}{'' if episode is None else f'-{episode}'}.html", force)
    workers = context.settings.workers
    if len(entries) == 1:
        from offline_data.reports.pages.report import PARTS, episode_page, report_page

        if episode is not None:
            content = episode_page(entries[0], episode)
        else:
            from offline_data.text.decoder import find_decoder

            decode = find_decoder(context.settings.root, entries[0].manifest, tokenizer)
            content = report_page(
                entries[0],
                only=only or PARTS,
                episodes=_numbers(entries[0], episodes),
                workers=workers,
                progress=context.progress,
                decode=decode,
            )
        return write_page(str(entries[0].id), path, content)
    from offline_data.reports.pages.compare import compare_page

    content = compare_page(entries, workers=workers, progress=context.progress)
    return write_page([str(entry.id) for entry in entries], path, content)


def _numbers(entry: "Entry", episodes: str | None) -> range | None:
    """Return the episodes `A:B` of a dataset; raises `UsageError` if there are none."""
    from offline_data.formats.options import parse_range

    if episodes is None:
        return None
    count = int(entry.manifest.counts["episodes"])
    first, stop = parse_range(episodes)
    found = range(first or 0, count if stop is None else min(stop, count))
    if not found:
        raise UsageError(
            f"--episodes is {episodes!r}, and {entry.id} has episodes 0 to {count - 1:,}",
            hint="--episodes 0:10 takes the first ten",
        )
    return found


def compare(
    context: Context, datasets: Datasets, out: Out = None, force: Replace = False
) -> Result:
    """Write one HTML page that shows several datasets side by side."""
    if len({entry_named(context, name).path for name in datasets}) < 2:
        raise UsageError("compare takes two datasets or more", hint="name another ID")
    return report(context, datasets, out, force=force)


def card(
    context: Context,
    dataset: Dataset,
    out: Annotated[
        str | None, option("Write to this file. (default: print)", metavar="FILE")
    ] = None,
    force: Replace = False,
) -> Result:
    """Write a dataset card, README.md in the Hugging Face Hub's format."""
    return report(context, [dataset], out, card=True, force=force)


def browse(
    context: Context,
    port: Annotated[
        int,
        option(
            "Port to listen on. (default: any free port)",
            metavar="PORT",
            min=0,
            max=65535,
            show_default=False,
        ),
    ] = 0,
    no_open: Annotated[bool, option("Do not open the browser.")] = False,
    marks: Annotated[
        str | None,
        option("Add marks that were downloaded from a report first.", metavar="FILE"),
    ] = None,
) -> Result:
    """Look at datasets in a web browser, and mark episodes.

    Serves pages to this machine only, and changes nothing but marks.
    """
    import typer

    from offline_data.reports.pages.browse import DatasetServer

    if marks is not None:
        say(_add_marks(context, marks))
    with DatasetServer(context.settings, port) as server, suppress(KeyboardInterrupt):
        say(f"Datasets of {context.settings.root}: {server.url}")
        say("Ctrl-C stops the server.")
        if not no_open and stderr_is_terminal():
            with suppress(OSError):
                typer.launch(server.url)
        server.serve_forever()
    return Result({"stopped": True}, ("The server stopped.",))


def _add_marks(context: Context, file: str) -> str:
    """Add a download's marks to those of its dataset, and return a sentence about them."""
    from offline_data.base.ids import parse_id
    from offline_data.base.json import read_whole
    from offline_data.store.library import find
    from offline_data.store.marks import MOST_BYTES, Marks, marks_file, write_marks

    path = user_path(file, "--marks")
    found = Marks.of_download(read_whole(path, MOST_BYTES), str(path))
    entry = find(context.settings.root, parse_id(found.dataset))
    if entry is None:
        raise NotFoundError(
            f"{path} has marks of {found.dataset}, which is not in {context.settings.root}",
            hint="`offline-data list` shows the datasets that are",
        )
    write_marks(entry.path, entry.manifest, lambda marks: marks.with_all(found))
    return f"{plural(len(found.episodes), 'mark')} of {entry.id} added to {marks_file(entry.path)}"


def new_file(out: str, force: bool, name: str = "--out") -> Path:
    """Return the path of a file to write; raises `UsageError` if it exists, unless `force`."""
    if out == "-":
        raise UsageError(f"{name} is '-', standard output; expected a file", hint=f"{name} FILE")
    path = user_path(out, name)
    above = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    if path.is_dir() or not above.is_dir():
        wrong = "is a folder" if path.is_dir() else f"{above} is not a folder"
        raise UsageError(f"{path} cannot be written: {wrong}", hint=f"{name} FILE")
    if path.exists() and not force:
        raise UsageError(f"{path} exists", hint="choose another name, or replace it with --force")
    return path


def new_figure(out: str | None, force: bool) -> Path | None:
    """Return a figure's path, if any; raises as `new_file`, and `MissingDependencyError`."""
    from offline_data.reports.figure import check_format, require_matplotlib

    if out is None:
        return None
    path = new_file(out, force)
    check_format(path)
    require_matplotlib()
    return path


def write_page(name: str | list[str], path: Path, content: bytes) -> Result:
    """Write a file about one dataset or several, by id, and return its path as a result."""
    write_user_file(path, content)
    return Result({"id": name, "path": path, "bytes": len(content)}, (str(path),), (str(path),))

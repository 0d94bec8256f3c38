"""`report` and `browse`: HTML pages and cards about datasets."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from offline_data.config import user_path
from offline_data.errors import UsageError
from offline_data.files import disk_errors, write_durably
from offline_data_cli.names import entry_named
from offline_data_cli.options import Context, Dataset, Datasets, option
from offline_data_cli.render import say, stderr_is_terminal
from offline_data_cli.result import Result

Replace = Annotated[bool, option("Replace an existing file.", "--force")]
Out = Annotated[
    str | None, option("File to write. (default: NAME.html in this folder)", metavar="FILE")
]


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
    force: Replace = False,
) -> Result:
    """Write an HTML page about a dataset, or comparing several."""
    from offline_data import api

    named = [entry_named(context, dataset) for dataset in datasets]
    entries = list({entry.path: entry for entry in named}.values())
    if card:
        if len(entries) > 1:
            raise UsageError("--card takes one dataset", hint="run it for each of them")
        path = new_file(out, force) if out is not None else None
        text = api.card(entries[0].path, settings=context.settings, progress=context.progress)
        name = str(entries[0].id)
        if path:
            return write_page(name, path, text.encode())
        return Result({"id": name, "card": text}, (text.rstrip("\n"),), (name,))
    # names of datasets as those of files
    names = [re.sub(r"[^\w.-]+", "-", entry.id.name).strip("-.")[:100] for entry in entries]
    path = new_file(out or f"{'-vs-'.join(name or 'dataset' for name in names)[:120]}.html", force)
    workers = context.settings.workers
    if len(entries) == 1:
        from offline_data.pages.report import report_page

        content = report_page(entries[0], workers=workers, progress=context.progress)
        return write_page(str(entries[0].id), path, content)
    from offline_data.pages.compare import compare_page

    content = compare_page(entries, workers=workers, progress=context.progress)
    return write_page([str(entry.id) for entry in entries], path, content)


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
) -> Result:
    """Browse the datasets on this disk in a web browser.

    Serves read-only pages, to this machine only.
    """
    import typer

    from offline_data.pages.browse import DatasetServer

    with DatasetServer(context.settings, port) as server, suppress(KeyboardInterrupt):
        say(f"Datasets of {context.settings.root}: {server.url}")
        say("Ctrl-C stops the server.")
        if not no_open and stderr_is_terminal():
            with suppress(OSError):
                typer.launch(server.url)
        server.serve_forever()
    return Result({"stopped": True}, ("The server stopped.",))


def new_file(out: str, force: bool) -> Path:
    """Return the path of a file to write; raises `UsageError` if it exists, unless `force`."""
    path = user_path(out, "--out")
    if path.is_dir() or not path.parent.is_dir():
        wrong = "is a folder" if path.is_dir() else f"{path.parent} is not a folder"
        raise UsageError(f"{path} cannot be written: {wrong}", hint="--out FILE")
    if path.exists() and not force:
        raise UsageError(f"{path} exists", hint="choose another name, or replace it with --force")
    return path


def write_page(name: str | list[str], path: Path, content: bytes) -> Result:
    """Write a file about one dataset or several, by id, and return its path as a result."""
    with disk_errors(path.parent):
        write_durably(path, content)
    return Result({"id": name, "path": path, "bytes": len(content)}, (str(path),), (str(path),))

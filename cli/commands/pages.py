"""`report`, `compare` and `browse`: HTML pages about datasets."""

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

from offline_data_cli.commands.pictures import Replace, new_file, written
from offline_data_cli.names import entry_named
from offline_data_cli.options import Context, Dataset, Datasets, option
from offline_data_cli.render import say, stderr_is_terminal
from offline_data_cli.result import Result

if TYPE_CHECKING:
    from offline_data.store.library import Entry

Out = Annotated[
    str | None, option("File to write. (default: NAME.html in this folder)", metavar="FILE")
]


def report(context: Context, dataset: Dataset, out: Out = None, force: Replace = False) -> Result:
    """Write one self-contained HTML page about a dataset."""
    from offline_data.pages.report import report_page

    entry = entry_named(context, dataset)
    path = new_file(out or f"{_file_name(entry)}.html", force)
    content = report_page(entry, workers=context.settings.workers, progress=context.progress)
    return written(str(entry.id), path, content)


def compare(
    context: Context, datasets: Datasets, out: Out = None, force: Replace = False
) -> Result:
    """Write one HTML page that shows several datasets side by side."""
    from offline_data.errors import UsageError
    from offline_data.pages.compare import compare_page

    entries = list({one.path: one for one in (entry_named(context, d) for d in datasets)}.values())
    if len(entries) < 2:
        raise UsageError("compare takes two datasets or more", hint="name another ID")
    path = new_file(out or f"{'-vs-'.join(map(_file_name, entries))[:120]}.html", force)
    content = compare_page(entries, workers=context.settings.workers, progress=context.progress)
    return written([str(entry.id) for entry in entries], path, content)


def browse(
    context: Context,
    port: Annotated[
        int, option("Port of the loopback address. (default: any free one)", min=0, max=65535)
    ] = 0,
    open_: Annotated[
        bool, option("Open the page in a browser. (default: in a terminal)", "--open/--no-open")
    ] = True,
) -> Result:
    """Serve a read-only page about all datasets on this disk, to this machine only."""
    import typer

    from offline_data.pages.browse import DatasetServer

    with DatasetServer(context.settings, port) as server, suppress(KeyboardInterrupt):
        say(f"Datasets of {context.settings.root}: {server.url}")
        say("Ctrl-C stops the server.")
        if open_ and stderr_is_terminal():
            with suppress(OSError):
                typer.launch(server.url)
        server.serve_forever()
    return Result({"stopped": True}, ("The server stopped.",))


def _file_name(entry: "Entry") -> str:
    """Return the name of a dataset as that of a file."""
    return re.sub(r"[^\w.-]+", "-", entry.id.name).strip("-.")[:100] or "dataset"

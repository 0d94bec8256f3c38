"""`report`, `compare` and `browse`: HTML pages about datasets."""

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from offline_data.files import human_bytes
from offline_data_cli.names import entry_named
from offline_data_cli.options import Context, Dataset, Datasets, option
from offline_data_cli.render import say, stderr_is_terminal
from offline_data_cli.result import Result

if TYPE_CHECKING:
    from offline_data.store.library import Entry

Out = Annotated[
    Path | None, option("File to write. (default: NAME.html in this folder)", metavar="FILE")
]
Replace = Annotated[bool, option("Replace an existing file.", "--force")]


def report(context: Context, dataset: Dataset, out: Out = None, force: Replace = False) -> Result:
    """Write one self-contained HTML page about a dataset."""
    from offline_data.pages.report import report_page, require_new

    entry = entry_named(context, dataset)
    path = out or Path(f"{_file_name(entry)}.html")
    require_new(path, force=force)
    content = report_page(entry, workers=context.settings.workers, progress=context.progress)
    return _written(content, path, [entry], force)


def compare(
    context: Context, datasets: Datasets, out: Out = None, force: Replace = False
) -> Result:
    """Write one HTML page that shows several datasets side by side."""
    from offline_data.errors import UsageError
    from offline_data.pages.compare import compare_page
    from offline_data.pages.report import require_new

    entries = list(
        {entry.path: entry for entry in (entry_named(context, d) for d in datasets)}.values()
    )
    if len(entries) < 2:
        raise UsageError("compare takes two datasets or more", hint="name another ID")
    path = out or Path(f"{'-vs-'.join(map(_file_name, entries))[:120]}.html")
    require_new(path, force=force)
    content = compare_page(entries, workers=context.settings.workers, progress=context.progress)
    return _written(content, path, entries, force)


def browse(
    context: Context,
    port: Annotated[
        int, option("Port of the loopback address. (default: any free one)", min=0, max=65535)
    ] = 0,
    no_open: Annotated[
        bool, option("Do not open the page in a browser. (default: open it, in a terminal)")
    ] = False,
) -> Result:
    """Serve a read-only page about all datasets on this disk, to this machine only."""
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


def _file_name(entry: "Entry") -> str:
    """Return the name of a dataset as that of a file."""
    return re.sub(r"[^\w.-]+", "-", entry.id.name).strip("-.")[:100] or "dataset"


def _written(content: bytes, path: Path, entries: "list[Entry]", force: bool) -> Result:
    from offline_data.pages.report import write_page

    write_page(content, path, force=force)
    ids = [str(entry.id) for entry in entries]
    data = {"ids": ids, "path": path.absolute(), "bytes": len(content)}
    return Result(data, (f"{path}: {human_bytes(len(content))}",), (str(path),))

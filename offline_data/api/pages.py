"""`report`, `view` and `browse`: pages about datasets, in one file or from a server."""

from __future__ import annotations

import os
import threading
import webbrowser
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from offline_data.api.arguments import DatasetLike, OnDisk, entry_of, settings_of
from offline_data.base.progress import progress_of
from offline_data.document.html import element

if TYPE_CHECKING:
    from typing_extensions import Self

    from offline_data.base.config import Settings
    from offline_data.base.progress import Progress
    from offline_data.document.page import ReportPage, ReportPart

_INLINE_BYTES = 2 << 20
"""Bytes of the episodes of a page that is not written to a file: a notebook keeps it."""


def report(
    data: DatasetLike | OnDisk,
    path: str | os.PathLike[str] | None = None,
    *,
    only: ReportPart | Collection[ReportPart] | None = None,
    root: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    progress: bool | Progress = True,
) -> ReportPage:
    """Return the page that `offline-data report` writes; see `Dataset.report`."""
    from offline_data.document.page import ReportPage
    from offline_data.reports.pages.page import check_page_name
    from offline_data.reports.pages.report import EPISODES_BYTES, PARTS, report_page
    from offline_data.text.decoder import find_decoder

    if path is not None:
        check_page_name(path)
    chosen = settings_of(root, settings)
    entry = entry_of(data, chosen)
    content = report_page(
        entry,
        only=PARTS if only is None else [only] if isinstance(only, str) else only,
        workers=chosen.workers,
        progress=progress_of(progress),
        decode=find_decoder(chosen.root, entry.manifest),
        budget=_INLINE_BYTES if path is None else EPISODES_BYTES,
    )
    page = ReportPage(f"Report of {entry.id}", content.decode())
    if path is not None:
        page.save(path)
    return page


def view(
    data: DatasetLike | OnDisk,
    episode: int,
    *,
    root: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
) -> ReportPage:
    """Return the page that `offline-data report --episode` writes, small enough to show inline.

    See `Dataset.view`.
    """
    from offline_data.document.page import ReportPage
    from offline_data.reports.pages.report import episode_page

    entry = entry_of(data, settings_of(root, settings))
    content = episode_page(entry, episode, budget=_INLINE_BYTES).decode()
    return ReportPage(f"{entry.id}, episode {episode}", content)


class Browser:
    """Pages of datasets, served to this machine until `close`, or until this process ends."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.url: str = server.url
        """The secret address to open first."""
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Datasets of {self._server.settings.root}: {self.url}"

    def _repr_html_(self) -> str:
        return element("a", repr(self), href=self.url, target="_blank")


def browse(
    *,
    port: int = 0,
    open_browser: bool = True,
    root: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
) -> Browser:
    """Serve pages of the datasets on this disk, read-only and to this machine only.

    Returns at once: the server runs in a thread.

    Args:
        port: Port to listen on; 0: any free one.
        open_browser: Whether to open the first page in a web browser.

    Raises:
        AccessError: The port cannot be used.

    Example:
        >>> import tempfile, urllib.request
        >>> with browse(open_browser=False, root=tempfile.mkdtemp()) as pages:
        ...     urllib.request.urlopen(pages.url).status
        200
    """
    from offline_data.reports.pages.browse import DatasetServer

    found = Browser(DatasetServer(settings_of(root, settings), port))
    if open_browser:
        webbrowser.open(found.url)
    return found

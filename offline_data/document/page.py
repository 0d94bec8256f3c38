"""A whole page of HTML as the result of a function."""

from __future__ import annotations

import os
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

from offline_data.base.config import user_path
from offline_data.base.files import human_bytes, write_user_file
from offline_data.document.html import Html, element

ReportPart = Literal["episodes", "features", "findings", "metadata"]

_STYLE = "width: 100%; height: 720px; border: 0"


@dataclass(frozen=True, repr=False)
class ReportPage:
    """A page in one file, without links to other files; a notebook shows it in a frame."""

    title: str
    html: str

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file, replacing an existing one, and return its path.

        Raises `UsageError`, `AccessError`, `NoSpaceError`: the path cannot be used.
        """
        file = user_path(path, "the page")
        write_user_file(file, self.html.encode())
        return file

    def __repr__(self) -> str:
        return (
            f"{self.title}: a page of {human_bytes(len(self.html.encode()))}; save(path) writes it"
        )

    def _repr_html_(self) -> str:
        # Without the notebook's origin: the page has texts of a stranger.
        return element(
            "iframe",
            title=self.title,
            srcdoc=Html(escape(self.html)),
            sandbox="allow-scripts allow-downloads",
            style=_STYLE,
        )

"""Griffe extension: a section `Example:` is one of examples, as `Examples:` is."""

from __future__ import annotations

import re
from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    """Renames the sections as docstrings are read."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Rename the sections of an object."""
        if obj.docstring:
            obj.docstring.value = re.sub(
                r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE
            )

"""Griffe extension: `Example:` is a section of examples, as `Examples:` is, and comes right after the first paragraph."""

from __future__ import annotations

import re
from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    """Renames and moves the sections as docstrings are read."""

    def on_instance(self, *, obj: Any, **_: Any) -> None:
        """Rename and move the section of an object."""
        if obj.docstring:
            obj.docstring.value = example_first(obj.docstring.value)


def example_first(text: str) -> str:
    """Return a docstring with its example after the first paragraph."""
    found = re.search(r"^Examples?:\n((?:[ \t]+.*\n|\n)*(?:[ \t]+.*)?)", text, re.MULTILINE)
    if found is None:
        return text
    summary, _, rest = (text[: found.start()] + text[found.end() :]).partition("\n\n")
    parts = summary, f"Examples:\n{found[1]}", rest
    return "\n\n".join(part.rstrip() for part in parts if part.strip())

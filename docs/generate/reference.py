"""The reference of the Python package: its public names by task; mkdocstrings writes their text."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from docs.generate.text import page

STUB = Path(__file__).resolve().parents[2] / "offline_data" / "__init__.pyi"
GROUPS: dict[str, dict[str, str]] = yaml.safe_load(
    Path(__file__).with_name("reference.yml").read_text("utf-8")
)
"""A sentence and the names of each page, by its title."""


def public_names() -> list[str]:
    """Return the public names of the package, as its stub lists them."""
    names = re.findall(r"\bas (\w+)", STUB.read_text("utf-8"))
    return [name for name in names if name != "__version__"]


def path_of(title: str) -> str:
    """Return the path of a page."""
    return f"python/{re.sub('[^a-z]+', '-', title.lower().replace(chr(39), ''))}.md"


def pages() -> dict[str, str]:
    """Return the pages by their path in docs/."""
    lines = []
    made = {}
    for title, group in GROUPS.items():
        about, names = group["about"], group["names"].split()
        target = path_of(title).removeprefix("python/")
        links = ", ".join(f"[`{name}`]({target}#offline_data.{name})" for name in names)
        lines.append(f"## {title}\n\n{about}\n\n{links}")
        made[path_of(title)] = page(
            f"# {title}", about, *(f"::: offline_data.{name}" for name in names)
        )
    head = page(
        "# Python",
        "`import offline_data` has all names; modules are imported on first use, so that the import itself takes "
        "milliseconds and needs neither torch nor numpy. Names of TorchRL's are listed by `offline_data.torchrl`, "
        "those of AgileRL's by `offline_data.agilerl`. Parameters with one meaning are explained once: "
        "`settings`, `root` and `progress` in [Contributing](../contributing.md), those of `load_dataset` "
        "[there](load-and-sample.md#offline_data.load_dataset).",
        *lines,
    )
    return {"python/index.md": head, **made}

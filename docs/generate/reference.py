"""The reference of the Python package: functions by task, a page for each class; mkdocstrings writes their text."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from docs.generate.text import page

STUB = Path(__file__).resolve().parents[2] / "offline_data" / "__init__.pyi"
GROUPS: dict[str, dict[str, str]] = yaml.safe_load(
    Path(__file__).with_name("reference.yml").read_text("utf-8")
)
"""A sentence and the names of each group, by its title."""
EXAMPLES: dict[str, str] = yaml.safe_load(
    Path(__file__).with_name("examples.yml").read_text("utf-8")
)
"""Examples of classes whose docstring has none."""


def public_names() -> list[str]:
    """Return the public names of the package, as its stub lists them."""
    names = re.findall(r"\bas (\w+)", STUB.read_text("utf-8"))
    return [name for name in names if name != "__version__"]


def path_of(title: str) -> str:
    """Return the path of a group's functions."""
    return f"python/{re.sub('[^a-z]+', '-', title.lower().replace(chr(39), ''))}.md"


def names_of(title: str) -> list[str]:
    """Return the names of a group."""
    return GROUPS[title]["names"].split()


def page_of(name: str, title: str) -> str:
    """Return the path of the page that has a name of a group; a class has its own."""
    return f"python/{name}.md" if _is_class(name) else path_of(title)


def navigation() -> list[dict[str, list[str]]]:
    """Return the pages of each group: its functions, then its classes."""
    return [
        {title: sorted({page_of(name, title): None for name in names_of(title)}, key=_classes_last)}
        for title in GROUPS
    ]


def pages() -> dict[str, str]:
    """Return the pages by their path in docs/."""
    made = {}
    for title, group in GROUPS.items():
        functions = [f"::: offline_data.{name}" for name in names_of(title) if not _is_class(name)]
        if functions:
            made[path_of(title)] = page(f"# {title}", group["about"], *functions)
        for name in filter(_is_class, names_of(title)):
            made[page_of(name, title)] = _class(name)
    return {"python/index.md": _index(), **made}


def _is_class(name: str) -> bool:
    return name[0].isupper() and "." not in name


def _classes_last(path: str) -> bool:
    return path != path.lower()


def _class(name: str) -> str:
    elsewhere = [
        method.partition(".")[2]
        for title in GROUPS
        for method in names_of(title)
        if method.startswith(f"{name}.")
    ]
    example, text = EXAMPLES.get(name), f"::: offline_data.{name}"
    if elsewhere:
        text += f"""
    options:
      filters: ["!^_", "^__init__$", "!^({"|".join(elsewhere)})$"]"""
    return page(f"# {name}", f"```python\n{example}```" if example else "", text)


def _index() -> str:
    lines = []
    for title, group in GROUPS.items():
        links = ", ".join(
            f"[`{name}`]({page_of(name, title).removeprefix('python/')}#offline_data.{name})"
            for name in names_of(title)
        )
        lines.append(f"## {title}\n\n{group['about']}\n\n{links}")
    return page(
        "# Python",
        "`import offline_data` has all names; modules are imported on first use, so that the import itself takes "
        "milliseconds and needs neither torch nor numpy. Names of TorchRL's are listed by `offline_data.torchrl`, "
        "those of AgileRL's by `offline_data.agilerl`. Parameters with one meaning are explained once: "
        "`settings`, `root` and `progress` in [Contributing](../contributing.md), those of `load_dataset` "
        "[there](load.md#offline_data.load_dataset).",
        *lines,
    )

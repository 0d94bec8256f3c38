"""MkDocs hook: adds the pages made of the package, the navigation, and rewrites links that leave docs/.

Pages are Markdown that reads well on GitHub: a link to a file of the repository becomes one to its page
on the site or, without one, to the file in the repository.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "cli")]

from docs.generate import commands, gallery, notebook, reference, rules, sources

OUTSIDE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "cache_layout.md": "on-disk-layout.md",
}
"""Files outside docs/ that have a page, and its path."""
_PAIR = re.compile(
    r'<picture>\s*<source [^>]*srcset="([^"]+)">\s*<img ([^>]*)src="([^"]+)"([^>]*)>\s*</picture>'
)
"""A picture for dark and one for light pages, as GitHub shows them."""
_LINK = re.compile(r"(\]\(|\]: +|(?:src|srcset|href)=\")([^)\s\"]+)")


def generated() -> dict[str, str]:
    """Return all pages that are not files of docs/, by their path there."""
    moved = {page: (ROOT / path).read_text("utf-8") for path, page in OUTSIDE.items()}
    made = {**sources.pages(), **commands.pages(), **rules.pages(), **reference.pages()}
    return {**moved, **made, **gallery.pages(), "notebook.md": notebook.page()}


def navigation() -> list[Any]:
    """Return the navigation; every page of docs/ is in it."""
    docs = ROOT / "docs"
    own = sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))
    made = generated()

    def source(name: str) -> list[str]:
        return [
            path for path in (f"sources/{name}.md", f"sources/{name}-datasets.md") if path in made
        ]

    def below(folder: str) -> list[str]:
        return [path for path in own if path.startswith(folder)]

    guides = [
        *below("guides/"),
        "your-files.md",
        "record.md",
        "viewer.md",
        *gallery.pages(),
        "episodes.md",
        "alignment.md",
        "share.md",
        "export.md",
        "lerobot.md",
    ]
    verbs = {
        panel: [f"commands/{name}.md" for name in some] for panel, some in commands.panels().items()
    }
    places: list[dict[str, Any]] = [
        {"Start": ["index.md", "start.md", "notebook.md", "comparison.md"]},
        {"Guides": [*guides, {"Recipes": below("recipes/")}]},
        {"Datasets in CI": "datasets-in-ci.md"},
        {"Datasets": ["sources/index.md", *({name: source(name)} for name in sources.FACTS)]},
        {"Commands": ["commands/index.md", *({panel: pages} for panel, pages in verbs.items())]},
        {"Rules": ["rules.md", *(path for path in made if path.startswith("rules/"))]},
        {"Python": ["python/index.md", *reference.navigation()]},
        {"On-disk layout": "on-disk-layout.md"},
        {"How fast": "how-fast.md"},
        {"Migrating": "migrate.md"},
        {"Glossary": "glossary.md"},
        {"Security": "security.md"},
        {"Versions": "versions.md"},
        {"Changelog": "changelog.md"},
    ]
    missing = {path for one in places for path in one.values() if isinstance(path, str)} - {
        *own,
        *made,
    }
    places = [one for one in places if missing.isdisjoint(map(str, one.values()))]
    placed = set(re.findall(r"[\w/.-]+\.md", str(places)))
    places.append(
        {"Contributing": ["contributing.md", *(path for path in own if path not in placed)]}
    )
    return places


def rewrite(text: str, origin: str, page: str) -> str:
    """Return Markdown of the file `origin` of the repository with links as its page needs them.

    Example:
        >>> rewrite("[a](../cache_layout.md#x)", "docs/share.md", "share.md")
        '[a](on-disk-layout.md#x)'
    """

    def link(match: re.Match[str]) -> str:
        path, hash_, rest = match[2].partition("#")
        if not path or re.match(r"[a-z]+:|/|\{", path):
            return match[0]
        file = normpath(join(dirname(origin), path))
        if file in OUTSIDE or file.startswith("docs/"):
            target = relpath(OUTSIDE.get(file, file.removeprefix("docs/")), dirname(page) or ".")
        else:
            target = f"{REPOSITORY}/{'tree' if (ROOT / file).is_dir() else 'blob'}/main/{file}"
        return f"{match[1]}{target}{hash_}{rest}"

    parts = re.split(r"(^```.*?^```$|`[^`\n]+`)", text, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [_LINK.sub(link, part) for part in parts[::2]]
    return "".join(parts)


REPOSITORY = ""
"""Address of the repository, as mkdocs.yml has it."""


def on_config(config: Any) -> Any:
    """Set the navigation."""
    global REPOSITORY
    REPOSITORY = config.repo_url
    config.nav = navigation()
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages that are made, and the reports of the gallery."""
    from mkdocs.structure.files import File

    for path, text in generated().items():
        if files.get_file_from_path(path) is None:
            files.append(File.generated(config, path, content=text))
    for path, file in gallery.files().items():
        files.append(File.generated(config, path, abs_src_path=str(file)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001
    """Rewrite the links of a page."""
    path = page.file.src_uri
    origins = {page: file for file, page in OUTSIDE.items()}
    if path == "rules.md":  # a file of the repository, which knows no pages of rules
        markdown = re.sub(
            r"(?m)^## (RL\d+) .*$", r"\g<0>\n\n[Bad and good data](rules/\1.md)", markdown
        )
    if path == "plugins.md":  # mkdocstrings writes the text of each name
        names = re.findall(r"(?m)^\| `(\w+)` \|", markdown)
        markdown = re.sub(r"(?m)^\| `(\w+)` \|", r"| [`\1`](#offline_data.plugins.\1) |", markdown)
        markdown = "\n\n".join([markdown, *(f"::: offline_data.plugins.{name}" for name in names)])
    markdown = rewrite(markdown, origins.get(path, f"docs/{path}"), path)
    return _PAIR.sub(lambda pair: _of_the_scheme(pair, page.url), markdown)


def _of_the_scheme(pair: re.Match[str], page: str) -> str:
    """Return both pictures; the theme shows the one of the scheme that the reader has chosen."""
    dark, before, light, after = pair.groups()
    up = "../" * page.count("/")  # HTML is not rewritten for the address of the page
    return "".join(
        f'<img {before}src="{up}{file}#only-{scheme}"{after} loading="lazy">'
        for scheme, file in (("dark", dark), ("light", light))
    )


def on_post_page(output: str, **_: Any) -> str:
    """Name the theme's search for screen readers."""
    return output.replace('role="dialog">', 'role="dialog" aria-label="Search">')

"""The pages that docs/generate makes: everything has its place, and links lead to the page on the site."""

from __future__ import annotations

import ast
import collections
import inspect
import re
from pathlib import Path
from textwrap import dedent

import pytest

import offline_data
from docs.generate import commands, docstrings, figures, hook, reference, rules, sources
from offline_data.analysis.checks.reference import rule_texts
from offline_data.analysis.checks.rules.files import advisories
from offline_data.formats.registry import iter_catalogs, source_names
from offline_data_cli.app import command_tree
from offline_data_cli.help import EXAMPLES
from offline_data_cli.main import EXIT_CODES
from offline_data_cli.verbs import HIDDEN
from tests.remedy import assert_none

ROOT = Path(__file__).parents[2]
LARGEST = 400_000
"""Bytes of Markdown of a page, which is about a third of its HTML."""


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return hook.generated()


def test_every_source_and_dataset(pages: dict[str, str]) -> None:
    assert_none(
        (name for name in source_names() if f"sources/{name}.md" not in pages),
        "describe these sources in docs/generate/sources.yml",
    )
    for name in source_names():
        assert f"# {name}\n" in pages[f"sources/{name}.md"]
        assert f"({name}.md)" in pages["sources/index.md"]
    for catalog in iter_catalogs():
        page = pages[f"sources/{catalog.name}-datasets.md"]
        for entry in catalog.catalog():
            assert f'load_dataset("{catalog.name}:{entry.name}"' in page
            assert f"(#{sources.anchor(entry.name)})" in page
        anchors = re.findall(r"\{ #(\S+) \}", page)
        assert len(anchors) == len(set(anchors)) == len(catalog.catalog())


def test_the_sources_that_most_look_for_are_first(pages: dict[str, str]) -> None:
    listed = re.findall(r"^\| \[`(\w+)`\]", pages["sources/index.md"], re.MULTILINE)
    assert listed[:3] == ["d4rl", "minari", "lerobot"]
    assert sorted(listed) == sorted(source_names())
    (datasets,) = (one["Datasets"] for one in hook.navigation() if "Datasets" in one)
    assert [next(iter(one)) for one in datasets[1:]] == listed


def test_published_defects_are_beside_the_datasets_that_have_them(pages: dict[str, str]) -> None:
    sections = pages["sources/d4rl-datasets.md"].split("\n### ")
    (maze,) = [one for one in sections if one.startswith("<code>maze2d-umaze-v1</code>")]
    (hopper,) = [one for one in sections if one.startswith("<code>hopper-medium-v2</code>")]
    assert maze.count("**Defect**") == 2
    assert "**Defect**" not in hopper
    assert all(one.links[0] in pages["rules/RL004.md"] for one in advisories())


def test_every_verb_with_every_option_and_example(pages: dict[str, str]) -> None:
    tree = command_tree()
    shown_verbs = [name for name in tree.commands if name not in HIDDEN]
    assert len(shown_verbs) + len(HIDDEN) == len(tree.commands)
    assert not [path for path in pages if path.removeprefix("commands/")[:-3] in HIDDEN]
    for name in shown_verbs:
        command, page = tree.commands[name], pages[f"commands/{name}.md"]
        assert f"({name}.md)" in pages["commands/index.md"]
        for one in [command, *getattr(command, "commands", {}).values()]:
            for param in one.params:
                names = param.opts if param.param_type_name == "option" else [param.metavar]
                place = "commands/index.md" if param.name in commands.GLOBALS else ""
                shown = re.sub(r"<[^>]+>", "", pages[place] if place else page)
                for text in names:
                    listed = text.replace("|", "&#124;").replace("<", "&lt;") in shown
                    assert listed or param.hidden, (name, text)
        for example in EXAMPLES.get(name, ()):
            assert f"$ offline-data {example}" in page or f"$ {example}" in page
    assert all(f"| {code} | " in pages["commands/index.md"] for _, code in EXIT_CODES)


def test_every_rule_with_bad_and_good_data(pages: dict[str, str]) -> None:
    assert_none(
        rules.EXAMPLES.keys() ^ rule_texts().keys(),
        "docs/generate/rules.yml has an example, `bad` and `good`, for each rule and for nothing else",
    )
    for code, text in rule_texts().items():
        assert rules.EXAMPLES[code]["bad"] != rules.EXAMPLES[code]["good"], code
        assert text.summary in pages[f"rules/{code}.md"]
        again = f"{code} is missing: run `offline-data rule --all > docs/rules.md`"
        assert f"#{code.lower()}-{text.name}" in (ROOT / "docs" / "rules.md").read_text("utf-8"), (
            again
        )


def test_every_public_name_once(pages: dict[str, str]) -> None:
    listed = collections.Counter(
        name for title in reference.GROUPS for name in reference.names_of(title) if "." not in name
    )
    assert_none(
        sorted(listed - collections.Counter(reference.public_names()))
        + sorted(collections.Counter(reference.public_names()) - listed),
        "name each public name of offline_data/__init__.pyi once in a group of docs/generate/reference.yml",
    )
    for title in reference.GROUPS:
        for name in reference.names_of(title):
            page = pages[reference.page_of(name, title)]
            assert f"\n::: offline_data.{name}\n" in page
            assert name in listed or name.partition(".")[2] in pages["python/Dataset.md"]
            assert name not in listed or name.islower() or page.count(":::") == 1


LEAF = re.compile(
    r"(?<![-={])\bleaf\b(?!:)|\b(all|any|have|its|no|of|other|same|some|text|the|with|\d+) leaves\b",
    re.IGNORECASE,
)
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)


def texts_of(source: str) -> str:
    """Return the strings in a line that are more than a word, without expressions and docstrings."""
    strings = re.findall(r'"([^"\n]*)"', re.sub(r'""".*?"""', "", source, flags=re.DOTALL))
    return "\n".join(
        re.sub(r"\{([^{}]|\{[^{}]*\})*\}", "", text) for text in strings if " " in text
    )


@pytest.mark.slow
def test_a_feature_has_one_name(pages: dict[str, str]) -> None:
    own = {str(path): path.read_text("utf-8") for path in (ROOT / "docs").rglob("*.md")}
    texts = {page: CODE.sub("", text) for page, text in (pages | own).items()}
    for name in reference.public_names():
        thing = getattr(offline_data, name)
        parts = [thing, *(vars(thing).values() if isinstance(thing, type) else ())]
        ours = (one for one in parts if str(getattr(one, "__module__", "")).startswith("offline"))
        texts[name] = "\n".join(CODE.sub("", one.__doc__ or "") for one in ours)
    code = [file for folder in ("offline_data", "cli") for file in (ROOT / folder).rglob("*.py")]
    texts |= {str(file): texts_of(file.read_text("utf-8")) for file in code}
    assert_none(
        (f"{name}: {found[0]}" for name, text in texts.items() if (found := LEAF.search(text))),
        "call it a feature, as docs/glossary.md has it: `leaf` is in keys and options alone",
    )


EXAMPLE = re.compile("^(Examples?:|```python)$", re.MULTILINE)


def docstring(class_: type) -> str:
    """Return the docstring in the source; tensorclasses have another in memory."""
    (node,) = ast.parse(dedent(inspect.getsource(class_))).body
    assert isinstance(node, ast.ClassDef)
    return ast.get_docstring(node) or ""


@pytest.mark.slow
def test_the_page_of_a_class_begins_with_an_example(pages: dict[str, str]) -> None:
    classes = [name for name in reference.public_names() if name[0].isupper()]
    documented = {
        name for name in classes if EXAMPLE.search(docstring(getattr(offline_data, name)))
    }
    assert_none(
        set(classes) - documented - reference.EXAMPLES.keys(),
        "give these classes an example, in the docstring or in docs/generate/examples.yml",
    )
    assert not reference.EXAMPLES.keys() - set(classes)
    for name in reference.EXAMPLES:
        assert pages[f"python/{name}.md"].startswith(f"# {name}\n\n```python\n")
    first = docstrings.example_first(
        "Add.\n\nArgs:\n    a: One.\n\nExample:\n    >>> add(1)\n    2\n"
    )
    assert first == "Add.\n\nExamples:\n    >>> add(1)\n    2\n\nArgs:\n    a: One."
    assert docstrings.example_first("Add.\n\nArgs:\n    a: One.") == "Add.\n\nArgs:\n    a: One."


def test_the_navigation_has_every_page_and_no_other(pages: dict[str, str]) -> None:
    placed = re.findall(r"[\w/.-]+\.md", str(hook.navigation()))
    own = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert_none(
        {*(page for page in placed if placed.count(page) > 1), *(set(placed) ^ (own | set(pages)))},
        "each page has one place in `navigation` of docs/generate/hook.py, and each place a page",
    )


def test_pages_are_not_huge(pages: dict[str, str]) -> None:
    assert_none(
        (path for path, text in pages.items() if len(text.encode()) > LARGEST),
        f"divide these pages, or list less on them: more than {LARGEST:,} bytes load slowly",
    )


def test_figures_have_dark_colours() -> None:
    pictures = ROOT / "docs" / "pictures"
    plain = [path for path in pictures.glob("*.svg") if not re.search("-(dark|light)$", path.stem)]
    assert len(plain) >= 4
    assert_none(
        (path.name for path in plain if figures.QUERY not in path.read_text("utf-8")),
        "run `python docs/generate/figures.py docs/pictures/NAME.svg`",
    )
    for path in plain:  # black and white would stay as they are on a dark page
        text = path.read_text("utf-8")
        style = text[text.index(figures.QUERY) : text.index("</defs>")]
        colours = set(re.findall("(?:fill|stroke): #[0-9a-f]{6}", text.replace(style, "")))
        assert {one for one in colours if one[-6:] in {"000000", "ffffff"}} <= {
            one for one in colours if f'"{one}"' in style
        }


@pytest.mark.parametrize(
    ("file", "page", "pairs", "folder"),
    [("index.md", "", 2, "pictures"), ("viewer.md", "viewer/", 1, "../pictures")],
)
def test_a_pair_of_pictures_follows_the_scheme_of_the_page(
    file: str, page: str, pairs: int, folder: str
) -> None:
    text = (ROOT / "docs" / file).read_text("utf-8")
    assert text.count("<picture>") == pairs
    made = hook._PAIR.sub(lambda pair: hook._of_the_scheme(pair, page), text)
    assert "<picture>" not in made
    for scheme in ("dark", "light"):
        assert re.search(rf'src="{folder}/viewer-{scheme}.webp#only-{scheme}" width="1280"', made)


@pytest.mark.parametrize(
    ("link", "origin", "page", "expected"),
    [
        ("[a](../cache_layout.md#x)", "docs/share.md", "share.md", "[a](on-disk-layout.md#x)"),
        ("[a](docs/share.md)", "CHANGELOG.md", "changelog.md", "[a](share.md)"),
        ("[a](../share.md)", "docs/recipes/iql.md", "recipes/iql.md", "[a](../share.md)"),
        ("[a](../README.md)", "docs/share.md", "share.md", "[a](R/blob/main/README.md)"),
        ("[a](../benchmarks)", "docs/share.md", "share.md", "[a](R/tree/main/benchmarks)"),
        ("[a](https://x.example/y.md)", "docs/share.md", "share.md", None),
        ("[a](#below)", "docs/share.md", "share.md", None),
        ("`[a](../README.md)`", "docs/share.md", "share.md", None),
        ("```\n[a](../README.md)\n```", "docs/share.md", "share.md", None),
    ],
)
def test_links(
    link: str, origin: str, page: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook, "REPOSITORY", "R")
    assert hook.rewrite(link, origin, page) == (expected or link)
